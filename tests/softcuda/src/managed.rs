//! Managed memory: one address for the host and all devices.
//!
//! It is host memory, kept in the list of page-locked ranges (`host.rs`), so every context may use
//! it. It differs from page-locked memory in three ways:
//! - `cuMemFree` frees it.
//! - Pointer attributes report device memory that is managed.
//! - Stream memory operations refuse it ("cannot be used with managed memory", cuda.h on
//!   `cuStreamWaitValue` and `cuStreamWriteValue`).
//!
//! The devices report that host and device may access it at the same time
//! (`CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS`). Attachments, advice and prefetches therefore
//! move nothing and only check their arguments.

use crate::abi::{CUdevice, CUdeviceptr, CUstream, MemLocation};
use crate::capture;
use crate::context;
use crate::device;
use crate::errors::{Outcome, refuse};
use crate::host::{self, Kind, Origin, Whole};
use crate::stream;

/// `CU_MEM_ATTACH_GLOBAL`
const GLOBAL: u32 = 1;
/// `CU_MEM_ATTACH_HOST`
const HOST: u32 = 2;
/// `CU_MEM_ATTACH_SINGLE`
const SINGLE: u32 = 4;
/// `CU_DEVICE_CPU`
const CPU: CUdevice = -1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`
const ON_DEVICE: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_HOST`, `…_HOST_NUMA` and `…_HOST_NUMA_CURRENT`
const ON_HOST: std::ops::RangeInclusive<u32> = 2..=4;

/// Allocates zeroed managed memory.
pub(crate) fn allocate(len: usize, flags: u32) -> Outcome<CUdeviceptr> {
    let context = context::current()?;
    capture::refuse_unsafe()?;
    if len == 0 || ![GLOBAL, HOST].contains(&flags) {
        refuse!(INVALID_VALUE, "{len} bytes of managed memory, flags {flags:#x}");
    }
    Ok(host::make(context, len, flags, Origin::Managed)? as CUdeviceptr)
}

/// Returns the managed memory that contains an address.
fn find(address: CUdeviceptr) -> Option<Whole> {
    host::whole(address as usize).filter(|whole| whole.is_managed)
}

/// Returns true if an address is in managed memory.
pub(crate) fn has(address: CUdeviceptr) -> bool {
    find(address).is_some()
}

/// Frees managed memory once all work of its context and of the current one has finished. Returns
/// false if the address is not in managed memory.
pub(crate) fn free(address: CUdeviceptr) -> Outcome<bool> {
    let Some(whole) = find(address) else { return Ok(false) };
    capture::refuse_unsafe()?;
    if whole.start as CUdeviceptr != address {
        refuse!(INVALID_VALUE, "{address:#x} is inside the managed memory at {:#x}", whole.start);
    }
    let current = context::current()?;
    whole.context.synchronize()?;
    if !std::ptr::eq(whole.context, current) {
        current.synchronize()?;
    }
    host::end(whole.start, Origin::Managed)?;
    Ok(true)
}

/// Checks an attachment of managed memory to one stream, to all streams or to none.
pub(crate) fn attach(on: CUstream, address: CUdeviceptr, len: usize, flags: u32) -> Outcome {
    let stream = stream::named(on)?;
    capture::refuse_uncaptured(stream, "an attachment")?;
    if ![GLOBAL, HOST, SINGLE].contains(&flags) {
        refuse!(INVALID_VALUE, "flags {flags:#x}");
    }
    if flags == SINGLE && on.0 <= 2 {
        refuse!(INVALID_VALUE, "the null stream is no single stream");
    }
    match find(address) {
        Some(whole) if whole.start as CUdeviceptr == address && [0, whole.len].contains(&len) => Ok(()),
        Some(whole) => refuse!(
            INVALID_VALUE,
            "{len} bytes at {address:#x} are not all of the {} bytes of managed memory at {:#x}",
            whole.len,
            whole.start
        ),
        None => refuse!(INVALID_VALUE, "{address:#x} is not managed memory"),
    }
}

/// Checks that a range is managed memory.
fn check(address: CUdeviceptr, len: usize) -> Outcome {
    match host::find(address as usize, len) {
        Kind::Locked(range) if range.is_managed() && len > 0 => Ok(()),
        _ => refuse!(INVALID_VALUE, "{len} bytes at {address:#x} are not managed memory"),
    }
}

/// Returns the location that a device stands for in the first versions of the calls.
pub(crate) fn location_of(device: CUdevice) -> MemLocation {
    match device {
        CPU => MemLocation { kind: *ON_HOST.start(), id: 0 },
        device => MemLocation { kind: ON_DEVICE, id: device },
    }
}

fn check_location(location: MemLocation) -> Outcome {
    match location.kind {
        ON_DEVICE => device::checked(location.id).map(drop),
        kind if ON_HOST.contains(&kind) => Ok(()),
        kind => refuse!(INVALID_VALUE, "a location of type {kind}"),
    }
}

/// Checks a prefetch of managed memory in stream order.
pub(crate) fn prefetch(address: CUdeviceptr, len: usize, to: MemLocation, on: CUstream) -> Outcome {
    let stream = stream::named(on)?;
    capture::refuse_uncaptured(stream, "a prefetch")?;
    check(address, len)?;
    check_location(to)
}

/// Checks advice about the use of managed memory.
pub(crate) fn advise(address: CUdeviceptr, len: usize, advice: u32, location: MemLocation) -> Outcome {
    context::current()?;
    check(address, len)?;
    match advice {
        // Setting and unsetting "read mostly", and unsetting the preferred location, ignore the
        // location.
        1 | 2 | 4 => Ok(()),
        3 | 5 | 6 => check_location(location),
        _ => refuse!(INVALID_VALUE, "advice {advice}"),
    }
}
