//! Graphs: errors, the calls that report them, and the effects of a fault in a graph.

use crate::graphs::{add_kernel, executable};
use crate::raw::*;
use crate::support::in_child;
use crate::twins::{ADD, ADD_PARAMS, add, calls, register, reset_counts};
use cudarc::driver::sys::CUstreamCaptureMode as Mode;

#[test]
fn handles_and_flags_are_checked() {
    in_child(&[], || {
        start();
        let stream = stream();
        let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
        ok!(cuStreamBeginCapture_v2(stream, Mode::CU_STREAM_CAPTURE_MODE_GLOBAL));
        ok!(cuStreamEndCapture(stream, &mut graph));
        let mut made_with = |flags| cu!(cuGraphInstantiateWithFlags(&mut exec, graph, flags));
        assert_eq!(made_with(1 | 4), INVALID_VALUE);
        assert_eq!(made_with(1 << 10), INVALID_VALUE);
        assert_eq!(made_with(4), NOT_SUPPORTED);
        assert_eq!(made_with(1 | 8), 0);
        assert_eq!(cu!(cuGraphLaunch(graph.cast(), stream)), INVALID_VALUE, "a graph, not executable");
        assert_eq!(cu!(cuGraphLaunch(std::ptr::null_mut(), stream)), INVALID_VALUE);
        assert_eq!(cu!(cuGraphLaunch(exec, graph.cast())), INVALID_HANDLE, "no stream");
        ok!(cuGraphDestroy(graph));
        let (mut count, mut other) = (0, std::ptr::null_mut());
        assert_eq!(cu!(cuGraphInstantiateWithFlags(&mut other, graph, 0)), INVALID_VALUE);
        assert_eq!(cu!(cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count)), INVALID_VALUE);
        ok!(cuGraphLaunch(exec, stream));
        ok!(cuGraphExecDestroy(exec));
        ok!(cuStreamSynchronize(stream));
    });
}

#[test]
fn device_memory_freed_after_the_capture_is_a_fault_at_the_launch() {
    let said = in_child(&[], || {
        start();
        let (kernel, stream, x) = (add_kernel(), stream(), upload(&[0.0]));
        let exec = executable(stream, || assert_eq!(launch_add(kernel, stream, x, 1.0, 1), 0));
        ok!(cuMemFree_v2(x));
        assert_eq!(upload(&[0.0]), x, "another allocation at the same address");
        ok!(cuGraphLaunch(exec, stream));
        assert_eq!(cu!(cuStreamSynchronize(stream)), ILLEGAL_ADDRESS);
        assert_eq!(cu!(cuGraphLaunch(exec, stream)), ILLEGAL_ADDRESS, "the context is lost");
    });
    assert!(
        said.contains("a graph uses memory at") && said.contains("has ended since it was captured"),
        "{said}"
    );
}

#[test]
fn memory_freed_in_stream_order_may_be_used_by_launches_before() {
    in_child(&[], || {
        start();
        let (stream, word, mut x) = (stream(), Word::new(), 0);
        ok!(cuMemAllocAsync(&mut x, 8, stream));
        let exec = executable(stream, || {
            ok!(cuMemsetD8Async(x, 3, 8, stream));
            ok!(cuMemcpyDtoHAsync_v2(word.host(), x, 8, stream));
        });
        let gate = Gate::on(stream);
        ok!(cuGraphLaunch(exec, stream));
        ok!(cuMemFreeAsync(x, stream));
        gate.open();
        ok!(cuStreamSynchronize(stream));
        assert_eq!(word.load(), 0x0303_0303_0303_0303);
        ok!(cuGraphLaunch(exec, stream));
        assert_eq!(cu!(cuStreamSynchronize(stream)), ILLEGAL_ADDRESS);
    });
}

