//! Managed memory: its addresses and attributes, how it is freed, and the calls that refuse it.

use crate::raw::*;
use crate::support::in_child;
use cudarc::driver::sys;
use std::ffi::c_void;

const GLOBAL: u32 = 1;
const HOST: u32 = 2;
const SINGLE: u32 = 4;

fn managed(bytes: usize) -> u64 {
    let mut address = 0;
    ok!(cuMemAllocManaged(&mut address, bytes, GLOBAL));
    address
}

/// Returns managed memory as a slice, as the host accesses it.
fn bytes(address: u64, len: usize) -> &'static mut [u8] {
    // SAFETY: managed memory of at least that length, of which the test has one view at a time.
    unsafe { std::slice::from_raw_parts_mut(address as *mut u8, len) }
}

fn attribute(address: u64, attribute: sys::CUpointer_attribute) -> u64 {
    let mut value = 0u64;
    ok!(cuPointerGetAttribute((&raw mut value).cast(), attribute, address));
    value
}

#[test]
fn host_devices_and_contexts_share_one_address() {
    in_child(&[("SOFTCUDA_DEVICES", "2")], || {
        start();
        let (x, y, on) = (managed(1000), alloc(1000), stream());
        assert!(bytes(x, 1000).iter().all(|byte| *byte == 0));
        bytes(x, 1000).fill(3);
        ok!(cuMemcpyDtoDAsync_v2(y, x, 1000, on));
        ok!(cuMemsetD8Async(x, 5, 500, on));
        ok!(cuStreamSynchronize(on));
        assert!(bytes(x, 1000)[..500].iter().all(|byte| *byte == 5) && bytes(x, 1000)[999] == 3);
        let mut host = [0u8; 1000];
        ok!(cuMemcpyDtoH_v2((&raw mut host).cast(), y, 1000));
        assert_eq!(host, [3; 1000]);
        start_on(1);
        ok!(cuMemsetD8_v2(x, 9, 1000));
        // Fills of device memory may return before they have run.
        ok!(cuCtxSynchronize());
        assert_eq!(bytes(x, 1000)[0], 9);
        assert_eq!(cu!(cuMemsetD8_v2(x, 9, 1001)), INVALID_VALUE, "past its end");
    });
}

#[test]
fn it_says_what_it_is() {
    use sys::CUpointer_attribute_enum::*;
    in_child(&[], || {
        let context = start();
        let (x, y, page_locked) = (managed(100), alloc(100), pinned(100) as u64);
        assert_eq!(attribute(x + 8, CU_POINTER_ATTRIBUTE_IS_MANAGED), 1);
        assert_eq!(attribute(x + 8, CU_POINTER_ATTRIBUTE_MEMORY_TYPE), 2);
        assert_eq!(attribute(x + 8, CU_POINTER_ATTRIBUTE_HOST_POINTER), x + 8);
        assert_eq!(attribute(x + 8, CU_POINTER_ATTRIBUTE_DEVICE_POINTER), x + 8);
        assert_eq!(attribute(x + 8, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR), x);
        assert_eq!(attribute(x, CU_POINTER_ATTRIBUTE_CONTEXT), context as u64);
        for other in [y, page_locked] {
            assert_eq!(attribute(other, CU_POINTER_ATTRIBUTE_IS_MANAGED), 0);
        }
        for number in [
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
        ] {
            let mut value = 0;
            ok!(cuDeviceGetAttribute(&mut value, number, 0));
            assert_eq!(value, 1);
        }
        let (mut start, mut len) = (0, 0);
        ok!(cuMemGetAddressRange_v2(&mut start, &mut len, x + 99));
        assert_eq!((start, len), (x, 100));
        // All attributes in one call, for which an address that the driver does not know is no
        // error.
        let mut attributes = [CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED];
        let mut pageable = 0u8;
        let pageable = &raw mut pageable;
        for (address, expected) in [(x, [2, 1]), (page_locked, [1, 0]), (pageable as u64, [0, 0])] {
            let mut values = [7u32, 0];
            let mut places = values.each_mut().map(|value| (&raw mut *value).cast::<c_void>());
            ok!(cuPointerGetAttributes(2, attributes.as_mut_ptr(), places.as_mut_ptr(), address));
            assert_eq!(values, expected);
        }
    });
}

