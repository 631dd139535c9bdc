//! Libraries that do a kernel's work on CUDA devices where they are found, and what can be said about that.
//!
//! Products of matrices, [`matmul`](fn@crate::matmul) and [`linear`](fn@crate::linear), run by **cuBLAS** of CUDA 12 or 13 where the
//! process finds it, else by the kernels here. Which one ran is told by a `tracing` event at level `DEBUG`, target `warpline`, with
//! the fields `op`, `by` and `why`; [`products`] counts. CPU devices run twins and never ask.
//!
//! | variable | |
//! |---|---|
//! | `WARPLINE_CUBLAS=path` | that library and no other: an error of each product if it cannot be loaded |
//! | `WARPLINE_CUBLAS=off` | none |
//! | `WARPLINE_ALLOW_TF32=1` | what [`allow_tf32`] says, where nobody calls it |
//!
//! Unless told, it is looked for as `libcublas.so.13`, `.12` and `.so` where the loader looks and in `lib64` of `CUDA_HOME` and
//! `CUDA_PATH`, once a process, with the first product or [`Device::load`](warpline_runtime::Device::load), which may take a tenth of a
//! second. A library newer than the driver is passed over; one that is named is taken at its word.
//!
//! # Device memory
//! cuBLAS works in memory of the device's allocator, 4 MiB for each stream that has products in
//! flight, 32 MiB from Hopper on, and 16 KiB where there is no more. It counts in the device's
//! figures, other allocations get it afterwards, and
//! [`empty_cache`](warpline_runtime::Device::empty_cache) gives it back. In a graph it is memory of
//! the graph, for each captured stream that has products.
//!
//! Besides, cuBLAS has about 60 MB for each of its handles, which no figure here counts. There are
//! as many as threads that enqueued products at the same time. `empty_cache` destroys those that
//! nobody uses, and so does an allocation that finds no memory. Where there is no memory for one
//! the kernels here run.
//!
//! In a graph, what runs a product is decided when the capture ends, and stays: launches ask
//! nobody.
//!
//! # Rounding
//! The library adds in an order of its own, which depends on its version, the GPU and the shape; with a kernel of this crate
//! an element is one chain over the inner size. With TF32 off both compute with f32 throughout.

pub(crate) mod cublas;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// 0 while nobody has called [`allow_tf32`], else 1 more than its argument.
static SAID: AtomicU8 = AtomicU8::new(0);

/// Lets libraries round the factors of f32 products to TF32, 10 instead of 23 bits of fraction, for tensor cores: several times as
/// fast on Ampere and later, with relative errors of 1e-3 instead of 1e-6.
///
/// Off by default, as in PyTorch, unless `WARPLINE_ALLOW_TF32` is 1. Products that are enqueued from now on, on every CUDA device of the
/// process, and those of graphs whose capture ends from now on; kernels of this crate always compute with f32.
///
/// # Examples
/// ```
/// use warpline_kernels::libraries::{allow_tf32, tf32_is_allowed};
///
/// allow_tf32(true);
/// assert!(tf32_is_allowed());
/// allow_tf32(false);
/// ```
pub fn allow_tf32(allowed: bool) {
    SAID.store(1 + u8::from(allowed), Ordering::Relaxed);
}

/// Whether products that are enqueued now may use TF32.
pub fn tf32_is_allowed() -> bool {
    tf32() == Ok(true)
}

/// The same, or what is wrong with the variable.
fn tf32() -> Result<bool, &'static str> {
    static VARIABLE: OnceLock<Result<bool, String>> = OnceLock::new();
    match SAID.load(Ordering::Relaxed) {
        0 => {
            let variable = VARIABLE.get_or_init(|| from_variable(std::env::var("WARPLINE_ALLOW_TF32").ok()));
            variable.as_ref().map(|allowed| *allowed).map_err(String::as_str)
        }
        said => Ok(said == 2),
    }
}

fn from_variable(value: Option<String>) -> Result<bool, String> {
    match value.as_deref() {
        None | Some("" | "0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => Err(format!("WARPLINE_ALLOW_TF32 is \"{other}\"; set it to 0 or 1")),
    }
}

/// How many products CUDA devices of this process were given, by what does them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Products {
    /// By cuBLAS.
    pub by_cublas: u64,
    /// By kernels of this crate.
    pub by_kernels: u64,
}

static BY_CUBLAS: AtomicU64 = AtomicU64::new(0);
static BY_KERNELS: AtomicU64 = AtomicU64::new(0);

/// How many products were enqueued on CUDA devices so far. Those of a graph count once, when its capture ends.
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
