//! First steps: memory on a device, a chain of ops, and the two things one does with what a call returns.
//!
//! ```sh
//! cargo run --example first_steps
//! ```
//! Calling enqueues, awaiting observes: each call puts work on a stream and returns at once. `.queued()?` says "go on, I want to
//! know only that it was accepted"; `.await?` says "I want to see the result".
//!
//! Outside this repository it needs:
//!
//! ```toml
//! [dependencies]
//! tokio = { version = "1", features = ["full"] }
//! warpline = { path = "../warpline" }
//! ```

use warpline::ops::{axpy_, fill_, normal_, relu_into, sum};
use warpline::prelude::*;

#[tokio::main]
async fn main() -> warpline::Result<()> {
    let device = Device::best()?; // cuda:0 where there is one, else cpu:0
    let n = 1 << 20;

    // Memory on the device. What is in it is unspecified until something is written there.
    let x = device.alloc::<f32>(n)?;
    let y = device.alloc::<f32>(n)?;

    // y ← max(1 + 2x, 0) with random x: four ops in flight, one behind the other, while the host is here already.
    normal_(&x, 42, 0.0, 1.0).queued()?;
    fill_(&y, 1.0).queued()?;
    axpy_(&y, 2.0, &x).queued()?;
    relu_into(&y, &y).queued()?;

    // The host waits here, for the last op, and so for all of them: they are on one stream.
    let total = sum(&y).await?;
    println!("the sum of {n} values of max(1 + 2x, 0) on {device} is {total}");

    // The same on the host. To read is an op too.
    let x_host = device.default_stream()?.read(&x).await?;
    let expected: f64 = x_host.iter().map(|&x| f64::from(1.0 + 2.0 * x).max(0.0)).sum();
    println!("the host says {expected:.1}");
    assert!((f64::from(total) - expected).abs() <= 1e-4 * expected, "device {total}, host {expected}");

    // A part of a buffer is a buffer, and shares its memory.
    let first_half = y.slice(..n / 2)?;
    fill_(&first_half, 3.0).queued()?;
    let y_host = device.default_stream()?.read(&y).await?;
    assert!(y_host[..n / 2].iter().all(|&y| y == 3.0) && y_host[n / 2] != 3.0);

    // A mistake is refused when it is made, and says what is wrong; nothing was run.
    let refused = axpy_(&y, 1.0, &first_half).await.expect_err("x is shorter than y");
    println!("refused: {refused}");
    assert_eq!(refused.kind(), ErrorKind::Shape);

    println!("{} bytes of device memory are in use", device.memory_stats().allocated_bytes);
    Ok(())
}
