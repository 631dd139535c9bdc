//! Instructions in which the lanes of a warp, or the threads of a block, exchange values.
//!
//! Of an op with a mask of members, `e` is the row of the mask. Lanes that arrive before others of
//! their mask wait for them. PTX ISA 9.7.9 and 9.7.13: "causes executing threads to wait until all
//! non-exited threads corresponding to membermask have executed" the instruction. `meetings` has
//! the rules for members that wait at several instructions.

use super::clusters;
use super::context::Context;
use super::fault::FaultKind;
use super::op::{Flow, Op, Row};
use super::registers::{Kind, LANES, Mask, Registers, for_each_lane};
use super::warp::{Lanes, Warp};

/// Calls `of` for the lanes that name the same members, if all of these are here: with those lanes
/// and the members. Lanes whose members are not all here wait. A lane that does not name itself
/// fails.
///
/// Lanes at one instruction may name different members, as the tiles of a warp do.
#[inline(always)]
pub(crate) fn for_each_group(
    lanes: &mut Lanes,
    op: &Op,
    mask: Mask,
    mut of: impl FnMut(&mut Lanes, Mask, Mask),
) -> Flow {
    let named = lanes.registers.get::<u32>(op.e);
    let (mut left, mut waits, mut needed) = (mask, 0, 0);
    while left != 0 {
        let members = named[left.trailing_zeros() as usize & 31];
        let mut same: Mask = 0;
        for (lane, other) in named.iter().enumerate() {
            same |= Mask::from(*other == members) << lane;
        }
        let group = left & same;
        left &= !same;
        let outside = group & !members;
        if outside != 0 {
            let lane = outside.trailing_zeros();
            return lanes.fail(lane as usize, FaultKind::NotAMember { mask: members, lane });
        }
        let alive = members & !lanes.registers.dead;
        if alive & !mask == 0 {
            of(lanes, group, alive);
        } else {
            waits |= group;
            needed |= alive;
        }
    }
    if waits == 0 {
        return Flow::Next;
    }
    (lanes.waits, lanes.needed) = (waits, needed);
    Flow::WaitForLanes
}

/// The qualifiers of an exchange. Lanes run it together if theirs are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Shuffle(Shuffle),
    Vote(Vote),
    Match {
        is_all: bool,
        /// The kind of the values.
        kind: Kind,
    },
    Reduce(Reduction),
    Elect,
    /// `bar.warp.sync`
    Barrier,
    /// An instruction on matrices.
    Matrix,
}

/// The way in which a shuffle finds its source lane. PTX ISA 9.7.9.6, shfl.sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

/// The second result of a shuffle: a predicate, or none.
const NO_PREDICATE: u64 = u32::MAX as u64;

/// Returns what an op of a shuffle holds in `extra`.
pub(crate) fn shuffle_extra(mode: Shuffle, is_sync: bool, predicate: Option<u32>) -> u64 {
    with_second_result(u64::from(is_sync) << 2 | mode as u64, predicate)
}

/// Returns `extra` of a shuffle or a match with another second result.
pub(super) fn with_second_result(extra: u64, predicate: Option<Row>) -> u64 {
    predicate.map_or(NO_PREDICATE, u64::from) << 32 | extra & u64::from(u32::MAX)
}

/// Returns the second result that `extra` of a shuffle or a match holds.
pub(super) fn second_result(extra: u64) -> Option<Row> {
    (extra >> 32 != NO_PREDICATE).then_some((extra >> 32) as Row)
}

/// `shfl`: `d` from `a` of another lane, `b` and `c` as in the ISA.
pub(crate) fn shuffle(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    let mut exited = None;
    let flow = if op.extra & 4 != 0 {
        for_each_group(lanes, op, mask, |lanes, group, _| {
            exited = exited.or(shuffle_group(lanes, op, group));
        })
    } else {
        exited = shuffle_group(lanes, op, mask);
        Flow::Next
    };
    match exited {
        Some((lane, source)) if context.launch.checks.sync => {
            lanes.fail(lane, FaultKind::ShuffleFromExited { lane: source })
        }
        _ => flow,
    }
}

