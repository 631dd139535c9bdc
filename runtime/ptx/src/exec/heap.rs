//! `malloc` and `free` of kernels. The [`AddressSpace`](super::memory::AddressSpace) of the launch
//! has the heap. CUDA C++ Programming Guide, "Dynamic Global Memory Allocation and Operations".
//!
//! Of an op, `a` is the offset of the argument in the frame, and `d` that of the result or
//! `u32::MAX`.

use super::context::Context;
use super::memory::{Access, Element};
use super::op::{Flow, Op};
use super::print::argument;
use super::registers::{Mask, for_each_lane};
use super::warp::Lanes;

/// `malloc`: the address of that many bytes, or null if there is no room or no heap.
pub(crate) fn allocate(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    for_each_lane(mask, |lane| {
        let len_bytes = argument::<u64>(lanes, lane, op.a);
        let space = context.launch.regions.space();
        let address = space.and_then(|space| space.allocate(len_bytes)).unwrap_or(0);
        if op.d != u32::MAX {
            let place = lanes.local_of(lane) + lanes.frame + u64::from(op.d);
            // SAFETY: store needs an aligned address in memory that is valid for writes: the
            // lowering has placed the result in this lane's local memory, at a multiple of 8.
            unsafe { address.store(place) };
        }
    });
    Flow::Next
}

/// `free`. Null is ignored. Any other address that `malloc` has not returned is a fault.
pub(crate) fn free(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    let mut fault = None;
    for_each_lane(mask, |lane| {
        let address = argument::<u64>(lanes, lane, op.a);
        let space = context.launch.regions.space();
        if address != 0 && !space.is_some_and(|space| space.free(address)) {
            fault = fault.or(Some((lane, address)));
        }
    });
    match fault {
        None => Flow::Next,
        Some((lane, address)) => {
            let kind = context.launch.regions.refusal(address, 1, Access::Write);
            lanes.fail(lane, kind)
        }
    }
}
