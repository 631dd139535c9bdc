//! The checks of races, of reads of undefined bytes and of barriers.
//!
//! A launch with checks runs on one thread of the host, so its accesses have an order in time, and
//! what is known of memory needs no locks. The warps call a [`Checker`] before and after each op
//! that has an [`Effect`].
//!
//! # Races
//! Two accesses to a byte race if they are of two threads, at least one of them writes, not both
//! are strong, and neither is before the other (PTX ISA 8.10). `order` has the rules of "before".
//! For each word of memory, `shadow` remembers the last write and two reads since: the last one,
//! and one of another thread. An access is compared with these. So a race is missed if other
//! accesses came between, and no report is false. Two more rules apply:
//! * Two writes do not race if the later one changes nothing.
//! * Lanes that write other values to the same bytes by one instruction race.
//!
//! Memory that a launch may only read is not watched. A compiler may move a load in front of a
//! branch, and drop the value in threads whose source does not load it. So a load is reported, here
//! and below, only if each path from it uses the value (`program::speculation`).
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

mod areas;
mod order;
pub(crate) mod report;
mod shadow;

use super::access::{Window, addresses, stored};
use super::context::{Context, Launch, position};
use super::effect::{Effect, Moved};
use super::fault::FaultKind;
use super::memory::{Access, Element};
use super::op::{Flow, Op};
use super::registers::{LANES, Mask, for_each_lane};
use super::warp::{Lanes, Warp};
use crate::checks::Checks;
use crate::program::may_be_unused;
use areas::Areas;
use order::{BlockClocks, Clocks, Thread};
use report::{Earlier, Place, Race, Relation};
use shadow::{Bits, Record, Words};
use std::cell::RefCell;
use std::collections::HashMap;

/// The state of the checks of a launch.
#[derive(Debug)]
pub(crate) struct Checker {
    checks: Checks,
    clocks: Clocks,
    areas: Areas,
    /// That of the block that runs.
    block: Option<Box<BlockState>>,
    /// The place of the op that runs.
    place: u32,
    loads: Loads,
}

/// The loads that were looked at because they might be reported.
#[derive(Debug, Default)]
struct Loads {
    /// For each line, whether the value of its load may stay unused.
    may_be_unused: RefCell<HashMap<u32, bool>>,
}

impl Loads {
    /// Returns whether a thread may have run a load whose value it does not need.
    #[cold]
    fn may_be_unused(&self, place: Option<u32>, launch: &Launch<'_>) -> bool {
        let Some(place) = place else { return true };
        let line = launch.code.lines[place as usize].ptx;
        let mut known = self.may_be_unused.borrow_mut();
        *known.entry(line).or_insert_with(|| may_be_unused(launch.text, line))
    }
}

/// The state of the checks of a block.
#[derive(Debug)]
pub(crate) struct BlockState {
    clocks: BlockClocks,
    /// What is known of each word of shared memory. Records of earlier blocks are left over.
    shared: Words,
    shared_defined: Bits,
    /// The bytes of local memory of each warp that are defined.
    local_defined: Vec<Bits>,
}

