//! Tests of batches of calls: which call gets which answer, and what the model sees.

#[path = "../support/mod.rs"]
mod support;

mod batches;
mod budgets;
mod captured;
mod ends;
mod figures;
mod histories;
mod packed;
mod slots;
mod spans;
mod tower;

use std::future::Future;
use std::time::Duration;
use tokio::time::Instant;
use warpline::prelude::*;
use warpline::serve::{Batcher, BatcherBuilder, WriterError};

/// The number of elements of a row in most tests.
const ROW: usize = 3;

type Rows = (f32,);

fn builder(device: &Device) -> BatcherBuilder<Rows, Rows> {
    Batcher::builder(device, [[ROW].into()], [[ROW].into()])
}

/// Fills a row with a value.
fn write(value: f32) -> impl FnOnce((&mut [f32],)) -> Result<(), WriterError> {
    move |(row,)| {
        row.fill(value);
        Ok(())
    }
}

fn seconds(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds)
}

/// Runs `body` inside tokio on a CPU device with threads, then under seeds.
fn on_threads_and_seeds<Fut: Future<Output = ()> + Send + 'static>(
    body: impl Fn(Device) -> Fut + Clone + Send + 'static,
) {
    let on_threads = body.clone();
    support::within_a_minute(move || {
        let runtime = support::runtime(1);
        let tokio =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        tokio.block_on(on_threads(runtime.devices()[0].clone()));
    });
    warpline::testing::for_each_seed_tokio(0..8, move |device| {
        let body = body(device);
        async move {
            body.await;
            Ok(())
        }
    });
}
