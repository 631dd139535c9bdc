//! A block: its warps, its shared memory and its barriers.
//!
//! # Barriers
//! A barrier is not a counter but a question, asked whenever all warps of the block have stopped:
//! how many threads wait at it now. So threads that meet others at the barrier, or exit, need no
//! bookkeeping. Only arrivals that do not wait (`bar.arrive`) are counted. `clusters` has the
//! rules of the barrier of the cluster.

use super::checks::Checker;
use super::clusters::{self, ClusterMemory};
use super::context::{Context, Launch, position};
use super::control;
use super::fault::{AtBarrier, Fault, FaultKind};
use super::fragment::Barrier;
use super::registers::LANES;
use super::schedule::Order;
use super::vote;
use super::warp::{Stop, Warp};
use std::cell::RefCell;

/// The number of ops that a warp runs before the next one has its turn.
const WARP_TURN: u32 = 20_000;
/// The barriers of a block, and those of its cluster behind them.
const BARRIERS: usize = clusters::ENDED as usize + 1;

/// A block that has started.
#[derive(Debug)]
pub(crate) struct Block {
    /// See [`Context::number`].
    number: u64,
    /// The threads in x, y and z.
    size: [u32; 3],
    pub(super) warps: Vec<Warp>,
    /// The numbers of threads that have arrived at a barrier and do not wait.
    arrived: [u32; BARRIERS],
}

/// How far a block has come.
#[derive(Debug)]
pub(crate) enum Progress {
    /// All threads have exited.
    Done,
    /// It has run as long as it might.
    Paused,
    /// All threads that have not exited wait.
    Waits,
    Fault(Box<Fault>),
}

impl Block {
    pub(crate) fn new(launch: &Launch<'_>) -> Self {
        let threads = launch.threads();
        let warps =
            (0..threads).step_by(LANES).map(|first| Warp::new(launch.code, first, launch.block)).collect();
        Block { number: 0, size: launch.block, warps, arrived: [0; BARRIERS] }
    }