#[test]
fn page_locked_memory_freed_after_the_capture_is_a_fault_at_the_launch() {
    let said = in_child(&[], || {
        start();
        let (stream, x, bytes) = (stream(), alloc(4096), 4096);
        let host = pinned(bytes);
        let exec = executable(stream, || ok!(cuMemcpyHtoDAsync_v2(x, host, bytes, stream)));
        ok!(cuMemFreeHost(host));
        pinned(bytes);
        ok!(cuGraphLaunch(exec, stream));
        assert_eq!(cu!(cuStreamSynchronize(stream)), ILLEGAL_ADDRESS);
    });
    assert!(said.contains("has ended since it was captured"), "{said}");
}

#[test]
fn a_word_freed_after_the_capture_is_not_looked_at() {
    in_child(&[], || {
        start();
        let (stream, word) = (stream(), Word::new());
        let exec = executable(stream, || ok!(cuStreamWaitValue64_v2(stream, word.address(), 1, 0)));
        ok!(cuMemFreeHost(word.host()));
        ok!(cuGraphLaunch(exec, stream));
        assert_eq!(cu!(cuStreamSynchronize(stream)), ILLEGAL_ADDRESS);
    });
}

#[test]
fn page_locked_memory_freed_during_a_launch_is_a_fault() {
    let said = in_child(&[], || {
        start();
        let (stream, x, held, host) = (stream(), alloc(8), Word::new(), pinned(8));
        let exec = executable(stream, || {
            ok!(cuStreamWaitValue64_v2(stream, held.address(), 1, 0));
            ok!(cuMemcpyHtoDAsync_v2(x, host, 8, stream));
        });
        ok!(cuGraphLaunch(exec, stream));
        ok!(cuMemFreeHost(host));
        assert_eq!(cu!(cuStreamSynchronize(stream)), ILLEGAL_ADDRESS);
    });
    assert!(said.contains("ended while queued work still uses it"), "{said}");
}

#[test]
fn a_module_unloaded_after_the_capture_refuses_the_launch() {
    in_child(&[], || {
        start();
        assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
        let (stream, x, text) = (stream(), upload(&[0.0]), std::ffi::CString::new(ADD).unwrap());
        let (mut module, mut kernel) = (std::ptr::null_mut(), std::ptr::null_mut());
        ok!(cuModuleLoadData(&mut module, text.as_ptr().cast()));
        ok!(cuModuleGetFunction(&mut kernel, module, c"add".as_ptr()));
        let exec = executable(stream, || assert_eq!(launch_add(kernel, stream, x, 1.0, 1), 0));
        ok!(cuModuleUnload(module));
        assert_eq!(cu!(cuGraphLaunch(exec, stream)), INVALID_HANDLE);
        ok!(cuStreamSynchronize(stream));
    });
}

