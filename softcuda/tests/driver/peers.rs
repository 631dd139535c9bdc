//! Two devices.

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