/// The kind of memory of an access.
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
        Checker { checks, clocks: Clocks::new(), areas, block: None, place: 0, loads: Loads::default() }
    }

    pub(crate) fn checks(&self) -> Checks {
        self.checks
    }

    /// Returns the state of a block that starts. `spare` is that of a block that has finished.
    pub(crate) fn start(
        &self,
        launch: &Launch<'_>,
        block: u64,
        spare: Option<Box<BlockState>>,
    ) -> Box<BlockState> {
        let threads = launch.threads();
        let clocks = BlockClocks::new(block as u32, threads);
        if let Some(mut state) = spare {
            state.clocks = clocks;
            state.shared_defined.clear();
            state.local_defined.iter_mut().for_each(Bits::clear);
            return state;
        }
        let shared = u64::from(launch.shared_bytes);
        let (races, init) = (self.checks.races, self.checks.init);
        let words = if races { shared.div_ceil(4) as usize } else { 0 };
        let warps = if init { (threads as usize).div_ceil(LANES) } else { 0 };
        let local = u64::from(launch.code.local_bytes).next_multiple_of(16) * LANES as u64;
        Box::new(BlockState {
            clocks,
            shared: Words::new(words),
            shared_defined: Bits::new(if init { shared } else { 0 }),
            local_defined: vec![Bits::new(local); warps],
        })
    }

    /// Takes the state of the block that runs next.
    pub(crate) fn enter(&mut self, state: Option<Box<BlockState>>) {
        self.block = state;
    }

    pub(crate) fn leave(&mut self) -> Option<Box<BlockState>> {
        self.block.take()
    }

    /// Returns the fault of an operand that is not wholly written when the launch has ended.
    pub(crate) fn unwritten(&mut self) -> Option<FaultKind> {
        let (region, element, bytes) = self.areas.unwritten()?;
        Some(FaultKind::NotWritten { region, element, bytes })
    }

    /// A barrier of the running block opens.
    pub(crate) fn opens(&mut self, warps: &[Warp], barrier: u32, is_of_all: bool) {
        if let Some(block) = self.block.as_deref_mut() {
            self.clocks.open(&mut block.clocks, warps, barrier, is_of_all);
        }
    }

    /// Checks an op that lanes are about to run. Returns what fails.
    #[inline(always)]
    pub(crate) fn before(
        &mut self,
        lanes: &mut Lanes,
        op: &Op,
        mask: Mask,
        place: u32,
        context: &Context<'_>,
    ) -> Option<Failure> {
        self.place = place;
        match context.launch.code.lines[place as usize].effect {
            Effect::None | Effect::Meet => None,
            effect => self.before_effect(lanes, op, mask, effect, context),
        }
    }

    #[inline(never)]
    fn before_effect(
        &mut self,
        lanes: &mut Lanes,
        op: &Op,
        mask: Mask,
        effect: Effect,
        context: &Context<'_>,
    ) -> Option<Failure> {
        let warp = lanes.first_thread as usize / LANES;
        let block = self.block.as_deref_mut()?;
        let clocks = &mut block.clocks;
        match effect {
            Effect::None | Effect::Meet | Effect::Part(_) => None,
            Effect::Fence(scope) => {
                self.clocks.fence(clocks, warp, mask, scope);
                None
            }
            Effect::Arrive => {
                for_each_lane(mask, |lane| {
                    let barrier = lanes.registers.narrow[op.a as usize][lane];
                    self.clocks.arrive(clocks, warp, 1 << lane, barrier);
                });
                None
            }
            Effect::Copy => {
                if let Some(defined) = block.local_defined.get_mut(warp) {
                    let start = lanes.frame + u64::from(op.b);
                    for_each_lane(mask, |lane| {
                        let start = lane as u64 * lanes.local_stride + start;
                        defined.set_all(start, start + op.extra);
                    });
                }
                None
            }
            Effect::Result(bytes) => {
                if let Some(defined) = block.local_defined.get_mut(warp)
                    && op.d != u32::MAX
                {
                    let start = lanes.frame + u64::from(op.d);
                    for_each_lane(mask, |lane| {
                        defined.set(lane as u64 * lanes.local_stride + start, bytes.into())
                    });
                }
                None
            }
            Effect::Load(moved) | Effect::Store(moved, _) | Effect::Atomic(moved, _) => {
                if let Some(scope) = moved.releases {
                    self.clocks.fence(clocks, warp, mask, scope);
                }
                let access = if let Effect::Load(_) = effect { Access::Read } else { Access::Write };
                // An access that is not allowed fails when it runs.
                let of = addresses(lanes, op, mask, context, moved.all_bytes(), access)?;
                let is_acquire =
                    moved.is_strong && !matches!(effect, Effect::Store(..) | Effect::Atomic(_, false));
                if is_acquire {
                    self.clocks.acquire(clocks, warp, mask);
                }
                if moved.is_strong && access == Access::Write {
                    self.clocks.publish(clocks);
                }
                let block = clocks.block;
                let place = self.place;
                let now = Now { lanes, op, place, effect, moved, context, block, warp, of: &of };
                self.access(&now, mask)
            }
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
        access: Access,
        context: &Context<'_>,
    ) -> Option<Failure> {
        let moved = Moved { bytes: bytes as u8, elements: 1, is_strong: false, releases: None };
        let effect = match access {
            Access::Read => Effect::Load(moved),
            Access::Write => Effect::Part(moved),
        };
        let (warp, block) = (lanes.first_thread as usize / LANES, self.block.as_ref()?.clocks.block);
        let now = Now { lanes, op, place: self.place, effect, moved, context, block, warp, of };
        self.access(&now, mask)
    }

    /// Notes what an op has done that lanes have run.
    #[inline(always)]
    pub(crate) fn after(
        &mut self,
        lanes: &Lanes,
        op: &Op,
        mask: Mask,
        place: u32,
        flow: Flow,
        context: &Context<'_>,
    ) {
        if context.launch.code.lines[place as usize].effect == Effect::Meet {
            self.met(lanes, op, mask, flow);
        }
    }

    fn met(&mut self, lanes: &Lanes, op: &Op, mask: Mask, flow: Flow) {
        let Some(block) = self.block.as_deref_mut() else { return };
        let warp = lanes.first_thread as usize / LANES;
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
            self.clocks.meet(&mut block.clocks, warp, group | members & lanes.registers.dead);
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
        let block = self.block.as_deref_mut()?;
        match target {
            Target::Shared => {
                let defined = self.checks.init.then_some(&mut block.shared_defined);
                let memory =
                    Known { start: now.context.shared, words: &mut block.shared, defined, is_own: true };
                let failure = memory.check(now, mask, &self.clocks, &block.clocks, &self.loads);
                failure.map(|failure| describe(failure, now, mask, |address| shared_place(now, address)))
            }
            Target::Local => {
                let start = now.lanes.local_of(0);
                let defined = block.local_defined.get_mut(now.warp);
                let memory = Known { start, words: &mut Words::default(), defined, is_own: true };
                let failure = memory.check(now, mask, &self.clocks, &block.clocks, &self.loads);
                let place =
                    |address: u64| Place::Local { offset: (address - start) % now.lanes.local_stride };
                failure.map(|failure| describe(failure, now, mask, place))
            }
            Target::Global => {
                let area = self.areas.of(lowest)?;
                let defined = area.defined.as_mut();
                let memory = Known { start: area.start, words: &mut area.words, defined, is_own: false };
                let failure = memory.check(now, mask, &self.clocks, &block.clocks, &self.loads);
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
        let (shared, shared_end) =
            (now.context.shared, now.context.shared + u64::from(now.context.launch.shared_bytes));
        let local = now.lanes.local_of(0);
        let local_end = local + LANES as u64 * now.lanes.local_stride;
        match now.op.window {
            Window::Shared => return Some((Target::Shared, shared_end)),
            Window::Local | Window::Frame => return Some((Target::Local, local_end)),
            Window::Param => return None,
            Window::Generic if shared <= address && address < shared_end => {
                return Some((Target::Shared, shared_end));
            }
            Window::Generic if local <= address && address < local_end => {
                return Some((Target::Local, local_end));
            }
            Window::Global | Window::Generic => {}
        }
        Some((Target::Global, self.areas.of(address)?.end))
    }
}

/// An access of the lanes of a warp.
struct Now<'a, 'b> {
    lanes: &'a Lanes,
    op: &'a Op,
    place: u32,
    effect: Effect,
    moved: Moved,
    context: &'a Context<'b>,
    block: u32,
    warp: usize,
    of: &'a [u64; LANES],
}

/// What is known of the memory that an access touches.
struct Known<'a> {
    start: u64,
    /// Empty if races in it are not looked for.
    words: &'a mut Words,
    /// The bytes that are defined, unless all are.
    defined: Option<&'a mut Bits>,
    /// True if it is shared or local memory: no other block has it.
    is_own: bool,
}

/// What is wrong with an access of a lane.
enum Problem {
    /// It races with another access, which is a write or a read.
    Race {
        earlier: Record,
        is_write: bool,
    },
    Undefined,
}

impl Known<'_> {
    /// Checks an access of lanes that is within this memory. Returns a lane, an address and what is
    /// wrong.
    fn check(
        mut self,
        now: &Now<'_, '_>,
        mask: Mask,
        clocks: &Clocks,
        of: &BlockClocks,
        loads: &Loads,
    ) -> Option<(usize, u64, Problem)> {
        self.undefined(now, mask, loads).or_else(|| self.race(now, mask, clocks, of, loads))
    }

    fn undefined(&mut self, now: &Now<'_, '_>, mask: Mask, loads: &Loads) -> Option<(usize, u64, Problem)> {
        let defined = self.defined.as_deref_mut()?;
        let bytes = now.moved.all_bytes();
        let reads = !matches!(now.effect, Effect::Store(..) | Effect::Part(_));
        let writes = !matches!(now.effect, Effect::Load(_));
        let mut found = None;
        if !reads && now.is_contiguous(mask) {
            defined.set_all(now.of[0] - self.start, now.of[0] - self.start + LANES as u64 * bytes);
            return None;
        }
        for_each_lane(mask, |lane| {
            let at = now.of[lane] - self.start;
            if reads && found.is_none() && defined.of(at, bytes) == 0 {
                let is_alone = self.is_own && bytes < 4 && defined.of(at / 8 * 8, 8) != 0;
                if !is_alone && !now.may_be_unused(loads) {
                    found = Some((lane, now.of[lane], Problem::Undefined));
                }
            }
            if writes {
                defined.set(at, bytes);
            }
        });
        found
    }

    fn race(
        &mut self,
        now: &Now<'_, '_>,
        mask: Mask,
        clocks: &Clocks,
        of: &BlockClocks,
        loads: &Loads,
    ) -> Option<(usize, u64, Problem)> {
        if self.words.is_empty() {
            return None;
        }
        let bytes = now.moved.all_bytes();
        let thread = Thread { block: of.block, number: now.lanes.first_thread };
        let by = Record::new(thread, clocks.time, now.moved.is_strong, now.place);
        let floor = of.floor(now.warp);
        let (first_word, is_own) = (self.start / 4, self.is_own);
        let is_load = matches!(now.effect, Effect::Load(_));
        let mut left = mask;
        while left != 0 {
            let lane = left.trailing_zeros() as usize;
            left &= left - 1;
            let address = now.of[lane];
            let at = (address / 4 - first_word) as usize;
            let (len, which) = match bytes {
                1 | 2 => (1, ((1 << bytes) - 1) << (address % 4)),
                _ => (bytes as usize / 4, 0xf),
            };
            let by = by.at(lane, which);
            let is_before = |earlier: Record| {
                let (a, then) = (earlier.thread(), earlier.time());
                let is_own_block = a.block == of.block;
                // Other blocks have left records of their own shared memory here.
                let is_certain = if is_own_block { then < floor } else { is_own };
                is_certain || clocks.is_before(a, then, of, now.warp, lane)
            };
            for number in 0..len {
                let place = || (address / 4 + number as u64) * 4 + u64::from(by.bytes().trailing_zeros());
                let race = if is_load {
                    let write =
                        self.words.read(at + number, by, is_before).filter(|_| !now.may_be_unused(loads));
                    write.map(|earlier| (earlier, true))
                } else {
                    let is_harmless = |read: Record| {
                        is_before(read)
                            || !read.is_strong() && loads.may_be_unused(read.place(), now.context.launch)
                    };
                    let is_silent = |earlier| now.is_silent(mask, lane, earlier, by, number);
                    self.words.write(at + number, by, is_before, is_silent, is_harmless)
                };
                if let Some((earlier, is_write)) = race {
                    return Some((lane, place(), Problem::Race { earlier, is_write }));
                }
            }
        }
        None
    }
}

