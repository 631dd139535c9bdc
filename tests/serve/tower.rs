//! A batcher behind the middleware of `tower`.

use crate::{builder, on_threads_and_seeds, seconds};
use futures::FutureExt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tower::load_shed::error::Overloaded;
use tower::{Service, ServiceBuilder, ServiceExt};
use warpline::prelude::*;
use warpline::serve::{Batcher, ServeError, WriterError};

fn one(row: (&mut [f32],)) -> Result<(), WriterError> {
    row.0.fill(1.0);
    Ok(())
}

/// A batcher of single rows, of which one runs and one may wait.
struct Held {
    batcher: Batcher<(f32,), (f32,)>,
    permits: Arc<Semaphore>,
    /// The number of batches that the model has begun.
    begun: Arc<AtomicUsize>,
}

impl Held {
    async fn new(device: &Device) -> Self {
        let (permits, begun) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
        let model = (permits.clone(), begun.clone());
        let built = builder(device).max_rows(1).max_queued(1).in_flight(1).build(move |_, (x,), _| {
            let (permits, begun) = model.clone();
            begun.fetch_add(1, Ordering::Relaxed);
            async move {
                permits.acquire().await.expect("it is not closed").forget();
                Ok((x,))
            }
        });
        let batcher = built.await.unwrap();
        Held { batcher, permits, begun }
    }

    /// Waits until the model has begun as many batches, and as many rows wait.
    async fn has(&self, begun: usize, queued: usize) {
        while (self.begun.load(Ordering::Relaxed), self.batcher.queued()) != (begun, queued) {
            tokio::task::yield_now().await;
        }
    }
}

#[test]
fn load_shed_refuses_calls_beyond_the_rows_that_may_be_queued() {
    on_threads_and_seeds(|device| async move {
        let held = Held::new(&device).await;
        let service = ServiceBuilder::new().load_shed().service(held.batcher.service());
        let running = tokio::spawn(service.clone().oneshot(one));
        held.has(1, 0).await;
        let queued = tokio::spawn(service.clone().oneshot(one));
        held.has(1, 1).await;
        let shed = service.oneshot(one).await.map(drop).unwrap_err();
        assert!(shed.is::<Overloaded>(), "{shed}");
        held.permits.add_permits(2);
        assert!(running.await.unwrap().is_ok() && queued.await.unwrap().is_ok());
    });
}

#[test]
fn readiness_waits_for_a_row_and_reserves_it() {
    on_threads_and_seeds(|device| async move {
        let held = Held::new(&device).await;
        let (batcher, permits) = (&held.batcher, &held.permits);
        let mut service = batcher.service();
        let ready = ServiceExt::<fn((&mut [f32],)) -> Result<(), WriterError>>::ready(&mut service).await;
        // The only row is reserved.
        assert!(matches!(batcher.submit(one).await, Err(ServeError::Full { max_queued: 1 })));
        let mut first = pin!(ready.unwrap().call(one));
        assert!(first.as_mut().now_or_never().is_none());
        held.has(1, 0).await;
        let mut queued = pin!(batcher.submit(one));
        assert!(queued.as_mut().now_or_never().is_none());
        let mut third = batcher.service();
        let mut third = pin!(ServiceExt::<fn((&mut [f32],)) -> Result<(), WriterError>>::ready(&mut third));
        assert!(third.as_mut().now_or_never().is_none());
        permits.add_permits(3);
        let third = third.await.unwrap().call(one).await;
        assert!(first.await.is_ok() && queued.await.is_ok() && third.is_ok());
        // A service that is dropped returns its row.
        let mut dropped = batcher.service();
        ServiceExt::<fn((&mut [f32],)) -> Result<(), WriterError>>::ready(&mut dropped).await.unwrap();
        drop(dropped);
        permits.add_permits(1);
        assert!(batcher.submit(one).await.is_ok());
    });
}

#[test]
fn a_service_of_a_drained_batcher_says_so() {
    on_threads_and_seeds(|device| async move {
        let held = Held::new(&device).await;
        // Polled here, so that their rows are queued, and not only reserved, before the drain.
        let mut calls = [(); 2].map(|()| Box::pin(held.batcher.service().oneshot(one)));
        for (call, queued) in calls.iter_mut().zip(0..) {
            assert!(call.as_mut().now_or_never().is_none());
            held.has(1, queued).await;
        }
        let waiting = tokio::spawn(held.batcher.service().oneshot(one));
        tokio::task::yield_now().await;
        let mut drained = pin!(held.batcher.drain(seconds(60)));
        assert!(drained.as_mut().now_or_never().is_none());
        let error = waiting.await.unwrap().map(drop).unwrap_err();
        assert!(matches!(error, ServeError::Draining), "{error}");
        held.permits.add_permits(2);
        let drained = drained.await;
        assert_eq!((drained.refused, drained.running), (0, 0));
        for call in calls {
            assert!(call.await.is_ok());
        }
        let error = held.batcher.service().oneshot(one).await.map(drop).unwrap_err();
        assert!(matches!(error, ServeError::Draining), "{error}");
    });
}

#[test]
fn timeout_and_concurrency_limit_work_as_they_are() {
    warpline::testing::for_each_seed_tokio(0..8, |device| async move {
        let held = Held::new(&device).await;
        let service = ServiceBuilder::new()
            .timeout(Duration::from_millis(20))
            .concurrency_limit(1)
            .service(held.batcher.service());
        let late = service.clone().oneshot(one).await.map(drop).unwrap_err();
        assert!(late.is::<tower::timeout::error::Elapsed>(), "{late}");
        held.permits.add_permits(2);
        assert!(service.oneshot(one).await.is_ok());
        Ok(())
    });
}