#[test]
fn it_ends_as_device_memory_does_and_no_other_way() {
    let said = in_child(&[], || {
        start();
        let (x, on) = (managed(100), stream());
        assert_eq!(cu!(cuMemFreeHost(x as *mut c_void)), INVALID_VALUE);
        assert_eq!(cu!(cuMemHostUnregister(x as *mut c_void)), 713);
        assert_eq!(cu!(cuMemFreeAsync(x, on)), INVALID_VALUE);
        assert_eq!(cu!(cuMemFree_v2(x + 8)), INVALID_VALUE);
        let mut device = 0;
        assert_eq!(cu!(cuMemHostGetDevicePointer_v2(&mut device, x as *mut c_void, 0)), INVALID_VALUE);
        // The free waits for work that uses the memory.
        let gate = Gate::on(on);
        ok!(cuMemsetD8Async(x, 1, 100, on));
        let opens = std::thread::spawn(move || gate.open());
        ok!(cuMemFree_v2(x));
        opens.join().unwrap();
        ok!(cuStreamSynchronize(on));
        assert_eq!(cu!(cuMemFree_v2(x)), INVALID_VALUE, "freed twice");
        assert_eq!(cu!(cuMemsetD8Async(x, 1, 100, on)), INVALID_VALUE);
        for (bytes, flags) in [(0, GLOBAL), (8, 0), (8, SINGLE), (8, GLOBAL | HOST)] {
            assert_eq!(cu!(cuMemAllocManaged(&mut device, bytes, flags)), INVALID_VALUE);
        }
    });
    assert!(said.contains("is inside the managed memory at"), "{said}");
}

#[test]
fn stream_memory_operations_do_not_take_it() {
    let said = in_child(&[], || {
        start();
        let (x, on) = (managed(64), stream());
        assert_eq!(cu!(cuStreamWriteValue64_v2(on, x, 1, 0)), INVALID_VALUE);
        assert_eq!(cu!(cuStreamWriteValue32_v2(on, x + 8, 1, 0)), INVALID_VALUE);
        assert_eq!(cu!(cuStreamWaitValue64_v2(on, x, 1, 0)), INVALID_VALUE);
        ok!(cuStreamSynchronize(on));
        assert_eq!(bytes(x, 64), [0; 64]);
    });
    assert!(said.contains("is managed memory, which these operations do not take"), "{said}");
}

#[test]
fn attachments_prefetches_and_advice_are_checked() {
    use sys::CUmem_advise_enum::*;
    in_child(&[], || {
        start();
        let (x, y, on) = (managed(4096), alloc(4096), stream());
        let null = std::ptr::null_mut();
        ok!(cuStreamAttachMemAsync(on, x, 0, SINGLE));
        ok!(cuStreamAttachMemAsync(on, x, 4096, HOST));
        ok!(cuStreamAttachMemAsync(null, x, 0, GLOBAL));
        assert_eq!(cu!(cuStreamAttachMemAsync(null, x, 0, SINGLE)), INVALID_VALUE);
        assert_eq!(cu!(cuStreamAttachMemAsync(on, x, 100, SINGLE)), INVALID_VALUE, "a part");
        assert_eq!(cu!(cuStreamAttachMemAsync(on, x, 0, 3)), INVALID_VALUE);
        assert_eq!(cu!(cuStreamAttachMemAsync(on, y, 0, SINGLE)), INVALID_VALUE, "not managed");
        ok!(cuMemPrefetchAsync(x, 100, 0, on));
        ok!(cuMemPrefetchAsync(x, 4096, -1, on));
        assert_eq!(cu!(cuMemPrefetchAsync(x, 4096, 7, on)), INVALID_DEVICE);
        assert_eq!(cu!(cuMemPrefetchAsync(x, 4097, 0, on)), INVALID_VALUE);
        assert_eq!(cu!(cuMemPrefetchAsync(y, 4096, 0, on)), INVALID_VALUE, "not managed");
        ok!(cuMemAdvise(x, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, 7));
        ok!(cuMemAdvise(x, 4096, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 0));
        assert_eq!(cu!(cuMemAdvise(x, 4096, CU_MEM_ADVISE_SET_ACCESSED_BY, 7)), INVALID_DEVICE);
        assert_eq!(cu!(cuMemAdvise(y, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, 0)), INVALID_VALUE);
        ok!(cuStreamSynchronize(on));
    });
}
