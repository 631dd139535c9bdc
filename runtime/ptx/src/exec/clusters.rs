//! Clusters: blocks that run together and access each other's shared memory.
//!
//! # Shared memory
//! The blocks of a cluster have their shared memory one after the other, with gaps, so that an
//! address beside it still belongs to the block. A generic address in it is an address of the
//! host. An address in the window `.shared::cluster` is one of `.shared`, which stands for the own
//! block, or has the number of a block plus 1 in its upper bits ([`ClusterMemory::address`]). Each
//! block of the cluster may use the latter, and its own one in `.shared`, too.
//!
//! `mapa` may run in a lane that does not access memory, and name a block that does not exist. So
//! its result is an address whose access fails.
//!
//! # The barrier of the cluster
//! A thread arrives at it first, and waits later. The waits of a phase end when all threads that
//! have not exited have arrived. A thread may be late: then the phase ends before it waits, and
//! its wait ends immediately. It cannot arrive again before. PTX ISA 9.7.13.3, barrier.cluster.
//!
//! The blocks run one after the other on one thread, each until its threads wait or its turn ends.
//! Then the barrier is looked at.

use super::aligned::Aligned;
use super::block::{Block, Progress};
use super::checks::{Checker, ClusterState};
use super::context::{Context, Launch, position};
use super::control::BARRIERS;
use super::fault::FaultKind;
use super::fragment::Barrier;
use super::memory::Access;
use super::op::{Flow, Op};
use super::registers::{Cell, Mask, for_each_lane};
use super::schedule::Order;
use super::vote;
use super::warp::{Lanes, Warp};
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

/// The shared memory of the blocks of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClusterMemory {
    /// The number in the cluster of the block that runs.
    pub(crate) rank: u32,
    /// The number of blocks.
    blocks: u32,
    /// The address of the shared memory of the first block.
    start: u64,
    /// The bytes from there to that of the next block.
    stride: u64,
    /// The blocks all of whose threads have exited, as bits.
    exited: u32,
}

/// The number of bits of an offset in the shared memory of a block, with a sign.
const OFFSET_BITS: u32 = 24;
/// The most bytes of shared memory of a block, of which GPUs have less.
pub(crate) const MOST_SHARED_BYTES: u32 = 1 << (OFFSET_BITS - 1);
/// The bytes between the shared memory of two blocks, at least.
pub(crate) const GAP: u64 = 512;
/// The bytes around the shared memory of a cluster that nothing uses. So an address that misses it
/// by half of them is nearer to it than to any other memory.
const MARGIN: u64 = 8192;
/// The most bytes by which a wrong index misses the shared memory of a block: about the most that
/// a block can have. CUDA C++ Programming Guide, "Technical Specifications per Compute
/// Capability".
const NEAR: u64 = 256 << 10;
/// The number of a block that stands for all larger ones. Addresses with a larger number are those
/// of the own block with a negative offset.
const MOST_RANK: u32 = 126;
/// The upper bits of a generic address in a block that does not exist. No host address has them.
const MISSING: u64 = 0xf1f1;
const MISSING_BITS: u32 = 48;

impl ClusterMemory {
    /// Returns the address of the shared memory of a block.
    pub(crate) fn of(self, rank: u32) -> u64 {
        self.start + u64::from(rank) * self.stride
    }

    /// Returns the addresses of the first byte and of the end.
    pub(crate) fn extent(self) -> (u64, u64) {
        (self.start, self.of(self.blocks))
    }

    /// Returns the block in or beside whose shared memory an address of the host is, and the
    /// offset there, which is negative or too large in a gap.
    pub(crate) fn place(self, address: u64) -> Option<(u32, u64)> {
        let rank = address.checked_sub(self.start - GAP / 2)? / self.stride;
        let rank = u32::try_from(rank).ok().filter(|rank| *rank < self.blocks)?;
        Some((rank, address.wrapping_sub(self.of(rank))))
    }

    /// Returns the block that has a generic address, or the own one if none has.
    fn rank_of(self, address: u64) -> u32 {
        self.place(address).map_or(self.rank, |(rank, _)| rank)
    }

    /// Returns the generic address that a block has in place of another one's.
    fn mapped(self, address: u64, rank: u32) -> u64 {
        let offset = address.wrapping_sub(self.of(self.rank_of(address)));
        if rank < self.blocks {
            return self.of(rank).wrapping_add(offset);
        }
        let missing = MISSING << MISSING_BITS | u64::from(rank.min(MOST_RANK)) << OFFSET_BITS;
        missing | offset & ((1 << OFFSET_BITS) - 1)
    }

    /// Returns what is wrong with a generic address that `mapa` has made of a wrong number.
    pub(crate) fn missing(self, address: u64) -> Option<FaultKind> {
        let rank = (address >> OFFSET_BITS) as u32 & 0xff_ffff;
        (address >> MISSING_BITS == MISSING).then_some(FaultKind::NoSuchRank { rank, blocks: self.blocks })
    }

    /// Returns the address in `.shared::cluster` of an offset in the memory of a block.
    pub(crate) fn address(self, rank: u32, offset: u64) -> u64 {
        (u64::from(rank.min(MOST_RANK) + 1) << OFFSET_BITS).wrapping_add(offset)
    }

