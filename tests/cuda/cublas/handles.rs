//! cuBLAS handles: how many are created, which product uses which, and the workspaces of products.

use crate::cublas::{calls, cuda, enqueued, in_child_with_cublas, ran, values};
use std::collections::BTreeSet;
use warpline::kernels::{self, LINEAR, MATMUL, launch};
use warpline::prelude::*;

pub(crate) const N: u64 = 8;

/// Enqueues the product of two 8 × 8 matrices on a stream.
#[track_caller]
pub(crate) fn multiply(stream: &Stream, [a, b, c]: &[Buffer<f32>; 3]) -> Pending<()> {
    stream.launch(kernels::matmul(N, N, N, 0, 0, a, b, c), launch::product(N, N))
}

pub(crate) fn three(stream: &Stream) -> [Buffer<f32>; 3] {
    [1, 2, 3].map(|salt| {
        let buffer = stream.alloc::<f32>((N * N) as usize).unwrap();
        drop(stream.write(&buffer, &values((N * N) as usize, salt)));
        buffer
    })
}

#[test]
fn a_product_on_each_of_32_streams_fits_a_device_of_1_gib() {
    in_child_with_cublas(&[("SOFTCUDA_MEMORY", "1073741824")], || {
        let device = cuda(0);
        let streams = [(); 32].map(|()| device.new_stream().unwrap());
        for stream in &streams {
            let operands = three(stream);
            multiply(stream, &operands).blocking_wait().unwrap();
        }
        assert_eq!((ran(), calls(c"cublasCreate_v2")), ((32, 0), 1));
    });
}

#[test]
fn one_handle_serves_streams_in_flight_and_each_works_in_memory_of_its_own() {
    in_child_with_cublas(&[], || {
        let device = cuda(0);
        let streams = [(); 3].map(|()| device.new_stream().unwrap());
        let operands = streams.each_ref().map(three);
        // Products behind a copy that is held back would be enqueued by another thread.
        device.synchronize().blocking_wait().unwrap();
        let products = || {
            let products = streams.iter().zip(&operands).cycle().take(6);
            products.for_each(|(stream, operands)| drop(multiply(stream, operands)));
        };
        products();
        device.synchronize().blocking_wait().unwrap();
        let gates = streams.each_ref().map(|stream| stream.hold().unwrap());
        products();
        drop(gates);
        device.synchronize().blocking_wait().unwrap();
        let in_flight = &enqueued()[6..];
        assert_eq!(in_flight.len(), 6);
        let places: BTreeSet<_> =
            in_flight.iter().map(|product| (product.stream, product.workspace)).collect();
        let workspaces: BTreeSet<_> = in_flight.iter().map(|product| product.workspace).collect();
        assert_eq!((places.len(), workspaces.len()), (3, 3), "{in_flight:?}");
        assert!(in_flight.iter().all(|product| product.workspace_bytes == 4 << 20), "{in_flight:?}");
        assert_eq!((calls(c"cublasCreate_v2"), calls(c"cublasDestroy_v2")), (1, 0));
        let [a, b, c] = [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]];
        for (i, (stream, operands)) in streams.iter().zip(&operands).enumerate() {
            let [x, y] = [a, b, c][i];
            drop(stream.fill(&operands[0], x));
            drop(stream.fill(&operands[1], y));
            drop(multiply(stream, operands));
            assert_eq!(
                stream.read(&operands[2]).blocking_wait().unwrap(),
                [x * y * N as f32; (N * N) as usize]
            );
        }
    });
}

