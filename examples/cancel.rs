//! The effect of abandoning a wait, by `select!`, a timeout, a drop and an aborted task: the work
//! continues.
//!
//! Each act enqueues a copy from a pinned buffer on a stream that a gate holds, and stops waiting
//! for it. The copy runs all the same. Until it has finished, the `Pending` or the runtime owns the
//! buffer; then the buffer goes back to the caller or to its pool. Work after the copy runs, and
//! other streams are not affected.
//!
//! ```sh
//! cargo run -p warpline-examples --example cancel
//! ```
//! The gate (`stream.hold()`, from the feature `test-util`) stands for a slow device, so nothing
//! here depends on time.
//!
//! Outside this repository it needs:
//!
//! ```toml
//! [dependencies]
//! clap = { version = "4", features = ["derive"] }
//! tokio = { version = "1", features = ["full"] }
//! warpline = { path = "../warpline", features = ["clap", "test-util"] }
//! ```

use clap::Parser;
use std::future::pending;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;
use warpline::DeviceArgs;
use warpline::ops::{fill_, sum};
use warpline::prelude::*;
use warpline::testing::Gate;

const LEN: usize = 1024;

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    device: DeviceArgs,
}

#[tokio::main]
async fn main() -> warpline::Result<()> {
    let stage = Stage::new(&Options::parse().device)?;
    select_takes_the_other_branch(&stage).await?;
    a_timeout_expires(&stage).await?;
    the_future_is_dropped(&stage).await?;
    the_task_is_aborted(&stage).await?;
    stage.runtime.shut_down().await
}

async fn select_takes_the_other_branch(stage: &Stage) -> warpline::Result<()> {
    let (gate, x, mut sent) = stage.send(1.0).await?;
    let (stop, stopped) = oneshot::channel();
    stop.send(()).expect("the receiver exists");
    tokio::select! {
        _ = &mut sent => panic!("the gate holds the copy"),
        _ = stopped => {}
    }
    stage.others_go_on().await?;
    gate.open();
    // `select!` polled `&mut sent` and did not consume it, so it can be awaited again and yields
    // the buffer.
    let host = sent.await?;
    assert_eq!(host[..], [1.0; LEN]);
    drop(host);
    stage.went_on(&x, 1.0).await?;
    println!("select!: the pending copy was awaited later and gave the buffer back");
    Ok(())
}

async fn a_timeout_expires(stage: &Stage) -> warpline::Result<()> {
    let (gate, x, sent) = stage.send(2.0).await?;
    timeout(Duration::from_millis(1), sent).await.expect_err("the gate holds the copy");
    stage.others_go_on().await?;
    assert!(stage.pinned_bytes() > 0, "the copy has yet to read the buffer");
    gate.open();
    stage.went_on(&x, 2.0).await?;
    println!("timeout: the copy was made all the same, and the buffer went back to its pool");
    Ok(())
}

async fn the_future_is_dropped(stage: &Stage) -> warpline::Result<()> {
    let (gate, x, sent) = stage.send(3.0).await?;
    drop(sent); // neither blocks, nor cancels, nor frees memory in use
    stage.others_go_on().await?;
    assert!(stage.pinned_bytes() > 0, "the copy has yet to read the buffer");
    gate.open();
    stage.went_on(&x, 3.0).await?;
    println!("drop: the same");
    Ok(())
}

async fn the_task_is_aborted(stage: &Stage) -> warpline::Result<()> {
    let (gate, x, sent) = stage.send(4.0).await?;
    let (started, running) = oneshot::channel();
    let task = tokio::spawn(async move {
        started.send(()).expect("the receiver exists");
        let _host = sent.await;
        pending::<()>().await
    });
    running.await.expect("the task runs");
    task.abort();
    assert!(task.await.expect_err("aborted").is_cancelled());
    stage.others_go_on().await?;
    assert!(stage.pinned_bytes() > 0, "the copy has yet to read the buffer");
    gate.open();
    stage.went_on(&x, 4.0).await?;
    println!("abort: the same");
    Ok(())
}

struct Stage {
    runtime: Runtime,
    device: Device,
    held: Stream,
    other: Stream,
}

impl Stage {
    fn new(device: &DeviceArgs) -> warpline::Result<Self> {
        let runtime = Runtime::new()?;
        let device = device.device_of(&runtime)?;
        let held = device.stream().label("held").build()?;
        let other = device.stream().label("other").build()?;
        Ok(Stage { runtime, device, held, other })
    }

    /// Enqueues a copy behind a gate. Returns the gate, the destination, and the `Pending` that
    /// yields the pinned buffer.
    async fn send(&self, value: f32) -> warpline::Result<(Gate, Buffer<f32>, Pending<Pinned<f32>>)> {
        let mut host = self.device.pinned::<f32>(LEN).await?;
        host.fill(value);
        let gate = self.held.hold()?;
        let (x, sent) = self.held.copy_to_device(host)?;
        Ok((gate, x, sent))
    }

    /// Checks that another stream of the device works while one is held.
    async fn others_go_on(&self) -> warpline::Result<()> {
        let y = self.other.alloc::<f32>(LEN)?;
        let total = self.other.enter(|| {
            fill_(&y, 0.5).queued()?;
            warpline::Result::Ok(sum(&y))
        })?;
        assert_eq!(total.await?, LEN as f32 / 2.0);
        Ok(())
    }

    /// Checks that the stream ran the copy and the work after it without an error, and that the
    /// pinned buffer is back in its pool.
    async fn went_on(&self, x: &Buffer<f32>, value: f32) -> warpline::Result<()> {
        assert_eq!(self.held.enter(|| sum(x)).await?, value * LEN as f32);
        self.held.synchronize().await?;
        assert_eq!(self.pinned_bytes(), 0);
        Ok(())
    }

    fn pinned_bytes(&self) -> usize {
        self.device.pinned_stats().allocated_bytes
    }
}
