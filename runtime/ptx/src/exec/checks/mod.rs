//! The checks of races, of reads of undefined bytes and of barriers.
//!
//! A launch with checks runs on one thread of the host, so its accesses have an order in time, and
//! what is known of memory needs no locks. The warps call a [`Checker`] before and after each op
//! that has an [`Effect`].
//!
//! # Races
//! Two accesses to a byte race if they are of two threads, at least one of them writes, not both
//! are strong with a scope that has both threads, and neither is before the other (PTX ISA 8.10).
//! `order` has the rules of "before".
//! For each word of memory, `shadow` remembers the last write and two reads since: the last one,
//! and one of another thread. A strong access replaces no weak one, which races with more. So the
//! last weak write stays beside a strong one behind it, a strong write ends no reads, and there are
//! two weak reads and two strong ones. A weak access replaces no other one of other bytes, as far
//! as there is room: two stay. An access is compared with these. So a race is missed if other
//! accesses came between, and each pair that is reported has no order. Two more rules apply:
//! * Two writes do not race if the later one changes nothing.
//! * Lanes that write other values to the same bytes by one instruction race.
//!
//! Memory that a launch may only read is not watched. A compiler may move a load in front of a
//! branch, and drop the value in threads whose source does not load it. So a load is reported at
//! once, here and below, only if each path from it uses the value (`text::speculation`). Otherwise
//! it is reported when a lane uses the value (`suspects`).
//!
//! # Undefined bytes
//! Shared and local memory is undefined when a block starts, and an operand with
//! [`Region::is_undefined`](super::memory::Region::is_undefined) when the launch starts. A store
//! defines the bytes that it writes, whatever it writes.
//! * A load is reported if all of its bytes are undefined. So a copy of a structure whose padding
//!   was never written is not, if it moves more than the padding.
//! * A copy of a structure byte by byte does move padding alone. A load of less than 4 bytes from
//!   shared or local memory is reported only if all of the aligned 8 bytes around it are undefined.
//! * At the end of a launch, each byte of an undefined operand has to be written.
//!
//! # Barriers
//! A barrier without a number of threads is one of all threads. A report tells that it opened while
//! threads had exited, or while threads waited at two instructions. CUDA C++ Programming Guide,
//! "Synchronization Functions": `__syncthreads()` in conditional code is allowed only if the
//! condition is the same in all threads of the block. A shuffle from a lane that has exited is
//! reported too: its result is undefined (PTX ISA 9.7.9.6, shfl.sync).
// Decision: docs/decisions/0062-checks-keep-three-accesses-and-their-times.md

mod areas;
mod bits;
mod compare;
mod order;
mod records;
pub(crate) mod report;
mod shadow;
mod suspects;
mod whole;

use super::access::{Window, addresses};
use super::clusters;
use super::code::Line;
use super::context::{Context, Launch};
use super::effect::{Effect, Moved, Scope};
use super::fault::FaultKind;
use super::memory::Access;
use super::op::{Flow, Guard, Op};
use super::registers::{LANES, Mask, for_each_lane};
use super::runs::Runs;
use super::vote::Form;
use super::warp::{Lanes, Warp};
use crate::checks::Checks;
use areas::Areas;
use bits::Bits;
use compare::{Known, Loads, Now, Suspicion, describe, local_place, shared_place};
use order::{Clocks, ClusterClocks, Thread};
use shadow::{Record, Words};
use suspects::Finding;
pub(crate) use suspects::Suspects;
use whole::Weak;

/// The checks of a launch, and what they have noted of its memory and of the order of its threads.
#[derive(Debug)]
pub(crate) struct Checker {
    checks: Checks,
    clocks: Clocks,
    areas: Areas,
    /// The cluster that runs, from `enter` to `leave`.
    cluster: Option<Box<ClusterState>>,
    /// The index of the op that runs in `Code::ops`.
    place: u32,
    loads: Loads,
}

