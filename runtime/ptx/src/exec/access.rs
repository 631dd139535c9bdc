//! Instructions that load, store and form addresses.
//!
//! Of an op, `a` is the row of the address and `extra` what is added to it. `d`, `b`, `c` and `e` are
//! the elements.

use super::context::Context;
use super::fault::FaultKind;
use super::memory::{Access, Element, extent, misaligned};
use super::op::{Flow, Op, Run};
use super::registers::{Cell, LANES, Mask, for_each_lane};
use super::warp::Lanes;

/// Where the addresses of an instruction point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Window {
    /// Memory of the launch or the module alone: `.global` and `.const`.
    Global,
    /// Any memory, by an address of the host.
    Generic,
    /// An offset in the memory of the block.
    Shared,
    /// An offset in the memory of the thread.
    Local,
    /// An offset in the frame of the running function.
    Frame,
    /// An offset in the kernel's parameters.
    Param,
}

/// How an instruction's address is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// `extra` alone.
    None,
    /// A narrow row.
    Narrow,
    /// A wide row.
    Wide,
}

/// Returns the addresses of the host that the lanes access, `bytes` each. Notes a fault if one of
/// them may not.
#[inline(always)]
pub(crate) fn addresses(
    lanes: &mut Lanes,
    op: &Op,
    mask: Mask,
    context: &Context<'_>,
    bytes: u64,
    access: Access,
) -> Option<[u64; LANES]> {
    let mut addresses = match op.base {
        Base::None => [op.extra; LANES],
        Base::Narrow => {
            lanes.registers.get::<u32>(op.a).map(|address| u64::from(address.wrapping_add(op.extra as u32)))
        }
        Base::Wide => lanes.registers.get::<u64>(op.a).map(|address| address.wrapping_add(op.extra)),
    };
    let fault = match op.window {
        Window::Global => {
            let (from, to) = extent(&addresses, mask, bytes);
            match context.launch.regions.allow(from, to, access) {
                true => None,
                false => first_outside(&addresses, mask, context, bytes, access),
            }
        }
        Window::Generic => generic(lanes, &addresses, mask, context, bytes, access),
        Window::Shared => {
            let len = u64::from(context.launch.shared_bytes);
            let (_, to) = extent(&addresses, mask, bytes);
            let fault = (to > len).then(|| {
                let lane = first(mask, |lane| addresses[lane].saturating_add(bytes) > len);
                let offset = addresses[lane];
                (lane, FaultKind::OutOfShared { offset, bytes, access, len_bytes: len })
            });
            addresses = addresses.map(|offset| context.shared.wrapping_add(offset));
            fault
        }
        Window::Local | Window::Frame => {
            let len = lanes.local_bytes;
            let frame = if op.window == Window::Frame { lanes.frame } else { 0 };
            addresses = addresses.map(|offset| offset.wrapping_add(frame));
            let (_, to) = extent(&addresses, mask, bytes);
            let fault = (to > len).then(|| {
                let lane = first(mask, |lane| addresses[lane].saturating_add(bytes) > len);
                let offset = addresses[lane];
                (lane, FaultKind::OutOfLocal { offset, bytes, access, len_bytes: len })
            });
            let start = lanes.local_of(0);
            for (lane, address) in addresses.iter_mut().enumerate() {
                *address = address.wrapping_add(start + lane as u64 * len);
            }
            fault
        }
        Window::Param => {
            let (start, len) = context.launch.params();
            let (_, to) = extent(&addresses, mask, bytes);
            let fault = (to > len).then(|| {
                let lane = first(mask, |lane| addresses[lane].saturating_add(bytes) > len);
                let address = addresses[lane];
                (lane, FaultKind::OutOfBounds { address, bytes, access, nearest: None })
            });
            addresses = addresses.map(|offset| offset.wrapping_add(start));
            fault
        }
    };
    let fault = fault.or_else(|| {
        let lane = misaligned(&addresses, mask, bytes)?;
        Some((lane, FaultKind::Misaligned { address: addresses[lane], bytes }))
    });
    match fault {
        None => Some(addresses),
        Some((lane, kind)) => {
            lanes.fail(lane, kind);
            None
        }
    }
}

