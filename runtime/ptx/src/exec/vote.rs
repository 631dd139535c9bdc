//! Instructions in which the lanes of a warp, or the threads of a block, exchange values.
//!
//! Of an op with a mask of members, `e` is the row of the mask. Lanes that arrive before others of
//! their mask wait for them. PTX ISA 9.7.9 and 9.7.13: "causes executing threads to wait until all
//! non-exited threads corresponding to membermask have executed" the instruction.

use super::context::Context;
use super::control::barrier_of;
use super::fault::FaultKind;
use super::op::{Flow, Op};
use super::registers::{LANES, Mask, for_each_lane};
use super::warp::{Lanes, Warp};
use smallvec::SmallVec;

/// Lanes that run an instruction with the same mask, and the members of it that have not exited.
type Group = (Mask, Mask);

/// Returns the lanes by their masks in row `e`, if all lanes that the masks name are here. Else
/// returns what the warp does: wait for the others, or fail because a lane is not in its own mask.
#[inline(always)]
fn groups(lanes: &mut Lanes, op: &Op, mask: Mask) -> Result<SmallVec<[Group; 1]>, Flow> {
    let named = lanes.registers.get::<u32>(op.e);
    let mut groups = SmallVec::new();
    let (mut left, mut missing) = (mask, 0);
    while left != 0 {
        let first = named[left.trailing_zeros() as usize];
        let mut group = 0;
        for_each_lane(left, |lane| group |= Mask::from(named[lane] == first) << lane);
        let outside = group & !first;
        if outside != 0 {
            let lane = outside.trailing_zeros() as usize;
            return Err(lanes.fail(lane, FaultKind::NotAMember { mask: first, lane: lane as u32 }));
        }
        let members = first & !lanes.registers.dead;
        missing |= members & !mask;
        groups.push((group, members));
        left &= !group;
    }
    if missing == 0 {
        return Ok(groups);
    }
    lanes.needed = mask | missing;
    Err(Flow::WaitForLanes)
}

/// What a shuffle does with its lane number. PTX ISA 9.7.9.6, shfl.sync.
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
    predicate.map_or(NO_PREDICATE, u64::from) << 32 | u64::from(is_sync) << 2 | mode as u64
}

