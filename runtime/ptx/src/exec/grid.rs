//! A launch on several threads of the host.
//!
//! # Which block runs
//! The blocks of a cluster start together and run on one thread. A block below stands for its
//! cluster, of one block in most launches.
//!
//! 1. Blocks start in the order of their numbers. A block may wait for one with a lower number:
//!    that one has started, and every started block has its turn. A seed draws the order of the
//!    first [`STARTED`] blocks, which are all started before one of them has to finish.
//! 2. A block that has run for long is set aside, and the thread takes another one: a block that
//!    has not started, as long as few are started, else the one that was set aside first. In a
//!    cooperative launch any number may be started, since each block may wait for each other one.
//!    There the turns are short, since a block that waits spins until the end of its turn.
//! 3. If all started blocks have had a turn and none has finished, they may wait for one that has
//!    not started. Then twice as many may be, up to the number that a large GPU runs at once, if
//!    their memory allows.
//! 4. The first fault ends the launch. Blocks that run end their turn.

use super::block::Progress;
use super::checks::Checker;
use super::clusters::Cluster;
use super::context::Launch;
use super::fault::{Fault, FaultKind};
use super::registers::LANES;
use super::schedule::Order;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

/// The number of ops that a block runs before others have their turn.
const BLOCK_TURN: u64 = 1 << 16;
const COOPERATIVE_TURN: u64 = 1 << 14;
/// The number of started blocks at first, unless a launch is cooperative.
const STARTED: usize = 64;
/// The most started blocks. The H100 has 132 multiprocessors, each with up to 32 blocks (CUDA C++
/// Programming Guide, "Features and Technical Specifications").
const MOST_STARTED: usize = 132 * 32;
/// The most bytes of registers, local and shared memory of started blocks, beyond [`STARTED`]
/// ones.
const MOST_STARTED_BYTES: u64 = 256 << 20;

/// A launch that any number of threads may work on.
#[derive(Debug)]
pub(crate) struct Grid<'a> {
    launch: Launch<'a>,
    clusters: u64,
    is_cooperative: bool,
    seed: Option<u64>,
    /// The first clusters, in the order in which they start. The others follow by their numbers.
    first: Vec<usize>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The number of clusters that have started.
    started: u64,
    /// The number of clusters that threads run now.
    running: usize,
    aside: VecDeque<Cluster>,
    /// The number of clusters that may be started and unfinished.
    may_start: usize,
    /// The number of turns since a cluster finished or `may_start` grew.
    turns: usize,
    fault: Option<Box<Fault>>,
}

impl State {
    fn new() -> Self {
        let aside = VecDeque::new();
        State { started: 0, running: 0, aside, may_start: STARTED, turns: 0, fault: None }
    }

    /// Returns whether another cluster may start. `most` is the limit of rule 3.
    fn may_start(&mut self, most: usize) -> bool {
        let unfinished = self.running + self.aside.len();
        if self.turns > unfinished && unfinished >= self.may_start {
            self.may_start = (2 * self.may_start).min(most.max(STARTED));
            self.turns = 0;
        }
        unfinished < self.may_start
    }

    /// Returns whether all clusters have finished.
    fn has_ended(&self, clusters: u64) -> bool {
        self.fault.is_none() && self.aside.is_empty() && self.running == 0 && self.started == clusters
    }
}