/// The clocks of a cluster, and the records of its shared and local memory.
#[derive(Debug)]
pub(crate) struct ClusterState {
    clocks: ClusterClocks,
    /// The records of each word of the shared memory of its blocks. Those of earlier clusters are
    /// left over.
    shared: Words,
    shared_defined: Bits,
    /// The bytes of local memory of each warp of its blocks that are defined.
    local_defined: Vec<Bits>,
    /// The last arrival at the barrier of the cluster: the number of the warp in the cluster, the
    /// lane, and the place of the op.
    last_arrival: Option<(usize, usize, u32)>,
}

/// The memory of an access, which tells where its records are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Shared,
    Local,
    Global,
}

/// A lane, and what failed in it.
type Failure = (usize, FaultKind);

impl Checker {
    pub(crate) fn new(launch: &Launch<'_>) -> Self {
        let checks = launch.checks;
        let areas = Areas::new(&launch.regions, checks.races, checks.init);
        Checker { checks, clocks: Clocks::new(), areas, cluster: None, place: 0, loads: Loads::default() }
    }

    pub(crate) fn checks(&self) -> Checks {
        self.checks
    }

    /// Returns the state of a cluster that starts, with `first` as its first block. `spare` is
    /// that of a cluster that has finished.
    pub(crate) fn start(
        &self,
        launch: &Launch<'_>,
        first: u64,
        spare: Option<Box<ClusterState>>,
    ) -> Box<ClusterState> {
        if let Some(mut state) = spare {
            state.clocks.restart(first as u32);
            state.shared_defined.clear();
            state.local_defined.iter_mut().for_each(Bits::clear);
            state.last_arrival = None;
            return state;
        }
        let blocks = launch.clusters.blocks();
        let shared = launch.shared_stride() * u64::from(blocks);
        let (races, init) = (self.checks.races, self.checks.init);
        let words = if races { shared.div_ceil(4) as usize } else { 0 };
        let warps = if init { blocks as usize * launch.warps() } else { 0 };
        let local = u64::from(launch.code.local_bytes).next_multiple_of(16) * LANES as u64;
        Box::new(ClusterState {
            clocks: ClusterClocks::new(first as u32, blocks, launch.threads()),
            shared: Words::new(words),
            shared_defined: Bits::new(if init { shared } else { 0 }),
            local_defined: vec![Bits::new(local); warps],
            last_arrival: None,
        })
    }

    /// Takes the state of the cluster that runs next.
    pub(crate) fn enter(&mut self, state: Option<Box<ClusterState>>) {
        self.cluster = state;
    }

    pub(crate) fn leave(&mut self) -> Option<Box<ClusterState>> {
        self.cluster.take()
    }

    /// Returns the fault of an operand that is not wholly written when the launch has ended.
    pub(crate) fn unwritten(&mut self) -> Option<FaultKind> {
        let (region, element, bytes) = self.areas.unwritten()?;
        Some(FaultKind::NotWritten { region, element, bytes })
    }

    /// Notes that a barrier of the running block opens.
    pub(crate) fn opens(&mut self, context: &Context<'_>, warps: &[Warp], barrier: u32, is_of_all: bool) {
        if let Some(cluster) = self.cluster.as_deref_mut() {
            let first = context.cluster.rank as usize * context.launch.warps();
            self.clocks.open(&mut cluster.clocks, first, warps.iter(), barrier, is_of_all);
        }
    }

    /// Returns the last arrival at the barrier of the running cluster, if the check of barriers is
    /// on.
    pub(crate) fn last_arrival(&self) -> Option<(usize, usize, u32)> {
        self.cluster.as_ref().filter(|_| self.checks.sync)?.last_arrival
    }