/// `shfl`: `d` from `a` of another lane, `b` and `c` as in the ISA.
pub(crate) fn shuffle(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    if op.extra & 4 != 0
        && let Err(flow) = groups(lanes, op, mask)
    {
        return flow;
    }
    let (a, b, c) = (
        lanes.registers.get::<u32>(op.a),
        lanes.registers.get::<u32>(op.b),
        lanes.registers.get::<u32>(op.c),
    );
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
    lanes.registers.set::<u32>(op.d, mask, |lane| a[from[lane]]);
    let predicate = op.extra >> 32;
    if predicate != NO_PREDICATE {
        lanes.registers.set_predicate(predicate as u32, mask, inside);
    }
    Flow::Next
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

/// Returns what an op of a vote holds in `extra`.
pub(crate) fn vote_extra(vote: Vote, is_sync: bool, is_negated: bool) -> u64 {
    vote as u64 | u64::from(is_sync) << 2 | u64::from(is_negated) << 3
}

/// `vote`: `d`, a predicate or for a ballot a narrow row, from predicate `a`.
pub(crate) fn vote(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let groups = match op.extra & 4 {
        0 => SmallVec::from([(mask, mask)]),
        _ => match groups(lanes, op, mask) {
            Ok(groups) => groups,
            Err(flow) => return flow,
        },
    };
    let bits = lanes.registers.predicates[op.a as usize];
    let bits = if op.extra & 8 != 0 { !bits } else { bits };
    for (group, members) in groups {
        let bits = bits & members;
        let result = match op.extra & 3 {
            0 => bits == members,
            1 => bits != 0,
            2 => bits == members || bits == 0,
            _ => {
                lanes.registers.set::<u32>(op.d, group, |_| bits);
                continue;
            }
        };
        lanes.registers.set_predicate(op.d, group, if result { Mask::MAX } else { 0 });
    }
    Flow::Next
}

/// `match.any.sync` and, if `extra` has bit 0, `match.all.sync`: `d` from `a`, which is wide if
/// `extra` has bit 1. The upper half of `extra` is the predicate of `match.all`.
pub(crate) fn match_lanes(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let groups = match groups(lanes, op, mask) {
        Ok(groups) => groups,
        Err(flow) => return flow,
    };
    let values = match op.extra & 2 {
        0 => lanes.registers.get::<u32>(op.a).map(u64::from),
        _ => lanes.registers.get::<u64>(op.a),
    };
    for (group, members) in groups {
        let mut equal = [0 as Mask; LANES];
        for_each_lane(members, |lane| {
            for_each_lane(members, |other| equal[lane] |= Mask::from(values[lane] == values[other]) << other);
        });
        if op.extra & 1 == 0 {
            lanes.registers.set::<u32>(op.d, group, |lane| equal[lane]);
            continue;
        }
        let all_are = equal[members.trailing_zeros() as usize & 31] == members;
        lanes.registers.set::<u32>(op.d, group, |_| if all_are { members } else { 0 });
        let predicate = op.extra >> 32;
        if predicate != NO_PREDICATE {
            lanes.registers.set_predicate(predicate as u32, group, if all_are { Mask::MAX } else { 0 });
        }
    }
    Flow::Next
}

/// Returns what an op of a match holds in `extra`.
pub(crate) fn match_extra(is_all: bool, is_wide: bool, predicate: Option<u32>) -> u64 {
    predicate.map_or(NO_PREDICATE, u64::from) << 32 | u64::from(is_wide) << 1 | u64::from(is_all)
}

/// What `redux.sync` computes.
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
    let groups = match groups(lanes, op, mask) {
        Ok(groups) => groups,
        Err(flow) => return flow,
    };
    let values = lanes.registers.get::<u32>(op.a);
    for (group, members) in groups {
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
        lanes.registers.set::<u32>(op.d, group, |_| result);
    }
    Flow::Next
}

/// `activemask`
pub(crate) fn active_mask(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    lanes.registers.set::<u32>(op.d, mask, |_| mask);
    Flow::Next
}

/// `bar.warp.sync`: of the lanes in the mask `e`.
pub(crate) fn warp_barrier(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    groups(lanes, op, mask).map_or_else(|flow| flow, |_| Flow::Next)
}

/// `elect.sync`: predicate `a` is true in the lowest member, whose number is `d`.
pub(crate) fn elect(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let groups = match groups(lanes, op, mask) {
        Ok(groups) => groups,
        Err(flow) => return flow,
    };
    for (group, members) in groups {
        let leader = members.trailing_zeros();
        lanes.registers.set::<u32>(op.d, group, |_| leader);
        lanes.registers.set_predicate(op.a, group, members & members.wrapping_neg());
    }
    Flow::Next
}

/// What `bar.red` computes from the predicates of all threads.
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

/// `bar.red`: like [`barrier`](super::control::barrier), with predicate `c` and the result in `d`, a
/// predicate or for a count a narrow row.
pub(crate) fn barrier_reduce(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let simple = Op { extra: op.extra & 1, ..*op };
    lanes.barrier = barrier_of(lanes, &simple, mask);
    Flow::WaitAtBarrier
}

/// Lets the threads go on that wait at a barrier. Gives each that runs `bar.red` the result.
pub(crate) fn finish_barrier(warps: &mut [Warp], id: u32, code: &super::code::Code) {
    let reduction = |place: u32| {
        let op = &code.ops[place as usize];
        (op.extra >> 2, op)
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
            match kind {
                1 => lanes.registers.set_predicate(op.d, mask, bits(all)),
                2 => lanes.registers.set_predicate(op.d, mask, bits(count > 0)),
                3 => lanes.registers.set::<u32>(op.d, mask, |_| count),
                _ => {}
            }
        });
    }
}
