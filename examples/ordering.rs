//! A missing edge between two streams: refused, then allowed to show its effect, then added.
//!
//! This is the incorrect example in PyTorch's note on CUDA semantics. The default stream fills a
//! matrix, another stream sums it, and no edge puts the sum second. On a GPU the result may be
//! right for months.
//!
//! ```sh
//! cargo run --example ordering
//! ```
//!
//! Outside this repository it needs:
//!
//! ```toml
//! [dependencies]
//! tokio = { version = "1", features = ["full"] }
//! warpline = { path = "../warpline", features = ["test-util"] }
//! ```

use std::cell::RefCell;
use warpline::ops::{fill_, normal_, sum};
use warpline::prelude::*;
use warpline::testing::for_each_seed_on;

const SEEDS: std::ops::Range<u64> = 0..32;

/// Sums the matrix without an edge between the two streams: the mistake.
async fn incorrect(device: &Device) -> warpline::Result<f32> {
    let side = device.stream().label("side").build()?;
    let a = device.alloc::<f32>(100 * 100)?;
    fill_(&a, 1.0).queued()?;
    normal_(&a, 42, 0.0, 1.0).queued()?; // on the default stream
    side.enter(|| sum(&a)).await // on the side stream, perhaps first
}

/// Sums the matrix with the edge.
async fn correct(device: &Device) -> warpline::Result<f32> {
    let side = device.stream().label("side").build()?;
    let a = device.alloc::<f32>(100 * 100)?;
    fill_(&a, 1.0).queued()?;
    normal_(&a, 42, 0.0, 1.0).queued()?;
    side.wait_stream(&device.default_stream()?); // on the device, without blocking the host
    side.enter(|| sum(&a)).await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> warpline::Result<()> {
    let runtime = Runtime::builder().order(OrderMode::Deny).build()?;
    let device = runtime.device(DeviceId::Cpu(0))?;
    let expected = correct(&device).await?;
    println!("the sum is {expected}\n");

    let refused = incorrect(&device).await.expect_err("the edge is missing");
    println!(
        "1. Without the edge the sum is refused when it is enqueued; its kernel never runs:\n\n{refused}\n"
    );
    assert_eq!(refused.kind(), ErrorKind::Unordered);
    assert!(refused.to_string().contains("call side.wait_stream(&default) before it"));

    // With the check off the sum runs. A seed determines one interleaving of the streams.
    let sums = RefCell::new(Vec::new());
    for_each_seed_on(Runtime::builder().order(OrderMode::Off), SEEDS, |devices| {
        let sums = &sums;
        async move {
            let sum = incorrect(&devices[0]).await?;
            sums.borrow_mut().push(sum);
            Ok(())
        }
    });
    let sums = sums.into_inner();
    let wrong: Vec<_> = SEEDS.zip(&sums).filter(|&(_, &sum)| sum != expected).collect();
    println!("2. With OrderMode::Off it runs, and is wrong for {} of {} seeds:\n", wrong.len(), sums.len());
    println!(
        "{}\n",
        wrong.iter().map(|(seed, sum)| format!("seed {seed}: {sum}")).collect::<Vec<_>>().join(", ")
    );
    assert!(!wrong.is_empty(), "no seed shows the race");
    assert!(wrong.len() < sums.len(), "no seed hides the race: it would be easy to find without a check");

    for_each_seed_on(Runtime::builder().order(OrderMode::Deny), SEEDS, |devices| async move {
        assert_eq!(correct(&devices[0]).await?, expected);
        Ok(())
    });
    println!("3. With the edge it is right for all {} seeds.", sums.len());
    Ok(())
}
