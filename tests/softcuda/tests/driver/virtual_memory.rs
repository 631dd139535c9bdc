//! Virtual memory: its calls, what they refuse, and the use of what they map.

use crate::graphs::executable;
use crate::raw::*;
use crate::support::{dies_in_child, in_child};
use crate::twins::{ADD, ADD_PARAMS, add, register};
use cudarc::driver::sys;
use std::ffi::c_void;

/// The granularity.
const UNIT: usize = 2 << 20;
const READ_AND_WRITE: u64 = 3;

fn location(device: i32) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

fn properties(device: i32) -> sys::CUmemAllocationProp {
    // SAFETY: zeros are valid: no type, no handle types, no location, no flags.
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location(device);
    properties
}

fn reserve(bytes: usize) -> u64 {
    let mut address = 0;
    ok!(cuMemAddressReserve(&mut address, bytes, 0, 0, 0));
    address
}

fn create(device: i32, bytes: usize) -> Result<u64, u32> {
    let mut handle = 0;
    match cu!(cuMemCreate(&mut handle, bytes, &properties(device), 0)) {
        0 => Ok(handle),
        refused => Err(refused),
    }
}

/// Maps new memory of a device, which nothing may use yet.
fn map(device: i32, address: u64, bytes: usize) {
    let handle = create(device, bytes).unwrap();
    ok!(cuMemMap(address, bytes, 0, handle, 0));
    ok!(cuMemRelease(handle));
}

fn set_access(device: i32, address: u64, bytes: usize, may: bool) -> u32 {
    use sys::CUmemAccess_flags::*;
    let flags = if may { CU_MEM_ACCESS_FLAGS_PROT_READWRITE } else { CU_MEM_ACCESS_FLAGS_PROT_NONE };
    let access = sys::CUmemAccessDesc { location: location(device), flags };
    cu!(cuMemSetAccess(address, bytes, &access, 1))
}

/// Returns addresses with `pieces` mappings of one unit, which device 0 may use.
fn mapped(pieces: usize) -> u64 {
    let start = reserve(pieces * UNIT);
    (0..pieces).for_each(|piece| map(0, start + (piece * UNIT) as u64, UNIT));
    assert_eq!(set_access(0, start, pieces * UNIT, true), 0);
    start
}

fn free_bytes() -> usize {
    let (mut free, mut total) = (0, 0);
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    free
}

#[test]
fn a_device_has_it_unless_the_setting_says_no() {
    for setting in ["1", "0"] {
        in_child(&[("SOFTCUDA_VIRTUAL_MEMORY", setting)], || {
            start();
            let has = std::env::var("SOFTCUDA_VIRTUAL_MEMORY").unwrap() == "1";
            let (mut value, mut unit, mut address) = (-1, 0, 0);
            let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
            ok!(cuDeviceGetAttribute(&mut value, attribute, 0));
            assert_eq!(value, has as i32);
            let least = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
            let asked = cu!(cuMemGetAllocationGranularity(&mut unit, &properties(0), least));
            let reserved = cu!(cuMemAddressReserve(&mut address, UNIT, 0, 0, 0));
            match has {
                true => assert_eq!((asked, unit, reserved), (0, UNIT, 0)),
                false => assert_eq!((asked, reserved), (NOT_SUPPORTED, NOT_SUPPORTED)),
            }
        });
    }
}