    pub(crate) fn size(&self) -> [u32; 3] {
        self.size
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Runs the ops whose results are the same in each block of a launch.
    pub(crate) fn prepare_launch(&mut self, context: &Context<'_>) {
        let early = &context.launch.code.early;
        self.warps.iter_mut().for_each(|warp| warp.prepare(early, context));
    }

    /// Starts as the block with this number.
    pub(crate) fn start(&mut self, launch: &Launch<'_>, number: u64, memory: ClusterMemory) {
        self.number = number;
        self.arrived = [0; BARRIERS];
        let threads = launch.threads();
        self.warps.iter_mut().for_each(|warp| warp.restart(launch.code, threads));
        self.prepare(&self.context(launch, memory, None));
    }

    /// Runs the ops whose results are the same in each thread of the block.
    fn prepare(&mut self, context: &Context<'_>) {
        let code = context.launch.code;
        let Some((first, others)) = self.warps.split_first_mut() else { return };
        first.prepare(&code.of_block, context);
        for warp in others {
            warp.lanes.registers.copy(&code.handed_on, &first.lanes.registers);
        }
    }

    /// Runs the block for about `fuel` ops, and takes them off.
    pub(crate) fn run(&mut self, context: &Context<'_>, order: &mut Order, fuel: &mut u64) -> Progress {
        while *fuel > 0 {
            let (mut is_running, mut live) = (false, false);
            for at in order.of(self.warps.len()) {
                let mut turn = order.turn(WARP_TURN);
                let before = turn;
                let stop = self.warps[at].run(context, order, &mut turn);
                *fuel = fuel.saturating_sub(u64::from(before - turn) + 1);
                match stop {
                    Stop::Done => {}
                    Stop::Waits => live = true,
                    Stop::Paused => (is_running, live) = (true, true),
                    Stop::Fault(place) => return Progress::Fault(self.fault(context, at, place)),
                }
                for (id, threads) in std::mem::take(&mut self.warps[at].lanes.arrivals) {
                    self.arrived[id as usize] += threads;
                }
            }
            if !live {
                return Progress::Done;
            }
            match self.open_barriers(context) {
                Ok(any) if any || is_running => {}
                Ok(_) => return Progress::Waits,
                Err(fault) => return Progress::Fault(fault),
            }
        }
        Progress::Paused
    }

    pub(crate) fn context<'a>(
        &self,
        launch: &'a Launch<'a>,
        cluster: ClusterMemory,
        checker: Option<&'a RefCell<Checker>>,
    ) -> Context<'a> {
        let (block, number) = (launch.position_of(self.number), self.number);
        Context { launch, block, number, shared: cluster.of(cluster.rank), cluster, checker }
    }

    /// Opens each barrier at which enough threads wait. Returns whether there was one.
    fn open_barriers(&mut self, context: &Context<'_>) -> Result<bool, Box<Fault>> {
        let mut waiting = [(0u32, None); BARRIERS];
        let mut live = 0;
        for warp in &self.warps {
            live += warp.live();
            warp.for_each_waiting(|Barrier { id, threads }, mask, _| {
                let (count, expected) = &mut waiting[id as usize];
                *count += if threads.is_some() { warp.lanes.arrivals_of(mask) } else { mask.count_ones() };
                *expected = threads.or(*expected);
            });
        }
        let mut any = false;
        for (id, (count, expected)) in waiting.into_iter().enumerate() {
            // Without a number, all threads that have not exited are waited for.
            let arrived = count + self.arrived[id];
            let opens = match id as u32 {
                // All blocks of the cluster are asked: see `clusters`.
                clusters::OPEN => false,
                clusters::ENDED => count > 0,
                _ => count > 0 && arrived >= expected.unwrap_or(live),
            };
            if !opens {
                continue;
            }
            any = true;
            self.arrived[id] = 0;
            if let Some(checker) = context.checker {
                let mut checker = checker.borrow_mut();
                if checker.checks().sync && expected.is_none() && id < control::BARRIERS as usize {
                    self.of_all_threads(context, id as u32)?;
                }
                let is_of_all = expected.is_none() && id as u32 != clusters::ENDED;
                checker.opens(context, &self.warps, id as u32, is_of_all);
            }
            vote::finish_barrier(&mut self.warps, id as u32, context.launch.code);
        }
        Ok(any)
    }

    /// Checks that all threads of the block wait at a barrier, at one instruction.
    fn of_all_threads(&self, context: &Context<'_>, id: u32) -> Result<(), Box<Fault>> {
        let mut waiting = Vec::new();
        for (at, warp) in self.warps.iter().enumerate() {
            warp.for_each_waiting(|barrier, mask, place| {
                if barrier.id == id {
                    waiting.push((at, mask, place));
                }
            });
        }
        let Some(&(first, mask, place)) = waiting.first() else { return Ok(()) };
        let fault = |kind| self.describe(context, first, mask.trailing_zeros() as usize, place, kind);
        let threads = context.launch.threads();
        let thread = |warp: usize, lane: u32| {
            position(u64::from(self.warps[warp].lanes.first_thread + lane), context.launch.block)
        };
        if let Some((at, other, elsewhere)) = waiting.iter().find(|(_, _, other)| *other != place) {
            let (ptx_line, source) = context.launch.code.line_of(*elsewhere);
            let thread = thread(*at, other.trailing_zeros());
            return Err(fault(FaultKind::DivergentBarrier { thread, ptx_line, source }));
        }
        let waited: u32 = waiting.iter().map(|(_, mask, _)| mask.count_ones()).sum();
        let exited = |(at, warp): (usize, &Warp)| {
            let lanes = &warp.lanes;
            let exists = super::warp::existing(lanes.first_thread, threads);
            let gone = lanes.registers.dead & exists;
            (gone != 0).then(|| thread(at, gone.trailing_zeros()))
        };
        match self.warps.iter().enumerate().find_map(exited) {
            None => Ok(()),
            Some(thread) => {
                let exited = threads - waited;
                Err(fault(FaultKind::ExitedBeforeBarrier { waited, exited, thread, block: None }))
            }
        }
    }

    #[cold]
    fn fault(&mut self, context: &Context<'_>, warp: usize, place: u32) -> Box<Fault> {
        let lanes = &mut self.warps[warp].lanes;
        let place = lanes.blamed.take().unwrap_or(place);
        let (lane, mut kind) = match lanes.fault.take() {
            Some(fault) => *fault,
            None => (0, FaultKind::Trap),
        };
        match &mut kind {
            FaultKind::OutOfBounds { calls_malloc, .. } => *calls_malloc = context.launch.code.calls_malloc,
            FaultKind::OutOfShared { offset, variable, .. }
            | FaultKind::BlockExited { offset, variable, .. }
                if context.launch.dynamic_shared_bytes == 0 =>
            {
                *variable = context.launch.code.shared_variable_near(*offset);
            }
            _ => {}
        }
        self.describe(context, warp, lane, place, kind)
    }

    /// Returns whether a thread has not exited.
    pub(crate) fn is_live(&self) -> bool {
        self.warps.iter().any(|warp| warp.live() > 0)
    }

    #[cold]
    pub(crate) fn deadlock(&self, context: &Context<'_>) -> Box<Fault> {
        let mut waiting = [(0, None); BARRIERS];
        let live: u32 = self.warps.iter().map(Warp::live).sum();
        for warp in &self.warps {
            warp.for_each_waiting(|Barrier { id, threads }, mask, _| {
                let (count, needed) = &mut waiting[id as usize];
                *count += mask.count_ones();
                *needed = threads.or(*needed);
            });
        }
        let at_barrier = |(barrier, arrived): (u32, &u32)| {
            let (waiting, needed) = waiting[barrier as usize];
            AtBarrier { barrier, waiting, arrived: *arrived, needed }
        };
        let at_all = (0..control::BARRIERS).zip(&self.arrived).map(at_barrier);
        let kind = FaultKind::Deadlock {
            at_barriers: at_all.filter(|at| at.waiting > 0).collect(),
            at_cluster_barrier: waiting[clusters::OPEN as usize].0,
            for_lanes: live - waiting.iter().map(|(count, _)| count).sum::<u32>(),
            exited: context.launch.threads() - live,
        };
        let waiting = |(at, warp): (usize, &Warp)| warp.any_waiting().map(|(lane, place)| (at, lane, place));
        let (warp, lane, place) = self.warps.iter().enumerate().find_map(waiting).unwrap_or_default();
        self.describe(context, warp, lane, place, kind)
    }

    pub(crate) fn describe(
        &self,
        context: &Context<'_>,
        warp: usize,
        lane: usize,
        place: u32,
        kind: FaultKind,
    ) -> Box<Fault> {
        let code = context.launch.code;
        let (ptx_line, source) = code.line_of(place);
        let thread = u64::from(self.warps[warp].lanes.first_thread) + lane as u64;
        Box::new(Fault {
            kind,
            kernel: code.name.clone(),
            ptx_line,
            source,
            block: context.block,
            thread: position(thread, context.launch.block),
            printed: String::new(),
        })
    }
}
