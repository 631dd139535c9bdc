//! The rules that order the accesses of two threads.
//!
//! # Time
//! One number counts the events that may order accesses: a barrier that opens, a meeting of lanes,
//! a fence. Lanes meet by `bar.warp.sync`. Other instructions of several lanes, such as shuffles
//! and votes, order no accesses to memory (CUDA C++ Programming Guide, "Warp Shuffle Functions" and
//! "Warp Vote Functions"; PTX ISA 8.9 names none of them). An access has the time at which it ran.
//! An event with time e is after each access with a time less than e, and before each other one.
//!
//! # Rules
//! An access of thread a at time T is before one that thread b makes now in these cases. The rules
//! take too much for ordered rather than too little, so no report is false. Each of them is a
//! necessary condition of an order by the PTX memory model (PTX ISA 8.9), in which the first step
//! leaves a after T, and the last step enters b.
//! 1. a is b.
//! 2. Both are in one warp, and both have met other lanes after T, or waited at a barrier of the
//!    block.
//! 3. Both are in one cluster but not in one warp, a has met others after T, b too, and barriers
//!    lead from a's warp after T to b's warp. For this, each warp keeps for each other warp of the
//!    cluster the time up to which it knows that warp's accesses. A barrier joins these clocks, of
//!    the warps that arrive, for the warps that wait. `bar.arrive` adds the clock of its warp as
//!    it is then, and so does `barrier.cluster.arrive`.
//! 4. A fence or a release covers a's access, a's cluster makes a strong write behind it, and b
//!    has made a synchronising read after T. Fences of a and those of threads that a's access is
//!    before, by 2 and 3, cover it. If a and b are in two clusters, the fence has to have the
//!    scope of the device. Within a cluster, that of the block is enough here. A synchronising
//!    read is strong: an atomic operation that returns a value, or a load that is volatile,
//!    relaxed or acquire. b or another lane of its warp makes it, or a warp from which barriers
//!    lead to b. Then b itself reads so or meets others after T. The read need not find what was
//!    written behind the fence.
//!
//! A thread that has exited counts as one that met others at each later barrier of all threads, and
//! at each later meeting of lanes that names it.

use super::super::clusters;
use super::super::effect::Scope;
use super::super::registers::{LANES, Mask, for_each_lane};
use super::super::warp::Warp;
use std::collections::HashMap;
use std::ops::Range;

/// A time. 30 bits, so that a record has room for two flags.
pub(super) type Time = u32;

/// The time at which the count ends. From then on everything counts as ordered.
const LAST: Time = (1 << 30) - 1;

/// A thread of the launch, by numbers instead of positions in x, y and z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thread {
    /// The number of its block: see `Context::number`.
    pub(super) block: u32,
    pub(super) number: u32,
}

/// The latest events of a warp and of its lanes, by which the rules order their accesses.
#[derive(Clone, Debug)]
struct WarpClock {
    /// The time at which each lane last met others.
    met: [Time; LANES],
    /// The time at which each lane last met others or made a synchronising read.
    entered: [Time; LANES],
    /// The last barrier at which all threads of the block waited. Accesses that the block made
    /// before it are before those that this warp makes now.
    floor: Time,
    /// The last synchronising read that the warp knows of, for rule 4.
    acquired: Time,
    /// For each warp of the cluster, the time up to which this warp knows its accesses, for rule 3.
    known: Box<[Time]>,
}

/// The `known` and `acquired` of the warps that have arrived at a barrier, joined.
type Arrival = (Box<[Time]>, Time);

/// The clocks of the warps of a cluster, and the fences of its threads.
#[derive(Debug)]
pub(super) struct ClusterClocks {
    /// The number of the first block. Those of the others follow.
    first: u32,
    blocks: u32,
    warps_of_block: usize,
    /// The warps of the first block, then those of the next one.
    warps: Vec<WarpClock>,
    /// The knowledge of the threads that arrived at each barrier of a block and do not wait. The
    /// barrier of the cluster counts as one of the first block.
    arrived: HashMap<(u32, u32), Arrival>,
    /// For each thread, the time before which a fence covers its accesses.
    fenced: Box<[Time]>,
    /// The times of fences of the device's scope, if the cluster has made one.
    fenced_wide: Option<Box<[Time]>>,
    /// True if no strong write has followed the last fence.
    is_unpublished: bool,
    /// The time before which the accesses of each thread are covered, with a strong write behind.
    published: Box<[Time]>,
}

impl ClusterClocks {
    /// Returns the clocks of `blocks` blocks of `threads` threads each, from the block `first` on.
    pub(super) fn new(first: u32, blocks: u32, threads: u32) -> Self {
        let warps_of_block = (threads as usize).div_ceil(LANES);
        let warps = blocks as usize * warps_of_block;
        let clock = WarpClock {
            met: [0; LANES],
            entered: [0; LANES],
            floor: 0,
            acquired: 0,
            known: vec![0; warps].into(),
        };
        ClusterClocks {
            first,
            blocks,
            warps_of_block,
            warps: vec![clock; warps],
            arrived: HashMap::new(),
            fenced: vec![0; warps * LANES].into(),
            fenced_wide: None,
            is_unpublished: false,
            published: vec![0; warps * LANES].into(),
        }
    }

