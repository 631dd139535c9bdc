//! Batches within budgets of device memory.

use crate::ROW;
use crate::support;
use futures::FutureExt;
use futures::future::join_all;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Semaphore;
use warpline::prelude::*;
use warpline::serve::{Batcher, ServeError, WriterError};

const MIB: usize = 1 << 20;

fn one(row: (&mut [f32],)) -> Result<(), WriterError> {
    row.0.fill(1.0);
    Ok(())
}

#[test]
fn batches_wait_for_device_memory_and_none_is_refused() {
    support::within_a_minute(|| {
        let runtime = support::builder().memory_limit(64 * MIB).build().unwrap();
        let device = runtime.device("cpu".parse().unwrap()).unwrap();
        let tokio =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        tokio.block_on(async {
            let (permits, begun) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
            let model = (permits.clone(), begun.clone());
            let batcher = Batcher::<(f32,), (f32,)>::builder(&device, [[ROW].into()], [[ROW].into()])
                .max_rows(1)
                .max_queued(16)
                .in_flight(4)
                .budget(|rows| rows * 30 * MIB)
                .build(move |stream, (x,), _| {
                    let (permits, begun) = model.clone();
                    async move {
                        // Four of them would need more than there is.
                        let _workspace = stream.alloc::<u8>(24 * MIB)?;
                        begun.fetch_add(1, Ordering::Relaxed);
                        permits.acquire().await.expect("it is not closed").forget();
                        Ok((x,))
                    }
                })
                .await
                .unwrap();
            let mut calls = pin!(join_all((0..12).map(|_| batcher.submit(one))));
            assert!(calls.as_mut().now_or_never().is_none());
            while (begun.load(Ordering::Relaxed), batcher.stats().running) != (2, 4) {
                tokio::task::yield_now().await;
            }
            permits.add_permits(12);
            let answers = calls.await;
            assert!(answers.iter().all(Result::is_ok), "{answers:?}");
            assert!(device.memory_stats().peak_allocated_bytes <= 64 * MIB);
        });
    });
}

#[test]
fn a_batch_beyond_its_budget_fails_alone() {
    support::within_a_minute(|| {
        let runtime = support::builder().memory_limit(64 * MIB).build().unwrap();
        let device = runtime.device("cpu".parse().unwrap()).unwrap();
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio.block_on(async {
            let batcher = Batcher::<(f32,), (f32,)>::builder(&device, [[ROW].into()], [[ROW].into()])
                .budget(|_| 8 * MIB)
                .build(|stream, (x,), calls| async move {
                    // The budget does not grow with the rows, as this does.
                    let _workspace = stream.alloc::<u8>(calls * 5 * MIB)?;
                    Ok((x,))
                })
                .await
                .unwrap();
            assert!(batcher.submit(one).await.is_ok());
            for failed in join_all((0..2).map(|_| batcher.submit(one))).await {
                let Err(ServeError::Model(error)) = failed else { panic!("{failed:?}") };
                support::says(&error, ErrorKind::OutOfMemory, &["budget", "8.0 MiB"]);
            }
            assert!(batcher.submit(one).await.is_ok());
        });
    });
}
