//! Several devices: peer access, and copies between devices.

use crate::raw::*;
use crate::support::in_child;
use crate::twins::{ADD, ADD_PARAMS, add, register};

#[test]
fn another_device_is_reached_directly_only_with_access() {
    in_child(&[("SOFTCUDA_DEVICES", "2")], || {
        let first = start_on(0);
        let x = upload(&[1.0, 2.0]);
        let second = start_on(1);
        let (y, stream) = (upload(&[0.0; 2]), stream());
        let mut can = 0;
        ok!(cuDeviceCanAccessPeer(&mut can, 1, 0));
        assert_eq!(can, 1);
        assert_eq!(cu!(cuMemcpyDtoDAsync_v2(y, x, 8, stream)), INVALID_VALUE);
        ok!(cuMemcpyPeerAsync(y, second, x, first, 8, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(floats::<2>(y), [1.0, 2.0]);
        ok!(cuCtxEnablePeerAccess(first, 0));
        assert_eq!(cu!(cuCtxEnablePeerAccess(first, 0)), 704, "enabled already");
        ok!(cuMemcpyDtoDAsync_v2(y + 4, x, 4, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(floats::<2>(y), [1.0, 1.0]);
        ok!(cuCtxDisablePeerAccess(first));
        assert_eq!(cu!(cuCtxDisablePeerAccess(first)), 705, "not enabled");
    });
}

#[test]
fn a_copy_between_peers_names_the_context_of_each_end() {
    let said = in_child(&[("SOFTCUDA_DEVICES", "3")], || {
        let first = start_on(0);
        let x = upload(&[1.0, 2.0]);
        let second = start_on(1);
        let y = upload(&[0.0; 2]);
        ok!(cuCtxEnablePeerAccess(first, 0));
        let third = start_on(2);
        let stream = stream();
        for (of_y, of_x) in [(second, second), (first, first), (second, third), (third, first)] {
            assert_eq!(cu!(cuMemcpyPeerAsync(y, of_y, x, of_x, 8, stream)), INVALID_VALUE);
        }
        ok!(cuMemcpyPeerAsync(y, second, x, first, 8, stream));
        ok!(cuMemcpyPeerAsync(y + 4, second, y, second, 4, stream));
        ok!(cuStreamSynchronize(stream));
        ok!(cuCtxSetCurrent(second));
        assert_eq!(floats::<2>(y), [1.0, 1.0]);
    });
    assert!(said.contains("is of a context on device 0, and the call names one on device 1"), "{said}");
}

#[test]
fn a_kernel_on_another_devices_memory_faults_without_access() {
    let said = in_child(&[("SOFTCUDA_DEVICES", "2")], || {
        let first = start_on(0);
        let x = upload(&[1.0, 2.0]);
        start_on(1);
        assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
        let (stream, kernel) = (stream(), function(ADD, "add").unwrap());
        ok!(cuCtxEnablePeerAccess(first, 0));
        assert_eq!(launch_add(kernel, stream, x, 1.0, 2), 0);
        ok!(cuStreamSynchronize(stream));
        ok!(cuCtxDisablePeerAccess(first));
        assert_eq!(launch_add(kernel, stream, x, 1.0, 2), 0);
        assert_eq!(cu!(cuStreamSynchronize(stream)), ILLEGAL_ADDRESS);
        ok!(cuCtxSetCurrent(first));
        assert_eq!(floats::<2>(x), [2.0, 3.0], "the other device is well");
    });
    assert!(said.contains("is of a context that this one has no peer access to"), "{said}");
}

#[test]
fn rows_are_copied_between_devices() {
    in_child(&[("SOFTCUDA_DEVICES", "2")], || {
        use cudarc::driver::sys::{CUDA_MEMCPY3D_PEER, CUmemorytype};
        let first = start_on(0);
        let x = upload(&[1.0, 2.0, 3.0, 4.0]);
        let second = start_on(1);
        let (y, stream) = (upload(&[0.0; 6]), stream());
        let copy = CUDA_MEMCPY3D_PEER {
            srcXInBytes: 4,
            srcY: 0,
            srcZ: 0,
            srcLOD: 0,
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: std::ptr::null(),
            srcDevice: x,
            srcArray: std::ptr::null_mut(),
            srcContext: first,
            srcPitch: 8,
            srcHeight: 2,
            dstXInBytes: 0,
            dstY: 0,
            dstZ: 0,
            dstLOD: 0,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: std::ptr::null_mut(),
            dstDevice: y,
            dstArray: std::ptr::null_mut(),
            dstContext: second,
            dstPitch: 12,
            dstHeight: 2,
            WidthInBytes: 4,
            Height: 2,
            Depth: 1,
        };
        ok!(cuMemcpy3DPeerAsync(&copy, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(floats::<6>(y), [2.0, 0.0, 0.0, 4.0, 0.0, 0.0]);
        let too_high = CUDA_MEMCPY3D_PEER { Height: 3, ..copy };
        assert_eq!(cu!(cuMemcpy3DPeerAsync(&too_high, stream)), INVALID_VALUE);
    });
}

#[test]
fn an_event_of_a_lost_context_is_not_waited_for() {
    in_child(&[("SOFTCUDA_DEVICES", "2"), ("SOFTCUDA_POISON_LAUNCH", "1")], || {
        start_on(0);
        assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
        let (lost, event, x) = (stream(), event(), upload(&[0.0]));
        let gate = Gate::on(lost);
        assert_eq!(launch_add(function(ADD, "add").unwrap(), lost, x, 1.0, 1), 0);
        ok!(cuEventRecord(event, lost));
        gate.open();
        assert_eq!(cu!(cuStreamSynchronize(lost)), ILLEGAL_ADDRESS);
        start_on(1);
        let (well, word) = (stream(), Word::new());
        assert_eq!(cu!(cuStreamWaitEvent(well, event, 0)), ILLEGAL_ADDRESS);
        word.written_by(well, 1);
        ok!(cuStreamSynchronize(well));
        assert_eq!(word.load(), 1);
    });
}

#[test]
fn devices_need_not_be_peers() {
    in_child(&[("SOFTCUDA_DEVICES", "2"), ("SOFTCUDA_PEER", "0")], || {
        let first = start_on(0);
        let x = upload(&[3.0]);
        let second = start_on(1);
        let y = upload(&[0.0]);
        let mut can = 1;
        ok!(cuDeviceCanAccessPeer(&mut can, 1, 0));
        assert_eq!(can, 0);
        assert_eq!(cu!(cuCtxEnablePeerAccess(first, 0)), 217);
        ok!(cuMemcpyPeer(y, second, x, first, 4));
        assert_eq!(floats::<1>(y), [3.0], "copies between devices work all the same");
    });
}
