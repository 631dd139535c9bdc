//! A handle a stream, and none that would break a capture.

use crate::support::raw::{primary_context, set_current_context};
use crate::{calls, cuda, enqueued, in_child_with_cublas, ran, values};
use cudarc::driver::{CudaContext, sys};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use warpline::kernels::{self, LINEAR, MATMUL, launch};
use warpline::prelude::*;

const N: u64 = 8;

/// A product of two 8 × 8 matrices on a stream, which nobody awaits.
#[track_caller]
fn multiply(stream: &Stream, [a, b, c]: &[Buffer<f32>; 3]) -> Pending<()> {
    stream.launch(kernels::matmul(N, N, N, 0, 0, a, b, c), launch::product(N, N))
}

fn three(stream: &Stream) -> [Buffer<f32>; 3] {
    [1, 2, 3].map(|salt| {
        let buffer = stream.alloc::<f32>((N * N) as usize).unwrap();
        drop(stream.write(&buffer, &values((N * N) as usize, salt)));
        buffer
    })
}

#[test]
fn each_stream_has_one_handle_and_keeps_it_for_whoever_gets_the_stream_next() {
    in_child_with_cublas(&[], || {
        let device = cuda(0);
        for _ in 0..3 {
            let streams = [(); 3].map(|()| device.new_stream().unwrap());
            for _ in 0..2 {
                for stream in &streams {
                    let operands = three(stream);
                    drop(multiply(stream, &operands));
                }
            }
            streams.iter().for_each(|stream| stream.synchronize().wait().unwrap());
        }
        let used = enqueued();
        assert_eq!(used.len(), 18);
        let streams_of = used.iter().fold(BTreeMap::<_, BTreeSet<_>>::new(), |mut streams, product| {
            streams.entry(product.handle).or_default().insert(product.stream);
            streams
        });
        assert!(streams_of.values().all(|streams| streams.len() == 1), "{streams_of:?}");
        assert_eq!((streams_of.len(), calls(c"cublasCreate_v2"), calls(c"cublasSetStream_v2")), (3, 3, 3));
        assert_eq!(calls(c"cublasDestroy_v2"), 0);
    });
}

#[test]
fn devices_have_handles_of_their_own() {
    in_child_with_cublas(&[], || {
        for device in [cuda(0), cuda(1), cuda(0)] {
            let stream = device.default_stream().unwrap();
            let operands = three(&stream);
            multiply(&stream, &operands).wait().unwrap();
        }
        let used: Vec<_> = enqueued().iter().map(|product| product.handle).collect();
        assert_eq!(used[0], used[2]);
        assert_ne!(used[0], used[1]);
        assert_eq!(calls(c"cublasCreate_v2"), 2);
    });
}

#[test]
fn loading_the_kernels_makes_the_handle_that_the_first_product_takes() {
    in_child_with_cublas(&[], || {
        let device = cuda(0);
        device.load([&MATMUL, &LINEAR]).unwrap();
        assert_eq!(calls(c"cublasCreate_v2"), 1);
        let stream = device.new_stream().unwrap();
        let operands = three(&stream);
        multiply(&stream, &operands).wait().unwrap();
        assert_eq!(calls(c"cublasCreate_v2"), 1);
        device.load([&MATMUL]).unwrap();
        assert_eq!(calls(c"cublasCreate_v2"), 2, "for the next one");
        device.load([&LINEAR]).unwrap();
        assert_eq!(calls(c"cublasCreate_v2"), 2);
    });
}

#[test]
fn many_threads_multiply_on_streams_of_their_own_and_each_gets_its_product() {
    in_child_with_cublas(&[], || {
        let device = cuda(0);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let device = &device;
                scope.spawn(move || {
                    let stream = device.new_stream().unwrap();
                    let factor = thread as f32 + 1.0;
                    let [a, b, c] = three(&stream);
                    for round in 0..20 {
                        drop(stream.fill(&a, factor));
                        drop(stream.fill(&b, round as f32));
                        drop(
                            stream.launch(kernels::matmul(N, N, N, 0, 1, &a, &b, &c), launch::product(N, N)),
                        );
                        let expected = factor * round as f32 * N as f32;
                        assert_eq!(stream.read(&c).wait().unwrap(), [expected; (N * N) as usize]);
                    }
                });
            }
        });
        assert_eq!(ran(), (160, 0));
        assert!(calls(c"cublasCreate_v2") <= 8);
    });
}