    /// Starts again as those of another cluster of the same size.
    pub(super) fn restart(&mut self, first: u32) {
        self.first = first;
        for clock in &mut self.warps {
            clock.met = [0; LANES];
            clock.entered = [0; LANES];
            (clock.floor, clock.acquired) = (0, 0);
            clock.known.fill(0);
        }
        self.arrived.clear();
        self.fenced.fill(0);
        self.fenced_wide = None;
        self.is_unpublished = false;
        self.published.fill(0);
    }

    /// Returns the time before which accesses in the block of a warp are before all of its lanes.
    pub(super) fn floor(&self, warp: usize) -> Time {
        self.warps[warp].floor
    }

    /// Returns the numbers of this cluster's blocks in the grid.
    pub(super) fn blocks(&self) -> Range<u32> {
        self.first..self.first + self.blocks
    }

    /// Returns the scope of an access or a fence of this cluster. A cluster of one block is that
    /// block. Otherwise the scope of the cluster counts as that of the device.
    pub(super) fn scope(&self, scope: Scope) -> Scope {
        match scope {
            Scope::Cluster if self.blocks == 1 => Scope::Block,
            Scope::Cluster => Scope::Device,
            other => other,
        }
    }

    /// Returns the number of a thread among those of its cluster, with `blocks` blocks like this
    /// one.
    fn number_of(&self, thread: Thread) -> usize {
        let rank = (thread.block % self.blocks) as usize;
        rank * self.warps_of_block * LANES + thread.number as usize
    }
}

/// The count of events, and the fences of all blocks.
#[derive(Debug)]
pub(super) struct Clocks {
    pub(super) time: Time,
    /// For each cluster that has made a fence of the device's scope with a strong write behind, by
    /// its first block, and each thread of it, the time before which its accesses are covered.
    published: HashMap<u32, Box<[Time]>>,
}

impl Clocks {
    pub(super) fn new() -> Self {
        Clocks { time: 1, published: HashMap::new() }
    }

    fn tick(&mut self) -> Time {
        self.time = (self.time + 1).min(LAST);
        self.time
    }

    /// Returns whether an access of `a` at `then` is before one that a lane makes now.
    pub(super) fn is_before(
        &self,
        a: Thread,
        then: Time,
        of: &ClusterClocks,
        warp: usize,
        lane: usize,
    ) -> bool {
        let clock = &of.warps[warp];
        let reads_after = clock.acquired > then && clock.entered[lane] > then;
        if self.time == LAST {
            return true;
        }
        let number = of.number_of(a);
        if !of.blocks().contains(&a.block) {
            let published = || self.published.get(&(a.block / of.blocks * of.blocks));
            return reads_after && published().is_some_and(|times| times[number] > then);
        }
        let (a_warp, a_lane) = (number / LANES, number % LANES);
        let is_own_block = a_warp / of.warps_of_block == warp / of.warps_of_block;
        if a_warp == warp && a_lane == lane || is_own_block && then < clock.floor {
            return true;
        }
        let other = &of.warps[a_warp];
        let has_met = if a_warp == warp {
            other.met[a_lane] > then && clock.met[lane] > then
        } else {
            clock.known[a_warp] > then && other.met[a_lane] > then && clock.entered[lane] > then
        };
        has_met || reads_after && of.published[number] > then
    }

    /// Notes that lanes of a warp meet. `mask` also has exited lanes that they named.
    pub(super) fn meet(&mut self, of: &mut ClusterClocks, warp: usize, mask: Mask) {
        let time = self.tick();
        let clock = &mut of.warps[warp];
        set(&mut clock.met, mask, time);
        set(&mut clock.entered, mask, time);
    }

    /// Notes a synchronising read of lanes.
    pub(super) fn acquire(&mut self, of: &mut ClusterClocks, warp: usize, mask: Mask) {
        let clock = &mut of.warps[warp];
        clock.acquired = self.time;
        set(&mut clock.entered, mask, self.time);
    }

    /// Notes that the lanes of `mask` execute a fence of `scope`.
    pub(super) fn fence(&mut self, of: &mut ClusterClocks, warp: usize, mask: Mask, scope: Scope) {
        let time = self.tick();
        let scope = of.scope(scope);
        let ClusterClocks { warps, fenced, fenced_wide, is_unpublished, published, .. } = of;
        *is_unpublished = true;
        cover(warps, fenced, warp, mask, time);
        if scope == Scope::Device {
            let wide = fenced_wide.get_or_insert_with(|| vec![0; published.len()].into());
            cover(warps, wide, warp, mask, time);
            // Accesses that another thread has published and this warp has read are before this
            // fence.
            let acquired = warps[warp].acquired;
            for (wide, published) in wide.iter_mut().zip(published.iter()) {
                *wide = (*wide).max((*published).min(acquired));
            }
        }
    }