/// Returns the first lane of a mask that satisfies `is_it`.
fn first(mask: Mask, is_it: impl Fn(usize) -> bool) -> usize {
    (0..LANES).find(|lane| mask >> lane & 1 == 1 && is_it(*lane)).unwrap_or_default()
}

#[cold]
fn first_outside(
    addresses: &[u64; LANES],
    mask: Mask,
    context: &Context<'_>,
    bytes: u64,
    access: Access,
) -> Option<(usize, FaultKind)> {
    let regions = &context.launch.regions;
    let mut found = None;
    for_each_lane(mask, |lane| {
        let address = addresses[lane];
        if found.is_none() && !regions.allow(address, address.saturating_add(bytes), access) {
            found = Some((lane, regions.refusal(address, bytes, access)));
        }
    });
    found
}

fn generic(
    lanes: &Lanes,
    addresses: &[u64; LANES],
    mask: Mask,
    context: &Context<'_>,
    bytes: u64,
    access: Access,
) -> Option<(usize, FaultKind)> {
    let regions = &context.launch.regions;
    let (from, to) = extent(addresses, mask, bytes);
    let shared = (context.shared, context.shared + u64::from(context.launch.shared_bytes));
    if regions.allow(from, to, access) || shared.0 <= from && to <= shared.1 {
        return None;
    }
    let (params, len) = context.launch.params();
    let mut found = None;
    for_each_lane(mask, |lane| {
        let (address, end) = (addresses[lane], addresses[lane].saturating_add(bytes));
        let local = lanes.local_of(lane);
        let is_within = |from: u64, to: u64| from <= address && end <= to;
        let is_allowed = regions.allow(address, end, access)
            || is_within(shared.0, shared.1)
            || is_within(local, local + lanes.local_bytes)
            || access == Access::Read && is_within(params, params + len);
        if found.is_none() && !is_allowed {
            found = Some((lane, regions.refusal(address, bytes, access)));
        }
    });
    found
}

/// Loads `N` elements of type `T` into registers of cells `D`.
fn load<T: Element, D: Cell, const N: usize>(
    lanes: &mut Lanes,
    op: &Op,
    mask: Mask,
    context: &Context<'_>,
) -> Flow {
    let bytes = T::BYTES * N as u64;
    let Some(addresses) = addresses(lanes, op, mask, context, bytes, Access::Read) else {
        return Flow::Fault;
    };
    let rows = [op.d, op.b, op.c, op.e];
    for (at, row) in rows.into_iter().take(N).enumerate() {
        let row = D::row_mut(&mut lanes.registers, row);
        for_each_lane(mask, |lane| {
            // SAFETY: load needs an aligned address in memory that is valid for reads. `addresses`
            // has checked both: the memory belongs to the launch, to the block or to the thread,
            // and all of it is accessed by these functions alone meanwhile.
            let value = unsafe { T::load(addresses[lane] + at as u64 * T::BYTES) };
            row[lane] = D::of_u64(value.extended());
        });
    }
    Flow::Next
}

/// Stores `N` elements of type `T` from registers of cells `D`.
fn store<T: Element, D: Cell, const N: usize>(
    lanes: &mut Lanes,
    op: &Op,
    mask: Mask,
    context: &Context<'_>,
) -> Flow {
    let bytes = T::BYTES * N as u64;
    let Some(addresses) = addresses(lanes, op, mask, context, bytes, Access::Write) else {
        return Flow::Fault;
    };
    let rows = [op.d, op.b, op.c, op.e];
    for (at, row) in rows.into_iter().take(N).enumerate() {
        let row = D::row(&lanes.registers, row);
        for_each_lane(mask, |lane| {
            let value = T::of_u64(row[lane].to_u64());
            // SAFETY: as in `load`, for writes.
            unsafe { value.store(addresses[lane] + at as u64 * T::BYTES) };
        });
    }
    Flow::Next
}

