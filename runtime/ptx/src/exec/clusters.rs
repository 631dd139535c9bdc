//! Clusters: blocks that run together and access each other's shared memory.
//!
//! # The barrier of the cluster
//! A thread arrives at it first, and waits later. The waits of a phase end when all threads that
//! have not exited have arrived. A thread may be late: then the phase ends before it waits, and
//! its wait ends immediately. It cannot arrive again before. PTX ISA 9.7.13.3, barrier.cluster.
//!
//! The blocks run one after the other on one thread, each until its threads wait or its turn ends.
//! Then the barrier is looked at.

mod memory;

pub(crate) use memory::{ClusterMemory, GAP, MOST_SHARED_BYTES, map_address, rank_of_address, upper_part};

use super::aligned::Aligned;
use super::block::{Block, Progress};
use super::checks::{Checker, ClusterState};
use super::context::{Context, Launch, position};
use super::control::BARRIERS;
use super::fault::{Fault, FaultKind};
use super::fragment::Barrier;
use super::op::{Flow, Op};
use super::registers::Mask;
use super::schedule::Order;
use super::vote;
use super::warp::{Lanes, Warp, existing};
use memory::MARGIN;
use std::cell::RefCell;

/// The most blocks of a cluster. CUDA C++ Programming Guide, "Thread Block Clusters": the same for
/// all GPUs, unless a program asks for sizes that are not portable.
pub(crate) const MOST_BLOCKS: u32 = 8;

/// The clusters that a kernel asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AskedCluster {
    /// The blocks in x, y and z, if it says how many.
    pub(crate) size: Option<[u32; 3]>,
    /// The most blocks, if it says so.
    pub(crate) most: Option<u32>,
    /// True if only a launch with clusters can run it.
    pub(crate) is_explicit: bool,
}

/// The clusters of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clusters {
    /// The blocks of each in x, y and z.
    pub(crate) size: [u32; 3],
    /// True if the kernel or the launch asks for them.
    pub(crate) is_explicit: bool,
}

impl Clusters {
    /// Returns the number of blocks of a cluster.
    pub(crate) fn blocks(self) -> u32 {
        self.size.iter().product()
    }

    /// Returns the number of clusters in x, y and z.
    pub(crate) fn grid(self, grid: [u32; 3]) -> [u32; 3] {
        std::array::from_fn(|axis| grid[axis] / self.size[axis])
    }

    /// Returns the place in the grid of a block.
    pub(crate) fn position_of(self, block: u64, grid: [u32; 3]) -> [u32; 3] {
        let blocks = u64::from(self.blocks());
        let cluster = position(block / blocks, self.grid(grid));
        let within = position(block % blocks, self.size);
        std::array::from_fn(|axis| cluster[axis] * self.size[axis] + within[axis])
    }
}

/// A cluster that has started.
#[derive(Debug)]
pub(crate) struct Cluster {
    blocks: Vec<Block>,
    /// The shared memory of the blocks, with margins.
    shared: Aligned,
    /// The bytes of each margin.
    margin: u64,
    /// The bytes from the shared memory of a block to that of the next one.
    stride: u64,
    /// The state of its checks, while it does not run.
    checked: Option<Box<ClusterState>>,
}

impl Cluster {
    pub(crate) fn new(launch: &Launch<'_>) -> Self {
        let stride = launch.shared_stride();
        let align = launch.code.shared_align;
        let margin = if launch.shared_bytes == 0 { 0 } else { MARGIN.next_multiple_of(align) };
        let shared = Aligned::new(stride * u64::from(launch.clusters.blocks()) + 2 * margin, align);
        let blocks = (0..launch.clusters.blocks()).map(|_| Block::new(launch)).collect();
        let mut cluster = Cluster { blocks, shared, margin, stride, checked: None };
        cluster.prepare_launch(launch);
        cluster
    }

    /// Returns whether clusters of a launch of the same kernel can use the memory of this one.
    pub(crate) fn fits(&self, launch: &Launch<'_>) -> bool {
        self.blocks.len() == launch.clusters.blocks() as usize
            && self.stride == launch.shared_stride()
            && self.blocks.iter().all(|block| block.size() == launch.block)
    }

