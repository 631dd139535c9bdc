//! Device memory, page-locked memory and copies between them.

use crate::raw::*;
use crate::support::{dies_in_child, in_child};
use std::ffi::c_void;

#[test]
fn the_host_cannot_dereference_a_device_address() {
    dies_in_child(&[], || {
        start();
        let address = alloc(4096);
        ok!(cuMemsetD8_v2(address, 1, 4096));
        // SAFETY: none. The read faults, which is what the test checks.
        let byte = unsafe { std::ptr::read_volatile(address as *const u8) };
        std::process::exit((byte == 0) as i32);
    });
}

#[test]
fn ranges_of_copies_and_fills_are_checked_at_the_call() {
    let said = in_child(&[], || {
        start();
        let (x, y, mut host, stream) = (alloc(1000), alloc(1000), [0u8; 2000], stream());
        let bytes: *mut c_void = (&raw mut host).cast();
        ok!(cuMemcpyHtoD_v2(x, bytes, 1000));
        assert_eq!(cu!(cuMemcpyHtoD_v2(x, bytes, 1001)), INVALID_VALUE);
        assert_eq!(cu!(cuMemcpyDtoHAsync_v2(bytes, x + 500, 501, stream)), INVALID_VALUE);
        assert_eq!(cu!(cuMemcpyDtoDAsync_v2(x, y + 1, 1000, stream)), INVALID_VALUE);
        assert_eq!(cu!(cuMemsetD32Async(x, 0, 251, stream)), INVALID_VALUE);
        assert_eq!(cu!(cuMemsetD32Async(x + 2, 0, 1, stream)), INVALID_VALUE, "not aligned");
        assert_eq!(
            cu!(cuMemcpyHtoD_v2(bytes as u64, bytes, 8)),
            INVALID_VALUE,
            "pageable memory as device memory"
        );
        assert_eq!(
            cu!(cuMemcpyHtoD_v2(x, y as *const c_void, 8)),
            INVALID_VALUE,
            "device memory as host memory"
        );
        ok!(cuMemFree_v2(y));
        assert_eq!(cu!(cuMemcpyDtoDAsync_v2(x, y, 8, stream)), INVALID_VALUE, "freed");
        assert_eq!(cu!(cuMemFree_v2(y)), INVALID_VALUE, "freed twice");
        assert_eq!(cu!(cuMemFree_v2(x + 512)), INVALID_VALUE);
        ok!(cuMemFree_v2(0));
    });
    assert!(said.contains("the source, 8 bytes at") && said.contains("is in no live allocation"), "{said}");
    assert!(
        said.contains("1001 bytes at") && said.contains("has 1000 bytes left in its allocation"),
        "{said}"
    );
}

#[test]
fn memory_runs_out_and_comes_back() {
    in_child(&[("SOFTCUDA_MEMORY", "4194304")], || {
        start();
        let mut address = 0;
        assert_eq!(cu!(cuMemAlloc_v2(&mut address, (4 << 20) + 1)), OUT_OF_MEMORY);
        let blocks = [alloc(1 << 20), alloc(2 << 20), alloc(1 << 20)];
        assert_eq!(cu!(cuMemAlloc_v2(&mut address, 1)), OUT_OF_MEMORY);
        assert!(blocks.iter().all(|block| block % 512 == 0));
        let (mut free, mut total) = (1, 0);
        ok!(cuMemGetInfo_v2(&mut free, &mut total));
        assert_eq!((free, total), (0, 4 << 20));
        ok!(cuMemFree_v2(blocks[1]));
        alloc(2 << 20);
        assert_eq!(cu!(cuMemAlloc_v2(&mut address, 0)), INVALID_VALUE);
    });
}

#[test]
fn memory_freed_in_stream_order_is_there_until_then() {
    in_child(&[("SOFTCUDA_MEMORY", "1048576")], || {
        start();
        let stream = stream();
        let mut x = 0;
        ok!(cuMemAllocAsync(&mut x, 1 << 20, stream));
        let (gate, word) = (Gate::on(stream), Word::new());
        ok!(cuMemsetD8Async(x, 7, 1 << 20, stream));
        ok!(cuMemcpyAsync(word.address(), x, 8, stream));
        ok!(cuMemFreeAsync(x, stream));
        assert_eq!(cu!(cuMemFreeAsync(x, stream)), INVALID_VALUE, "freed twice");
        assert_eq!(cu!(cuMemsetD8Async(x, 7, 1, stream)), INVALID_VALUE, "used after it was freed");
        let mut y = 0;
        assert_eq!(cu!(cuMemAlloc_v2(&mut y, 1 << 20)), OUT_OF_MEMORY);
        gate.open();
        ok!(cuStreamSynchronize(stream));
        assert_eq!(word.load(), 0x0707_0707_0707_0707);
        alloc(1 << 20);
    });
}

#[test]
fn freeing_waits_for_the_work_of_the_context() {
    in_child(&[], || {
        let context = start() as usize;
        let (x, y, stream, word) = (alloc(8), alloc(8), stream(), Word::new());
        let gate = Gate::on(stream);
        ok!(cuMemcpyDtoDAsync_v2(x, y, 8, stream));
        word.written_by(stream, 1);
        std::thread::scope(|scope| {
            let freeing = scope.spawn(move || {
                ok!(cuCtxSetCurrent(context as cudarc::driver::sys::CUcontext));
                ok!(cuMemFree_v2(x));
                assert_eq!(word.load(), 1, "it came back before the work was done");
            });
            gate.open();
            freeing.join().unwrap();
        });
    });
}

