//! Batches within budgets of device memory.

use crate::support;
use crate::{ROW, builder};
use futures::FutureExt;
use futures::future::join_all;
use std::future::Future;
use std::mem::take;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::Semaphore;
use warpline::prelude::*;
use warpline::serve::{ServeError, WriterError};

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
            let batcher = builder(&device)
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
    on_64_mib(|device| async move {
        let batcher = builder(&device).budget(|_| 8 * MIB).build(|stream, (x,), calls| async move {
            // The budget does not grow with the rows, as this does.
            let _workspace = stream.alloc::<u8>(calls * 5 * MIB)?;
            Ok((x,))
        });
        let batcher = batcher.await.unwrap();
        assert!(batcher.submit(one).await.is_ok());
        for failed in join_all((0..2).map(|_| batcher.submit(one))).await {
            let Err(ServeError::Model(error)) = failed else { panic!("{failed:?}") };
            support::says(&error, ErrorKind::OutOfMemory, &["budget", "8.0 MiB"]);
        }
        assert!(batcher.submit(one).await.is_ok());
    });
}

/// Runs `body` on a device with 64 MiB.
fn on_64_mib<Fut: Future<Output = ()>>(body: impl FnOnce(Device) -> Fut + Send + 'static) {
    support::within_a_minute(|| {
        let runtime = support::builder().memory_limit(64 * MIB).build().unwrap();
        let device = runtime.device("cpu".parse().unwrap()).unwrap();
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio.block_on(body(device));
    });
}

#[test]
fn a_budget_is_asked_for_what_the_model_sees() {
    on_64_mib(|device| async move {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = || {
            let asked = asked.clone();
            move |rows| {
                asked.lock().unwrap().push(rows);
                MIB
            }
        };
        let rows = builder(&device).max_rows(5).budget(noted());
        let rows = rows.build(|_, (x,), _| async move { Ok((x,)) }).await.unwrap();
        join_all((0..3).map(|_| rows.submit(one))).await.into_iter().for_each(|call| drop(call.unwrap()));
        // Once for the largest batch, when it was built.
        assert_eq!(take(&mut *asked.lock().unwrap()), [5, 3]);

        let fixed = builder(&device).max_rows(5).fixed_rows().budget(noted());
        let fixed = fixed.build(|_, (x,), _| async move { Ok((x,)) }).await.unwrap();
        fixed.submit(one).await.unwrap();
        assert_eq!(take(&mut *asked.lock().unwrap()), [5, 5]);

        let packed = builder(&device).max_rows(5).budget(noted());
        let sums = |stream: Stream, _: (Tensor,), lens: Vec<usize>| async move {
            Ok((Tensor::zeros([lens.len(), ROW], &stream.device()).queued()?,))
        };
        let packed = packed.build_packed(9, sums).await.unwrap();
        join_all((1..3).map(|len| packed.submit(one).length(len)))
            .await
            .into_iter()
            .for_each(|call| drop(call.unwrap()));
        assert_eq!(take(&mut *asked.lock().unwrap()), [9, 3]);
    });
}

#[test]
fn a_budget_that_panics_fails_its_batch_and_one_that_is_too_large_the_builder() {
    on_64_mib(|device| async move {
        let batcher = builder(&device).budget(|rows| if rows == 2 { panic!("on purpose") } else { MIB });
        let batcher = batcher.build(|_, (x,), _| async move { Ok((x,)) }).await.unwrap();
        for failed in join_all((0..2).map(|_| batcher.submit(one))).await {
            let Err(ServeError::Panicked(message)) = failed else { panic!("{failed:?}") };
            assert_eq!(&*message, "on purpose");
        }
        assert!(batcher.submit(one).await.is_ok());

        let large = builder(&device).max_rows(8).budget(|rows| rows * 10 * MIB);
        let refused = large.build(|_, (x,), _| async move { Ok((x,)) }).await.unwrap_err();
        let parts = ["a batch of 8 has a budget of 80.0 MiB", "limited to 64.0 MiB", "lower max_rows"];
        support::says(&refused, ErrorKind::InvalidArgument, &parts);
    });
}
