//! First steps: memory on a device, a chain of ops, and the two ways to use the `Pending` of a
//! call.
//!
//! ```sh
//! cargo run -p warpline-examples --example first_steps
//! cargo run -p warpline-examples --example first_steps -- --disable-cuda
//! ```
//! Calling enqueues, awaiting observes. Each call puts work on a stream and returns immediately.
//! `.queued()?` checks only that the call was accepted. `.await?` waits for the result.
//!
//! Outside this repository it needs:
//!
//! ```toml
//! [dependencies]
//! clap = { version = "4", features = ["derive"] }
//! tokio = { version = "1", features = ["full"] }
//! warpline = { path = "../warpline", features = ["clap"] }
//! ```

use clap::Parser;
use warpline::DeviceArgs;
use warpline::ops::{axpy_, fill_, normal_, relu_into, sum};
use warpline::prelude::*;

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    device: DeviceArgs, // --device NAME and --disable-cuda
}

#[tokio::main]
async fn main() -> warpline::Result<()> {
    let device = Options::parse().device.device()?; // by default cuda:0 if there is one, else cpu:0
    let n = 1 << 20;

    // Allocate memory on the device. Its contents are unspecified until something is written there.
    let x = device.alloc::<f32>(n)?;
    let y = device.alloc::<f32>(n)?;

    // y ← max(1 + 2x, 0) with random x. Four ops are in flight, one after the other, and the host
    // has already continued.
    normal_(&x, 42, 0.0, 1.0).queued()?;
    fill_(&y, 1.0).queued()?;
    axpy_(&y, 2.0, &x).queued()?;
    relu_into(&y, &y).queued()?;

    // Here the host waits for the last op, and so for all of them, since they are on one stream.
    let total = sum(&y).await?;
    println!("the sum of {n} values of max(1 + 2x, 0) on {device} is {total}");

    // Compute the same on the host. A read is an op too.
    let x_host = device.default_stream()?.read(&x).await?;
    let expected: f64 = x_host.iter().map(|&x| f64::from(1.0 + 2.0 * x).max(0.0)).sum();
    println!("the host says {expected:.1}");
    assert!((f64::from(total) - expected).abs() <= 1e-4 * expected, "device {total}, host {expected}");

    // A slice of a buffer is a buffer that shares its memory.
    let first_half = y.slice(..n / 2)?;
    fill_(&first_half, 3.0).queued()?;
    let y_host = device.default_stream()?.read(&y).await?;
    assert!(y_host[..n / 2].iter().all(|&y| y == 3.0) && y_host[n / 2] != 3.0);

    // A mistake is refused by the call, with an error that names the problem. Nothing runs.
    let refused = axpy_(&y, 1.0, &first_half).await.expect_err("x is shorter than y");
    println!("refused: {refused}");
    assert_eq!(refused.kind(), ErrorKind::Shape);

    println!("{} bytes of device memory are in use", device.memory_stats().allocated_bytes);
    Ok(())
}
