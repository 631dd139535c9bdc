//! CUDA C++ kernels that have no CPU form, run and checked on the CPU device.
//!
//! Three kernels add up blocks of 256 numbers. The first is right. The second reads an element too
//! far, and the third forgets a `__syncthreads()`. On a GPU, the second would most likely return
//! the right sums, and the third wrong ones now and then. Here each mistake fails its launch, with
//! a report that says where it is.
//!
//! ```sh
//! cargo run --release -p warpline-examples --features kernel --example kernel
//! ```
//!
//! The CPU device compiles CUDA C++ with NVRTC, which needs no GPU. It is in the CUDA toolkit and
//! in the Python package `nvidia-cuda-nvrtc-cu12`. If it is in no folder that the loader knows,
//! `WARPLINE_NVRTC` names the file: `WARPLINE_NVRTC=…/libnvrtc.so.12`.
//!
//! Outside this repository it needs:
//!
//! ```toml
//! [dependencies]
//! tokio = { version = "1", features = ["full"] }
//! warpline = { path = "../warpline", features = ["ptx"] }
//! ```

use warpline::KernelChecks;
use warpline::kernel::{KernelCall, LaunchConfig};
use warpline::prelude::*;

warpline::kernel! {
    /// Writes the sum of each block of 256 elements.
    unsafe fn block_sums(n: u32, x: &[f32], write sums: &mut [f32])
    where n as usize == x.len(), sums.len() == x.len().div_ceil(256)
    {
        cuda: r#"
extern "C" __global__ void block_sums(unsigned n, const float *x, float *sums) {
    __shared__ float part[256];
    unsigned t = threadIdx.x, i = blockIdx.x * 256 + t;
    part[t] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (unsigned half = 128; half > 0; half /= 2) {
        if (t < half) part[t] += part[t + half];
        __syncthreads();
    }
    if (t == 0) sums[blockIdx.x] = part[0];
}"#,
    }

    /// Writes these sums too, but has `<=` in place of `<`.
    unsafe fn one_too_far(n: u32, x: &[f32], write sums: &mut [f32])
    where n as usize == x.len(), sums.len() == x.len().div_ceil(256)
    {
        cuda: r#"
extern "C" __global__ void one_too_far(unsigned n, const float *x, float *sums) {
    __shared__ float part[256];
    unsigned t = threadIdx.x, i = blockIdx.x * 256 + t;
    part[t] = i <= n ? x[i] : 0.0f;
    __syncthreads();
    for (unsigned half = 128; half > 0; half /= 2) {
        if (t < half) part[t] += part[t + half];
        __syncthreads();
    }
    if (t == 0) sums[blockIdx.x] = part[0];
}"#,
    }

    /// Writes these sums too, but lacks the barrier between two steps of the sum.
    unsafe fn no_barrier(n: u32, x: &[f32], write sums: &mut [f32])
    where n as usize == x.len(), sums.len() == x.len().div_ceil(256)
    {
        cuda: r#"
extern "C" __global__ void no_barrier(unsigned n, const float *x, float *sums) {
    __shared__ float part[256];
    unsigned t = threadIdx.x, i = blockIdx.x * 256 + t;
    part[t] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (unsigned half = 128; half > 0; half /= 2) {
        if (t < half) part[t] += part[t + half];
    }
    if (t == 0) sums[blockIdx.x] = part[0];
}"#,
    }
}

/// The function that `kernel!` writes for each of the kernels.
type Call = for<'a> fn(u32, &'a Buffer<f32>, &'a Buffer<f32>) -> KernelCall<'a>;

/// Launches a kernel on 1000 elements and returns the sums.
///
/// After a fault, a device accepts no more work, as a GPU does, so each kernel gets its own.
async fn sums(call: Call) -> warpline::Result<Vec<f32>> {
    let runtime = Runtime::builder().kernel_checks(KernelChecks::ALL).build()?;
    let stream = runtime.device(DeviceId::Cpu(0))?.new_stream()?;
    let (x, sums) = (stream.alloc::<f32>(1000)?, stream.alloc::<f32>(4)?);
    stream.fill(&x, 1.0).queued()?;
    stream.launch(call(1000, &x, &sums), LaunchConfig::linear(4, 256)).queued()?;
    stream.read(&sums).await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> warpline::Result<()> {
    let right = sums(|n, x, sums| block_sums(n, x, sums)).await?;
    println!("The sums are {right:?}.\n");
    assert_eq!(right, [256.0, 256.0, 256.0, 232.0]);

    let too_far = sums(|n, x, sums| one_too_far(n, x, sums)).await.unwrap_err().to_string();
    println!("With <= in place of <:\n\n{too_far}\n");
    assert!(too_far.contains("element 1000 of x, and it has 1000 elements"), "{too_far}");

    let race = sums(|n, x, sums| no_barrier(n, x, sums)).await.unwrap_err().to_string();
    println!("Without the barrier:\n\n{race}");
    assert!(race.contains("__syncthreads()"), "{race}");
    Ok(())
}
