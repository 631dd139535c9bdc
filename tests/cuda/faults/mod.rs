//! CUDA devices that fail, on the software CUDA driver.
//!
//! Each test runs its body in a child process under a watchdog. The environment of the child plans
//! the fault, which lasts as long as the process.

mod calls;
mod codes;
mod completion;
mod ends;
mod held;
mod host_functions;
mod poisoned;

use warpline::prelude::*;

const FOUR: LaunchConfig = LaunchConfig::linear(1, 4);

/// Returns a new runtime and its `cuda:0`.
fn cuda() -> (Runtime, Device) {
    let runtime = Runtime::new().unwrap();
    let device = runtime.device(DeviceId::Cuda(0)).unwrap();
    (runtime, device)
}

fn stream(device: &Device, label: &str) -> Stream {
    device.stream().label(label).build().unwrap()
}

/// Returns a buffer of four elements of `value`. Its fill has completed.
fn four(stream: &Stream, value: f32) -> Buffer<f32> {
    let buffer = stream.alloc::<f32>(4).unwrap();
    stream.fill(&buffer, value).blocking_wait().unwrap();
    buffer
}

/// Launches a kernel that adds the four elements of `one` to those of `to`.
#[track_caller]
fn add_one(stream: &Stream, one: &Buffer<f32>, to: &Buffer<f32>) -> Pending<()> {
    stream.launch(warpline::kernels::axpy(4, 1.0, one, to), FOUR)
}

/// Queries `pending` until it completes or fails, without ever awaiting it.
fn query_until_done<T>(mut pending: Pending<T>) -> warpline::Result<()> {
    while !pending.query()? {
        std::thread::yield_now();
    }
    Ok(())
}