#[test]
fn kernels_of_graphs_count_among_the_launches_that_poison() {
    let said = in_child(&[("SOFTCUDA_POISON_LAUNCH", "5:719")], || {
        start();
        let (kernel, stream, x, word) = (add_kernel(), stream(), pinned(4), Word::new());
        let exec = executable(stream, || {
            assert_eq!(launch_add(kernel, stream, x as u64, 1.0, 1), 0);
            assert_eq!(launch_add(kernel, stream, x as u64, 1.0, 1), 0);
            word.written_by(stream, 1);
        });
        assert_eq!(launch_add(kernel, stream, x as u64, 1.0, 1), 0);
        ok!(cuGraphLaunch(exec, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(word.load(), 1);
        word.store(0);
        ok!(cuGraphLaunch(exec, stream));
        assert_eq!(cu!(cuStreamSynchronize(stream)), LAUNCH_FAILED);
        assert_eq!(cu!(cuGraphLaunch(exec, stream)), LAUNCH_FAILED);
        assert_eq!(word.load(), 0, "what comes after the fault does not run");
        // SAFETY: `x` is page-locked memory, and no work of the lost context runs any more.
        assert_eq!(unsafe { x.cast::<f32>().read_volatile() }, 4.0);
    });
    assert!(said.contains("CUDA_ERROR_LAUNCH_FAILED: kernel add fails as planned"), "{said}");
}

#[test]
fn a_fault_on_one_device_loses_the_stream_of_the_other_that_launched_it() {
    in_child(&[("SOFTCUDA_DEVICES", "2"), ("SOFTCUDA_POISON_LAUNCH", "1")], || {
        let there = start_on(1);
        let (kernel, far, x) = (add_kernel(), stream(), upload(&[0.0]));
        let here = start_on(0);
        let (near, fork, join) = (stream(), event(), {
            ok!(cuCtxSetCurrent(there));
            event()
        });
        ok!(cuCtxSetCurrent(here));
        let exec = executable(near, || {
            ok!(cuEventRecord(fork, near));
            ok!(cuStreamWaitEvent(far, fork, 0));
            ok!(cuCtxSetCurrent(there));
            assert_eq!(launch_add(kernel, far, x, 1.0, 1), 0);
            ok!(cuEventRecord(join, far));
            ok!(cuCtxSetCurrent(here));
            ok!(cuStreamWaitEvent(near, join, 0));
        });
        ok!(cuGraphLaunch(exec, near));
        assert_eq!(cu!(cuStreamSynchronize(near)), ILLEGAL_ADDRESS);
        ok!(cuCtxSetCurrent(there));
        assert_eq!(cu!(cuStreamQuery(far)), ILLEGAL_ADDRESS);
    });
}

#[test]
fn calls_of_graphs_are_counted_and_fail_as_planned() {
    let plan = "cuGraphLaunch:2:2,cuGraphInstantiateWithFlags:2:2,cuGraphExecDestroy:1:999:sticky";
    in_child(&[("SOFTCUDA_FAIL", plan)], || {
        start();
        let (stream, word) = (stream(), Word::new());
        reset_counts();
        let mut graph = std::ptr::null_mut();
        ok!(cuStreamBeginCapture_v2(stream, Mode::CU_STREAM_CAPTURE_MODE_GLOBAL));
        word.written_by(stream, 1);
        ok!(cuStreamEndCapture(stream, &mut graph));
        let (mut exec, mut other) = (std::ptr::null_mut(), std::ptr::null_mut());
        ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        assert_eq!(cu!(cuGraphInstantiateWithFlags(&mut other, graph, 0)), OUT_OF_MEMORY);
        ok!(cuGraphLaunch(exec, stream));
        ok!(cuStreamSynchronize(stream));
        word.store(0);
        assert_eq!(cu!(cuGraphLaunch(exec, stream)), OUT_OF_MEMORY);
        ok!(cuStreamSynchronize(stream));
        assert_eq!(word.load(), 0);
        assert_eq!(cu!(cuGraphExecDestroy(exec)), 999);
        assert_eq!(cu!(cuStreamSynchronize(stream)), 999);
        let counts =
            ["cuGraphInstantiateWithFlags", "cuGraphLaunch", "cuGraphExecDestroy", "cuGraphGetNodes"];
        assert_eq!(counts.map(calls), [2, 2, 1, 0]);
    });
}

#[test]
fn what_no_graph_here_holds_is_refused_and_the_capture_goes_on() {
    let said = in_child(&[], || {
        start();
        let (stream, word, event, x) = (stream(), Word::new(), event(), alloc(8));
        let exec = executable(stream, || {
            let mut address = 0;
            assert_eq!(cu!(cuMemAllocAsync(&mut address, 8, stream)), NOT_SUPPORTED);
            assert_eq!(cu!(cuMemFreeAsync(x, stream)), NOT_SUPPORTED);
            assert_eq!(cu!(cuEventRecordWithFlags(event, stream, 1)), NOT_SUPPORTED);
            assert_eq!(cu!(cuStreamWaitEvent(stream, event, 1)), NOT_SUPPORTED);
            word.written_by(stream, 1);
        });
        ok!(cuMemFree_v2(x));
        ok!(cuGraphLaunch(exec, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(word.load(), 1);
    });
    assert!(said.contains("an allocation cannot be captured here"), "{said}");
}
