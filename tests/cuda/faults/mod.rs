//! CUDA devices that fail, on the software CUDA driver: one fault a process.
//!
//! Each test runs its body in a child process, whose environment plans the fault, under a watchdog.

mod calls;
mod codes;
mod completion;
mod ends;
mod held;
mod host_functions;
mod poisoned;

use warpline::prelude::*;

const FOUR: LaunchConfig = LaunchConfig::linear(1, 4);

/// A runtime with its `cuda:0`.
fn cuda() -> (Runtime, Device) {
    let runtime = Runtime::new().unwrap();
    let device = runtime.device(DeviceId::Cuda(0)).unwrap();
    (runtime, device)
}

fn stream(device: &Device, label: &str) -> Stream {
    device.stream().label(label).build().unwrap()
}

/// Four elements of `value`, awaited.
fn four(stream: &Stream, value: f32) -> Buffer<f32> {
    let buffer = stream.alloc::<f32>(4).unwrap();
    stream.fill(&buffer, value).blocking_wait().unwrap();
    buffer
}

/// Adds one to four elements, by a launch.
#[track_caller]
fn add_one(stream: &Stream, one: &Buffer<f32>, to: &Buffer<f32>) -> Pending<()> {
    stream.launch(warpline::kernels::axpy(4, 1.0, one, to), FOUR)
}

/// Asks again and again, with no waiter anywhere, until it is done or fails.
fn query_until_done<T>(mut pending: Pending<T>) -> warpline::Result<()> {
    while !pending.query()? {
        std::thread::yield_now();
    }
    Ok(())
}
