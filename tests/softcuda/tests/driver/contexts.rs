//! Contexts, and invalid handles.

use crate::raw::*;
use crate::support::in_child;
use cudarc::driver::sys;

#[test]
fn calls_before_init_and_without_a_context_are_refused() {
    let said = in_child(&[], || {
        let mut count = 0;
        assert_eq!(cu!(cuDeviceGetCount(&mut count)), NOT_INITIALIZED);
        ok!(cuInit(0));
        ok!(cuDeviceGetCount(&mut count));
        assert_eq!(count, 1);
        let mut address = 0;
        assert_eq!(cu!(cuMemAlloc_v2(&mut address, 8)), INVALID_CONTEXT);
        let context = start();
        alloc(8);
        let context = context as usize;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                assert_eq!(cu!(cuMemAlloc_v2(&mut address, 8)), INVALID_CONTEXT, "the other thread has none");
                ok!(cuCtxSetCurrent(context as sys::CUcontext));
                alloc(8);
            });
        });
    });
    assert!(said.contains("cuMemAlloc_v2: CUDA_ERROR_INVALID_CONTEXT: no context is current"), "{said}");
}

#[test]
fn the_current_context_is_the_top_of_a_stack() {
    in_child(&[("SOFTCUDA_DEVICES", "2")], || {
        let first = start();
        let mut second = std::ptr::null_mut();
        ok!(cuDevicePrimaryCtxRetain(&mut second, 1));
        let current = || {
            let mut current = std::ptr::null_mut();
            ok!(cuCtxGetCurrent(&mut current));
            current
        };
        ok!(cuCtxPushCurrent_v2(second));
        let mut device = -1;
        ok!(cuCtxGetDevice(&mut device));
        assert_eq!((current(), device), (second, 1));
        let mut popped = std::ptr::null_mut();
        ok!(cuCtxPopCurrent_v2(&mut popped));
        assert_eq!((popped, current()), (second, first));
        ok!(cuCtxSetCurrent(std::ptr::null_mut()));
        assert!(current().is_null());
        assert_eq!(cu!(cuCtxPopCurrent_v2(&mut popped)), INVALID_CONTEXT);
        assert_eq!(cu!(cuCtxSetCurrent(17 as sys::CUcontext)), INVALID_CONTEXT);
    });
}

#[test]
fn handles_that_were_destroyed_are_told() {
    let said = in_child(&[], || {
        start();
        let (gone, here, event) = (stream(), stream(), event());
        ok!(cuStreamDestroy_v2(gone));
        assert_eq!(cu!(cuStreamQuery(gone)), INVALID_HANDLE);
        assert_eq!(cu!(cuStreamDestroy_v2(gone)), INVALID_HANDLE);
        assert_eq!(cu!(cuEventRecord(event, gone)), INVALID_HANDLE);
        let successor = stream();
        assert_eq!(cu!(cuStreamQuery(gone)), INVALID_HANDLE, "its slot is taken again");
        ok!(cuStreamQuery(successor));
        ok!(cuEventDestroy_v2(event));
        assert_eq!(cu!(cuEventQuery(event)), INVALID_HANDLE);
        assert_eq!(cu!(cuStreamWaitEvent(here, event, 0)), INVALID_HANDLE);
        assert_eq!(cu!(cuEventDestroy_v2(std::ptr::null_mut())), INVALID_HANDLE);
        assert_eq!(cu!(cuEventQuery(here.cast())), INVALID_HANDLE, "a stream is no event");
    });
    assert!(said.contains("cuStreamQuery: CUDA_ERROR_INVALID_HANDLE: the stream is destroyed"), "{said}");
    assert!(
        said.contains("cuEventQuery: CUDA_ERROR_INVALID_HANDLE: the event is not a handle of this kind"),
        "{said}"
    );
}

#[test]
fn an_event_is_recorded_in_its_own_context_only() {
    let said = in_child(&[("SOFTCUDA_DEVICES", "2")], || {
        let first = start();
        let (stream_0, event_0) = (stream(), event());
        let gate = Gate::on(stream_0);
        start_on(1);
        let (stream_1, event_1, word) = (stream(), event(), Word::new());
        assert_eq!(cu!(cuEventRecord(event_0, stream_1)), INVALID_HANDLE);
        assert_eq!(cu!(cuEventRecord(event_1, stream_0)), INVALID_HANDLE);
        ok!(cuEventRecord(event_0, stream_0));
        ok!(cuStreamWaitEvent(stream_1, event_0, 0));
        word.written_by(stream_1, 1);
        assert_eq!(cu!(cuStreamQuery(stream_1)), NOT_READY);
        gate.open();
        ok!(cuStreamSynchronize(stream_1));
        assert_eq!(word.load(), 1, "waits may cross contexts");
        assert_eq!(cu!(cuStreamWriteValue64_v2(stream_0, word.address(), 1, 0)), INVALID_HANDLE);
        ok!(cuCtxSetCurrent(first));
        ok!(cuEventQuery(event_1));
    });
    assert!(said.contains("the event and the stream are of different contexts"), "{said}");
}

#[test]
fn a_released_primary_context_cannot_be_used() {
    in_child(&[], || {
        let context = start();
        let mut again = std::ptr::null_mut();
        ok!(cuDevicePrimaryCtxRetain(&mut again, 0));
        assert_eq!(context, again);
        let (stream, address) = (stream(), alloc(8));
        ok!(cuDevicePrimaryCtxRelease_v2(0));
        ok!(cuStreamQuery(stream));
        ok!(cuDevicePrimaryCtxRelease_v2(0));
        assert_eq!(cu!(cuStreamQuery(stream)), CONTEXT_IS_DESTROYED);
        assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(0)), INVALID_CONTEXT);
        start();
        assert_eq!(cu!(cuStreamQuery(stream)), INVALID_HANDLE);
        assert_eq!(cu!(cuMemFree_v2(address)), INVALID_VALUE);
        let (mut free, mut total) = (0, 1);
        ok!(cuMemGetInfo_v2(&mut free, &mut total));
        assert_eq!(free, total);
    });
}

#[test]
fn contexts_that_were_made_come_and_go() {
    in_child(&[], || {
        let primary = start();
        let mut own = std::ptr::null_mut();
        ok!(cuCtxCreate_v2(&mut own, 0, 0));
        let (stream, address) = (stream(), alloc(64));
        ok!(cuCtxSetCurrent(primary));
        assert_eq!(
            cu!(cuMemsetD8Async(address, 1, 64, std::ptr::null_mut())),
            INVALID_VALUE,
            "not of this context"
        );
        ok!(cuMemsetD8Async(address, 1, 64, stream));
        ok!(cuCtxDestroy_v2(own));
        assert_eq!(cu!(cuCtxSetCurrent(own)), INVALID_CONTEXT);
        assert_eq!(cu!(cuStreamQuery(stream)), INVALID_HANDLE);
    });
}
