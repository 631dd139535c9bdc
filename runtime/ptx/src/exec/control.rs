//! Instructions that move lanes to another place.

use super::clusters;
use super::context::Context;
use super::fault::FaultKind;
use super::fragment::Barrier;
use super::op::{Flow, Op};
use super::registers::{LANES, Mask, for_each_lane};
use super::warp::Lanes;

/// `bra`: to the op `extra`.
pub(crate) fn jump(_: &mut Lanes, _: &Op, _: Mask, _: &Context<'_>) -> Flow {
    Flow::Jump
}

/// `brx.idx`: to the target with the index `a` in the list `extra`.
pub(crate) fn jump_by_index(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    let indices = lanes.registers.get::<u32>(op.a);
    let targets = &context.launch.code.targets[op.extra as usize];
    let mut wrong = None;
    for_each_lane(mask, |lane| match targets.get(indices[lane] as usize) {
        Some(target) => lanes.targets[lane] = *target,
        None => wrong = wrong.or(Some(lane)),
    });
    match wrong {
        None => Flow::JumpEach,
        Some(lane) => {
            let (index, len) = (indices[lane], targets.len() as u32);
            lanes.fail(lane, FaultKind::NoSuchTarget { index, len })
        }
    }
}

/// `call` of the function `extra`.
pub(crate) fn call(_: &mut Lanes, _: &Op, _: Mask, _: &Context<'_>) -> Flow {
    Flow::Call
}

/// The address of the function with number 0. No host address looks like it.
pub(crate) const FUNCTIONS: u64 = 0xf0f0_0000_0000_0000;

/// `call` of the function at address `a`.
pub(crate) fn call_address(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    let addresses = lanes.registers.get::<u64>(op.a);
    let numbers = &context.launch.code.numbers;
    let mut wrong = None;
    for_each_lane(mask, |lane| {
        let number = numbers.iter().find(|(address, _)| *address == addresses[lane]);
        match number {
            Some((_, number)) => lanes.targets[lane] = *number,
            None => wrong = wrong.or(Some(lane)),
        }
    });
    match wrong {
        None => Flow::CallEach,
        Some(lane) => lanes.fail(lane, FaultKind::NoSuchFunction { address: addresses[lane] }),
    }
}

/// `ret`
pub(crate) fn ret(_: &mut Lanes, _: &Op, _: Mask, _: &Context<'_>) -> Flow {
    Flow::Return
}

/// `exit`
pub(crate) fn exit(_: &mut Lanes, _: &Op, _: Mask, _: &Context<'_>) -> Flow {
    Flow::Exit
}

/// `trap`
pub(crate) fn trap(lanes: &mut Lanes, _: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    let launch = context.launch;
    let lacks_workspace = launch.code.needs_workspace && launch.regions.workspace().is_none();
    let kind = if lacks_workspace { FaultKind::TrapWithoutGrid } else { FaultKind::Trap };
    lanes.fail(mask.trailing_zeros() as usize, kind)
}

/// Does nothing, as fences do in a warp whose accesses are in order.
pub(crate) fn nothing(_: &mut Lanes, _: &Op, _: Mask, _: &Context<'_>) -> Flow {
    Flow::Next
}

/// `membar` and `fence`: all accesses before it are before all accesses after it.
pub(crate) fn fence(_: &mut Lanes, _: &Op, _: Mask, _: &Context<'_>) -> Flow {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    Flow::Next
}

/// Bits of `extra` of an op at a barrier: it has a number of threads, registers hold that number
/// or the number of the barrier, and it is at the barrier of the cluster.
pub(crate) const HAS_COUNT: u64 = 1;
pub(crate) const IN_REGISTERS: u64 = 1 << 4;
pub(crate) const OF_CLUSTER: u64 = 1 << 5;

/// The number of barriers of a block. PTX ISA 9.7.13.1, bar.
pub(crate) const BARRIERS: u32 = 16;

/// Returns what is wrong with the number of a barrier, or with the number of threads at it.
/// PTX ISA 9.7.13.1, bar.
pub(crate) fn wrong_barrier(id: u32, threads: Option<u32>) -> Option<FaultKind> {
    if id >= BARRIERS {
        return Some(FaultKind::NoSuchBarrier { id });
    }
    let threads = threads.filter(|threads| *threads == 0 || !threads.is_multiple_of(LANES as u32))?;
    Some(FaultKind::NotWholeWarps { threads })
}

/// Returns a lane that names a wrong barrier or number of threads.
#[inline(always)]
fn wrong_lane(lanes: &Lanes, op: &Op, mask: Mask) -> Option<(usize, FaultKind)> {
    if op.extra & IN_REGISTERS == 0 {
        return None;
    }
    let mut wrong = None;
    for_each_lane(mask, |lane| {
        if wrong.is_none() {
            let Barrier { id, threads } = named(lanes, op, lane);
            wrong = wrong_barrier(id, threads).map(|kind| (lane, kind));
        }
    });
    wrong
}

/// `bar.sync`: at the barrier `a`, with `b` threads if `extra` says so. `bar.red` also has the
/// predicate `c`, and the result in `d`: a predicate, or for a count a narrow row.
pub(crate) fn barrier(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    match wrong_lane(lanes, op, mask) {
        None => Flow::WaitAtBarrier,
        Some((lane, kind)) => lanes.fail(lane, kind),
    }
}

/// `bar.arrive`
pub(crate) fn arrive(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    if let Some((lane, kind)) = wrong_lane(lanes, op, mask) {
        return lanes.fail(lane, kind);
    }
    let mut left = mask;
    while left != 0 {
        let (Barrier { id, .. }, same) = barrier_of(lanes, op, left);
        lanes.arrivals.push((id, lanes.arrivals_of(same)));
        left &= !same;
    }
    Flow::Next
}

/// Returns the barrier that the first lane of a mask names, and the lanes that name the same one.
/// Without `.aligned`, the lanes of a warp may name several. PTX ISA 9.7.13.1, bar.
pub(crate) fn barrier_of(lanes: &Lanes, op: &Op, mask: Mask) -> (Barrier, Mask) {
    let of = |lane: usize| {
        if op.extra & OF_CLUSTER == 0 { named(lanes, op, lane) } else { clusters::barrier_of(lanes, lane) }
    };
    let first = of(mask.trailing_zeros() as usize);
    let mut same = 0;
    for_each_lane(mask, |lane| same |= Mask::from(of(lane) == first) << lane);
    (first, same)
}

/// Returns the barrier that a lane names.
#[inline(always)]
fn named(lanes: &Lanes, op: &Op, lane: usize) -> Barrier {
    Barrier {
        id: lanes.registers.narrow[op.a as usize][lane],
        threads: (op.extra & HAS_COUNT != 0).then(|| lanes.registers.narrow[op.b as usize][lane]),
    }
}
