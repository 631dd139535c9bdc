//! Other code on Warpline's streams and memory, and Warpline on those of other code. The other code
//! uses cudarc, like a library or a program that calls the CUDA driver itself. Each test on a CUDA
//! device runs in a child process on the software CUDA driver, except that with cuBLAS itself.

#![cfg(target_os = "linux")]

mod borrowed;
mod captured;
mod cublas;
mod external;

use cudarc::driver::sys::CUstream;
use warpline::prelude::*;
use warpline::{Declared, RawStream, reads};

/// Opens a CUDA device of the default runtime.
fn cuda(ordinal: u32) -> Device {
    Device::open(&format!("cuda:{ordinal}")).unwrap()
}

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

/// Returns the raw stream with cudarc's type.
fn cu_stream(raw: &RawStream) -> CUstream {
    raw.as_ptr().expect("a CUDA device has one").cast()
}

/// Declares no operands.
fn nothing<'a>() -> Declared<'a> {
    reads::<f32>([])
}
