//! `cublasStatus_t`, as far as this library returns it, and reports of callers' mistakes.

use std::ffi::{CStr, c_int};

/// A status; 0 is success.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) c_int);

impl Status {
    pub(crate) const SUCCESS: Status = Status(0);
    pub(crate) const NOT_INITIALIZED: Status = Status(1);
    pub(crate) const ALLOC_FAILED: Status = Status(3);
    pub(crate) const INVALID_VALUE: Status = Status(7);
    pub(crate) const EXECUTION_FAILED: Status = Status(13);
    pub(crate) const INTERNAL_ERROR: Status = Status(14);

    /// Returns the name that `cublasGetStatusName` returns.
    pub(crate) fn name(self) -> &'static CStr {
        match self.0 {
            0 => c"CUBLAS_STATUS_SUCCESS",
            1 => c"CUBLAS_STATUS_NOT_INITIALIZED",
            3 => c"CUBLAS_STATUS_ALLOC_FAILED",
            7 => c"CUBLAS_STATUS_INVALID_VALUE",
            8 => c"CUBLAS_STATUS_ARCH_MISMATCH",
            11 => c"CUBLAS_STATUS_MAPPING_ERROR",
            13 => c"CUBLAS_STATUS_EXECUTION_FAILED",
            14 => c"CUBLAS_STATUS_INTERNAL_ERROR",
            15 => c"CUBLAS_STATUS_NOT_SUPPORTED",
            16 => c"CUBLAS_STATUS_LICENSE_ERROR",
            _ => c"unrecognized status",
        }
    }
}

/// The result of an entry point.
pub(crate) type Outcome<T = ()> = Result<T, Status>;

/// Reports a caller's mistake on stderr and returns its status.
pub(crate) fn refused<T>(status: Status, why: &str) -> Outcome<T> {
    eprintln!("softcublas: {}: {why}", status.name().to_string_lossy());
    Err(status)
}
