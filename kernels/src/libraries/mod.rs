//! Settings and counters of the libraries that do a kernel's work on CUDA devices.
//!
//! Matrix products, [`matmul`](fn@crate::matmul) and [`linear`](fn@crate::linear), run by
//! **cuBLAS** of CUDA 12 or 13 if the process finds it, otherwise by the kernels of this crate. A
//! `tracing` event at level `DEBUG`, target `warpline`, reports which one ran, in the fields `op`,
//! `by` and `why`. [`products`] counts them. CPU devices run twins and never look for a library.
//!
//! | variable | effect |
//! |---|---|
//! | `WARPLINE_CUBLAS=path` | uses only that library; each product fails if it cannot be loaded |
//! | `WARPLINE_CUBLAS=off` | uses no library |
//! | `WARPLINE_ALLOW_TF32=1` | allows TF32, unless the program calls [`allow_tf32`] |
//!
//! Without `WARPLINE_CUBLAS`, `libcublas.so.13`, `.12` and `.so` are looked up in the loader's
//! search path, and then in `lib64` of `CUDA_HOME` and `CUDA_PATH`. This happens once per process,
//! at the first product or [`Device::load`](warpline_runtime::Device::load), and may take a tenth
//! of a second. A library newer than the driver is skipped. A library named by the variable is used
//! without this check.
//!
//! # Device memory
//! cuBLAS works in memory of the device's allocator: 4 MiB for each stream that has products in
//! flight, 32 MiB on Hopper and later, and 16 KiB if no more is available. This memory counts in
//! [`memory_stats`](warpline_runtime::Device::memory_stats), and other allocations can use it
//! afterwards. [`empty_cache`](warpline_runtime::Device::empty_cache) releases it. In a graph, the
//! memory belongs to the graph, for each captured stream that has products.
//!
//! In addition, cuBLAS uses about 60 MB for each of its handles, which is not included in these
//! figures. There are as many handles as threads have enqueued products at the same time.
//! `empty_cache` destroys the handles that are not in use, and so does an allocation that finds no
//! memory. If there is no memory for a handle, the kernels of this crate run.
//!
//! For a product in a graph, the choice is made once, when the capture ends. It holds for every
//! launch.
//!
//! # Rounding
//! The library adds in an order of its own, which depends on its version, the GPU and the shape. A
//! kernel of this crate adds the products of an element one after the other, along the inner
//! dimension. With TF32 off, both compute in f32 throughout.

pub(crate) mod cublas;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use warpline_runtime::environment::WARPLINE_ALLOW_TF32;

/// The argument of the last [`allow_tf32`] call plus 1, or 0 before the first call.
static SAID: AtomicU8 = AtomicU8::new(0);

/// Lets libraries round the factors of f32 products to TF32, for tensor cores.
///
/// TF32 has 10 instead of 23 bits of fraction. Products are several times as fast on Ampere and
/// later, with relative errors of 1e-3 instead of 1e-6.
///
/// TF32 is off by default, as in PyTorch, unless `WARPLINE_ALLOW_TF32` is 1. The setting applies to
/// products enqueued from now on, on every CUDA device of the process. It also applies to the
/// products of graphs whose capture ends from now on. Kernels of this crate always compute in f32.
///
/// # Examples
/// ```
/// use warpline::kernels::libraries::{allow_tf32, tf32_is_allowed};
///
/// allow_tf32(true);
/// assert!(tf32_is_allowed());
/// allow_tf32(false);
/// ```
pub fn allow_tf32(allowed: bool) {
    SAID.store(1 + u8::from(allowed), Ordering::Relaxed);
}

/// Returns whether products that are enqueued now may use TF32.
pub fn tf32_is_allowed() -> bool {
    tf32() == Ok(true)
}

/// Returns whether TF32 is allowed, or an error that names the invalid value of the variable.
fn tf32() -> Result<bool, &'static str> {
    static VARIABLE: OnceLock<Result<bool, String>> = OnceLock::new();
    match SAID.load(Ordering::Relaxed) {
        0 => {
            let variable = VARIABLE.get_or_init(|| from_variable(WARPLINE_ALLOW_TF32.text()));
            variable.as_ref().map(|allowed| *allowed).map_err(String::as_str)
        }
        said => Ok(said == 2),
    }
}

fn from_variable(value: Option<String>) -> Result<bool, String> {
    match value.as_deref() {
        None | Some("" | "0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => Err(format!("{WARPLINE_ALLOW_TF32} is \"{other}\"; set it to 0 or 1")),
    }
}

/// Counts of the matrix products that were enqueued on CUDA devices of this process, by
/// implementation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Products {
    /// Products computed by cuBLAS.
    pub by_cublas: u64,
    /// Products computed by kernels of this crate.
    pub by_kernels: u64,
}

static BY_CUBLAS: AtomicU64 = AtomicU64::new(0);
static BY_KERNELS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of matrix products enqueued on CUDA devices so far.
///
/// The products of a graph count once, when its capture ends.
pub fn products() -> Products {
    Products { by_cublas: BY_CUBLAS.load(Ordering::Relaxed), by_kernels: BY_KERNELS.load(Ordering::Relaxed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_0_or_1_and_anything_else_is_an_error_that_says_so() {
        let of = |value: &str| from_variable(Some(value.to_owned()));
        assert_eq!(
            (from_variable(None), of(""), of("0"), of("1")),
            (Ok(false), Ok(false), Ok(false), Ok(true))
        );
        assert_eq!(of("yes").unwrap_err(), "WARPLINE_ALLOW_TF32 is \"yes\"; set it to 0 or 1");
    }
}
