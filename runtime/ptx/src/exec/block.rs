//! A block: its warps, its shared memory and its barriers.
//!
//! # Barriers
//! A barrier is not a counter but a question, asked whenever all warps of the block have stopped:
//! how many threads wait at it now. So threads that meet others at the barrier, or exit, need no
//! bookkeeping. Only arrivals that do not wait (`bar.arrive`) are counted.

use super::code::Code;
use super::context::{Context, Launch};
use super::fault::{Fault, FaultKind};
use super::registers::LANES;
use super::schedule::Order;
use super::vote;
use super::warp::{Barrier, Stop, Warp};

/// The number of ops that a warp runs before the next one has its turn.
const WARP_TURN: u32 = 20_000;
/// The number of barriers of a block. PTX ISA 9.7.13.1, bar.
const BARRIERS: usize = 16;

/// A block that has started.
#[derive(Debug)]
pub(crate) struct Block {
    id: u64,
    warps: Vec<Warp>,
    shared: Box<[u128]>,
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
    Fault(Box<Fault>),
}

impl Block {
    pub(crate) fn new(launch: &Launch<'_>, id: u64) -> Self {
        let threads = launch.threads();
        let warps =
            (0..threads).step_by(LANES).map(|first| Warp::new(launch.code, first, launch.block)).collect();
        let shared = vec![0; launch.shared_bytes.div_ceil(16) as usize].into();
        let mut block = Block { id, warps, shared, arrived: [0; BARRIERS] };
        let context = block.context(launch);
        block.warps.iter_mut().for_each(|warp| warp.prepare(&context));
        block
    }

    /// Starts again as another block of the same launch.
    pub(crate) fn restart(&mut self, launch: &Launch<'_>, id: u64) {
        self.id = id;
        self.arrived = [0; BARRIERS];
        let threads = launch.threads();
        self.warps.iter_mut().for_each(|warp| warp.restart(launch.code, threads));
    }

    /// Runs the block for about `fuel` ops.
    pub(crate) fn run(&mut self, launch: &Launch<'_>, order: &mut Order, mut fuel: u64) -> Progress {
        let context = self.context(launch);
        while fuel > 0 {
            let (mut is_running, mut live) = (false, false);
            for at in order.of(self.warps.len()) {
                let mut turn = order.turn(WARP_TURN);
                let before = turn;
                let stop = self.warps[at].run(&context, &mut turn);
                fuel = fuel.saturating_sub(u64::from(before - turn) + 1);
                match stop {
                    Stop::Done => {}
                    Stop::Waits => live = true,
                    Stop::Paused => (is_running, live) = (true, true),
                    Stop::Fault(place) => return Progress::Fault(self.fault(&context, at, place)),
                }
                for (id, threads) in std::mem::take(&mut self.warps[at].lanes.arrivals) {
                    self.arrived[id as usize % BARRIERS] += threads;
                }
            }
            if !live {
                return Progress::Done;
            }
            if !self.open_barriers(launch.code) && !is_running {
                return Progress::Fault(self.deadlock(&context));
            }
        }
        Progress::Paused
    }

    fn context<'a>(&self, launch: &'a Launch<'a>) -> Context<'a> {
        let [x, y, _] = launch.grid.map(u64::from);
        let block = [self.id % x, self.id / x % y, self.id / (x * y)].map(|at| at as u32);
        let shared = self.shared.as_ptr().expose_provenance() as u64;
        Context { launch, block, shared }
    }

    /// Opens each barrier at which enough threads wait. Returns whether there was one.
    fn open_barriers(&mut self, code: &Code) -> bool {
        let mut waiting = [(0u32, None); BARRIERS];
        let mut live = 0;
        for warp in &self.warps {
            live += warp.live();
            warp.for_each_waiting(|Barrier { id, threads }, mask, _| {
                let (count, expected) = &mut waiting[id as usize % BARRIERS];
                *count += if threads.is_some() { warp.lanes.arrivals_of(mask) } else { mask.count_ones() };
                *expected = threads.or(*expected);
            });
        }
        let mut any = false;
        for (id, (count, expected)) in waiting.into_iter().enumerate() {
            // Without a number, all threads that have not exited are waited for.
            let arrived = count + self.arrived[id];
            if count == 0 || arrived < expected.unwrap_or(live) {
                continue;
            }
            any = true;
            self.arrived[id] = 0;
            vote::finish_barrier(&mut self.warps, id as u32, code);
        }
        any
    }

    #[cold]
    fn fault(&mut self, context: &Context<'_>, warp: usize, place: u32) -> Box<Fault> {
        let (lane, kind) = match self.warps[warp].lanes.fault.take() {
            Some(fault) => *fault,
            None => (0, FaultKind::Trap),
        };
        self.describe(context, warp, lane, place, kind)
    }

    #[cold]
    fn deadlock(&self, context: &Context<'_>) -> Box<Fault> {
        let (mut at_barrier, mut for_lanes) = (0, 0);
        for warp in &self.warps {
            let (barrier, lanes) = warp.waiting();
            at_barrier += barrier;
            for_lanes += lanes;
        }
        let exited = context.launch.threads() - at_barrier - for_lanes;
        let waiting = |(at, warp): (usize, &Warp)| warp.any_waiting().map(|(lane, place)| (at, lane, place));
        let (warp, lane, place) = self.warps.iter().enumerate().find_map(waiting).unwrap_or_default();
        self.describe(context, warp, lane, place, FaultKind::Deadlock { at_barrier, for_lanes, exited })
    }

    fn describe(
        &self,
        context: &Context<'_>,
        warp: usize,
        lane: usize,
        place: u32,
        kind: FaultKind,
    ) -> Box<Fault> {
        let code = context.launch.code;
        let line = code.lines[place as usize];
        let file = code.files.iter().find(|(number, _)| *number == line.file && line.source > 0);
        let [x, y, _] = context.launch.block;
        let thread = self.warps[warp].lanes.first_thread + lane as u32;
        Box::new(Fault {
            kind,
            kernel: code.name.clone(),
            ptx_line: line.ptx,
            source: file.map(|(_, name)| (name.clone(), line.source)),
            block: context.block,
            thread: [thread % x, thread / x % y, thread / (x * y)],
        })
    }
}
