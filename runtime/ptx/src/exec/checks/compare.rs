//! One access of a warp, compared with what is known of the memory.

use super::super::access::stored;
use super::super::context::{Context, Launch, position};
use super::super::effect::{Effect, Moved};
use super::super::fault::FaultKind;
use super::super::memory::{Access, Element};
use super::super::op::Op;
use super::super::registers::{LANES, Mask, for_each_lane};
use super::super::warp::Lanes;
use super::Failure;
use super::bits::Bits;
use super::order::{Clocks, ClusterClocks, Thread};
use super::report::{Earlier, NamedByte, Race, Relation};
use super::shadow::{Record, Words};
use super::suspects::Finding;
use crate::text::speculation::may_be_unused;
use std::cell::RefCell;
use std::collections::HashMap;

/// An access that lanes of a warp are about to make.
pub(super) struct Now<'a, 'b> {
    pub(super) lanes: &'a Lanes,
    pub(super) op: &'a Op,
    pub(super) place: u32,
    pub(super) effect: Effect,
    pub(super) moved: Moved,
    pub(super) context: &'a Context<'b>,
    /// The number of the warp among those of the cluster.
    pub(super) warp: usize,
    /// The address of each lane's access.
    pub(super) of: &'a [u64; LANES],
}

/// The records of the memory that an access touches.
pub(super) struct Known<'a> {
    pub(super) start: u64,
    /// Empty if races in it are not looked for.
    pub(super) words: &'a mut Words,
    /// The bytes that are defined, unless all are.
    pub(super) defined: Option<&'a mut Bits>,
    /// True if it is shared or local memory: no other cluster has it.
    pub(super) is_own: bool,
}