#[test]
fn adjacent_mappings_are_one_range_for_copies_fills_and_kernels() {
    in_child(&[], || {
        start();
        assert_eq!(register("add", &ADD_PARAMS, 1, add), 0);
        let (x, stream, all) = (mapped(3), stream(), 3 * UNIT);
        let n = (all / 4) as u32;
        ok!(cuMemsetD32Async(x, 1f32.to_bits(), all / 4, stream));
        assert_eq!(launch_add_len(function(ADD, "add").unwrap(), stream, (x, u64::from(n)), n), 0);
        let mut values = vec![0f32; all / 4];
        ok!(cuMemcpyDtoHAsync_v2(values.as_mut_ptr().cast(), x, all, stream));
        ok!(cuStreamSynchronize(stream));
        assert!(values.iter().all(|value| *value == 2.0));
        let middle = x + UNIT as u64 - 8;
        ok!(cuMemcpyDtoDAsync_v2(x, middle, 16, stream));
        ok!(cuMemcpyPeer(x, start(), middle, start(), 16));
        assert_eq!(cu!(cuMemsetD8Async(x + 1, 0, all, stream)), INVALID_VALUE, "past the last mapping");
        ok!(cuStreamSynchronize(stream));
        ok!(cuMemUnmap(x + UNIT as u64, UNIT));
        assert_eq!(cu!(cuMemcpyDtoDAsync_v2(x, middle, 16, stream)), INVALID_VALUE, "over a gap");
        ok!(cuMemcpyDtoDAsync_v2(x, middle, 8, stream));
        map(0, x + UNIT as u64, UNIT);
        assert_eq!(cu!(cuMemcpyDtoDAsync_v2(x, middle, 16, stream)), INVALID_VALUE, "without access");
        assert_eq!(set_access(0, x + UNIT as u64, UNIT, true), 0);
        ok!(cuMemcpyDtoDAsync_v2(x, middle, 16, stream));
        ok!(cuStreamSynchronize(stream));
    });
}

#[test]
fn the_host_cannot_dereference_a_mapped_address() {
    dies_in_child(&[], || {
        start();
        let address = mapped(1);
        // SAFETY: none. The read faults, which is what the test checks.
        let byte = unsafe { std::ptr::read_volatile(address as *const u8) };
        std::process::exit((byte == 0) as i32);
    });
}

#[test]
fn reservations_are_larger_than_the_memory_and_are_reused() {
    in_child(&[("SOFTCUDA_MEMORY", "8388608")], || {
        start();
        let starts: Vec<u64> = (0..20).map(|_| reserve(16 << 20)).collect();
        assert!(starts.iter().all(|start| start % UNIT as u64 == 0));
        assert_eq!(free_bytes(), 8 << 20, "addresses cost no memory");
        ok!(cuMemAddressFree(starts[3], 16 << 20));
        assert_eq!(reserve(16 << 20), starts[3]);
        let mut address = 0;
        assert_eq!(cu!(cuMemAddressReserve(&mut address, 1 << 45, 0, 0, 0)), OUT_OF_MEMORY);
        for (bytes, align, flags) in [(0, 0, 0), (UNIT + 4096, 0, 0), (UNIT, 3, 0), (UNIT, 0, 1)] {
            let refused = cu!(cuMemAddressReserve(&mut address, bytes, align, 0, flags));
            assert_eq!(refused, INVALID_VALUE, "{bytes} {align} {flags}");
        }
        map(0, starts[0] + UNIT as u64, UNIT);
        assert_eq!(cu!(cuMemAddressFree(starts[0], 16 << 20)), INVALID_VALUE, "with a mapping");
        assert_eq!(cu!(cuMemAddressFree(starts[1], 8 << 20)), INVALID_VALUE, "in part");
        assert_eq!(cu!(cuMemAddressFree(starts[1] + UNIT as u64, UNIT)), INVALID_VALUE);
        ok!(cuMemUnmap(starts[0] + UNIT as u64, UNIT));
        ok!(cuMemAddressFree(starts[0], 16 << 20));
        assert_eq!(cu!(cuMemAddressFree(starts[0], 16 << 20)), INVALID_VALUE, "twice");
    });
}

