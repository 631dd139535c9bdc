//! The C entry points.

use crate::figures::{self, PRODUCTS, Product};
use crate::gemm::{self, Sgemm};
use crate::status::{Outcome, Status, refused};
use crate::{handle, plan};
use std::ffi::{CStr, c_char, c_int, c_void};

/// `CUBLAS_TF32_TENSOR_OP_MATH`
const TF32_MATH: c_int = 3;

/// Runs the body of an entry point. Counts the call, and returns the status of a planned failure.
fn enter(entry: &str, body: impl FnOnce() -> Outcome) -> Status {
    let nth = figures::count(entry);
    if let Some(status) = plan::planned(entry, nth) {
        return status;
    }
    body().map_or_else(|status| status, |()| Status::SUCCESS)
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cublasCreate_v2(handle: *mut u64) -> Status {
    enter("cublasCreate_v2", || {
        if handle.is_null() {
            return refused(Status::INVALID_VALUE, "there is no place for the handle");
        }
        let made = handle::create()?;
        // SAFETY: `handle` is not null, so the caller promises that it is valid for a write.
        unsafe { handle.write(made) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cublasDestroy_v2(handle: u64) -> Status {
    enter("cublasDestroy_v2", || handle::destroy(handle))
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cublasSetStream_v2(handle: u64, stream: u64) -> Status {
    enter("cublasSetStream_v2", || handle::set_stream(handle, stream))
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cublasSetWorkspace_v2(handle: u64, workspace: u64, bytes: usize) -> Status {
    enter("cublasSetWorkspace_v2", || {
        if !workspace.is_multiple_of(256) {
            return refused(
                Status::INVALID_VALUE,
                &format!("256 does not divide the workspace {workspace:#x}"),
            );
        }
        handle::with(handle, |handle| {
            handle.lent = Some((workspace, bytes));
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cublasSetMathMode(handle: u64, mode: c_int) -> Status {
    enter("cublasSetMathMode", || {
        if ![0, TF32_MATH].contains(&mode) {
            return refused(Status::INVALID_VALUE, &format!("math mode {mode}"));
        }
        handle::with(handle, |handle| {
            handle.math_mode = mode;
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, clippy::too_many_arguments)]
extern "C" fn cublasSgemm_v2(
    handle: u64,
    a_turned: c_int,
    b_turned: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const f32,
    a: u64,
    a_pitch: c_int,
    b: u64,
    b_pitch: c_int,
    beta: *const f32,
    c: u64,
    c_pitch: c_int,
) -> Status {
    enter("cublasSgemm_v2", || {
        let sizes = [m, n, k, a_pitch, b_pitch, c_pitch, a_turned, b_turned];
        if sizes.iter().any(|size| *size < 0) || alpha.is_null() || beta.is_null() {
            return refused(
                Status::INVALID_VALUE,
                &format!("sizes {sizes:?}, or a factor that is not there"),
            );
        }
        let [m, n, k, a_pitch, b_pitch, c_pitch, a_turned, b_turned] = sizes.map(|size| size as u32);
        // SAFETY: `alpha` is not null, so the caller promises that it points to a number.
        let alpha = unsafe { *alpha };
        // SAFETY: `beta` is not null, so the caller promises that it points to a number.
        let beta = unsafe { *beta };
        handle::with(handle, |known| {
            let sgemm = Sgemm {
                transposed: [a_turned, b_turned],
                sizes: [m, n, k],
                factors: [alpha, beta],
                pitches: [a_pitch, b_pitch, c_pitch],
                tf32: u32::from(known.math_mode == TF32_MATH),
                addresses: [a, b, c],
            };
            if !sgemm.has_sound_pitches() {
                return refused(Status::INVALID_VALUE, &format!("leading dimensions of {sizes:?}"));
            }
            let (stream, math_mode) = (known.stream, known.math_mode);
            let (workspace, bytes) = known.lent.unwrap_or_default();
            gemm::scribble(workspace, bytes, stream)?;
            sgemm.launch(known.function, stream)?;
            PRODUCTS.lock().push(Product { handle, stream, workspace, bytes, math_mode, reserved: 0 });
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cublasGetProperty(which: c_int, value: *mut c_int) -> Status {
    enter("cublasGetProperty", || {
        // The major, minor and patch numbers of the version.
        let numbers = [12, 0, 0];
        let Some(number) = usize::try_from(which).ok().and_then(|which| numbers.get(which)) else {
            return refused(Status::INVALID_VALUE, &format!("property {which}"));
        };
        // SAFETY: the caller promises that `value` is valid for a write.
        unsafe { value.write(*number) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cublasGetStatusName(status: Status) -> *const c_char {
    figures::count("cublasGetStatusName");
    status.name().as_ptr()
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn softcublasCallCount(entry: *const c_char) -> u64 {
    // SAFETY: the caller promises that `entry` is a C string.
    let entry = unsafe { CStr::from_ptr(entry) };
    entry.to_str().ok().and_then(figures::calls).unwrap_or(u64::MAX)
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn softcublasProducts(to: *mut c_void, room: usize) -> usize {
    let products = PRODUCTS.lock();
    for (i, product) in products.iter().take(room).enumerate() {
        // SAFETY: the caller promises space for `room` products, and `i` is less than that.
        unsafe { to.cast::<Product>().wrapping_add(i).write(*product) };
    }
    products.len()
}