/// A mistake in the access of a lane. [`describe`] makes a fault of it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Problem {
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
    pub(super) fn check(
        mut self,
        now: &Now<'_, '_>,
        mask: Mask,
        clocks: &Clocks,
        of: &ClusterClocks,
        loads: &Loads,
    ) -> Option<(usize, u64, Problem)> {
        self.undefined(now, mask, loads).or_else(|| self.race(now, mask, clocks, of, loads))
    }

    fn undefined(&mut self, now: &Now<'_, '_>, mask: Mask, loads: &Loads) -> Option<(usize, u64, Problem)> {
        let defined = self.defined.as_deref_mut()?;
        let bytes = now.moved.all_bytes();
        let reads = !matches!(now.effect, Effect::Store(..) | Effect::Part(_) | Effect::Later(_));
        let writes = !matches!(now.effect, Effect::Load(_) | Effect::Later(_));
        if !reads && !writes {
            return None;
        }
        let mut found = None;
        if !reads && now.is_contiguous(mask) {
            defined.set_all(now.of[0] - self.start, now.of[0] - self.start + LANES as u64 * bytes);
            return None;
        }
        for_each_lane(mask, |lane| {
            let at = now.of[lane] - self.start;
            if reads && found.is_none() && defined.of(at, bytes) == 0 {
                let is_alone = self.is_own && bytes < 4 && defined.of(at / 8 * 8, 8) != 0;
                let problem = (now.of[lane], Problem::Undefined);
                match now.may_be_unused(loads) {
                    _ if is_alone => {}
                    true => loads.suspect(now, lane, (u8::MAX, false), problem),
                    false => found = Some((lane, problem.0, problem.1)),
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
        of: &ClusterClocks,
        loads: &Loads,
    ) -> Option<(usize, u64, Problem)> {
        if self.words.is_empty() {
            return None;
        }
        let bytes = now.moved.all_bytes();
        let thread = Thread { block: now.block(), number: now.lanes.first_thread };
        let strong = now.moved.is_strong.then_some(of.scope(now.moved.scope));
        let by = Record::new(thread, clocks.time, strong, now.place);
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
                // Other clusters have left records of their own shared memory here.
                let is_certain = match a.block == now.block() {
                    true => then < floor,
                    false => is_own && !of.blocks().contains(&a.block),
                };
                is_certain || clocks.is_before(a, then, of, now.warp, lane)
            };
            for number in 0..len {
                let place = || (address / 4 + number as u64) * 4 + u64::from(by.bytes().trailing_zeros());
                let race = if is_load {
                    let write = self.words.read(at + number, by, is_before);
                    let is_certain = |earlier: &Record| {
                        let is_suspicion = now.may_be_unused(loads);
                        if is_suspicion {
                            let problem = Problem::Race { earlier: *earlier, is_write: true };
                            let bytes = earlier.bytes() & by.bytes();
                            let is_part = now.moved.bytes > 4 || bytes != by.bytes();
                            let elements = now.elements(lane, number, bytes);
                            loads.suspect(now, lane, (elements, is_part), (place(), problem));
                        }
                        !is_suspicion
                    };
                    write.filter(is_certain).map(|earlier| (earlier, true))
                } else {
                    let is_harmless = |read: Record| {
                        is_before(read)
                            || !read.is_strong() && loads.may_be_unused(read.place(), now.context.launch)
                    };
                    let is_silent = |earlier| now.is_silent(mask, lane, earlier, by, number);
                    let race = self.words.racing(at + number, by, is_before, is_silent, is_harmless);
                    if race.is_none() && !matches!(now.effect, Effect::Later(_)) {
                        self.words.note_write(at + number, by);
                    }
                    race
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
    fn block(&self) -> u32 {
        self.context.number as u32
    }

    /// Returns whether a thread is one of the warp.
    fn is_of_warp(&self, thread: Thread) -> bool {
        thread.block == self.block() && thread.number / LANES as u32 == self.lanes.first_thread / LANES as u32
    }

    /// Returns whether all lanes take part, each right behind the one before.
    fn is_contiguous(&self, mask: Mask) -> bool {
        let bytes = self.moved.all_bytes();
        let is_next = |(lane, at): (usize, &u64)| *at == self.of[0].wrapping_add(lane as u64 * bytes);
        mask == Mask::MAX && self.of.iter().enumerate().all(is_next)
    }

    /// Returns the elements of a lane, as bits, that have some bytes of one of its words.
    #[cold]
    fn elements(&self, lane: usize, word: usize, bytes: u32) -> u8 {
        let start = self.of[lane] / 4 * 4 + 4 * word as u64;
        let bytes = (0..4).filter(|byte| bytes >> byte & 1 == 1);
        bytes.fold(0, |elements, byte| {
            let offset = (start + byte).wrapping_sub(self.of[lane]);
            elements | 1 << (offset / u64::from(self.moved.bytes)).min(7)
        })
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
        (0..4).filter(|byte| (earlier.bytes() & by.bytes()) >> byte & 1 == 1).all(|byte| {
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
        self.is_of_warp(thread)
            && earlier.place() == Some(self.place)
            && mask >> other & 1 == 1
            && self.of[other] == self.of[lane]
            && other < lane
    }
}

/// Turns what is wrong with an access into a fault. `place` names an address.
#[cold]
pub(super) fn describe(
    (lane, address, problem): (usize, u64, Problem),
    now: &Now<'_, '_>,
    mask: Mask,
    place: impl FnOnce(u64) -> NamedByte,
) -> Failure {
    let Problem::Race { earlier, is_write } = problem else {
        return (lane, FaultKind::Uninitialised { place: place(address), bytes: now.moved.all_bytes() });
    };
    let launch = now.context.launch;
    let Launch { code, block, .. } = launch;
    let Thread { block: number, number: thread } = earlier.thread();
    let (line, source) = earlier.place().map(|place| code.line_of(place)).unwrap_or_default();
    let cluster_of = |block: u32| block / launch.clusters.blocks();
    let relation = if cluster_of(number) != cluster_of(now.block()) {
        Relation::TwoBlocks
    } else if number != now.block() {
        Relation::SameCluster
    } else if !now.is_of_warp(earlier.thread()) {
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
            block: launch.position_of(number.into()),
            thread: position(thread.into(), *block),
            ptx_line: line,
            source,
        },
        relation,
    };
    (lane, FaultKind::Race(Box::new(race)))
}

pub(super) fn shared_place(now: &Now<'_, '_>, address: u64) -> NamedByte {
    let cluster = now.context.cluster;
    let (rank, offset) = cluster.place(address).unwrap_or_default();
    let variables = now.context.launch.code.shared_variables.iter();
    let has = |(start, len, _): &&(u64, u64, String)| (*start..start + len).contains(&offset);
    let variable = variables.rev().find(has).map(|(start, _, name)| (name.clone(), *start));
    NamedByte::Shared { offset, variable, block: (rank != cluster.rank).then_some(rank) }
}

pub(super) fn local_place(now: &Now<'_, '_>, address: u64) -> NamedByte {
    NamedByte::Local { offset: (address - now.lanes.local_of(0)) % now.lanes.local_stride }
}

/// A load whose value may stay unused, with something wrong.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspicion {
    pub(super) lane: usize,
    /// The elements that it is about, as bits.
    pub(super) elements: u8,
    /// True if it may be about a part of an element.
    pub(super) is_part: bool,
    pub(super) finding: Finding,
}

/// The loads that were looked at because they might be reported.
#[derive(Debug, Default)]
pub(super) struct Loads {
    /// For each line, whether the value of its load may stay unused.
    may_be_unused: RefCell<HashMap<u32, bool>>,
    /// Suspicions of the op that runs, until they are put on the registers that it writes.
    pub(super) suspicions: RefCell<Vec<Suspicion>>,
}

impl Loads {
    /// Notes what is wrong with a load, and at which address.
    #[cold]
    fn suspect(
        &self,
        now: &Now<'_, '_>,
        lane: usize,
        (elements, is_part): (u8, bool),
        (address, problem): (u64, Problem),
    ) {
        let finding = Finding { lane, place: now.place, address, problem };
        self.suspicions.borrow_mut().push(Suspicion { lane, elements, is_part, finding });
    }

    /// Returns whether a thread may have run a load whose value it does not need.
    #[cold]
    fn may_be_unused(&self, place: Option<u32>, launch: &Launch<'_>) -> bool {
        let Some(place) = place else { return true };
        let line = launch.code.lines[place as usize].ptx;
        let mut known = self.may_be_unused.borrow_mut();
        *known.entry(line).or_insert_with(|| may_be_unused(launch.text, line))
    }
}
