//! Addresses of a warp that are not all in one piece of memory, or that may not be accessed.

use super::access::{Window, misplaced};
use super::context::Context;
use super::fault::FaultKind;
use super::memory::{Access, extent, misaligned};
use super::op::Op;
use super::registers::{LANES, Mask, for_each_lane};
use super::warp::Lanes;

/// Resolves addresses in local memory and in memory of several kinds, and finds those that may not
/// be accessed.
#[inline(never)]
pub(super) fn elsewhere(
    lanes: &mut Lanes,
    op: &Op,
    mask: Mask,
    context: &Context<'_>,
    bytes: u64,
    access: Access,
    mut of: [u64; LANES],
) -> Option<[u64; LANES]> {
    let ends = |address: u64| address.saturating_add(bytes);
    let fault = match op.window {
        Window::Global => global(&mut of, mask, context, bytes, access),
        Window::Generic => generic(lanes, &mut of, mask, context, bytes, access),
        Window::Shared | Window::Cluster => {
            let (cluster, len_bytes) = (context.cluster, context.launch.shared_bytes.into());
            let is_own = op.window == Window::Shared;
            let mut fault = None;
            for_each_lane(mask, |lane| {
                let offset = of[lane];
                let found = match cluster.parts(offset) {
                    (rank, _) if is_own && rank != cluster.rank => {
                        let (variable, block) = (None, None);
                        Err(FaultKind::OutOfShared { offset, bytes, access, len_bytes, variable, block })
                    }
                    _ => cluster.resolve(offset, bytes, access, len_bytes),
                };
                match found {
                    Ok(address) => of[lane] = address,
                    Err(kind) => fault = fault.take().or(Some((lane, kind))),
                }
            });
            fault
        }
        Window::Param => first(mask, |lane| ends(of[lane]) > context.launch.params().1).map(|lane| {
            (
                lane,
                FaultKind::OutOfBounds {
                    address: of[lane],
                    bytes,
                    access,
                    nearest: None,
                    calls_malloc: false,
                },
            )
        }),
        Window::Local | Window::Frame => {
            let len_bytes = lanes.local_bytes;
            let frame = if op.window == Window::Frame { lanes.frame } else { 0 };
            for address in &mut of {
                *address = address.wrapping_add(frame);
            }
            let fault = first(mask, |lane| ends(of[lane]) > len_bytes)
                .map(|lane| (lane, FaultKind::OutOfLocal { offset: of[lane], bytes, access, len_bytes }));
            let start = lanes.local_of(0);
            for (lane, address) in of.iter_mut().enumerate() {
                *address = address.wrapping_add(start + lane as u64 * lanes.local_stride);
            }
            fault
        }
    };
    if let Some((lane, kind)) = fault {
        lanes.fail(lane, kind);
        return None;
    }
    match misaligned(&of, mask, bytes) {
        None => Some(of),
        Some(_) => misplaced(lanes, mask, bytes, &of),
    }
}

/// Returns the first lane of a mask that satisfies `is_it`.
fn first(mask: Mask, is_it: impl Fn(usize) -> bool) -> Option<usize> {
    (0..LANES).find(|lane| mask >> lane & 1 == 1 && is_it(*lane))
}

/// Replaces the address of each lane by that of the host. Returns the first lane that may not
/// access its own.
#[cold]
fn global(
    addresses: &mut [u64; LANES],
    mask: Mask,
    context: &Context<'_>,
    bytes: u64,
    access: Access,
) -> Option<(usize, FaultKind)> {
    let regions = &context.launch.regions;
    let mut found = None;
    for_each_lane(mask, |lane| {
        let address = addresses[lane];
        match regions.distance(address, address.saturating_add(bytes), access) {
            Some(distance) => addresses[lane] = address.wrapping_add(distance),
            None if found.is_none() => found = Some((lane, regions.refusal(address, bytes, access))),
            None => {}
        }
    });
    found
}

/// Does the same for addresses in memory of any kind.
fn generic(
    lanes: &Lanes,
    addresses: &mut [u64; LANES],
    mask: Mask,
    context: &Context<'_>,
    bytes: u64,
    access: Access,
) -> Option<(usize, FaultKind)> {
    let regions = &context.launch.regions;
    let (from, to) = extent(addresses, mask, bytes);
    let shared = (context.shared, context.shared + u64::from(context.launch.shared_bytes));
    if shared.0 <= from && to <= shared.1 {
        return None;
    }
    let (params, len) = context.launch.params();
    let mut found = None;
    for_each_lane(mask, |lane| {
        let (address, end) = (addresses[lane], addresses[lane].saturating_add(bytes));
        let local = lanes.local_of(lane);
        let is_within = |from: u64, to: u64| from <= address && end <= to;
        let is_own = is_within(shared.0, shared.1)
            || is_within(local, local + lanes.local_bytes)
            || access == Access::Read && is_within(params, params + len);
        if is_own {
            return;
        }
        if let Some((rank, offset)) = context.cluster.place(address)
            && offset.saturating_add(bytes) <= shared.1 - shared.0
        {
            if let Some(kind) = context.cluster.refusal(rank, offset, bytes, access) {
                found = found.take().or(Some((lane, kind)));
            }
            return;
        }
        match regions.distance(address, end, access) {
            Some(distance) => addresses[lane] = address.wrapping_add(distance),
            None if found.is_none() => found = Some((lane, refusal(context, address, bytes, access))),
            None => {}
        }
    });
    found
}

/// Describes why a generic address may not be accessed that is in no memory.
#[cold]
fn refusal(context: &Context<'_>, address: u64, bytes: u64, access: Access) -> FaultKind {
    let (cluster, launch) = (context.cluster, context.launch);
    let declared = launch.regions.refusal(address, bytes, access);
    let others = match &declared {
        FaultKind::OutOfBounds { nearest, .. } => nearest.as_ref().map(|region| region.apart(address)),
        _ => return declared,
    };
    let missed = || cluster.missed(address, bytes, access, launch.shared_bytes.into(), others);
    cluster.missing(address).or_else(missed).unwrap_or(declared)
}
