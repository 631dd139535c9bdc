//! Instructions of clusters and their barrier. Each block is the only one of its cluster, as in a
//! launch without clusters.
//!
//! # The barrier of the cluster
//! A thread arrives at it first, and waits later. The waits of a phase end when all threads that
//! have not exited have arrived. A thread may be late: then the phase ends before it waits, and
//! its wait ends immediately. It cannot arrive again before. PTX ISA 9.7.13.3, barrier.cluster.

use super::context::Context;
use super::control::BARRIERS;
use super::fault::FaultKind;
use super::fragment::Barrier;
use super::op::{Flow, Op};
use super::registers::{Cell, Mask, for_each_lane};
use super::warp::{Lanes, Warp};

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

/// Ends the phase if all threads of the block have arrived or exited. Returns whether it has
/// ended.
pub(crate) fn end_phase(warps: &mut [Warp]) -> bool {
    let live = |warp: &Warp| !warp.lanes.registers.dead;
    let all_arrived = warps.iter().all(|warp| live(warp) & !warp.lanes.arrived.open == 0);
    if !all_arrived || warps.iter().all(|warp| live(warp) == 0) {
        return false;
    }
    for warp in warps {
        warp.lanes.arrived = Arrived { open: 0, ended: live(warp) };
    }
    true
}

/// Notes that lanes have waited at a barrier. Those that have waited at the one of the cluster may
/// arrive again.
pub(crate) fn pass(lanes: &mut Lanes, mask: Mask, id: u32) {
    if id >= BARRIERS {
        lanes.arrived.ended &= !mask;
    }
}

/// `mapa`: `d` from the address `a` in shared memory, in the block `b` of the cluster.
pub(crate) fn map_address<A: Cell>(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let (addresses, ranks) = (lanes.registers.get::<A>(op.a), lanes.registers.get::<u32>(op.b));
    let mut others = 0;
    for_each_lane(mask, |lane| others |= Mask::from(ranks[lane] != 0) << lane);
    if others != 0 {
        let lane = others.trailing_zeros() as usize;
        return lanes.fail(lane, FaultKind::NoSuchRank { rank: ranks[lane] });
    }
    let row = A::row_mut(&mut lanes.registers, op.d);
    for_each_lane(mask, |lane| row[lane] = addresses[lane]);
    Flow::Next
}

/// `getctarank`: `d` is the number in the cluster of the block that has an address.
pub(crate) fn rank_of_address(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    lanes.registers.set::<u32>(op.d, mask, |_| 0);
    Flow::Next
}