#[test]
fn many_threads_that_share_one_stream_share_its_handle() {
    in_child_with_cublas(&[], || {
        let device = cuda(0);
        let stream = device.new_stream().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let operands = three(&stream);
                    (0..50).for_each(|_| drop(multiply(&stream, &operands)));
                });
            }
        });
        stream.synchronize().wait().unwrap();
        assert_eq!((ran(), calls(c"cublasCreate_v2")), ((200, 0), 1));
    });
}

#[test]
fn work_on_other_streams_is_ordered_with_products_as_with_kernels() {
    in_child_with_cublas(&[("WARPLINE_ORDER", "deny")], || {
        let device = cuda(0);
        let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let operands = three(&stream);
        drop(multiply(&stream, &operands));
        crate::support::unordered(other.fill(&operands[0], 0.0));
        drop(other.wait_stream(&stream));
        other.fill(&operands[0], 0.0).wait().unwrap();
    });
}

/// Keeps a value until the process ends.
fn keep(value: impl Send + 'static) {
    static KEPT: Mutex<Vec<Box<dyn std::any::Any + Send>>> = Mutex::new(Vec::new());
    KEPT.lock().unwrap().push(Box::new(value));
}

/// Captures what `f` does with a stream of ours on a raw one. The capture has to end well.
fn captured(device: &Device, f: impl FnOnce(&Stream)) {
    let context = CudaContext::new(0).unwrap();
    let theirs = context.new_stream().unwrap();
    // SAFETY: their stream is of the device's primary context and lives until the end.
    let stream = unsafe { device.stream().borrow_raw(theirs.cu_stream().cast()) }.build().unwrap();
    set_current_context(primary_context(0));
    let (mode, mut graph) = (sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED, std::ptr::null_mut());
    // SAFETY: a live stream.
    unsafe { sys::cuStreamBeginCapture_v2(theirs.cu_stream(), mode) }.result().unwrap();
    f(&stream);
    // SAFETY: a stream that is being captured; it writes a graph.
    unsafe { sys::cuStreamEndCapture(theirs.cu_stream(), &raw mut graph) }.result().unwrap();
    assert!(!graph.is_null());
    // What was captured does not run, so nothing of the stream ends.
    keep((stream, theirs, context));
}

#[test]
fn a_capture_takes_the_handle_that_a_load_has_made() {
    in_child_with_cublas(&[], || {
        let device = cuda(0);
        device.load([&MATMUL]).unwrap();
        let operands = three(&device.default_stream().unwrap());
        device.synchronize().wait().unwrap();
        captured(&device, |stream| {
            (0..3).for_each(|_| drop(multiply(stream, &operands)));
        });
        assert_eq!((ran(), calls(c"cublasCreate_v2")), ((3, 0), 1));
        keep(operands);
    });
}

#[test]
fn a_capture_for_which_there_is_no_handle_gets_our_kernel_and_stays_whole() {
    in_child_with_cublas(&[], || {
        let device = cuda(0);
        device.load([&MATMUL]).unwrap();
        let stream = device.default_stream().unwrap();
        let operands = three(&stream);
        multiply(&stream, &operands).wait().unwrap();
        captured(&device, |stream| drop(multiply(stream, &operands)));
        assert_eq!((ran(), calls(c"cublasCreate_v2")), ((1, 1), 1));
        keep(operands);
    });
}

