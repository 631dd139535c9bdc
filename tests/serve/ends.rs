//! The ends of batchers: drained, dropped, or with their device. And the builder's refusals.

use crate::support::{break_device, says};
use crate::{ROW, builder, on_threads_and_seeds, seconds};
use futures::FutureExt;
use futures::future::join_all;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use warpline::prelude::*;
use warpline::serve::{Batcher, ServeError, WriterError};

fn one(row: (&mut [f32],)) -> Result<(), WriterError> {
    row.0.fill(1.0);
    Ok(())
}

/// A batcher of single rows, whose model waits for a permit.
async fn held(device: &Device) -> (Batcher<(f32,), (f32,)>, Arc<Semaphore>) {
    let permits = Arc::new(Semaphore::new(0));
    let model = permits.clone();
    let built = builder(device).max_rows(1).in_flight(1).build(move |_, (x,), _| {
        let permits = model.clone();
        async move {
            permits.acquire().await.expect("it is not closed").forget();
            Ok((x,))
        }
    });
    (built.await.unwrap(), permits)
}

#[test]
fn a_drained_batcher_answers_what_it_accepted_and_refuses_the_rest() {
    on_threads_and_seeds(|device| async move {
        let (batcher, permits) = held(&device).await;
        let mut calls = pin!(join_all((0..4).map(|_| batcher.submit(one))));
        assert!(calls.as_mut().now_or_never().is_none());
        assert!(batcher.is_open());
        let mut drained = pin!(batcher.drain(seconds(60)));
        assert!(drained.as_mut().now_or_never().is_none());
        let refused = batcher.submit(one).await.unwrap_err();
        assert!(matches!(refused, ServeError::Draining), "{refused}");
        assert_eq!(refused.http_status(), 503);
        assert!(!batcher.is_open());
        permits.add_permits(4);
        let (calls, drained) = futures::join!(calls, drained);
        assert!(calls.iter().all(Result::is_ok));
        assert_eq!((drained.refused, drained.running), (0, 0));
    });
}

#[test]
fn a_drain_ends_at_its_deadline_and_says_what_is_left() {
    warpline::testing::for_each_seed_tokio(0..8, |device| async move {
        let (batcher, permits) = held(&device).await;
        let mut calls: Vec<_> = (0..4).map(|_| Box::pin(batcher.submit(one))).collect();
        for call in &mut calls {
            assert!(call.as_mut().now_or_never().is_none());
        }
        let began = Instant::now();
        let drained = batcher.drain(began + Duration::from_millis(30)).await;
        assert_eq!((drained.refused, drained.running), (3, 1));
        assert_eq!(began.elapsed().as_millis(), 30);
        permits.add_permits(1);
        let mut calls = calls.into_iter();
        assert!(calls.next().unwrap().await.is_ok());
        for call in calls {
            assert!(matches!(call.await, Err(ServeError::Draining)));
        }
        Ok(())
    });
}

#[test]
fn a_batcher_that_is_dropped_returns_its_memory() {
    on_threads_and_seeds(|device| async move {
        let before = device.pinned_stats().allocated_bytes;
        let (batcher, permits) = held(&device).await;
        permits.add_permits(1);
        let answer = batcher.submit(one).await.unwrap();
        let mut left = Box::pin(batcher.submit(one));
        assert!(left.as_mut().now_or_never().is_none());
        drop((left, batcher));
        permits.add_permits(1);
        // Its tasks end by themselves; only the answer holds memory then.
        while device.pinned_stats().allocated_bytes > before + (4 << 10) {
            tokio::task::yield_now().await;
        }
        assert_eq!(answer.outputs().0, [1.0; ROW]);
        assert_eq!(answer.into_owned().0, [1.0; ROW]);
        assert_eq!(device.pinned_stats().allocated_bytes, before);
    });
}

#[test]
fn a_device_that_fails_ends_every_call() {
    let runtime = crate::support::runtime(1);
    let device = runtime.devices()[0].clone();
    let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    tokio.block_on(async move {
        let stream = device.new_stream().unwrap();
        let (batcher, permits) = held(&device).await;
        let mut calls = pin!(join_all((0..4).map(|_| batcher.submit(one))));
        assert!(calls.as_mut().now_or_never().is_none());
        let fault = break_device(&stream).await.unwrap_err();
        assert_eq!(fault.kind(), ErrorKind::Fault, "{fault}");
        // The model of the running batch still waits.
        for call in calls.await {
            let error = call.map(drop).unwrap_err();
            let ServeError::Failed(cause) = &error else { panic!("{error}") };
            assert_eq!(cause.kind(), ErrorKind::Fault, "{error}");
        }
        let error = batcher.submit(one).await.unwrap_err();
        assert!(matches!(error, ServeError::Failed(_)), "{error}");
        permits.add_permits(1);
        let drained = batcher.drain(seconds(60)).await;
        assert_eq!((drained.refused, drained.running), (0, 0));
    });
}