#[test]
fn a_pageable_source_is_read_before_the_call_returns() {
    in_child(&[], || {
        start();
        let (x, stream) = (alloc(1 << 20), stream());
        let gate = Gate::on(stream);
        let mut source = vec![1u8; 1 << 20];
        ok!(cuMemcpyHtoDAsync_v2(x, source.as_ptr().cast(), 1 << 20, stream));
        source.fill(2);
        drop(source);
        gate.open();
        let mut back = vec![0u8; 1 << 20];
        ok!(cuMemcpyDtoHAsync_v2(back.as_mut_ptr().cast(), x, 1 << 20, stream));
        assert!(back.iter().all(|byte| *byte == 1), "the call returned before pageable memory was written");
    });
}

#[test]
fn page_locked_memory_is_read_in_stream_order() {
    in_child(&[("SOFTCUDA_COPY_DELAY_US", "100")], || {
        start();
        let (x, stream, source, target) = (alloc(8), stream(), Word::new(), Word::new());
        let gate = Gate::on(stream);
        source.store(1);
        ok!(cuMemcpyHtoDAsync_v2(x, source.host(), 8, stream));
        ok!(cuMemcpyDtoHAsync_v2(target.host(), x, 8, stream));
        source.store(2);
        assert_eq!(cu!(cuStreamQuery(stream)), NOT_READY);
        gate.open();
        ok!(cuStreamSynchronize(stream));
        assert_eq!(target.load(), 2);
    });
}

#[test]
fn rows_are_copied_and_filled_with_their_pitches() {
    in_child(&[], || {
        use cudarc::driver::sys::{CUDA_MEMCPY2D, CUmemorytype};
        start();
        let (x, stream) = (alloc(64), stream());
        ok!(cuMemsetD8Async(x, 0, 64, stream));
        ok!(cuMemsetD2D8Async(x + 1, 16, 5, 3, 4, stream));
        ok!(cuMemsetD2D32Async(x + 8, 16, 0x0102_0304, 1, 2, stream));
        ok!(cuMemsetD16Async(x + 62, 0x0909, 1, stream));
        let mut rows = [0u8; 20];
        let mut copy = CUDA_MEMCPY2D {
            srcXInBytes: 1,
            srcY: 1,
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: std::ptr::null(),
            srcDevice: x,
            srcArray: std::ptr::null_mut(),
            srcPitch: 16,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
            dstHost: (&raw mut rows).cast(),
            dstDevice: 0,
            dstArray: std::ptr::null_mut(),
            dstPitch: 5,
            WidthInBytes: 4,
            Height: 3,
        };
        ok!(cuMemcpy2DAsync_v2(&copy, stream));
        assert_eq!(rows, [5, 5, 5, 0, 0, 5, 5, 5, 0, 0, 5, 5, 5, 0, 0, 0, 0, 0, 0, 0]);
        let mut all = [0u8; 64];
        ok!(cuMemcpyDtoH_v2((&raw mut all).cast(), x, 64));
        assert_eq!(all[24..28], [4, 3, 2, 1]);
        assert_eq!(all[62..], [9, 9]);
        copy.Height = 4;
        assert_eq!(
            cu!(cuMemcpy2DAsync_v2(&copy, stream)),
            INVALID_VALUE,
            "the last row leaves the allocation"
        );
    });
}

#[test]
fn page_locked_memory_that_ends_while_a_copy_uses_it_costs_the_context() {
    let said = in_child(&[], || {
        start();
        let (x, stream, word) = (alloc(8), stream(), Word::new());
        let buffer = pinned(4096);
        let _gate = Gate::on(stream);
        ok!(cuMemcpyHtoDAsync_v2(x, buffer, 8, stream));
        word.written_by(stream, 1);
        ok!(cuMemFreeHost(buffer));
        assert_eq!(cu!(cuStreamSynchronize(stream)), ILLEGAL_ADDRESS);
        assert_eq!(cu!(cuCtxSynchronize()), ILLEGAL_ADDRESS);
        assert_eq!(word.load(), 0);
    });
    assert!(said.contains("ended while queued work still uses it; the context is lost"), "{said}");
}

#[test]
fn registered_memory_is_mapped_if_asked_and_ends_once() {
    in_child(&[], || {
        start();
        let mut words = [0u64; 64];
        let memory: *mut c_void = (&raw mut words).cast();
        let (stream, mut address) = (stream(), 0);
        ok!(cuMemHostRegister_v2(memory, 512, 0));
        assert_eq!(cu!(cuMemHostRegister_v2(memory, 8, 0)), 712, "registered already");
        assert_eq!(cu!(cuMemHostGetDevicePointer_v2(&mut address, memory, 0)), INVALID_VALUE, "not mapped");
        ok!(cuMemHostUnregister(memory));
        assert_eq!(cu!(cuMemHostUnregister(memory)), 713);
        ok!(cuMemHostRegister_v2(memory, 256, 3));
        ok!(cuMemHostGetDevicePointer_v2(&mut address, memory, 0));
        ok!(cuStreamWriteValue64_v2(stream, address + 8, 9, 0));
        let x = alloc(512);
        assert_eq!(cu!(cuMemcpyHtoDAsync_v2(x, memory, 512, stream)), INVALID_VALUE, "page-locked in part");
        ok!(cuStreamSynchronize(stream));
        ok!(cuMemHostUnregister(memory));
        assert_eq!(std::hint::black_box(&words)[1], 9);
        assert_eq!(cu!(cuMemFreeHost(memory)), INVALID_VALUE);
    });
}

#[test]
fn fresh_memory_is_not_zero() {
    in_child(&[], || {
        start();
        let [first] = floats::<1>(alloc(4096));
        assert_ne!(first, 0.0);
    });
}
