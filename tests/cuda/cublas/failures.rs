//! Failing calls of cuBLAS.

use crate::cublas::{calls, cuda, in_child_with_cublas, matrix, ran, values};
use crate::support::{refusal, says};
use warpline::prelude::*;

fn factors(device: &Device) -> [Tensor; 2] {
    [matrix([3, 4], 1, device), matrix([4, 5], 2, device)].map(|factor| factor.queued().unwrap())
}

#[test]
fn a_product_that_fails_is_an_error_of_the_op_and_marks_what_it_would_have_written() {
    in_child_with_cublas(&[("SOFTCUBLAS_FAIL", "cublasSgemm_v2:2:13")], || {
        let device = cuda(0);
        let [a, b] = factors(&device);
        let right = a.matmul(&b).to_vec::<f32>().blocking_wait().unwrap();
        let error = refusal(a.matmul(&b));
        says(
            &error,
            ErrorKind::Driver,
            &[
                "matmul on stream \"default\" (tests/cuda/cublas/failures.rs:",
                "failed on cuda:0: cublasSgemm of cuBLAS 12.0.0 returned \
                CUBLAS_STATUS_EXECUTION_FAILED",
                "the device is still usable",
            ],
        );
        let chained = refusal(a.matmul(&b).matmul(&b));
        assert_eq!(chained.kind(), ErrorKind::Shape, "{chained}");
        assert_eq!(a.matmul(&b).to_vec::<f32>().blocking_wait().unwrap(), right);
        assert!(device.fault().is_none());
        assert_eq!(ran(), (3, 0));
    });
}

#[test]
fn a_product_that_fails_may_have_begun_and_keeps_its_ticket_and_its_memory() {
    in_child_with_cublas(&[("SOFTCUBLAS_FAIL", "cublasSgemm_v2:1:14")], || {
        let device = cuda(0);
        let stream = device.new_stream().unwrap();
        let [a, b, c] = [(); 3].map(|()| stream.alloc::<f32>(16).unwrap());
        [&a, &b, &c].into_iter().for_each(|x| drop(stream.fill(x, 1.0)));
        let before = stream.issued();
        let call = warpline::kernels::matmul(4, 4, 4, 0, 0, &a, &b, &c);
        let error = refusal(stream.launch(call, LaunchConfig::linear(1, 256)));
        says(&error, ErrorKind::Driver, &["CUBLAS_STATUS_INTERNAL_ERROR"]);
        assert_eq!(stream.issued(), before + 1);
        let other = device.new_stream().unwrap();
        other.wait_stream(&stream);
        for reader in [&stream, &other] {
            let inherited = refusal(reader.read(&c));
            assert!(inherited.is_inherited(), "{inherited}");
            says(&inherited, ErrorKind::Driver, &[&error.to_string()]);
        }
        stream.fill(&c, 2.0).blocking_wait().unwrap();
        assert_eq!(stream.read(&c).blocking_wait().unwrap(), [2.0; 16]);
    });
}

#[test]
fn a_call_that_fails_before_the_product_leaves_no_trace_and_the_next_product_works() {
    let plans = [
        (
            "cublasCreate_v2:1:15",
            "CUBLAS_STATUS_NOT_SUPPORTED; set WARPLINE_CUBLAS=off to run \
            without cuBLAS",
            "2",
        ),
        (
            "cublasSetStream_v2:1:7",
            "cublasSetStream of cuBLAS 12.0.0 returned CUBLAS_STATUS_INVALID_VALUE",
            "1",
        ),
        ("cublasSetWorkspace_v2:1:7", "cublasSetWorkspace of cuBLAS 12.0.0 returned", "1"),
        ("cublasSetMathMode:1:7", "cublasSetMathMode of cuBLAS 12.0.0 returned", "1"),
    ];
    for (plan, says_so, made) in plans {
        in_child_with_cublas(
            &[("SOFTCUBLAS_FAIL", plan), ("TEST_SAYS", says_so), ("TEST_MADE", made)],
            || {
                let variable = |name| std::env::var(name).unwrap();
                let device = cuda(0);
                crate::support::cache_pinned(&device);
                let [a, b] = factors(&device);
                let before = Stream::current(&device).unwrap().issued();
                let error = refusal(a.matmul(&b));
                says(
                    &error,
                    ErrorKind::Driver,
                    &["matmul on stream \"default\"", &variable("TEST_SAYS"), "the device is still usable"],
                );
                assert_eq!(Stream::current(&device).unwrap().issued(), before);
                a.matmul(&b).blocking_wait().unwrap();
                assert_eq!(calls(c"cublasCreate_v2"), variable("TEST_MADE").parse::<u64>().unwrap());
                assert_eq!(ran(), (1, 0));
            },
        );
    }
}

#[test]
fn a_bias_that_cannot_be_added_fails_the_layer() {
    // The product is the first launch, and the bias the second.
    in_child_with_cublas(&[("SOFTCUDA_FAIL", "cuLaunchKernel:2:701")], || {
        let device = cuda(0);
        let (x, w) = (matrix([3, 4], 1, &device).queued().unwrap(), matrix([5, 4], 2, &device));
        let w = w.queued().unwrap();
        let bias = Tensor::from_host(&values(5, 3), [5], &device).queued().unwrap();
        says(
            &refusal(x.linear(&w, &bias)),
            ErrorKind::Driver,
            &[
                "linear on stream \"default\" (tests/cuda/cublas/failures.rs:",
                "the bias was not added: cuLaunchKernel returned \
                CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
            ],
        );
        assert_eq!(x.linear(&w, &bias).to_vec::<f32>().blocking_wait().unwrap().len(), 15);
        assert_eq!(ran(), (1, 0));
    });
}

#[test]
fn a_fault_of_the_device_in_a_product_ends_the_device() {
    in_child_with_cublas(&[("SOFTCUDA_POISON_LAUNCH", "1")], || {
        let device = cuda(0);
        let [a, b] = factors(&device);
        let error = a.matmul(&b).to_vec::<f32>().blocking_wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Fault, "{error}");
        assert!(device.fault().is_some());
        assert!(a.matmul(&b).blocking_wait().is_err());
    });
}
