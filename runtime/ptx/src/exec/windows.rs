//! Instructions that convert addresses between a window of memory and the generic form: `cvta`,
//! `isspacep`, and the addresses of variables.

use super::access::{Base, Window};
use super::clusters::upper_part;
use super::context::Context;
use super::op::{Flow, Op};
use super::registers::{Cell, LANES, Mask, for_each_lane};
use super::warp::Lanes;

/// Sets `d` to the generic address of an address in a window, which is `a` plus `extra`.
pub(crate) fn to_generic(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    let offsets: [u64; LANES] = match op.base {
        Base::None => [op.extra; LANES],
        Base::Narrow => lanes.registers.get::<u32>(op.a).map(|a| u64::from(a).wrapping_add(op.extra)),
        Base::Wide => lanes.registers.get::<u64>(op.a).map(|a| a.wrapping_add(op.extra)),
    };
    let is_mapped = || offsets.iter().any(|offset| upper_part(*offset) != 0);
    if let Window::Shared | Window::Cluster = op.window
        && is_mapped()
    {
        lanes.registers.set::<u64>(op.d, mask, |lane| context.cluster.generic(offsets[lane]));
        return Flow::Next;
    }
    let (start, stride) = start_of(op.window, lanes, context);
    lanes
        .registers
        .set::<u64>(op.d, mask, |lane| offsets[lane].wrapping_add(start).wrapping_add(lane as u64 * stride));
    Flow::Next
}

/// Sets `d`, a wide or narrow row, to the offset in a window of the generic address `a`.
pub(crate) fn from_generic<D: Cell>(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    let generic = lanes.registers.get::<u64>(op.a);
    let (start, stride) = start_of(op.window, lanes, context);
    let row = D::row_mut(&mut lanes.registers, op.d);
    if op.window == Window::Cluster {
        let memory = context.cluster;
        for_each_lane(mask, |lane| {
            let (rank, offset) = match memory.place(generic[lane]) {
                Some(place) => place,
                None => (memory.rank, generic[lane].wrapping_sub(memory.of(memory.rank))),
            };
            row[lane] = D::of_u64(memory.address(rank, offset));
        });
        return Flow::Next;
    }
    for_each_lane(mask, |lane| {
        row[lane] = D::of_u64(generic[lane].wrapping_sub(start).wrapping_sub(lane as u64 * stride));
    });
    Flow::Next
}

/// Returns the generic address at which a window starts in lane 0, and how much later in the next.
fn start_of(window: Window, lanes: &Lanes, context: &Context<'_>) -> (u64, u64) {
    match window {
        Window::Global | Window::Generic => (0, 0),
        Window::Shared | Window::Cluster => (context.shared, 0),
        Window::Local => (lanes.local_of(0), lanes.local_stride),
        Window::Frame => (lanes.local_of(0) + lanes.frame, lanes.local_stride),
        Window::Param => (context.launch.params().0, 0),
    }
}

/// Sets `d` to the offset in local memory of the frame plus `extra`.
pub(crate) fn frame_offset<D: Cell>(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let offset = D::of_u64(lanes.frame.wrapping_add(op.extra));
    let row = D::row_mut(&mut lanes.registers, op.d);
    for_each_lane(mask, |lane| row[lane] = offset);
    Flow::Next
}

/// Sets predicate `d` to whether the generic address `a` points into a window.
pub(crate) fn is_in_window(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    let generic = lanes.registers.get::<u64>(op.a);
    let (start, stride) = start_of(op.window, lanes, context);
    let shared = (context.shared, u64::from(context.launch.shared_bytes));
    let mut bits = 0;
    for (lane, &address) in generic.iter().enumerate() {
        let is_local = address.wrapping_sub(lanes.local_of(lane)) < lanes.local_bytes;
        let is_shared = address.wrapping_sub(shared.0) < shared.1;
        let place = context.cluster.place(address);
        let is_of_cluster = place.is_some_and(|(_, offset)| offset < shared.1);
        let is_it = match op.window {
            Window::Shared => is_shared,
            Window::Cluster => is_of_cluster,
            Window::Local | Window::Frame => is_local,
            Window::Param => address.wrapping_sub(start + lane as u64 * stride) < context.launch.params().1,
            Window::Global | Window::Generic => !is_local && !is_of_cluster,
        };
        bits |= Mask::from(is_it) << lane;
    }
    lanes.registers.set_predicate(op.d, mask, bits);
    Flow::Next
}