impl Now<'_, '_> {
    /// Returns whether all lanes take part, each right behind the one before.
    fn is_contiguous(&self, mask: Mask) -> bool {
        let bytes = self.moved.all_bytes();
        let is_next = |(lane, at): (usize, &u64)| *at == self.of[0].wrapping_add(lane as u64 * bytes);
        mask == Mask::MAX && self.of.iter().enumerate().all(is_next)
    }

    /// Returns whether this is a load whose value may stay unused.
    #[cold]
    fn may_be_unused(&self, loads: &Loads) -> bool {
        let is_weak_load = matches!(self.effect, Effect::Load(_)) && !self.moved.is_strong;
        is_weak_load && loads.may_be_unused(Some(self.place), self.context.launch)
    }

    /// Returns whether a store of a lane leaves a word as an earlier write left it.
    #[cold]
    fn is_silent(&self, mask: Mask, lane: usize, earlier: Record, by: Record, word: usize) -> bool {
        if let Effect::Part(_) = self.effect {
            // Lanes that store a matrix together may store an element several times.
            return earlier.place() == Some(self.place) && earlier.is_of_warp(by);
        }
        let Effect::Store(moved, is_wide) = self.effect else { return false };
        let start = self.of[lane] / 4 * 4 + 4 * word as u64;
        let is_same_instruction = self.is_same_instruction(mask, lane, earlier);
        let other = earlier.thread().number as usize % LANES;
        (0..4).filter(|byte| earlier.bytes() & by.bytes() >> byte & 1 == 1).all(|byte| {
            let address = start + byte;
            let at = (address - self.of[lane]) as usize;
            let new = stored(self.lanes, self.op, lane, moved, is_wide)[at];
            if is_same_instruction {
                return new == stored(self.lanes, self.op, other, moved, is_wide)[at];
            }
            // SAFETY: load needs memory that is valid for reads: `addresses` has checked that the
            // lane may write there, and memory of a launch that is writable is readable.
            new == unsafe { u8::load(address) }
        })
    }

