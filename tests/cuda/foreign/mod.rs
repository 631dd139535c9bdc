//! Other code on Warpline's streams and memory, and Warpline on other code's: through cudarc, the way a library or a program that
//! uses the CUDA driver itself does it. Each test runs in a child process on the software CUDA driver, but for cuBLAS.

#![cfg(target_os = "linux")]

mod borrowed;
mod captured;
mod cublas;
mod external;

use cudarc::driver::sys::CUstream;
use warpline::prelude::*;
use warpline::{Declared, RawStream, reads};

/// A CUDA device of the default runtime.
fn cuda(ordinal: u32) -> Device {
    Device::open(&format!("cuda:{ordinal}")).unwrap()
}

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

/// The stream as cudarc has it.
fn cu_stream(raw: &RawStream) -> CUstream {
    raw.as_ptr().expect("a CUDA device has one").cast()
}

/// No operand.
fn nothing<'a>() -> Declared<'a> {
    reads::<f32>([])
}
