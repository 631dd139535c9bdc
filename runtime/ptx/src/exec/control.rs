//! Instructions that move lanes to another place.

use super::context::Context;
use super::fault::FaultKind;
use super::fragment::Barrier;
use super::op::{Flow, Op};
use super::registers::{Mask, for_each_lane};
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

/// `bar.sync`: at the barrier `a`, with `b` threads if `extra` has bit 0.
pub(crate) fn barrier(_: &mut Lanes, _: &Op, _: Mask, _: &Context<'_>) -> Flow {
    Flow::WaitAtBarrier
}

/// `bar.arrive`
pub(crate) fn arrive(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
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
    let of = |lane: usize| Barrier {
        id: lanes.registers.narrow[op.a as usize][lane],
        threads: (op.extra & 1 == 1).then(|| lanes.registers.narrow[op.b as usize][lane]),
    };
    let first = of(mask.trailing_zeros() as usize);
    let mut same = 0;
    for_each_lane(mask, |lane| same |= Mask::from(of(lane) == first) << lane);
    (first, same)
}
