//! The figures of a batcher and of its device.

use crate::support::{self, break_device};
use crate::{builder, seconds};
use futures::FutureExt;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use warpline::prelude::*;
use warpline::serve::{Answer, Batcher, BatcherBuilder, ServeError, WriterError, record_device_metrics};

type Row = (f32,);
type Call<'a> = Pin<Box<dyn Future<Output = Result<Answer<Row>, ServeError>> + 'a>>;

fn one(row: (&mut [f32],)) -> Result<(), WriterError> {
    row.0.fill(1.0);
    Ok(())
}

/// Builds a batcher whose model waits for a permit.
async fn held(builder: BatcherBuilder<Row, Row>) -> (Batcher<Row, Row>, Arc<Semaphore>) {
    let permits = Arc::new(Semaphore::new(0));
    let model = permits.clone();
    let built = builder.in_flight(1).build(move |_, (x,), _| {
        let permits = model.clone();
        async move {
            permits.acquire().await.expect("it is not closed").forget();
            Ok((x,))
        }
    });
    (built.await.unwrap(), permits)
}

async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::task::yield_now().await;
    }
}

/// Submits a row, and polls the call once.
fn call(batcher: &Batcher<Row, Row>) -> Call<'_> {
    let mut call: Call<'_> = Box::pin(batcher.submit(one));
    assert!(call.as_mut().now_or_never().is_none());
    call
}

#[test]
fn each_call_that_ends_is_counted_once() {
    warpline::testing::for_each_seed_tokio(0..8, |device| async move {
        let (batcher, permits) = held(builder(&device).max_rows(1).max_queued(2)).await;
        let mut running = call(&batcher);
        until(|| batcher.stats().running == 1).await;

        assert!(matches!(batcher.submit(|_| Err("no".into())).await, Err(ServeError::Writer(_))));
        assert!(matches!(batcher.submit(one).deadline(Instant::now()).await, Err(ServeError::Late)));
        let late = batcher.submit(one).deadline(Instant::now() + Duration::from_millis(20)).await;
        assert!(matches!(late, Err(ServeError::Late)));
        let leaves = call(&batcher);
        let mut waits = call(&batcher);
        assert!(matches!(batcher.submit(one).await, Err(ServeError::Full { .. })));
        let stats = batcher.stats();
        assert_eq!((stats.queued, stats.running, stats.batches), (2, 1, 0));
        assert_eq!((stats.writer, stats.late, stats.full, stats.left), (1, 2, 1, 0));

        drop(leaves);
        let stats = batcher.stats();
        assert_eq!((stats.queued, stats.left), (1, 1));

        // The answer of a running call whose caller leaves is thrown away.
        assert!(running.as_mut().now_or_never().is_none());
        drop(running);
        permits.add_permits(1);
        until(|| batcher.stats().batches == 1).await;
        let stats = batcher.stats();
        assert_eq!((stats.answered, stats.thrown_away, stats.left), (0, 1, 2));

        permits.add_permits(1);
        assert!(waits.as_mut().await.is_ok());
        // An answer that its caller does not fetch was computed for it.
        let answered = call(&batcher);
        permits.add_permits(1);
        until(|| batcher.stats().answered == 2).await;
        drop(answered);
        assert!(
            catch_unwind(AssertUnwindSafe(|| batcher.submit(|_| panic!("on purpose")).now_or_never()))
                .is_err()
        );
        assert_eq!(batcher.stats().writer, 2);
        batcher.drain(seconds(60)).await;
        assert!(matches!(batcher.submit(one).await, Err(ServeError::Draining)));
        let stats = batcher.stats();
        assert_eq!((stats.queued, stats.running), (0, 0));
        assert_eq!((stats.batches, stats.answered, stats.ended, stats.model), (3, 2, 1, 0));
        assert_eq!((stats.left, stats.thrown_away), (2, 1));
        Ok(())
    });
}

#[test]
fn calls_of_a_batch_that_fails_are_counted_as_failures_of_the_model() {
    warpline::testing::for_each_seed_tokio(0..8, |device| async move {
        let failing =
            builder(&device).max_wait(Duration::from_millis(1)).build(|_, (x,), calls| async move {
                assert!(calls != 2, "two calls");
                Err(Error::new(ErrorKind::InvalidArgument, format!("{} rows", x.shape()[0])))
            });
        let failing = failing.await?;
        for calls in 1..4 {
            let ended = futures::future::join_all((0..calls).map(|_| failing.submit(one))).await;
            assert!(ended.iter().all(Result::is_err));
        }
        let stats = failing.stats();
        assert_eq!((stats.model, stats.answered, stats.thrown_away), (6, 0, 0));
        Ok(())
    });
}