    fn memory(&self, rank: usize) -> ClusterMemory {
        let (blocks, start) = (self.blocks.len() as u32, self.shared.start() + self.margin);
        ClusterMemory { rank: rank as u32, blocks, start, stride: self.stride, exited: 0 }
    }

    /// Runs the ops whose results are the same in each block of a launch.
    pub(crate) fn prepare_launch(&mut self, launch: &Launch<'_>) {
        for rank in 0..self.blocks.len() {
            let memory = self.memory(rank);
            let block = &mut self.blocks[rank];
            block.prepare_launch(&block.context(launch, memory, None));
        }
    }

    /// Starts as the cluster with this number.
    pub(crate) fn start(&mut self, launch: &Launch<'_>, number: u64) {
        for rank in 0..self.blocks.len() {
            let memory = self.memory(rank);
            let block = number * self.blocks.len() as u64 + rank as u64;
            self.blocks[rank].start(launch, block, memory);
        }
    }

    /// Prepares the checks of the cluster, which has just started.
    pub(crate) fn prepare_checks(&mut self, launch: &Launch<'_>, checker: &Checker) {
        let first = self.blocks[0].number();
        self.checked = Some(checker.start(launch, first, self.checked.take()));
    }

    /// Runs the blocks for about `fuel` ops.
    pub(crate) fn run(
        &mut self,
        launch: &Launch<'_>,
        order: &mut Order,
        fuel: u64,
        checker: Option<&RefCell<Checker>>,
    ) -> Progress {
        if let Some(checker) = checker {
            checker.borrow_mut().enter(self.checked.take());
        }
        let progress = self.run_blocks(launch, order, fuel, checker);
        if let Some(checker) = checker {
            self.checked = checker.borrow_mut().leave();
        }
        progress
    }

    fn run_blocks(
        &mut self,
        launch: &Launch<'_>,
        order: &mut Order,
        mut fuel: u64,
        checker: Option<&RefCell<Checker>>,
    ) -> Progress {
        // A block that waits for another one by a loop uses up its part.
        let part = (fuel / self.blocks.len() as u64).max(1);
        while fuel > 0 {
            let (mut is_running, mut live) = (false, None);
            for rank in order.of(self.blocks.len()) {
                let context = self.context(rank, launch, checker);
                let mut left = part;
                let progress = self.blocks[rank].run(&context, order, &mut left);
                fuel = fuel.saturating_sub(part - left);
                match progress {
                    Progress::Done => continue,
                    Progress::Paused => is_running = true,
                    Progress::Waits => {}
                    Progress::Fault(_) => return progress,
                }
                live = live.or(Some(rank));
            }
            let can_end_phase = self.warps().all(has_arrived);
            if can_end_phase && let Some(fault) = self.exited_before_barrier(launch, checker) {
                return Progress::Fault(fault);
            }
            let Some(live) = live else { return Progress::Done };
            if can_end_phase {
                self.end_phase(launch, checker);
            } else if !is_running {
                // A block that the others wait for tells more.
                let has_not_arrived = |block: &Block| !block.warps.iter().all(has_arrived);
                let rank = self.blocks.iter().position(has_not_arrived).unwrap_or(live);
                return Progress::Fault(self.blocks[rank].deadlock(&self.context(rank, launch, checker)));
            }
        }
        Progress::Paused
    }