    /// Notes a strong write: the fences before it now count for readers.
    pub(super) fn publish(&mut self, of: &mut ClusterClocks) {
        if !std::mem::take(&mut of.is_unpublished) {
            return;
        }
        join(&mut of.published, &of.fenced);
        if let Some(fenced) = &of.fenced_wide {
            let published = self.published.entry(of.first);
            join(published.or_insert_with(|| vec![0; fenced.len()].into()), fenced);
        }
    }

    /// Notes that lanes arrive at a barrier and do not wait.
    pub(super) fn arrive(&mut self, of: &mut ClusterClocks, warp: usize, mask: Mask, barrier: u32) {
        let time = self.tick();
        let rank = if barrier == clusters::OPEN { 0 } else { (warp / of.warps_of_block) as u32 };
        let clock = &mut of.warps[warp];
        set(&mut clock.met, mask, time);
        let acquired = clock.acquired;
        let none = || (vec![0; clock.known.len()].into(), 0);
        let (known, read) = of.arrived.entry((rank, barrier)).or_insert_with(none);
        join(known, &clock.known);
        known[warp] = time;
        *read = (*read).max(acquired);
    }

    /// Notes that a barrier opens for the lanes that wait at it. `first` is the number of the first
    /// of `warps`. `is_of_all` is true if the barrier waited for all threads that have not exited.
    pub(super) fn open<'a>(
        &mut self,
        of: &mut ClusterClocks,
        first: usize,
        warps: impl Iterator<Item = &'a Warp> + Clone,
        barrier: u32,
        is_of_all: bool,
    ) {
        let time = self.tick();
        let none = || (vec![0; of.warps.len()].into(), 0);
        // A thread that waits at the barrier of the cluster has arrived before. What it has done
        // since then is not ordered.
        let is_split = barrier >= clusters::OPEN;
        let arrived = match barrier {
            clusters::ENDED => of.arrived.get(&(0, barrier)).cloned(),
            clusters::OPEN => of.arrived.remove(&(0, barrier)),
            _ => of.arrived.remove(&((first / of.warps_of_block) as u32, barrier)),
        };
        let (mut known, mut acquired) = arrived.unwrap_or_else(none);
        let mut all_wait = true;
        for (at, warp) in warps.clone().enumerate() {
            let clock = &mut of.warps[first + at];
            let mut waits = 0;
            let exited = if is_of_all { warp.lanes.registers.dead } else { 0 };
            warp.for_each_waiting(|other, mask, _| waits |= if other.id == barrier { mask } else { 0 });
            all_wait &= waits | exited == Mask::MAX;
            set(&mut clock.met, waits | exited, time);
            set(&mut clock.entered, waits, time);
            // Lanes that the block does not have know nothing.
            let is_known = match is_split {
                true => exited & !warp.lanes.missing != 0,
                false => waits != 0 || exited == Mask::MAX,
            };
            if is_known {
                join(&mut known, &clock.known);
                known[first + at] = time;
                acquired = acquired.max(clock.acquired);
            }
        }
        if barrier == clusters::OPEN {
            of.arrived.insert((0, clusters::ENDED), (known.clone(), acquired));
        }
        for (at, warp) in warps.enumerate() {
            let clock = &mut of.warps[first + at];
            let mut waits = false;
            warp.for_each_waiting(|other, _, _| waits |= other.id == barrier);
            if waits {
                join(&mut clock.known, &known);
                clock.acquired = clock.acquired.max(acquired);
                clock.floor = if all_wait && !is_split { time } else { clock.floor };
            }
        }
    }
}

/// Sets the times of the lanes of a mask.
fn set(times: &mut [Time; LANES], mask: Mask, time: Time) {
    for (lane, at) in times.iter_mut().enumerate() {
        *at = if mask >> lane & 1 == 1 { time } else { *at };
    }
}

fn join(ours: &mut [Time], theirs: &[Time]) {
    for (ours, theirs) in ours.iter_mut().zip(theirs) {
        *ours = (*ours).max(*theirs);
    }
}

/// Notes that a fence of lanes covers their accesses and those that are known to be before.
fn cover(warps: &[WarpClock], covered: &mut [Time], warp: usize, mask: Mask, time: Time) {
    let clock = &warps[warp];
    for (at, covered) in covered.chunks_exact_mut(LANES).enumerate() {
        if at != warp {
            covered.iter_mut().for_each(|covered| *covered = (*covered).max(clock.known[at]));
            continue;
        }
        let mut met = 0;
        for_each_lane(mask, |lane| met = met.max(clock.met[lane]));
        for (lane, covered) in covered.iter_mut().enumerate() {
            let before = if mask >> lane & 1 == 1 { time } else { met.min(clock.met[lane]) };
            *covered = (*covered).max(before);
        }
    }
}
