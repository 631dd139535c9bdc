//! What happens to work that nobody waits for any more: `select!`, a timeout, a drop and an aborted task.
//!
//! Each act sends a pinned buffer to the device on a stream that a gate holds, and gives up waiting. The device goes on as if
//! nothing had happened: the buffer stays out of everybody's hands until the copy is done and comes back then, what is behind
//! the copy runs, and no other stream notices.
//!
//! ```sh
//! cargo run --example cancel
//! ```
//! The gate (`stream.hold()`, from the feature `test-util`) stands for a slow device, so that nothing here depends on time.
//!
//! Outside this repository it needs:
//!
//! ```toml
//! [dependencies]
//! tokio = { version = "1", features = ["full"] }
//! warpline = { path = "../warpline", features = ["test-util"] }
//! ```

use std::future::pending;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;
use warpline::ops::{fill_, sum};
use warpline::prelude::*;
use warpline::testing::Gate;

const LEN: usize = 1024;

#[tokio::main]
async fn main() -> warpline::Result<()> {
    let stage = Stage::new()?;
    select_takes_the_other_branch(&stage).await?;
    a_timeout_expires(&stage).await?;
    the_future_is_dropped(&stage).await?;
    the_task_is_aborted(&stage).await?;
    stage.runtime.shut_down().await
}

async fn select_takes_the_other_branch(stage: &Stage) -> warpline::Result<()> {
    let (gate, x, mut sent) = stage.send(1.0).await?;
    let (stop, stopped) = oneshot::channel();
    stop.send(()).expect("somebody listens");
    tokio::select! {
        _ = &mut sent => panic!("the gate holds the copy"),
        _ = stopped => {}
    }
    stage.others_go_on().await?;
    gate.open();
    // `&mut sent` was polled, not consumed: it can be awaited again, and yields the buffer.
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
    drop(sent); // does not block, cancels nothing and frees nothing that is in use
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
        started.send(()).expect("somebody listens");
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
    fn new() -> warpline::Result<Self> {
        let runtime = Runtime::new()?;
        let device = runtime.best_device()?;
        let held = device.stream().label("held").build()?;
        let other = device.stream().label("other").build()?;
        Ok(Stage { runtime, device, held, other })
    }

    /// Puts a copy behind a gate: the gate, where the copy goes, and what gives the pinned buffer back.
    async fn send(&self, value: f32) -> warpline::Result<(Gate, Buffer<f32>, Pending<Pinned<f32>>)> {
        let mut host = self.device.pinned::<f32>(LEN).await?;
        host.fill(value);
        let gate = self.held.hold()?;
        let (x, sent) = self.held.copy_to_device(host)?;
        Ok((gate, x, sent))
    }

    /// Another stream of the device works while one is held.
    async fn others_go_on(&self) -> warpline::Result<()> {
        let y = self.other.alloc::<f32>(LEN)?;
        let total = self.other.enter(|| {
            fill_(&y, 0.5).queued()?;
            warpline::Result::Ok(sum(&y))
        })?;
        assert_eq!(total.await?, LEN as f32 / 2.0);
        Ok(())
    }

    /// The stream ran the copy and what is behind it, without an error, and the pinned buffer is in nobody's hands.
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