    /// Notes that a phase of the cluster's barrier ends. `warps` are all warps of the cluster.
    pub(crate) fn ends_phase<'a>(&mut self, warps: impl Iterator<Item = &'a Warp> + Clone) {
        if let Some(cluster) = self.cluster.as_deref_mut() {
            self.clocks.open(&mut cluster.clocks, 0, warps, clusters::OPEN, true);
        }
    }

    /// Checks an op with an effect that lanes are about to run. Returns what fails.
    #[inline(never)]
    pub(crate) fn before(
        &mut self,
        lanes: &mut Lanes,
        op: &Op,
        mask: Mask,
        place: u32,
        context: &Context<'_>,
    ) -> Option<Failure> {
        self.place = place;
        let code = context.launch.code;
        let Line { effect, dependence, .. } = &code.lines[place as usize];
        let effect = *effect;
        if !lanes.suspects.is_empty()
            && let Some(used) = lanes.suspects.follow(op, dependence, mask, &lanes.registers, code)
        {
            return Some(self.used(lanes, used, context));
        }
        let (moved, access) = match effect {
            Effect::Load(moved) => (moved, Access::Read),
            Effect::Store(moved, _) | Effect::Atomic(moved, _) => (moved, Access::Write),
            _ => {
                self.note(lanes, op, mask, effect, context);
                return None;
            }
        };
        if !self.checks.races && !self.checks.init
            || !matches!(effect, Effect::Atomic(..)) && self.whole(lanes, op, mask, (moved, access), context)
        {
            return None;
        }
        let cluster = self.cluster.as_deref_mut()?;
        let (clocks, warp) = (&mut cluster.clocks, context.warp_in_cluster(lanes));
        if let Some(scope) = moved.releases {
            self.clocks.fence(clocks, warp, mask, scope);
        }
        // An access that is not allowed fails when it runs.
        let of = addresses(lanes, op, mask, context, moved.all_bytes(), access)?;
        let is_acquire = moved.is_strong && !matches!(effect, Effect::Store(..) | Effect::Atomic(_, false));
        if is_acquire {
            self.clocks.acquire(clocks, warp, mask);
        }
        if moved.is_strong && access == Access::Write {
            self.clocks.publish(clocks);
        }
        let now = Now { lanes, op, place, effect, moved, context, warp, of: &of };
        let failure = self.access(&now, mask);
        for Suspicion { lane, elements, is_part, finding } in self.loads.suspicions.take() {
            let results = dependence.results(op).enumerate().filter(|(at, _)| elements >> at & 1 == 1);
            results.for_each(|(_, result)| lanes.suspects.note(result, lane, is_part, finding));
        }
        failure
    }

    /// Checks the guard of an op that lanes have reached. Returns what fails.
    #[cold]
    pub(crate) fn guard(
        &mut self,
        lanes: &mut Lanes,
        guard: Guard,
        mask: Mask,
        context: &Context<'_>,
    ) -> Option<Failure> {
        let used = lanes.suspects.guarding(guard, mask)?;
        Some(self.used(lanes, used, context))
    }

    /// Returns the fault of an earlier load whose value a lane uses.
    #[cold]
    fn used(&mut self, lanes: &mut Lanes, finding: Finding, context: &Context<'_>) -> Failure {
        let Finding { lane, place, address, problem } = finding;
        lanes.blamed = Some(place);
        let code = context.launch.code;
        let (op, effect) = (&code.ops[place as usize], code.lines[place as usize].effect);
        let Effect::Load(moved) = effect else { unreachable!("a suspicion is about a load") };
        let warp = context.warp_in_cluster(lanes);
        let of = &[address; LANES];
        let now = Now { lanes, op, place, effect, moved, context, warp, of };
        let target = self.target(&now, address);
        let place_of = |address| match target {
            Some((Target::Shared, _)) => shared_place(&now, address),
            Some((Target::Local, _)) => local_place(&now, address),
            _ => self.areas.place(address),
        };
        describe((lane, address, problem), &now, 1 << lane, place_of)
    }

    /// Notes an effect that is no access.
    fn note(&mut self, lanes: &Lanes, op: &Op, mask: Mask, effect: Effect, context: &Context<'_>) {
        let warp = context.warp_in_cluster(lanes);
        let place = self.place;
        let Some(cluster) = self.cluster.as_deref_mut() else { return };
        let clocks = &mut cluster.clocks;
        match effect {
            Effect::Fence(scope) => self.clocks.fence(clocks, warp, mask, scope),
            Effect::Arrive => for_each_lane(mask, |lane| {
                let barrier = lanes.registers.narrow[op.a as usize][lane];
                self.clocks.arrive(clocks, warp, 1 << lane, barrier);
                if barrier == clusters::OPEN {
                    cluster.last_arrival = Some((warp, lane, place));
                }
            }),
            Effect::Copy => {
                if let Some(defined) = cluster.local_defined.get_mut(warp) {
                    let start = lanes.frame + u64::from(op.b);
                    for_each_lane(mask, |lane| {
                        let start = lane as u64 * lanes.local_stride + start;
                        defined.set_all(start, start + op.extra);
                    });
                }
            }
            Effect::Result(bytes) => {
                if let Some(defined) = cluster.local_defined.get_mut(warp)
                    && op.d != u32::MAX
                {
                    let start = lanes.frame + u64::from(op.d);
                    for_each_lane(mask, |lane| {
                        defined.set(lane as u64 * lanes.local_stride + start, bytes.into())
                    });
                }
            }
            _ => {}
        }
    }

    /// Notes a weak load or store of a whole warp in which nothing can be wrong. Returns false for
    /// any other access.
    fn whole(
        &mut self,
        lanes: &Lanes,
        op: &Op,
        mask: Mask,
        (moved, access): (Moved, Access),
        context: &Context<'_>,
    ) -> bool {
        if mask != Mask::MAX || moved.is_strong || moved.releases.is_some() {
            return false;
        }
        let is_load = access == Access::Read;
        let bytes = moved.all_bytes();
        let Some(runs) = Runs::of(&lanes.registers, op, context, bytes, access) else { return false };
        let Some(cluster) = self.cluster.as_deref_mut() else { return false };
        let thread = Thread { block: context.number as u32, number: lanes.first_thread };
        let by = Record::new(thread, self.clocks.time, None, self.place);
        let floor = cluster.clocks.floor(context.warp_in_cluster(lanes));
        let weak = Weak { runs, bytes, is_load, by, floor, blocks: cluster.clocks.blocks() };
        let (from, to) = weak.extent();
        match op.window {
            Window::Param => true,
            Window::Shared => {
                let defined = self.checks.init.then_some(&mut cluster.shared_defined);
                let (start, words) = (context.cluster.of(0), &mut cluster.shared);
                weak.note(&mut Known { start, words, defined, is_own: true })
            }
            // Where bounds are not checked, runs may be those of the block's memory.
            Window::Generic if runs.starts.iter().any(|at| own(lanes, context, *at).is_some()) => false,
            Window::Global | Window::Generic => {
                let Some(area) = self.areas.of(from).filter(|area| to <= area.end) else { return false };
                let (start, words, defined) = (area.start, &mut area.words, area.defined.as_mut());
                weak.note(&mut Known { start, words, defined, is_own: false })
            }
            Window::Cluster | Window::Local | Window::Frame => false,
        }
    }

    /// Checks an access of lanes that is a part of what the op does that runs. `op` has its window,
    /// and `of` the addresses of the host.
    pub(crate) fn part(
        &mut self,
        lanes: &Lanes,
        op: &Op,
        (mask, of): (Mask, &[u64; LANES]),
        bytes: u64,
        effect: fn(Moved) -> Effect,
        context: &Context<'_>,
    ) -> Option<Failure> {
        let (is_strong, scope) = (false, Scope::Device);
        let moved = Moved { bytes: bytes as u8, elements: 1, is_strong, scope, releases: None };
        let effect = effect(moved);
        let warp = context.warp_in_cluster(lanes);
        let now = Now { lanes, op, place: self.place, effect, moved, context, warp, of };
        let failure = self.access(&now, mask);
        // The values are not followed.
        self.loads.suspicions.take();
        failure
    }

    /// Notes what an op with an effect has done that lanes have run.
    pub(crate) fn after(
        &mut self,
        lanes: &Lanes,
        op: &Op,
        mask: Mask,
        place: u32,
        flow: Flow,
        context: &Context<'_>,
    ) {
        if let Effect::Meet(Form::Barrier) = context.launch.code.lines[place as usize].effect {
            self.met(lanes, op, mask, flow, context.warp_in_cluster(lanes));
        }
    }

    fn met(&mut self, lanes: &Lanes, op: &Op, mask: Mask, flow: Flow, warp: usize) {
        let Some(cluster) = self.cluster.as_deref_mut() else { return };
        let mut left = match flow {
            Flow::Next => mask,
            Flow::WaitForLanes => mask & !lanes.waits,
            _ => return,
        };
        let named = &lanes.registers.narrow[op.e as usize];
        while left != 0 {
            let members = named[left.trailing_zeros() as usize];
            let mut group = 0;
            for_each_lane(left, |lane| group |= Mask::from(named[lane] == members) << lane);
            left &= !group;
            self.clocks.meet(&mut cluster.clocks, warp, group | members & lanes.registers.dead);
        }
    }

    /// Checks an access of lanes, and notes it.
    fn access(&mut self, now: &Now<'_, '_>, mask: Mask) -> Option<Failure> {
        let (mut lowest, mut highest) = (u64::MAX, 0);
        for_each_lane(mask, |lane| {
            lowest = lowest.min(now.of[lane]);
            highest = highest.max(now.of[lane]);
        });
        let end = highest + now.moved.all_bytes();
        let Some((target, target_end)) = self.target(now, lowest) else {
            // No area has it: nothing is known of it.
            return self.lane_by_lane(now, mask, mask.count_ones() > 1 && lowest != highest);
        };
        if end > target_end {
            return self.lane_by_lane(now, mask, true);
        }
        let cluster = self.cluster.as_deref_mut()?;
        match target {
            Target::Shared => {
                let defined = self.checks.init.then_some(&mut cluster.shared_defined);
                let (start, words) = (now.context.cluster.of(0), &mut cluster.shared);
                let memory = Known { start, words, defined, is_own: true };
                let failure = memory.check(now, mask, &self.clocks, &cluster.clocks, &self.loads);
                failure.map(|failure| describe(failure, now, mask, |address| shared_place(now, address)))
            }
            Target::Local => {
                let start = now.lanes.local_of(0);
                let defined = cluster.local_defined.get_mut(now.warp);
                let memory = Known { start, words: &mut Words::default(), defined, is_own: true };
                let failure = memory.check(now, mask, &self.clocks, &cluster.clocks, &self.loads);
                failure.map(|failure| describe(failure, now, mask, |address| local_place(now, address)))
            }
            Target::Global => {
                let area = self.areas.of(lowest)?;
                let defined = area.defined.as_mut();
                let memory = Known { start: area.start, words: &mut area.words, defined, is_own: false };
                let failure = memory.check(now, mask, &self.clocks, &cluster.clocks, &self.loads);
                failure.map(|failure| describe(failure, now, mask, |address| self.areas.place(address)))
            }
        }
    }

    fn lane_by_lane(&mut self, now: &Now<'_, '_>, mask: Mask, is_worth_it: bool) -> Option<Failure> {
        if !is_worth_it {
            return None;
        }
        let mut failure = None;
        for_each_lane(mask, |lane| {
            if failure.is_none() {
                failure = self.access(now, 1 << lane);
            }
        });
        failure
    }

    /// Returns the memory that has an address, and where that ends.
    fn target(&mut self, now: &Now<'_, '_>, address: u64) -> Option<(Target, u64)> {
        let (shared, local) = (shared_end(now.context), local_end(now.lanes));
        match now.op.window {
            Window::Shared => return Some((Target::Shared, shared)),
            Window::Local | Window::Frame => return Some((Target::Local, local)),
            Window::Param => return None,
            Window::Generic | Window::Cluster => {
                if let Some(own) = own(now.lanes, now.context, address) {
                    return Some(own);
                }
            }
            Window::Global => {}
        }
        Some((Target::Global, self.areas.of(address)?.end))
    }
}

fn shared_end(context: &Context<'_>) -> u64 {
    context.shared + u64::from(context.launch.shared_bytes)
}

fn local_end(lanes: &Lanes) -> u64 {
    lanes.local_of(0) + LANES as u64 * lanes.local_stride
}

/// Returns the memory of the cluster or the warp that has an address, and where that ends.
fn own(lanes: &Lanes, context: &Context<'_>, address: u64) -> Option<(Target, u64)> {
    let ((start, end), local) = (context.cluster.extent(), local_end(lanes));
    if start <= address && address < end {
        return Some((Target::Shared, end));
    }
    (lanes.local_of(0) <= address && address < local).then_some((Target::Local, local))
}