#[test]
fn memory_counts_until_its_handle_and_its_mapping_end() {
    in_child(&[("SOFTCUDA_MEMORY", "8388608")], || {
        start();
        let x = reserve(8 << 20);
        assert_eq!(create(0, (8 << 20) + UNIT), Err(OUT_OF_MEMORY));
        let first = create(0, 2 * UNIT).unwrap();
        assert_eq!(free_bytes(), 4 << 20);
        ok!(cuMemRelease(first));
        assert_eq!(free_bytes(), 8 << 20, "it was never mapped");
        assert_eq!(cu!(cuMemRelease(first)), INVALID_VALUE, "twice");
        assert_eq!(cu!(cuMemMap(x, 2 * UNIT, 0, first, 0)), INVALID_VALUE, "released");

        let handle = create(0, 2 * UNIT).unwrap();
        ok!(cuMemMap(x, 2 * UNIT, 0, handle, 0));
        ok!(cuMemUnmap(x, 2 * UNIT));
        assert_eq!(free_bytes(), 4 << 20, "the handle is not released");
        ok!(cuMemRelease(handle));
        map(0, x, UNIT);
        assert_eq!(free_bytes(), 6 << 20, "it is still mapped");
        let mut y = 0;
        assert_eq!(cu!(cuMemAlloc_v2(&mut y, (6 << 20) + 1)), OUT_OF_MEMORY);
        ok!(cuMemUnmap(x, UNIT));
        assert_eq!(free_bytes(), 8 << 20);
        ok!(cuMemFree_v2(alloc(8 << 20)));
    });
}

#[test]
fn sizes_addresses_and_properties_are_checked() {
    in_child(&[], || {
        start();
        let mut handle = 0;
        for bytes in [0, UNIT - 4096, UNIT + 1] {
            assert_eq!(create(0, bytes), Err(INVALID_VALUE));
        }
        assert_eq!(create(1, UNIT), Err(INVALID_DEVICE));
        assert_eq!(cu!(cuMemCreate(&mut handle, UNIT, &properties(0), 1)), INVALID_VALUE);
        let mut wrong = properties(0);
        wrong.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_INVALID;
        assert_eq!(cu!(cuMemCreate(&mut handle, UNIT, &wrong, 0)), INVALID_VALUE);
        let mut nowhere = properties(0);
        nowhere.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID;
        assert_eq!(cu!(cuMemCreate(&mut handle, UNIT, &nowhere, 0)), INVALID_VALUE);

        let (x, unit) = (reserve(4 * UNIT), UNIT as u64);
        let handle = create(0, 2 * UNIT).unwrap();
        for (address, bytes, offset) in [
            (x + 4096, 2 * UNIT, 0),
            (x, UNIT + 4096, 0),
            (x, UNIT, UNIT),
            (x, 3 * UNIT, 0),
            (x + 3 * unit, 2 * UNIT, 0),
            (x - unit, 2 * UNIT, 0),
            (x, 0, 0),
        ] {
            assert_eq!(cu!(cuMemMap(address, bytes, offset, handle, 0)), INVALID_VALUE);
        }
        assert_eq!(cu!(cuMemMap(x, 2 * UNIT, 0, handle, 1)), INVALID_VALUE, "flags");
        assert_eq!(cu!(cuMemMap(x, UNIT, 0, handle, 0)), NOT_SUPPORTED, "a part of the memory");
        ok!(cuMemMap(x, 2 * UNIT, 0, handle, 0));
        assert_eq!(cu!(cuMemMap(x + 2 * unit, 2 * UNIT, 0, handle, 0)), NOT_SUPPORTED, "a second time");
        let other = create(0, UNIT).unwrap();
        assert_eq!(cu!(cuMemMap(x + unit, UNIT, 0, other, 0)), INVALID_VALUE, "mapped already");
        ok!(cuMemMap(x + 2 * unit, UNIT, 0, other, 0));

        for (address, bytes) in [(x, UNIT), (x + unit, UNIT), (x + unit, 2 * UNIT), (x, 4 * UNIT), (x, 0)] {
            assert_eq!(cu!(cuMemUnmap(address, bytes)), INVALID_VALUE, "not whole mappings");
            assert_eq!(set_access(0, address, bytes, true), INVALID_VALUE);
        }
        assert_eq!(set_access(1, x, 2 * UNIT, true), INVALID_DEVICE);
        assert_eq!(set_access(0, x, 3 * UNIT, true), 0);
        ok!(cuMemUnmap(x, 3 * UNIT));
        assert_eq!(cu!(cuMemUnmap(x, 2 * UNIT)), INVALID_VALUE, "twice");
    });
}