    /// Returns whether an access was made by another lane at the same time and place, to the same
    /// address.
    fn is_same_instruction(&self, mask: Mask, lane: usize, earlier: Record) -> bool {
        let thread = earlier.thread();
        let other = thread.number as usize % LANES;
        thread.number as usize / LANES == self.warp
            && thread.block == self.block
            && earlier.place() == Some(self.place)
            && mask >> other & 1 == 1
            && self.of[other] == self.of[lane]
            && other < lane
    }
}

/// Turns what is wrong with an access into a fault. `place` names an address.
#[cold]
fn describe(
    (lane, address, problem): (usize, u64, Problem),
    now: &Now<'_, '_>,
    mask: Mask,
    place: impl FnOnce(u64) -> Place,
) -> Failure {
    let Problem::Race { earlier, is_write } = problem else {
        return (lane, FaultKind::Uninitialised { place: place(address), bytes: now.moved.all_bytes() });
    };
    let Launch { code, grid, block, .. } = now.context.launch;
    let Thread { block: number, number: thread } = earlier.thread();
    let (line, source) = earlier.place().map(|place| code.line_of(place)).unwrap_or_default();
    let relation = if number != now.block {
        Relation::TwoBlocks
    } else if thread as usize / LANES != now.warp {
        Relation::SameBlock
    } else if is_write && now.is_same_instruction(mask, lane, earlier) {
        Relation::SameInstruction
    } else {
        Relation::SameWarp
    };
    let access = |is_write| if is_write { Access::Write } else { Access::Read };
    let race = Race {
        place: place(address),
        access: access(!matches!(now.effect, Effect::Load(_))),
        is_strong: now.moved.is_strong,
        earlier: Earlier {
            access: access(is_write),
            is_strong: earlier.is_strong(),
            block: position(number.into(), *grid),
            thread: position(thread.into(), *block),
            ptx_line: line,
            source,
        },
        relation,
    };
    (lane, FaultKind::Race(Box::new(race)))
}

fn shared_place(now: &Now<'_, '_>, address: u64) -> Place {
    let offset = address - now.context.shared;
    let variables = now.context.launch.code.shared_variables.iter();
    let has = |(start, len, _): &&(u64, u64, String)| (*start..start + len).contains(&offset);
    let variable = variables.rev().find(has).map(|(start, _, name)| (name.clone(), *start));
    Place::Shared { offset, variable }
}