#[test]
fn a_batcher_that_cannot_work_is_not_built() {
    on_threads_and_seeds(|device| async move {
        let model = |_, (x,), _| async move { Ok((x,)) };
        let refusals: [(_, &[&str]); 7] = [
            (builder(&device).max_rows(0), &["max_rows is 0"]),
            (builder(&device).in_flight(0), &["in_flight is 0"]),
            (builder(&device).max_queued(0), &["max_queued is 0"]),
            (builder(&device).max_queued(31), &["max_queued is 31, and max_rows 32"]),
            (builder(&device).max_queued(1 << 40), &["pinned blocks of", "is capped at", "lower max_queued"]),
            (builder(&device).in_flight(usize::MAX), &["pinned blocks of", "is capped at"]),
            (
                builder(&device).max_rows(usize::MAX >> 3).max_queued(usize::MAX >> 3),
                &["is larger than any memory; lower max_rows"],
            ),
        ];
        for (builder, parts) in refusals {
            says(&builder.build(model).await.map(drop).unwrap_err(), ErrorKind::InvalidArgument, parts);
        }
        let empty =
            Batcher::<(f32,), (f32,)>::builder(&device, [[0].into()], [[3].into()]).build(model).await;
        says(&empty.map(drop).unwrap_err(), ErrorKind::InvalidArgument, &["input 0", "0 elements"]);
    });
}

#[test]
fn a_batcher_is_not_built_outside_of_tokio() {
    let runtime = crate::support::runtime(1);
    let device = &runtime.devices()[0];
    let built = builder(device).build(|_, (x,), _| async move { Ok((x,)) });
    let error = futures::executor::block_on(built).map(drop).unwrap_err();
    says(&error, ErrorKind::InvalidArgument, &["there is no tokio runtime here"]);
}

#[test]
fn a_batcher_is_not_built_where_there_are_no_timers() {
    let runtime = crate::support::runtime(1);
    let device = &runtime.devices()[0];
    let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let built = tokio.block_on(builder(device).build(|_, (x,), _| async move { Ok((x,)) }));
    says(&built.map(drop).unwrap_err(), ErrorKind::InvalidArgument, &["build the runtime with enable_time"]);
}

#[test]
fn calls_end_with_the_tokio_runtime_of_their_batcher() {
    let runtime = crate::support::runtime(1);
    let device = runtime.devices()[0].clone();
    let [first, second] =
        [(); 2].map(|()| tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap());
    let (batcher, _permits) = first.block_on(held(&device));
    // One runs, and one is queued.
    let calls = [(); 2].map(|()| second.spawn(batcher.submit(one)));
    while batcher.queued() != 1 {
        std::thread::yield_now();
    }
    drop(first);
    second.block_on(async {
        for call in calls {
            let error = call.await.unwrap().map(drop).unwrap_err();
            assert!(matches!(error, ServeError::Stopped), "{error}");
        }
        let error = batcher.submit(one).await.unwrap_err();
        assert!(matches!(error, ServeError::Stopped), "{error}");
        let drained = batcher.drain(seconds(60)).await;
        assert_eq!((drained.refused, drained.running), (0, 0));
    });
}

#[test]
fn a_row_that_is_being_written_while_the_runtime_of_its_batcher_ends_has_an_answer() {
    let runtime = crate::support::runtime(1);
    let device = runtime.devices()[0].clone();
    let [first, second] =
        [(); 2].map(|()| tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap());
    let (batcher, _permits) = first.block_on(held(&device));
    let (began, has_begun) = std::sync::mpsc::channel();
    let (end, has_ended) = std::sync::mpsc::channel::<()>();
    let call = second.spawn(batcher.submit(move |row| {
        began.send(()).unwrap();
        has_ended.recv().unwrap();
        one(row)
    }));
    has_begun.recv().unwrap();
    drop(first);
    end.send(()).unwrap();
    let error = second.block_on(call).unwrap().map(drop).unwrap_err();
    assert!(matches!(error, ServeError::Stopped), "{error}");
    // Its permit is back, too.
    assert_eq!(batcher.queued(), 0);
}

#[test]
fn a_row_that_is_being_written_while_the_device_fails_has_an_answer() {
    let runtime = crate::support::runtime(1);
    let device = runtime.devices()[0].clone();
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    tokio.block_on(async move {
        let (batcher, _permits) = held(&device).await;
        let (began, has_begun) = std::sync::mpsc::channel();
        let (fail, has_failed) = std::sync::mpsc::channel::<()>();
        let call = tokio::spawn(batcher.submit(move |row| {
            began.send(()).unwrap();
            has_failed.recv().unwrap();
            one(row)
        }));
        tokio::task::spawn_blocking(move || has_begun.recv().unwrap()).await.unwrap();
        let stream = device.new_stream().unwrap();
        break_device(&stream).await.unwrap_err();
        // Until the batcher knows.
        while !matches!(batcher.submit(one).await, Err(ServeError::Failed(_))) {}
        fail.send(()).unwrap();
        let error = call.await.unwrap().map(drop).unwrap_err();
        assert!(matches!(error, ServeError::Failed(_)), "{error}");
    });
}

#[test]
fn a_batch_that_finds_no_memory_is_the_only_one_to_fail() {
    let runtime = Runtime::builder().memory_limit(32 << 20).build().unwrap();
    let device = runtime.device("cpu".parse().unwrap()).unwrap();
    let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    tokio.block_on(async move {
        let batcher = builder(&device).max_rows(4).in_flight(1).build(|_, (x,), _| async move { Ok((x,)) });
        let batcher = batcher.await.unwrap();
        let mut held: Vec<Buffer<u8>> = Vec::new();
        let mut len = 16 << 20;
        while len >= 256 {
            match device.alloc(len) {
                Ok(block) => held.push(block),
                Err(_) => len /= 2,
            }
        }
        let error = batcher.submit(one).await.unwrap_err();
        let ServeError::Model(cause) = &error else { panic!("{error}") };
        assert_eq!(cause.kind(), ErrorKind::OutOfMemory, "{error}");
        drop(held);
        let answers = join_all((0..4).map(|_| batcher.submit(one))).await;
        assert!(answers.iter().all(Result::is_ok));
    });
}