    /// Returns the block and the offset of an address in `.shared::cluster`.
    pub(crate) fn parts(self, address: u64) -> (u32, u64) {
        match upper_part(address) {
            upper if (1..=u64::from(MOST_RANK + 1)).contains(&upper) => {
                (upper as u32 - 1, address.wrapping_sub(upper << OFFSET_BITS))
            }
            _ => (self.rank, address),
        }
    }

    /// Returns the generic address of one in `.shared` or `.shared::cluster`.
    pub(crate) fn generic(self, address: u64) -> u64 {
        let (rank, offset) = self.parts(address);
        self.of(rank).wrapping_add(offset)
    }

    /// Returns the address of the host of an access to `.shared::cluster`. A block has `len_bytes`
    /// bytes.
    pub(crate) fn resolve(
        self,
        address: u64,
        bytes: u64,
        access: Access,
        len_bytes: u64,
    ) -> Result<u64, FaultKind> {
        let (rank, offset) = self.parts(address);
        match self.refusal(rank) {
            Some(kind) => Err(kind),
            None if offset.saturating_add(bytes) > len_bytes => {
                let block = (rank != self.rank).then_some(rank);
                Err(FaultKind::OutOfShared { offset, bytes, access, len_bytes, variable: None, block })
            }
            None => Ok(self.of(rank) + offset),
        }
    }

    /// Describes an access to a generic address in no memory as one that misses the shared memory
    /// of a block, if no other memory is nearer. The nearest other one is `others` bytes away.
    pub(crate) fn missed(
        self,
        address: u64,
        bytes: u64,
        access: Access,
        len_bytes: u64,
        others: Option<u64>,
    ) -> Option<FaultKind> {
        let apart = |rank: &u32| {
            let (start, end) = (self.of(*rank), self.of(*rank) + len_bytes);
            if address < start { start - address } else { address.saturating_sub(end) }
        };
        let rank = (0..self.blocks).min_by_key(apart)?;
        let most = NEAR.min(others.unwrap_or(NEAR));
        (len_bytes > 0 && apart(&rank) <= most).then(|| {
            let (offset, block) = (address.wrapping_sub(self.of(rank)), (rank != self.rank).then_some(rank));
            FaultKind::OutOfShared { offset, bytes, access, len_bytes, variable: None, block }
        })
    }

    /// Returns what is wrong with an access to the shared memory of a block.
    pub(crate) fn refusal(self, rank: u32) -> Option<FaultKind> {
        let blocks = self.blocks;
        if rank >= blocks {
            return Some(FaultKind::NoSuchRank { rank, blocks });
        }
        (self.exited >> rank & 1 == 1).then_some(FaultKind::BlockExited { rank })
    }
}

/// Returns the upper part of an address in `.shared::cluster`: 0 for one of the own block. An
/// offset may be negative.
pub(crate) fn upper_part(address: u64) -> u64 {
    address.wrapping_add(MOST_SHARED_BYTES.into()) >> OFFSET_BITS
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
            let Some(live) = live else { return Progress::Done };
            if !self.end_phase(launch, checker) && !is_running {
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

    /// Ends the phase of the barrier if all threads have arrived or exited, and lets those go on
    /// that wait. Returns whether it has ended.
    fn end_phase(&mut self, launch: &Launch<'_>, checker: Option<&RefCell<Checker>>) -> bool {
        let live = |warp: &Warp| !warp.lanes.registers.dead;
        let warps = || self.blocks.iter().flat_map(|block| &block.warps);
        if !warps().all(has_arrived) || warps().all(|warp| live(warp) == 0) {
            return false;
        }
        if let Some(checker) = checker {
            checker.borrow_mut().ends_phase(warps());
        }
        for block in &mut self.blocks {
            for warp in &mut block.warps {
                warp.lanes.arrived = Arrived { open: 0, ended: live(warp) };
            }
            vote::finish_barrier(&mut block.warps, OPEN, launch.code);
        }
        true
    }
}

/// Returns whether all lanes of a warp have arrived in the phase that has not ended, or exited.
fn has_arrived(warp: &Warp) -> bool {
    !warp.lanes.registers.dead & !warp.lanes.arrived.open == 0
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

/// `mapa`: `d` from the address `a`, in the block `b` of the cluster. The address is generic, or
/// with `extra` 1 one in `.shared::cluster`.
pub(crate) fn map_address<A: Cell>(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    let memory = context.cluster;
    let (addresses, ranks) = (lanes.registers.get::<A>(op.a), lanes.registers.get::<u32>(op.b));
    let row = A::row_mut(&mut lanes.registers, op.d);
    for_each_lane(mask, |lane| {
        let (address, rank) = (addresses[lane].to_u64(), ranks[lane]);
        row[lane] = A::of_u64(match op.extra {
            1 => memory.address(rank, memory.parts(address).1),
            _ => memory.mapped(address, rank),
        });
    });
    Flow::Next
}

/// `getctarank`: `d` is the number in the cluster of the block that has the address `a`, which is
/// as for `mapa`.
pub(crate) fn rank_of_address<A: Cell>(
    lanes: &mut Lanes,
    op: &Op,
    mask: Mask,
    context: &Context<'_>,
) -> Flow {
    let memory = context.cluster;
    let addresses = lanes.registers.get::<A>(op.a).map(A::to_u64);
    lanes.registers.set::<u32>(op.d, mask, |lane| match op.extra {
        1 => memory.parts(addresses[lane]).0,
        _ => memory.rank_of(addresses[lane]),
    });
    Flow::Next
}