    fn context<'a>(
        &self,
        rank: usize,
        launch: &'a Launch<'a>,
        checker: Option<&'a RefCell<Checker>>,
    ) -> Context<'a> {
        let live = |(rank, block): (usize, &Block)| u32::from(!block.is_live()) << rank;
        let exited = self.blocks.iter().enumerate().map(live).sum();
        self.blocks[rank].context(launch, ClusterMemory { exited, ..self.memory(rank) }, checker)
    }

    fn warps(&self) -> impl Iterator<Item = &Warp> + Clone {
        self.blocks.iter().flat_map(|block| &block.warps)
    }

    /// Ends the phase of the barrier, and lets the threads go on that wait.
    fn end_phase(&mut self, launch: &Launch<'_>, checker: Option<&RefCell<Checker>>) {
        if let Some(checker) = checker {
            checker.borrow_mut().ends_phase(self.warps());
        }
        for block in &mut self.blocks {
            for warp in &mut block.warps {
                warp.lanes.arrived = Arrived { open: 0, ended: live(warp) };
            }
            vote::finish_barrier(&mut block.warps, OPEN, launch.code);
        }
    }

    /// Returns a fault if the check of barriers is on, and threads have arrived in the phase that
    /// is about to end, but others have exited without that. It names the last arrival.
    fn exited_before_barrier(
        &self,
        launch: &Launch<'_>,
        checker: Option<&RefCell<Checker>>,
    ) -> Option<Box<Fault>> {
        if self.warps().all(|warp| warp.lanes.arrived.open == 0) {
            return None;
        }
        let (number, lane, place) = checker?.borrow().last_arrival()?;
        let threads = launch.threads();
        let exited = |warp: &Warp| {
            let lanes = &warp.lanes;
            lanes.registers.dead & existing(lanes.first_thread, threads) & !lanes.arrived.open
        };
        let of_block = |block: &Block| block.warps.iter().map(|warp| exited(warp).count_ones()).sum::<u32>();
        let all: u32 = self.blocks.iter().map(of_block).sum();
        let gone = self.blocks.iter().find(|block| of_block(block) > 0)?;
        let warp = gone.warps.iter().find(|warp| exited(warp) != 0)?;
        let thread = warp.lanes.first_thread + exited(warp).trailing_zeros();
        let kind = FaultKind::ExitedBeforeBarrier {
            waited: threads * self.blocks.len() as u32 - all,
            exited: all,
            thread: position(thread.into(), launch.block),
            block: Some(launch.position_of(gone.number())),
        };
        let (rank, warp) = (number / launch.warps(), number % launch.warps());
        Some(self.blocks[rank].describe(&self.context(rank, launch, checker), warp, lane, place, kind))
    }
}

/// Returns the lanes of a warp that have not exited.
fn live(warp: &Warp) -> Mask {
    !warp.lanes.registers.dead
}

/// Returns whether all lanes of a warp have arrived in the phase that has not ended, or exited.
fn has_arrived(warp: &Warp) -> bool {
    live(warp) & !warp.lanes.arrived.open == 0
}

/// The barrier of the cluster, of a phase that has not ended.
pub(crate) const OPEN: u32 = BARRIERS;
/// The barrier of the cluster, of a phase that has ended.
pub(crate) const ENDED: u32 = BARRIERS + 1;

/// The lanes of a warp that have arrived at the barrier of the cluster and not waited.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrived {
    /// Lanes of a phase that has not ended.
    open: Mask,
    /// Lanes of a phase that has ended.
    ended: Mask,
}

/// `barrier.cluster.arrive`
pub(crate) fn arrive(lanes: &mut Lanes, _: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let again = mask & (lanes.arrived.open | lanes.arrived.ended);
    if again != 0 {
        return lanes.fail(again.trailing_zeros() as usize, FaultKind::ArrivedTwice);
    }
    lanes.arrived.open |= mask;
    Flow::Next
}

/// `barrier.cluster.wait`
pub(crate) fn wait(lanes: &mut Lanes, _: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let early = mask & !(lanes.arrived.open | lanes.arrived.ended);
    if early != 0 {
        return lanes.fail(early.trailing_zeros() as usize, FaultKind::NotArrived);
    }
    Flow::WaitAtBarrier
}

/// Returns the barrier at which a lane waits that has arrived.
pub(crate) fn barrier_of(lanes: &Lanes, lane: usize) -> Barrier {
    let has_ended = lanes.arrived.ended >> lane & 1 == 1;
    Barrier { id: if has_ended { ENDED } else { OPEN }, threads: None }
}

/// Notes that lanes have waited at a barrier. Those that have waited at the one of the cluster may
/// arrive again.
pub(crate) fn pass(lanes: &mut Lanes, mask: Mask, id: u32) {
    if id >= BARRIERS {
        lanes.arrived.ended &= !mask;
    }
}