/// Returns the loop that loads `n` elements into registers, which are wide or not.
pub(crate) fn load_of(element: &str, n: usize, is_wide: bool) -> Option<Run> {
    macro_rules! of {
        ($t:ty) => {
            match (n, is_wide) {
                (1, false) => load::<$t, u32, 1>,
                (2, false) => load::<$t, u32, 2>,
                (4, false) => load::<$t, u32, 4>,
                (1, true) => load::<$t, u64, 1>,
                (2, true) => load::<$t, u64, 2>,
                (4, true) => load::<$t, u64, 4>,
                _ => return None,
            }
        };
    }
    let run: Run = match element {
        "b8" | "u8" => of!(u8),
        "s8" => of!(i8),
        "b16" | "u16" | "f16" | "bf16" => of!(u16),
        "s16" => of!(i16),
        "b32" | "u32" | "f32" | "f16x2" | "bf16x2" => of!(u32),
        "s32" => of!(i32),
        "b64" | "u64" | "s64" | "f64" if is_wide => match n {
            1 => load::<u64, u64, 1>,
            2 => load::<u64, u64, 2>,
            4 => load::<u64, u64, 4>,
            _ => return None,
        },
        _ => return None,
    };
    Some(run)
}

/// Returns the loop that stores `n` elements from registers, which are wide or not.
pub(crate) fn store_of(element: &str, n: usize, is_wide: bool) -> Option<Run> {
    macro_rules! of {
        ($t:ty) => {
            match (n, is_wide) {
                (1, false) => store::<$t, u32, 1>,
                (2, false) => store::<$t, u32, 2>,
                (4, false) => store::<$t, u32, 4>,
                (1, true) => store::<$t, u64, 1>,
                (2, true) => store::<$t, u64, 2>,
                (4, true) => store::<$t, u64, 4>,
                _ => return None,
            }
        };
    }
    let run: Run = match element {
        "b8" | "u8" | "s8" => of!(u8),
        "b16" | "u16" | "s16" | "f16" | "bf16" => of!(u16),
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" => of!(u32),
        "b64" | "u64" | "s64" | "f64" if is_wide => of!(u64),
        _ => return None,
    };
    Some(run)
}

/// Sets `d` to the generic address of an address in a window, which is `a` plus `extra`.
pub(crate) fn to_generic(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    let offsets: [u64; LANES] = match op.base {
        Base::None => [op.extra; LANES],
        Base::Narrow => lanes.registers.get::<u32>(op.a).map(|a| u64::from(a).wrapping_add(op.extra)),
        Base::Wide => lanes.registers.get::<u64>(op.a).map(|a| a.wrapping_add(op.extra)),
    };
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
    for_each_lane(mask, |lane| {
        row[lane] = D::of_u64(generic[lane].wrapping_sub(start).wrapping_sub(lane as u64 * stride));
    });
    Flow::Next
}

/// Returns the generic address at which a window starts in lane 0, and how much later in the next.
fn start_of(window: Window, lanes: &Lanes, context: &Context<'_>) -> (u64, u64) {
    match window {
        Window::Global | Window::Generic => (0, 0),
        Window::Shared => (context.shared, 0),
        Window::Local => (lanes.local_of(0), lanes.local_bytes),
        Window::Frame => (lanes.local_of(0) + lanes.frame, lanes.local_bytes),
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
        let is_it = match op.window {
            Window::Shared => is_shared,
            Window::Local | Window::Frame => is_local,
            Window::Param => address.wrapping_sub(start + lane as u64 * stride) < context.launch.params().1,
            Window::Global | Window::Generic => !is_local && !is_shared,
        };
        bits |= Mask::from(is_it) << lane;
    }
    lanes.registers.set_predicate(op.d, mask, bits);
    Flow::Next
}

/// Copies `extra` bytes from offset `a` of the frame to offset `b`, in all lanes.
pub(crate) fn copy_in_frame(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let (len, end) = (op.extra, lanes.local_bytes);
    let (from, to) = (lanes.frame + u64::from(op.a), lanes.frame + u64::from(op.b));
    if from.max(to) + len > end {
        let lane = mask.trailing_zeros() as usize;
        return lanes.fail(lane, FaultKind::StackOverflow { len_bytes: end });
    }
    for_each_lane(mask, |lane| {
        let start = lanes.local_of(lane);
        for at in 0..len {
            // SAFETY: load needs memory that is valid for reads: the local memory of this lane,
            // within which the offset is by the check above.
            let byte = unsafe { u8::load(start + from + at) };
            // SAFETY: as above, for writes.
            unsafe { byte.store(start + to + at) };
        }
    });
    Flow::Next
}