#[test]
fn mapped_memory_is_not_freed_and_says_what_it_is() {
    use sys::CUpointer_attribute::*;
    in_child(&[], || {
        start();
        let (x, unit) = (mapped(2), UNIT as u64);
        assert_eq!(cu!(cuMemFree_v2(x)), INVALID_VALUE);
        assert_eq!(cu!(cuMemFreeAsync(x, stream())), INVALID_VALUE);
        let (mut start, mut bytes, mut context, mut kind) = (0, 0, 1u64, 0u32);
        ok!(cuMemGetAddressRange_v2(&mut start, &mut bytes, x + unit + 8));
        assert_eq!((start, bytes), (x + unit, UNIT));
        ok!(cuPointerGetAttribute((&raw mut context).cast(), CU_POINTER_ATTRIBUTE_CONTEXT, x));
        ok!(cuPointerGetAttribute((&raw mut kind).cast(), CU_POINTER_ATTRIBUTE_MEMORY_TYPE, x));
        assert_eq!((context, kind), (0, 2));
        let y = reserve(UNIT);
        assert_eq!(cu!(cuMemGetAddressRange_v2(&mut start, &mut bytes, y)), NOT_FOUND, "nothing is there");
        let [first] = floats::<1>(x);
        assert_ne!(first, 0.0, "fresh memory is not zero");
    });
}

#[test]
fn a_kernel_on_addresses_without_memory_faults() {
    let said = in_child(&[], || {
        start();
        assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
        let (x, kernel, stream) = (mapped(1), function(ADD, "add").unwrap(), stream());
        assert_eq!(launch_add(kernel, stream, x, 1.0, 1), 0);
        ok!(cuStreamSynchronize(stream));
        ok!(cuMemUnmap(x, UNIT));
        assert_eq!(launch_add(kernel, stream, x, 1.0, 1), 0);
        assert_eq!(cu!(cuStreamSynchronize(stream)), ILLEGAL_ADDRESS);
        let mut address = 0;
        assert_eq!(cu!(cuMemAddressReserve(&mut address, UNIT, 0, 0, 0)), ILLEGAL_ADDRESS);
    });
    assert!(said.contains("is in no live allocation"), "{said}");
}

/// Returns what the driver says where memory is unmapped that `enqueue` uses behind a gate.
macro_rules! unmapped_in_use {
    ($($test:ident: |$x:ident, $stream:ident| $enqueue:expr;)*) => {$(
        #[test]
        fn $test() {
            let said = in_child(&[], || {
                start();
                assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
                let ($x, $stream) = (mapped(2), stream());
                let gate = Gate::on($stream);
                $enqueue;
                ok!(cuMemUnmap($x, UNIT));
                assert_eq!(cu!(cuStreamSynchronize($stream)), ILLEGAL_ADDRESS);
                gate.open();
            });
            let why = "bytes, ended while queued work still uses it; the context is lost";
            assert!(said.contains("mapped device memory at") && said.contains(why), "{said}");
        }
    )*};
}

unmapped_in_use! {
    unmapping_the_source_of_a_copy_costs_the_context: |x, stream| {
        ok!(cuMemcpyDtoHAsync_v2(pinned(8), x, 8, stream));
    };
    unmapping_the_end_of_a_fill_costs_the_context: |x, stream| {
        ok!(cuMemsetD8Async(x + UNIT as u64 - 8, 0, 16, stream));
    };
    unmapping_the_argument_of_a_kernel_costs_the_context: |x, stream| {
        assert_eq!(launch_add(function(ADD, "add").unwrap(), stream, x, 1.0, 1), 0);
    };
}

