//! Captures that other code makes: of streams that it lends to Warpline, of Warpline's streams
//! during foreign work, and on threads of its own.

use crate::foreign::{cu_stream, cuda, nothing};
use crate::support::raw::{own_calls_in, primary_context, set_current_context};
use crate::support::software::in_child;
use crate::support::{refusal, says};
use cudarc::driver::sys::{self, CUgraph, CUstream, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaStream};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use warpline::prelude::*;

const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

fn begin(stream: CUstream, mode: CUstreamCaptureMode) {
    set_current_context(primary_context(0));
    // SAFETY: the callers pass a live stream.
    unsafe { sys::cuStreamBeginCapture_v2(stream, mode) }.result().unwrap();
}

/// Ends a capture, which must succeed, and returns its graph.
fn end(stream: CUstream) -> CUgraph {
    let mut graph = std::ptr::null_mut();
    // SAFETY: the callers pass a live stream. The call writes a graph to a live variable.
    unsafe { sys::cuStreamEndCapture(stream, &raw mut graph) }.result().unwrap();
    assert!(!graph.is_null());
    graph
}

fn nodes(graph: CUgraph) -> usize {
    let mut nodes = 0;
    // SAFETY: the graph is live. Without an array the call writes only the number of nodes.
    unsafe { sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &raw mut nodes) }.result().unwrap();
    nodes
}

/// Launches a graph on a stream, and waits for it.
fn launch(graph: CUgraph, stream: CUstream) {
    let mut executable = std::ptr::null_mut();
    // SAFETY: the graph is live. The call writes an executable graph to a live variable.
    unsafe { sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0) }.result().unwrap();
    // SAFETY: the executable graph and the stream are live.
    unsafe { sys::cuGraphLaunch(executable, stream) }.result().unwrap();
    // SAFETY: the stream is live.
    unsafe { sys::cuStreamSynchronize(stream) }.result().unwrap();
}

fn theirs() -> Arc<CudaStream> {
    CudaContext::new(0).unwrap().new_stream().unwrap()
}

fn borrow(device: &Device, theirs: &Arc<CudaStream>) -> Stream {
    // SAFETY: cudarc's stream belongs to the device's primary context. The tests keep it until
    // their end.
    unsafe { device.stream().label("theirs").borrow_raw(theirs.cu_stream().cast()) }.build().unwrap()
}

#[test]
fn a_stream_that_its_owner_captures_takes_no_work_and_the_capture_stays_whole() {
    in_child(&[], || {
        let (theirs, device) = (theirs(), cuda(0));
        let (stream, side) = (borrow(&device, &theirs), device.new_stream().unwrap());
        let (x, y) = (stream.alloc::<f32>(4).unwrap(), stream.alloc::<f32>(4).unwrap());
        let gate = stream.hold().unwrap();
        drop(stream.fill(&x, 1.0));
        let read = stream.read(&x);
        begin(theirs.cu_stream(), RELAXED);
        for refused in [
            stream.fill(&x, 2.0),
            stream.copy_buffer(&y, &x),
            stream.call(|| ()),
            stream.wait_stream(&side).into_future(),
            stream.launch(warpline::kernels::axpy(4, 1.0, &x, &y), LaunchConfig::linear(1, 4)),
            // SAFETY: the work is refused, and its closure is never called.
            unsafe { stream.external(nothing(), nothing(), |_| panic!("it is not called")) },
        ] {
            says(
                &refusal(refused),
                ErrorKind::Captured,
                &[" on stream \"", "the stream's owner is capturing it", "enqueue before the capture begins"],
            );
        }
        assert_eq!(stream.hold().unwrap_err().kind(), ErrorKind::Captured);
        // Other streams may wait for the earlier work, also by an event.
        side.wait_stream(&stream);
        side.wait_event(&stream.record_event());
        let seen = side.call(|| ());
        let there = stream.synchronize();
        gate.open();
        assert_eq!(read.blocking_wait().unwrap(), [1.0; 4], "its marker was enqueued before the capture");
        seen.blocking_wait().unwrap();
        there.blocking_wait().unwrap();
        assert_eq!(nodes(end(theirs.cu_stream())), 0);
        stream.fill(&x, 3.0).blocking_wait().unwrap();
        assert_eq!(stream.read(&x).blocking_wait().unwrap(), [3.0; 4]);
    });
}