#[test]
fn the_products_of_a_graph_are_cublas_on_each_of_its_streams() {
    in_child_with_cublas(&[], || {
        let device = cuda(0);
        let (stream, side) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let (one, two) = (three(&stream), three(&stream));
        let (graph, ()) = stream
            .capture(|s| {
                side.wait_stream(s).queued()?;
                multiply(s, &one).queued()?;
                multiply(&side, &two).queued()?;
                s.wait_stream(&side).queued()
            })
            .unwrap();
        assert_eq!(ran(), (2, 0), "both were captured as cuBLAS's");
        for factor in [1.0, 2.0, 3.0] {
            for [a, _, c] in [&one, &two] {
                drop(stream.fill(a, factor));
                drop(stream.fill(c, f32::NAN));
            }
            graph.launch(&stream).wait().unwrap();
            let expected = stream.read(&one[1]).wait().unwrap().iter().sum::<f32>();
            for [.., c] in [&one, &two] {
                let sum = stream.read(c).wait().unwrap().iter().sum::<f32>();
                assert!((sum / factor - expected * N as f32).abs() < 1e-2, "{sum} {expected} {factor}");
            }
        }
        assert_eq!(ran(), (2, 0), "a launch asks no library");
    });
}

#[test]
fn products_of_a_graph_work_in_memory_of_the_graph_and_others_do_not() {
    const WORKSPACE: usize = 4 << 20;
    in_child_with_cublas(&[], || {
        let device = cuda(0);
        let (stream, side) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let (one, two, out) = (three(&stream), three(&stream), stream.alloc::<f32>(WORKSPACE / 4).unwrap());
        let capture = |s: &Stream| {
            side.wait_stream(s).queued()?;
            // As large as what a product works in, and free when the capture ends.
            let scratch = s.alloc::<f32>(WORKSPACE / 4)?;
            s.fill(&scratch, 1.0).queued()?;
            multiply(s, &one).queued()?;
            multiply(&side, &two).queued()?;
            s.copy(&scratch, &out).queued()?;
            s.wait_stream(&side).queued()
        };
        let (graph, ()) = stream.capture(capture).unwrap();
        let (other, ()) = stream.capture(|s| graph.launch(s)).unwrap();
        let mut places: Vec<_> = enqueued().iter().map(|one| (one.workspace, one.workspace_bytes)).collect();
        assert!(places.iter().all(|place| place.0 != 0 && place.1 == WORKSPACE), "{places:?}");
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 4, "one for each stream of each graph: {places:?}");
        assert!(graph.memory_bytes() >= 3 * WORKSPACE && other.memory_bytes() >= 2 * WORKSPACE);
        assert_eq!(device.memory_stats().graph_bytes, graph.memory_bytes() + other.memory_bytes());
        for _ in 0..4 {
            for graph in [&graph, &other] {
                drop(stream.fill(&out, 0.0));
                graph.launch(&stream).wait().unwrap();
                assert_eq!(stream.read(&out).wait().unwrap(), vec![1.0; WORKSPACE / 4]);
            }
        }
        // On the driver's streams that the graphs were captured on, among others.
        let streams = [(); 6].map(|()| device.new_stream().unwrap());
        for stream in &streams {
            drop(stream.wait_event(&side.record_event()));
            multiply(stream, &three(stream)).wait().unwrap();
        }
        assert!(enqueued()[4..].iter().all(|one| one.workspace == 0));
        drop((graph, other));
        assert_eq!(device.memory_stats().graph_bytes, 0);
    });
}

#[test]
fn a_graph_whose_products_have_no_memory_to_work_in_is_refused() {
    in_child_with_cublas(&[], || {
        let runtime = Runtime::builder().memory_limit(6 << 20).build().unwrap();
        let device = runtime.device(DeviceId::Cuda(0)).unwrap();
        let stream = device.new_stream().unwrap();
        let operands = three(&stream);
        let (_graph, ()) = stream.capture(|s| multiply(s, &operands)).unwrap();
        let error = stream.capture(|s| multiply(s, &operands)).unwrap_err();
        let texts =
            ["cuda:0 is out of memory: 4.0 MiB asked", "holders: 4.0 MiB from tests/cuda_cublas/handles.rs:"];
        crate::support::says(&error, ErrorKind::OutOfMemory, &texts);
        multiply(&stream, &operands).wait().unwrap();
    });
}