#[test]
fn a_product_that_waits_for_room_holds_up_no_product_of_another_stream() {
    in_child_with_cublas(&[("SOFTCUDA_DEPTH", "100")], || {
        let device = cuda(0);
        let (full, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let (theirs, ours) = (three(&full), three(&other));
        device.load([&MATMUL]).unwrap();
        device.synchronize().blocking_wait().unwrap();
        let gate = full.hold().unwrap();
        let stream = full.clone();
        let filler = std::thread::spawn(move || {
            for _ in 0..40 {
                multiply(&stream, &theirs).queued().unwrap();
            }
        });
        // A product is three pieces of work: two fills of its workspace and the kernel. So 33
        // products and the gate fill the hundred places of the stream. The next product stays in
        // the library and keeps its handle.
        while calls(c"cublasSgemm_v2") < 34 {
            std::thread::yield_now();
        }
        multiply(&other, &ours).blocking_wait().unwrap();
        assert!(!filler.is_finished());
        gate.open();
        filler.join().unwrap();
        full.synchronize().blocking_wait().unwrap();
        assert_eq!((ran(), calls(c"cublasCreate_v2")), ((41, 0), 2));
    });
}

#[test]
fn devices_have_handles_of_their_own() {
    in_child_with_cublas(&[], || {
        for device in [cuda(0), cuda(1), cuda(0)] {
            let stream = device.default_stream().unwrap();
            let operands = three(&stream);
            multiply(&stream, &operands).blocking_wait().unwrap();
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
        multiply(&stream, &operands).blocking_wait().unwrap();
        assert_eq!(calls(c"cublasCreate_v2"), 1);
        device.load([&MATMUL, &LINEAR]).unwrap();
        assert_eq!(calls(c"cublasCreate_v2"), 1, "it is free again");
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
                        assert_eq!(stream.read(&c).blocking_wait().unwrap(), [expected; (N * N) as usize]);
                    }
                });
            }
        });
        assert_eq!(ran(), (160, 0));
        assert!(calls(c"cublasCreate_v2") <= 8);
    });
}

#[test]
fn many_threads_that_share_one_stream_take_turns_with_one_handle() {
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
        stream.synchronize().blocking_wait().unwrap();
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
        other.wait_stream(&stream);
        other.fill(&operands[0], 0.0).blocking_wait().unwrap();
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
        assert_eq!(calls(c"cublasCreate_v2"), 1);
        for factor in [1.0, 2.0, 3.0] {
            for [a, _, c] in [&one, &two] {
                drop(stream.fill(a, factor));
                drop(stream.fill(c, f32::NAN));
            }
            graph.launch(&stream).blocking_wait().unwrap();
            let expected = stream.read(&one[1]).blocking_wait().unwrap().iter().sum::<f32>();
            for [.., c] in [&one, &two] {
                let sum = stream.read(c).blocking_wait().unwrap().iter().sum::<f32>();
                assert!((sum / factor - expected * N as f32).abs() < 1e-2, "{sum} {expected} {factor}");
            }
        }
        assert_eq!(ran(), (2, 0), "a launch asks no library");
        multiply(&stream, &one).blocking_wait().unwrap();
        assert_eq!(calls(c"cublasCreate_v2"), 1, "the capture has put it back");
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
            // As large as the workspace of a product, and free when the capture ends.
            let scratch = s.alloc::<f32>(WORKSPACE / 4)?;
            s.fill(&scratch, 1.0).queued()?;
            multiply(s, &one).queued()?;
            multiply(&side, &two).queued()?;
            s.copy_buffer(&out, &scratch).queued()?;
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
                graph.launch(&stream).blocking_wait().unwrap();
                assert_eq!(stream.read(&out).blocking_wait().unwrap(), vec![1.0; WORKSPACE / 4]);
            }
        }
        // These include the driver's streams on which the graphs were captured.
        let streams = [(); 6].map(|()| device.new_stream().unwrap());
        for stream in &streams {
            stream.wait_event(&side.record_event());
            multiply(stream, &three(stream)).blocking_wait().unwrap();
        }
        let others = &enqueued()[4..];
        assert!(
            others.iter().all(|one| !places.contains(&(one.workspace, one.workspace_bytes))),
            "{others:?}"
        );
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
            ["cuda:0 is out of memory: 4.0 MiB asked", "holders: 4.0 MiB from tests/cuda/cublas/handles.rs:"];
        crate::support::says(&error, ErrorKind::OutOfMemory, &texts);
        multiply(&stream, &operands).blocking_wait().unwrap();
    });
}