#[test]
fn what_was_refused_because_of_a_capture_is_not_read_as_if_it_were_written() {
    in_child(&[], || {
        let (theirs, device) = (theirs(), cuda(0));
        let stream = borrow(&device, &theirs);
        let x = stream.alloc::<f32>(4).unwrap();
        stream.fill(&x, 1.0).blocking_wait().unwrap();
        begin(theirs.cu_stream(), RELAXED);
        drop(stream.fill(&x, 2.0));
        end(theirs.cu_stream());
        let inherited = refusal(stream.read(&x));
        assert!(inherited.is_inherited(), "{inherited}");
        says(&inherited, ErrorKind::Captured, &["reads memory that was not written", "is capturing it"]);
    });
}

#[test]
fn a_device_that_failed_is_not_taken_for_a_capture() {
    for plan in ["cuStreamIsCapturing:1:700:sticky", "cuStreamIsCapturing:1:400"] {
        in_child(&[("SOFTCUDA_FAIL", plan)], || {
            let (theirs, device) = (theirs(), cuda(0));
            let stream = borrow(&device, &theirs);
            let Ok(x) = stream.alloc::<f32>(4) else { return };
            let error = refusal(stream.fill(&x, 1.0));
            let is_fault = std::env::var("SOFTCUDA_FAIL").unwrap().contains("sticky");
            assert_eq!(error.kind(), if is_fault { ErrorKind::Fault } else { ErrorKind::Driver }, "{error}");
            assert!(error.to_string().contains("cuStreamIsCapturing"), "{error}");
        });
    }
}

#[test]
fn a_graph_of_their_stream_completes_nothing_of_ours() {
    in_child(&[], || {
        let (theirs, device) = (theirs(), cuda(0));
        let stream = borrow(&device, &theirs);
        let x = stream.alloc::<f32>(4).unwrap();
        stream.fill(&x, 1.0).blocking_wait().unwrap();
        begin(theirs.cu_stream(), RELAXED);
        for _ in 0..8 {
            drop(stream.fill(&x, 2.0));
            let _ = stream.synchronize().query();
        }
        let graph = end(theirs.cu_stream());
        launch(graph, theirs.cu_stream());
        drop((x, stream));
        // One of these may get the completion word of the closed stream.
        let others: Vec<_> =
            (0..4).map(|_| device.stream().priority(warpline::Priority::High).build().unwrap()).collect();
        let gates: Vec<_> = others.iter().map(|other| other.hold().unwrap()).collect();
        let mut held: Vec<_> = others.iter().map(|other| other.call(|| ())).collect();
        launch(graph, theirs.cu_stream());
        assert!(held.iter_mut().all(|call| !call.query().unwrap()), "the gates are closed");
        drop(gates);
        held.into_iter().for_each(|call| call.blocking_wait().unwrap());
    });
}

#[test]
fn asking_again_and_again_for_work_on_their_stream_does_not_end_their_capture() {
    for completion in ["word", "event"] {
        in_child(&[("WARPLINE_COMPLETION", completion)], || {
            let (theirs, device) = (theirs(), cuda(0));
            let stream = borrow(&device, &theirs);
            let gate = stream.hold().unwrap();
            let mut held = stream.call(|| ());
            begin(theirs.cu_stream(), RELAXED);
            // Longer than the time without progress after which a stream is checked for being idle.
            let since = Instant::now();
            while since.elapsed() < Duration::from_millis(400) {
                assert!(!held.query().unwrap());
            }
            assert_eq!(nodes(end(theirs.cu_stream())), 0);
            gate.open();
            held.blocking_wait().unwrap();
        });
    }
}