#[test]
fn unmapping_waits_for_no_work_on_other_memory() {
    in_child(&[], || {
        start();
        let (x, stream) = (mapped(2), stream());
        let gate = Gate::on(stream);
        ok!(cuMemsetD8Async(x, 0, UNIT, stream));
        ok!(cuMemUnmap(x + UNIT as u64, UNIT));
        assert_eq!(cu!(cuStreamQuery(stream)), NOT_READY);
        gate.open();
        ok!(cuStreamSynchronize(stream));
    });
}

#[test]
fn a_graph_does_not_take_other_memory_for_what_was_unmapped() {
    let said = in_child(&[], || {
        start();
        let (x, stream) = (mapped(1), stream());
        let exec = executable(stream, || ok!(cuMemsetD8Async(x, 0, 8, stream)));
        ok!(cuGraphLaunch(exec, stream));
        ok!(cuStreamSynchronize(stream));
        ok!(cuMemUnmap(x, UNIT));
        map(0, x, UNIT);
        assert_eq!(set_access(0, x, UNIT, true), 0);
        ok!(cuGraphLaunch(exec, stream));
        assert_eq!(cu!(cuStreamSynchronize(stream)), ILLEGAL_ADDRESS);
    });
    assert!(said.contains("has ended since it was captured"), "{said}");
}

#[test]
fn another_device_needs_access_and_no_peer_access() {
    let said = in_child(&[("SOFTCUDA_DEVICES", "2")], || {
        let first = start_on(0);
        let (x, mut flags) = (mapped(1), 0);
        ok!(cuMemsetD8_v2(x, 0, UNIT));
        ok!(cuCtxSynchronize());
        let second = start_on(1);
        let (y, stream) = (upload(&[1.0; 2]), stream());
        assert_eq!(cu!(cuMemcpyDtoDAsync_v2(x, y, 8, stream)), INVALID_VALUE);
        ok!(cuCtxEnablePeerAccess(first, 0));
        assert_eq!(cu!(cuMemcpyDtoDAsync_v2(x, y, 8, stream)), INVALID_VALUE, "peer access is not enough");
        ok!(cuMemcpyPeerAsync(x, first, y, second, 8, stream));
        assert_eq!(cu!(cuMemcpyPeerAsync(x, second, y, second, 8, stream)), INVALID_VALUE);
        ok!(cuMemGetAccess(&mut flags, &location(1), x));
        assert_eq!(flags, 0);
        assert_eq!(set_access(1, x, UNIT, true), 0);
        ok!(cuMemGetAccess(&mut flags, &location(1), x));
        assert_eq!(flags, READ_AND_WRITE);
        ok!(cuMemcpyDtoDAsync_v2(x, y, 8, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(floats::<2>(x), [1.0; 2]);
        assert_eq!(set_access(1, x, UNIT, false), 0);
        assert_eq!(cu!(cuMemcpyDtoDAsync_v2(x, y, 8, stream)), INVALID_VALUE, "no longer");
        let z = reserve(UNIT);
        map(1, z, UNIT);
        assert_eq!(set_access(1, z, UNIT, true), 0);
        ok!(cuMemcpyDtoDAsync_v2(z, y, 8, stream));
        ok!(cuStreamSynchronize(stream));
    });
    assert!(said.contains("is mapped memory that cuMemSetAccess lets this device not use"), "{said}");
}

#[test]
fn devices_that_are_no_peers_get_no_access() {
    in_child(&[("SOFTCUDA_DEVICES", "2"), ("SOFTCUDA_PEER", "0")], || {
        start();
        let x = mapped(1);
        assert_eq!(set_access(1, x, UNIT, true), INVALID_DEVICE);
    });
}

#[test]
fn the_calls_need_no_context() {
    in_child(&[], || {
        ok!(cuInit(0));
        let x = mapped(1);
        start();
        let (value, mut back): (u64, u64) = (7, 0);
        ok!(cuMemcpyHtoD_v2(x, (&raw const value).cast::<c_void>(), 8));
        ok!(cuMemcpyDtoH_v2((&raw mut back).cast(), x, 8));
        assert_eq!(back, 7);
    });
}