/// Returns the lane from which each lane takes its value, and the lanes whose value comes from the
/// lane that they ask for.
#[inline(always)]
pub(super) fn taken_from(registers: &Registers, op: &Op) -> ([usize; LANES], Mask) {
    let (b, c) = (registers.get::<u32>(op.b), registers.get::<u32>(op.c));
    let mut inside: Mask = 0;
    let mut from = [0usize; LANES];
    for (lane, source) in from.iter_mut().enumerate() {
        let (value, clamp, segment) = (b[lane] & 31, c[lane] & 31, c[lane] >> 8 & 31);
        let this = lane as u32;
        let last = (this & segment) | (clamp & !segment);
        let first = this & segment;
        let (other, is_inside) = match op.extra & 3 {
            0 => (this.wrapping_sub(value), this as i32 - value as i32 >= last as i32),
            1 => (this + value, this + value <= last),
            2 => (this ^ value, this ^ value <= last),
            _ => {
                let other = first | (value & !segment);
                (other, other <= last)
            }
        };
        *source = if is_inside { (other & 31) as usize } else { lane };
        inside |= Mask::from(is_inside) << lane;
    }
    (from, inside)
}

/// Returns whether lanes wait at a shuffle for others.
pub(super) fn shuffle_waits(registers: &Registers, op: &Op, mask: Mask) -> bool {
    let members = &registers.narrow[op.e as usize];
    let mut all = 0;
    for_each_lane(mask, |lane| all |= members[lane]);
    op.extra & 4 != 0 && all & !registers.dead & !mask != 0
}

/// Returns a lane that asks for the value of one that has exited, and that one.
#[inline(always)]
fn shuffle_group(lanes: &mut Lanes, op: &Op, mask: Mask) -> Option<(usize, u32)> {
    let a = lanes.registers.get::<u32>(op.a);
    let (from, inside) = taken_from(&lanes.registers, op);
    lanes.registers.set::<u32>(op.d, mask, |lane| a[from[lane]]);
    if let Some(predicate) = second_result(op.extra) {
        lanes.registers.set_predicate(predicate, mask, inside);
    }
    let dead = lanes.registers.dead;
    if dead == 0 {
        return None;
    }
    let asks = |lane: &usize| mask >> lane & 1 == 1 && dead >> from[*lane] & 1 == 1;
    (0..LANES).find(asks).map(|lane| (lane, from[lane] as u32))
}

/// The form of a vote. PTX ISA 9.7.13.10, vote.sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
}

impl Vote {
    /// Returns the kind of its result.
    pub(crate) fn result(self) -> Kind {
        if self == Vote::Ballot { Kind::Narrow } else { Kind::Predicate }
    }
}

/// Returns what an op of a vote holds in `extra`.
pub(crate) fn vote_extra(vote: Vote, is_sync: bool, is_negated: bool) -> u64 {
    vote as u64 | u64::from(is_sync) << 2 | if is_negated { NEGATED } else { 0 }
}

/// The bit in `extra` of a vote that negates the predicate.
const NEGATED: u64 = 8;

pub(super) fn is_negated(extra: u64) -> bool {
    extra & NEGATED != 0
}

pub(super) fn without_negation(extra: u64) -> u64 {
    extra & !NEGATED
}

/// `vote`: `d`, a predicate or for a ballot a narrow row, from predicate `a`.
pub(crate) fn vote(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    if op.extra & 4 != 0 {
        return for_each_group(lanes, op, mask, |lanes, group, members| {
            vote_group(lanes, op, group, members)
        });
    }
    vote_group(lanes, op, mask, mask);
    Flow::Next
}

#[inline(always)]
fn vote_group(lanes: &mut Lanes, op: &Op, mask: Mask, members: Mask) {
    let bits = lanes.registers.predicates[op.a as usize];
    let bits = if is_negated(op.extra) { !bits } else { bits } & members;
    let result = match op.extra & 3 {
        0 => bits == members,
        1 => bits != 0,
        2 => bits == members || bits == 0,
        _ => {
            return lanes.registers.set::<u32>(op.d, mask, |_| bits);
        }
    };
    lanes.registers.set_predicate(op.d, mask, if result { Mask::MAX } else { 0 });
}

/// `match.any.sync` and, if `extra` has bit 0, `match.all.sync`: `d` from `a`, which is wide if
/// `extra` has bit 1. The upper half of `extra` is the predicate of `match.all`.
pub(crate) fn match_lanes(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    for_each_group(lanes, op, mask, |lanes, group, members| match_group(lanes, op, group, members))
}

