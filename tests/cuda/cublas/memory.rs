//! Device memory that cuBLAS uses: it is counted where possible, and freed when it is needed
//! elsewhere.

use crate::cublas::handles::{N, multiply, three};
use crate::cublas::{calls, cuda, enqueued, in_child_with_cublas, ran};
use crate::support::{refusal, says};
use std::sync::Barrier;
use warpline::kernels::MATMUL;
use warpline::prelude::*;

/// Limits the device memory of the software CUDA driver.
const OF_128_MIB: (&str, &str) = ("SOFTCUDA_MEMORY", "134217728");
const MIB: usize = 1 << 20;
/// The device memory that one handle of the stand-in takes.
const HANDLE: usize = 60 * MIB;

/// Computes a product on a stream, and waits for it.
#[track_caller]
fn product(stream: &Stream) {
    multiply(stream, &three(stream)).blocking_wait().unwrap();
}

#[test]
fn what_products_work_in_counts_and_goes_with_the_cache_and_so_do_idle_handles() {
    in_child_with_cublas(&[], || {
        let device = cuda(0);
        let streams = [(); 4].map(|()| device.new_stream().unwrap());
        let before = device.free_bytes().unwrap();
        streams.iter().for_each(product);
        let reserved = device.memory_stats().reserved_bytes;
        assert!((4 * MIB..100 * MIB).contains(&reserved), "{reserved}");
        assert_eq!(device.free_bytes().unwrap(), before - reserved - HANDLE);
        assert!(enqueued().iter().all(|product| product.workspace_bytes == 4 * MIB));
        assert!(device.empty_cache() >= reserved);
        assert_eq!(device.free_bytes().unwrap(), before);
        assert_eq!((calls(c"cublasCreate_v2"), calls(c"cublasDestroy_v2")), (1, 1));
        product(&streams[0]);
        assert_eq!((ran(), calls(c"cublasCreate_v2")), ((5, 0), 2));
    });
}

#[test]
fn an_allocation_that_finds_no_memory_destroys_the_handles_that_nobody_uses() {
    in_child_with_cublas(&[OF_128_MIB], || {
        let device = cuda(0);
        let stream = device.new_stream().unwrap();
        product(&stream);
        let large = stream.alloc::<u8>(100 * MIB).unwrap();
        assert_eq!(calls(c"cublasDestroy_v2"), 1);
        drop(stream.fill(&large, 1));
        drop(large);
        stream.synchronize().blocking_wait().unwrap();
        product(&stream);
        assert_eq!((ran(), calls(c"cublasCreate_v2")), ((2, 0), 3), "once before the cache was given back");
    });
}

#[test]
fn a_handle_for_which_there_is_no_memory_gets_what_is_cached() {
    in_child_with_cublas(&[OF_128_MIB], || {
        let device = cuda(0);
        let stream = device.new_stream().unwrap();
        let operands = three(&stream);
        drop(stream.alloc::<u8>(100 * MIB).unwrap());
        stream.synchronize().blocking_wait().unwrap();
        multiply(&stream, &operands).blocking_wait().unwrap();
        device.empty_cache();
        drop(stream.alloc::<u8>(100 * MIB).unwrap());
        stream.synchronize().blocking_wait().unwrap();
        // The handle for a product in a graph also gets cached memory.
        let (graph, ()) = stream.capture(|s| multiply(s, &operands)).unwrap();
        graph.launch(&stream).blocking_wait().unwrap();
        assert_eq!(ran(), (2, 0));
    });
}

#[test]
fn where_there_is_no_memory_for_a_handle_our_kernel_runs_until_there_is() {
    for status in ["1", "3"] {
        let plan = format!("cublasCreate_v2:1:{status},cublasCreate_v2:2:{status}");
        in_child_with_cublas(&[OF_128_MIB, ("SOFTCUBLAS_FAIL", &plan)], || {
            let device = cuda(0);
            let stream = device.new_stream().unwrap();
            product(&stream);
            assert_eq!(
                (ran(), calls(c"cublasCreate_v2")),
                ((0, 1), 2),
                "tried again with the cache given back"
            );
            product(&stream);
            assert_eq!((ran(), calls(c"cublasCreate_v2")), ((1, 1), 3));
        });
    }
}