/// Returns the value of a line of Prometheus text.
fn value(text: &str, figure: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(figure)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("there is no {figure} in\n{text}")).parse().unwrap()
}

/// Runs `body` on one thread, with a recorder of its own.
fn with_recorder<Fut: Future<Output = ()>>(body: impl FnOnce(Device, PrometheusHandle) -> Fut) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let runtime = support::runtime(1);
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let body = body(runtime.devices()[0].clone(), recorder.handle());
    metrics::with_local_recorder(&recorder, || tokio.block_on(body));
}

#[test]
fn an_exporter_gets_the_figures_of_batches_and_of_the_device() {
    with_recorder(|device, handle| async move {
        let (batcher, permits) = held(builder(&device).label("digits").max_rows(2).max_queued(4)).await;
        let calls: Vec<_> = (0..3).map(|_| call(&batcher)).collect();
        until(|| batcher.stats().running == 2).await;
        batcher.record_metrics();
        record_device_metrics(&device);
        let text = handle.render();
        let batcher_value = |text: &str, figure: &str| {
            value(text, &format!("warpline_batcher_{figure}{{batcher=\"digits\"}}"))
        };
        assert_eq!(batcher_value(&text, "running_rows"), 2.0);
        assert_eq!(batcher_value(&text, "queued_rows"), 1.0);
        assert!(batcher_value(&text, "oldest_wait_seconds") > 0.0);
        assert_eq!(batcher_value(&text, "batches_total"), 0.0);
        assert_eq!(batcher_value(&text, "batch_rows_sum"), 2.0);
        assert_eq!(value(&text, "warpline_device_up{device=\"cpu:0\"}"), 1.0);
        let live = value(&text, "warpline_device_memory_bytes{device=\"cpu:0\",state=\"live\"}");
        assert_eq!(live, device.memory_stats().allocated_bytes as f64);
        let pinned = value(&text, "warpline_pinned_memory_bytes{device=\"cpu:0\",state=\"live\"}");
        assert_eq!(pinned, device.pinned_stats().allocated_bytes as f64);

        permits.add_permits(2);
        futures::future::join_all(calls).await;
        until(|| batcher.stats().batches == 2).await;
        batcher.record_metrics();
        let text = handle.render();
        let outcome = "warpline_batcher_calls_total{batcher=\"digits\",outcome=\"answered\"}";
        assert_eq!(value(&text, outcome), 3.0);
        assert_eq!(batcher_value(&text, "batches_total"), 2.0);
        assert_eq!(batcher_value(&text, "batch_rows_count"), 2.0);
        assert_eq!(batcher_value(&text, "wait_seconds_count"), 3.0);
        assert_eq!(batcher_value(&text, "batch_seconds_count"), 2.0);

        // Another batcher of that label goes on from there.
        drop(batcher);
        let (batcher, permits) = held(builder(&device).label("digits")).await;
        permits.add_permits(1);
        batcher.submit(one).await.unwrap();
        batcher.record_metrics();
        batcher.record_metrics();
        assert_eq!(value(&handle.render(), outcome), 4.0);

        let stream = device.new_stream().unwrap();
        let ops = device.op_stats().enqueued;
        stream.call(|| ()).await.unwrap();
        stream.alloc::<u8>(usize::MAX / 2).unwrap_err();
        record_device_metrics(&device);
        let text = handle.render();
        assert_eq!(value(&text, "warpline_device_ops_total{device=\"cpu:0\"}"), (ops + 1) as f64);
        assert_eq!(value(&text, "warpline_device_ops_in_flight{device=\"cpu:0\"}"), 0.0);
        let refused = "warpline_device_refusals_total{device=\"cpu:0\",kind=\"OutOfMemory\"}";
        assert_eq!(value(&text, refused), 1.0);

        let _ = break_device(&stream).await;
        record_device_metrics(&device);
        assert_eq!(value(&handle.render(), "warpline_device_up{device=\"cpu:0\"}"), 0.0);
    });
}