#[test]
fn foreign_work_that_leaves_a_stream_of_ours_capturing_is_an_error_and_the_stream_serves_nobody_again() {
    in_child(&[], || {
        let device = cuda(0);
        let stream = device.stream().label("ours").build().unwrap();
        let mut raw_stream = None;
        // SAFETY: the closure begins a capture, and enqueues nothing.
        let begun = unsafe {
            stream.external(nothing(), nothing(), |raw| {
                begin(cu_stream(raw), RELAXED);
                raw_stream = Some(cu_stream(raw));
            })
        };
        let says_why = |error: &Error| {
            says(
                error,
                ErrorKind::Captured,
                &["the foreign work left the stream capturing", "use another stream"],
            );
        };
        says_why(&refusal(begun));
        let after = refusal(stream.call(|| ()));
        assert!(after.to_string().contains("the foreign work left the stream capturing"), "{after}");
        drop(stream);
        let others: Vec<_> = (0..4).map(|_| device.new_stream().unwrap()).collect();
        others.iter().for_each(|other| other.call(|| ()).blocking_wait().unwrap());
        assert_eq!(nodes(end(raw_stream.unwrap())), 0);
    });
}

#[test]
fn foreign_work_may_capture_as_long_as_it_ends_the_capture() {
    in_child(&[], || {
        let stream = cuda(0).new_stream().unwrap();
        // SAFETY: the closure launches an empty graph, which touches no memory.
        let done = unsafe {
            stream.external(nothing(), nothing(), |raw| {
                begin(cu_stream(raw), RELAXED);
                launch(end(cu_stream(raw)), cu_stream(raw));
            })
        };
        done.blocking_wait().unwrap();
        stream.call(|| ()).blocking_wait().unwrap();
    });
}

/// Uses a device as a program does, the first time and again: memory, kernels, streams, edges,
/// graphs and waits.
fn use_device() {
    let device = cuda(0);
    for _ in 0..2 {
        let [a, b] = [(); 2].map(|()| device.new_stream().unwrap());
        let (x, y) = (a.alloc::<f32>(1 << 20).unwrap(), a.alloc::<f32>(1 << 20).unwrap());
        drop((a.fill(&x, 1.0), a.fill(&y, 2.0)));
        drop(a.launch(warpline::kernels::axpy(1 << 20, 1.0, &x, &y), LaunchConfig::for_elements(1u32 << 20)));
        b.wait_stream(&a);
        assert_eq!(b.read(&y).blocking_wait().unwrap()[0], 3.0);
        let pinned = device.pin(vec![4.0f32; 1 << 20]).unwrap();
        a.wait_stream(&b);
        a.copy_into(&x, pinned).blocking_wait().unwrap();
        let timed = a.record_timed_event().unwrap();
        timed.synchronize().blocking_wait().unwrap();
        let (graph, _) = a.capture(|a| a.fill(&y, 5.0).queued()).unwrap();
        graph.launch(&a).blocking_wait().unwrap();
        assert_eq!(a.read(&y).blocking_wait().unwrap()[0], 5.0);
        device.synchronize().blocking_wait().unwrap();
        drop((x, y, graph));
        device.empty_cache();
        device.free_bytes();
    }
}

#[test]
fn while_another_thread_captures_in_global_mode_everything_goes_on_and_the_capture_stays_whole() {
    for completion in ["word", "event"] {
        for strict in ["0", "1"] {
            in_child(&[("WARPLINE_COMPLETION", completion), ("SOFTCUDA_CAPTURE_STRICT", strict)], || {
                let ((begun, began), (done, ended)) = (channel(), channel());
                let capturing = std::thread::spawn(move || {
                    let theirs = theirs();
                    begin(theirs.cu_stream(), GLOBAL);
                    begun.send(()).unwrap();
                    ended.recv().unwrap();
                    assert_eq!(nodes(end(theirs.cu_stream())), 0);
                });
                began.recv().unwrap();
                use_device();
                done.send(()).unwrap();
                capturing.join().unwrap();
            });
        }
    }
}

#[test]
fn ops_do_not_pay_for_other_threads_captures() {
    in_child(&[], || {
        let stream = cuda(0).new_stream().unwrap();
        let x = stream.alloc::<f32>(4).unwrap();
        stream.fill(&x, 0.0).blocking_wait().unwrap();
        let (exchanges, ()) =
            own_calls_in([c"cuThreadExchangeStreamCaptureMode", c"cuStreamIsCapturing"], || {
                (0..100).for_each(|_| drop(stream.fill(&x, 1.0)));
            });
        assert_eq!(exchanges, [0, 0]);
        stream.synchronize().blocking_wait().unwrap();
    });
}