fn match_group(lanes: &mut Lanes, op: &Op, mask: Mask, members: Mask) {
    let values = match op.extra & 2 {
        0 => lanes.registers.get::<u32>(op.a).map(u64::from),
        _ => lanes.registers.get::<u64>(op.a),
    };
    let mut equal = [0 as Mask; LANES];
    for_each_lane(members, |lane| {
        for_each_lane(members, |other| equal[lane] |= Mask::from(values[lane] == values[other]) << other);
    });
    if op.extra & 1 == 0 {
        return lanes.registers.set::<u32>(op.d, mask, |lane| equal[lane]);
    }
    let all_are = equal[members.trailing_zeros() as usize & 31] == members;
    lanes.registers.set::<u32>(op.d, mask, |_| if all_are { members } else { 0 });
    if let Some(predicate) = second_result(op.extra) {
        lanes.registers.set_predicate(predicate, mask, if all_are { Mask::MAX } else { 0 });
    }
}

/// Returns what an op of a match holds in `extra`.
pub(crate) fn match_extra(is_all: bool, is_wide: bool, predicate: Option<u32>) -> u64 {
    with_second_result(u64::from(is_wide) << 1 | u64::from(is_all), predicate)
}

/// The operation of `redux.sync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Reduction {
    Add,
    And,
    Or,
    Xor,
    MinUnsigned,
    MaxUnsigned,
    MinSigned,
    MaxSigned,
}

/// `redux.sync`: `d` from `a` of all members.
pub(crate) fn reduce(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    for_each_group(lanes, op, mask, |lanes, group, members| reduce_group(lanes, op, group, members))
}

fn reduce_group(lanes: &mut Lanes, op: &Op, mask: Mask, members: Mask) {
    let values = lanes.registers.get::<u32>(op.a);
    let mut result = None;
    for_each_lane(members, |lane| {
        let value = values[lane];
        result = Some(result.map_or(value, |so_far: u32| match op.extra {
            0 => so_far.wrapping_add(value),
            1 => so_far & value,
            2 => so_far | value,
            3 => so_far ^ value,
            4 => so_far.min(value),
            5 => so_far.max(value),
            6 => (so_far as i32).min(value as i32) as u32,
            _ => (so_far as i32).max(value as i32) as u32,
        }));
    });
    let result = result.unwrap_or_default();
    lanes.registers.set::<u32>(op.d, mask, |_| result);
}

/// `activemask`
pub(crate) fn active_mask(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    lanes.registers.set::<u32>(op.d, mask, |_| mask);
    Flow::Next
}

/// `bar.warp.sync`: of the lanes in the mask `e`.
pub(crate) fn warp_barrier(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    for_each_group(lanes, op, mask, |_, _, _| {})
}

/// `elect.sync`: predicate `a` is true in the lowest member, whose number is `d`.
pub(crate) fn elect(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    for_each_group(lanes, op, mask, |lanes, group, members| {
        let leader = members.trailing_zeros();
        lanes.registers.set::<u32>(op.d, group, |_| leader);
        lanes.registers.set_predicate(op.a, group, members & members.wrapping_neg());
    })
}

/// The operation of `bar.red` on the predicates of all threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum BarrierReduction {
    And = 1,
    Or = 2,
    Count = 3,
}

/// Returns what an op of a reduction at a barrier holds in `extra`.
pub(crate) fn barrier_extra(reduction: BarrierReduction, has_threads: bool, is_negated: bool) -> u64 {
    u64::from(has_threads) | u64::from(is_negated) << 1 | (reduction as u64) << 2
}

/// Lets the threads go on that wait at a barrier. Gives each that runs `bar.red` the result.
pub(crate) fn finish_barrier(warps: &mut [Warp], id: u32, code: &super::code::Code) {
    let reduction = |place: u32| {
        let op = &code.ops[place as usize];
        (op.extra >> 2 & 3, op)
    };
    let (mut count, mut all) = (0, true);
    for warp in warps.iter() {
        warp.for_each_waiting(|barrier, mask, place| {
            let (kind, op) = reduction(place);
            if barrier.id == id && kind != 0 {
                let bits = warp.lanes.registers.predicates[op.c as usize];
                let bits = if op.extra & 2 != 0 { !bits } else { bits } & mask;
                count += bits.count_ones();
                all &= bits == mask;
            }
        });
    }
    for warp in warps {
        warp.release(id, |lanes, mask, place| {
            let (kind, op) = reduction(place);
            let bits = |is: bool| if is { Mask::MAX } else { 0 };
            clusters::pass(lanes, mask, id);
            match kind {
                1 => lanes.registers.set_predicate(op.d, mask, bits(all)),
                2 => lanes.registers.set_predicate(op.d, mask, bits(count > 0)),
                3 => lanes.registers.set::<u32>(op.d, mask, |_| count),
                _ => {}
            }
        });
    }
}