#[test]
fn a_library_that_makes_no_handle_though_there_is_memory_is_an_error() {
    let plan = (1..=10).map(|nth| format!("cublasCreate_v2:{nth}:1")).collect::<Vec<_>>().join(",");
    in_child_with_cublas(&[("SOFTCUDA_MEMORY", "1073741824"), ("SOFTCUBLAS_FAIL", &plan)], || {
        let stream = cuda(0).new_stream().unwrap();
        let operands = three(&stream);
        drop(stream.alloc::<u8>(100 * MIB).unwrap());
        stream.synchronize().blocking_wait().unwrap();
        for created in [2, 3] {
            let error = refusal(multiply(&stream, &operands));
            let advice = "CUBLAS_STATUS_NOT_INITIALIZED; set WARPLINE_CUBLAS=off to run without \
                cuBLAS, with ";
            let free = "MiB of device memory free";
            says(&error, ErrorKind::Driver, &["matmul", "cublasCreate of cuBLAS", advice, free]);
            assert_eq!(calls(c"cublasCreate_v2"), created, "what is cached is given back for it once");
        }
        stream.read(&operands[0]).blocking_wait().unwrap();
    });
}

#[test]
fn products_of_32_threads_at_once_fit_a_device_of_1_gib() {
    in_child_with_cublas(&[("SOFTCUDA_MEMORY", "1073741824")], || {
        let (device, start) = (cuda(0), Barrier::new(32));
        std::thread::scope(|scope| {
            for _ in 0..32 {
                scope.spawn(|| {
                    let stream = device.new_stream().unwrap();
                    start.wait();
                    (0..5).for_each(|_| product(&stream));
                });
            }
        });
        let (by_cublas, by_kernels) = ran();
        assert!(by_cublas + by_kernels == 160 && by_cublas > 0, "{by_cublas} and {by_kernels}");
    });
}

#[test]
fn where_memory_is_short_a_product_works_in_less() {
    in_child_with_cublas(&[], || {
        let runtime = Runtime::builder().memory_limit(3 * MIB).build().unwrap();
        let stream = runtime.device(DeviceId::Cuda(0)).unwrap().new_stream().unwrap();
        product(&stream);
        let [product] = enqueued()[..] else { panic!("one product") };
        assert_eq!((product.workspace_bytes, ran()), (16 << 10, (1, 0)));
    });
}

#[test]
fn where_there_is_no_memory_to_work_in_our_kernel_runs() {
    in_child_with_cublas(&[], || {
        let runtime = Runtime::builder().memory_limit(2 * MIB).build().unwrap();
        let stream = runtime.device(DeviceId::Cuda(0)).unwrap().new_stream().unwrap();
        let operands = three(&stream);
        drop(stream.fill(&operands[0], 1.0));
        drop(stream.fill(&operands[1], 2.0));
        let rest = [MIB, MIB - 2048].map(|bytes| stream.alloc::<u8>(bytes).unwrap());
        multiply(&stream, &operands).blocking_wait().unwrap();
        assert_eq!(ran(), (0, 1));
        assert_eq!(stream.read(&operands[2]).blocking_wait().unwrap(), [2.0 * N as f32; (N * N) as usize]);
        drop(rest);
        multiply(&stream, &operands).blocking_wait().unwrap();
        assert_eq!(ran(), (1, 1));
    });
}

#[test]
fn no_handle_is_destroyed_while_a_gate_is_closed() {
    in_child_with_cublas(&[], || {
        let device = cuda(0);
        let (held, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        product(&other);
        let gate = held.hold().unwrap();
        device.empty_cache();
        assert_eq!(calls(c"cublasDestroy_v2"), 0);
        product(&other);
        assert_eq!(calls(c"cublasCreate_v2"), 1, "it can be used until it is destroyed");
        gate.open();
        while calls(c"cublasDestroy_v2") == 0 {
            std::thread::yield_now();
        }
        product(&held);
        assert_eq!((ran(), calls(c"cublasCreate_v2")), ((3, 0), 2));
    });
}

#[test]
fn nobody_calls_cublas_for_a_device_that_has_died() {
    in_child_with_cublas(&[("SOFTCUDA_POISON_LAUNCH", "2")], || {
        let device = cuda(0);
        let stream = device.new_stream().unwrap();
        let operands = three(&stream);
        multiply(&stream, &operands).blocking_wait().unwrap();
        let error = multiply(&stream, &operands).blocking_wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Fault, "{error}");
        let entries = [c"cublasCreate_v2", c"cublasDestroy_v2", c"cublasSetStream_v2", c"cublasSgemm_v2"];
        let before = entries.map(calls);
        assert!(multiply(&stream, &operands).blocking_wait().is_err());
        assert!(device.load([&MATMUL]).is_err());
        device.empty_cache();
        drop((operands, stream));
        device.empty_cache();
        assert_eq!((entries.map(calls), calls(c"cublasDestroy_v2")), (before, 0));
    });
}
