//! Misuse of cuBLAS, which the stand-in refuses and reports.

use crate::cublas::{cuda, entry_point, in_child_with_cublas, matrix};
use crate::support::raw::{primary_context, set_current_context};
use cudarc::driver::{CudaContext, sys};
use std::ffi::c_int;
use warpline::prelude::*;

type Create = unsafe extern "C" fn(*mut u64) -> c_int;
type OfHandle = unsafe extern "C" fn(u64) -> c_int;
type SetStream = unsafe extern "C" fn(u64, sys::CUstream) -> c_int;
type SetMode = unsafe extern "C" fn(u64, c_int) -> c_int;

#[test]
fn streams_of_other_contexts_and_handles_that_are_gone_are_refused_and_told_of() {
    let said = in_child_with_cublas(&[], || {
        let device = cuda(0);
        matrix([2, 2], 1, &device).matmul(matrix([2, 2], 2, &device)).blocking_wait().unwrap();
        // SAFETY: the stand-in declares the four functions with these types.
        let (create, destroy, set_stream, set_mode) = unsafe {
            (
                entry_point::<Create>(c"cublasCreate_v2"),
                entry_point::<OfHandle>(c"cublasDestroy_v2"),
                entry_point::<SetStream>(c"cublasSetStream_v2"),
                entry_point::<SetMode>(c"cublasSetMathMode"),
            )
        };
        let others = CudaContext::new(1).unwrap().new_stream().unwrap();
        set_current_context(primary_context(0));
        let mut handle = 0;
        // SAFETY: cublasCreate_v2 writes a handle, here to a live variable.
        assert_eq!(unsafe { create(&raw mut handle) }, 0);
        // SAFETY: the stand-in checks the handle and the stream.
        assert_eq!(unsafe { set_stream(handle, others.cu_stream()) }, 7);
        set_current_context(primary_context(1));
        // SAFETY: the stand-in checks the handle and the mode.
        assert_eq!(unsafe { set_mode(handle, 3) }, 13);
        set_current_context(primary_context(0));
        // SAFETY: the stand-in checks the handle and the mode.
        assert_eq!(unsafe { set_mode(handle, 77) }, 7);
        // SAFETY: the stand-in checks the handle.
        assert_eq!(unsafe { destroy(handle) }, 0);
        // SAFETY: the stand-in checks the handle, also one that was destroyed.
        assert_eq!(unsafe { set_mode(handle, 3) }, 1);
        // SAFETY: the stand-in checks the handle, also one that was destroyed.
        assert_eq!(unsafe { destroy(handle) }, 1);
    });
    for part in [
        "CUBLAS_STATUS_INVALID_VALUE: the stream is not of the context of handle 2",
        "CUBLAS_STATUS_EXECUTION_FAILED: the context of handle 2 is not current",
        "CUBLAS_STATUS_INVALID_VALUE: math mode 77",
        "CUBLAS_STATUS_NOT_INITIALIZED: handle 2 was destroyed",
    ] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
}