impl<'a> Grid<'a> {
    pub(crate) fn new(launch: Launch<'a>, is_cooperative: bool, seed: Option<u64>) -> Self {
        let blocks: u64 = launch.grid.iter().map(|&n| u64::from(n)).product();
        let clusters = blocks / u64::from(launch.clusters.blocks());
        let first = seed.map_or_else(Vec::new, |seed| {
            // Other numbers than those that order the warps of the first block.
            Order::Seeded(!seed).of(clusters.min(STARTED as u64) as usize)
        });
        Grid { launch, clusters, is_cooperative, seed, first, state: Mutex::new(State::new()) }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs clusters until all of them have finished or are being run by other threads.
    pub(crate) fn work(&self) {
        let mut order = self.seed.map_or(Order::Fixed, Order::Seeded);
        let turn = if self.is_cooperative { COOPERATIVE_TURN } else { BLOCK_TURN };
        let mut spare = self.kept();
        let checker = self.launch.checks.any().then(|| RefCell::new(Checker::new(&self.launch)));
        while let Some((mut cluster, is_new)) = self.take(&mut spare) {
            if is_new && let Some(checker) = &checker {
                cluster.prepare_checks(&self.launch, &checker.borrow());
            }
            let progress = cluster.run(&self.launch, &mut order, turn, checker.as_ref());
            let mut state = self.state();
            state.running -= 1;
            match progress {
                Progress::Done => {
                    state.turns = 0;
                    spare = Some(cluster);
                }
                Progress::Paused | Progress::Waits => {
                    state.turns += 1;
                    state.aside.push_back(cluster);
                }
                Progress::Fault(fault) => {
                    state.fault.get_or_insert(fault);
                    self.launch.stop.store(true, Relaxed);
                }
            }
        }
        if let (Some(kept), Some(cluster)) = (self.launch.kept, spare) {
            *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(cluster);
        }
        let mut state = self.state();
        if let Some(checker) = checker
            && state.has_ended(self.clusters)
            && let Some(kind) = checker.into_inner().unwritten()
        {
            state.fault = Some(self.fault(kind));
        }
    }

    /// Returns a finished cluster of an earlier launch, for its memory.
    fn kept(&self) -> Option<Cluster> {
        let kept = self.launch.kept?.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut cluster = kept.filter(|cluster| cluster.fits(&self.launch))?;
        cluster.prepare_launch(&self.launch);
        Some(cluster)
    }

    /// Returns a fault that belongs to no thread.
    fn fault(&self, kind: FaultKind) -> Box<Fault> {
        Box::new(Fault {
            kind,
            kernel: self.launch.code.name.clone(),
            ptx_line: 0,
            source: None,
            block: [0; 3],
            thread: [0; 3],
            printed: String::new(),
        })
    }

    /// Returns the number of clusters that may be started at once by rule 3.
    fn most_started(&self) -> usize {
        let (launch, code) = (&self.launch, self.launch.code);
        let warp =
            LANES as u64 * (4 * code.narrow as u64 + 8 * code.wide as u64 + u64::from(code.local_bytes));
        let block = launch.warps() as u64 * warp + u64::from(launch.shared_bytes);
        let cluster = block.saturating_mul(launch.clusters.blocks().into());
        MOST_STARTED.min((MOST_STARTED_BYTES / cluster.max(1)) as usize)
    }

    /// Returns the cluster that a thread runs next, and whether it is new. Uses the memory of
    /// `spare` for a new one.
    fn take(&self, spare: &mut Option<Cluster>) -> Option<(Cluster, bool)> {
        let mut state = self.state();
        if state.fault.is_some() || self.launch.stop.load(Relaxed) {
            return None;
        }
        let few = self.is_cooperative || state.may_start(self.most_started());
        if state.started < self.clusters && (few || state.aside.is_empty()) {
            let id = self.first.get(state.started as usize).map_or(state.started, |&id| id as u64);
            state.started += 1;
            state.running += 1;
            drop(state);
            let mut cluster = spare.take().unwrap_or_else(|| Cluster::new(&self.launch));
            cluster.start(&self.launch, id);
            return Some((cluster, true));
        }
        let cluster = state.aside.pop_front()?;
        state.running += 1;
        Some((cluster, false))
    }

    /// Ends the launch, on which no thread works any more, and returns what the kernel printed.
    pub(crate) fn finish(self) -> Result<String, Box<Fault>> {
        let stopped = self.fault(FaultKind::Stopped);
        let printed = self.launch.printed.into_inner().unwrap_or_else(PoisonError::into_inner);
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let has_ended = state.has_ended(self.clusters);
        match state.fault {
            Some(fault) => Err(Box::new(Fault { printed, ..*fault })),
            None if has_ended => Ok(printed),
            None => Err(Box::new(Fault { printed, ..*stopped })),
        }
    }
}
