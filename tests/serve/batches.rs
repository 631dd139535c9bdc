//! One test per behaviour of a batcher that serves.

use crate::{ROW, Rows, builder, on_threads_and_seeds, seconds, write};
use futures::FutureExt;
use futures::future::join_all;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use warpline::prelude::*;
use warpline::serve::{Batcher, ServeError};

/// A list of the rows of each batch that a model saw.
type Seen = Arc<Mutex<Vec<Vec<f32>>>>;

/// A batcher whose model waits for a permit before each batch, notes what it sees, and doubles it.
async fn held(
    device: &Device,
    set: impl FnOnce(warpline::serve::BatcherBuilder<Rows, Rows>) -> warpline::serve::BatcherBuilder<Rows, Rows>,
) -> (Batcher<Rows, Rows>, Arc<Semaphore>, Seen) {
    let (permits, seen) = (Arc::new(Semaphore::new(0)), Seen::default());
    let model = (permits.clone(), seen.clone());
    let batcher = set(builder(device).max_rows(4).in_flight(1))
        .build(move |_stream, (x,), _calls| {
            let (permits, seen) = model.clone();
            async move {
                permits.acquire().await.expect("it is not closed").forget();
                let rows = x.to_vec::<f32>().await?;
                seen.lock().unwrap().push(rows);
                Ok(((&x * 2.0).queued()?,))
            }
        })
        .await
        .unwrap();
    (batcher, permits, seen)
}

/// Waits until slots have taken the queued rows.
async fn all_are_taken(batcher: &Batcher<Rows, Rows>) {
    while batcher.queued() > 0 {
        tokio::task::yield_now().await;
    }
}

#[test]
fn each_call_gets_its_own_row() {
    on_threads_and_seeds(|device| async move {
        let batcher = builder(&device)
            .max_rows(5)
            .max_queued(64)
            .build(|_, (x,), _| async move { Ok(((&x * 2.0).queued()?,)) })
            .await
            .unwrap();
        let calls = (0..40).map(|task| {
            let batcher = batcher.clone();
            tokio::spawn(async move {
                for n in 0..5 {
                    let value = (task * 10 + n) as f32;
                    let answer = batcher.submit(write(value)).await.unwrap();
                    assert_eq!(answer.outputs().0, [2.0 * value; ROW]);
                    assert!((1..=5).contains(&answer.batch_rows()));
                }
            })
        });
        for call in join_all(calls).await {
            call.unwrap();
        }
    });
}

#[test]
fn rows_that_arrive_while_a_batch_runs_are_the_next_batch() {
    on_threads_and_seeds(|device| async move {
        let (batcher, permits, seen) = held(&device, |builder| builder.max_queued(8)).await;
        let mut first = pin!(batcher.submit(write(1.0)));
        assert!(first.as_mut().now_or_never().is_none());
        let (more, few) = ([2.0, 3.0, 4.0, 5.0], [6.0]);
        all_are_taken(&batcher).await;
        let rest = join_all(more.iter().chain(&few).map(|&value| batcher.submit(write(value))));
        let mut rest = pin!(rest);
        assert!(rest.as_mut().now_or_never().is_none());
        permits.add_permits(3);
        first.await.unwrap();
        assert!(rest.await.iter().all(Result::is_ok));
        let rows: Vec<_> = seen.lock().unwrap().iter().map(|rows| rows.len() / ROW).collect();
        assert_eq!(rows, [1, 4, 1]);
    });
}

#[test]
fn a_batch_waits_for_further_rows_at_most_as_long_as_was_set() {
    warpline::testing::for_each_seed_tokio(0..8, |device| async move {
        let (batcher, permits, seen) =
            held(&device, |b| b.max_wait(Duration::from_millis(10)).max_queued(8)).await;
        permits.add_permits(2);
        let began = Instant::now();
        let late = async {
            tokio::time::sleep(Duration::from_millis(6)).await;
            batcher.submit(write(2.0)).await
        };
        let (one, two) = futures::join!(batcher.submit(write(1.0)), late);
        assert_eq!((one.unwrap().batch_rows(), two.unwrap().batch_rows()), (2, 2));
        // Counted from the first row.
        assert_eq!(began.elapsed().as_millis(), 10);
        // A full batch does not wait.
        let full = join_all((0..4).map(|n| batcher.submit(write(n as f32)))).await;
        assert!(full.iter().all(Result::is_ok));
        assert_eq!(began.elapsed().as_millis(), 10);
        assert_eq!(seen.lock().unwrap().len(), 2);
        Ok(())
    });
}

#[test]
fn a_row_begins_with_zeros_and_never_with_those_of_another_call() {
    on_threads_and_seeds(|device| async move {
        let (batcher, permits, seen) = held(&device, |builder| builder.fixed_rows()).await;
        permits.add_permits(20);
        for _ in 0..5 {
            assert!(
                join_all([1.0, 2.0, 3.0].map(|value| batcher.submit(write(value))))
                    .await
                    .iter()
                    .all(Result::is_ok)
            );
            batcher
                .submit(|(row,)| {
                    assert_eq!(row, [0.0; ROW]);
                    row[0] = 7.0;
                    Ok(())
                })
                .await
                .unwrap();
        }
        for rows in &*seen.lock().unwrap() {
            assert_eq!(rows.len(), 4 * ROW, "the rows are fixed");
            let used = rows.iter().rposition(|&value| value != 0.0).unwrap() / ROW + 1;
            if rows[0] == 7.0 {
                assert_eq!((rows[1], used), (0.0, 1), "{rows:?}");
            }
            assert!(rows[used * ROW..].iter().all(|&value| value == 0.0), "{rows:?}");
        }
    });
}

#[test]
fn callers_that_leave_make_room_and_the_model_sees_a_prefix() {
    on_threads_and_seeds(|device| async move {
        let (batcher, permits, seen) = held(&device, |builder| builder.max_queued(8).fixed_rows()).await;
        let mut first = Box::pin(batcher.submit(write(1.0)));
        assert!(first.as_mut().now_or_never().is_none());
        all_are_taken(&batcher).await;
        let mut calls: Vec<_> =
            (10..18).map(|value| Some(Box::pin(batcher.submit(write(value as f32))))).collect();
        for call in calls.iter_mut().flatten() {
            assert!(call.as_mut().now_or_never().is_none());
        }
        assert!(matches!(batcher.submit(write(99.0)).await, Err(ServeError::Full { max_queued: 8 })));
        // Of the first block the rows 0 and 2 leave, of the second one row 1.
        for at in [0, 2, 5] {
            calls[at] = None;
        }
        assert_eq!(batcher.queued(), 5);
        permits.add_permits(3);
        first.await.unwrap();
        for (value, call) in (10..18).zip(calls) {
            if let Some(call) = call {
                assert_eq!(call.await.unwrap().outputs().0, [2.0 * value as f32; ROW]);
            }
        }
        let seen = seen.lock().unwrap();
        let mut second: Vec<_> = seen[1].chunks(ROW).map(|row| row[0]).collect();
        second.sort_by(f32::total_cmp);
        // The oldest rows of the second block filled the first one.
        assert_eq!(second, [11.0, 13.0, 14.0, 16.0]);
        assert_eq!(seen[2], [17.0, 17.0, 17.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    });
}

#[test]
fn a_batch_whose_callers_have_left_is_not_run() {
    on_threads_and_seeds(|device| async move {
        let (batcher, permits, seen) = held(&device, |builder| builder.max_queued(8)).await;
        let mut first = Box::pin(batcher.submit(write(1.0)));
        assert!(first.as_mut().now_or_never().is_none());
        let mut second = Box::pin(batcher.submit(write(2.0)));
        assert!(second.as_mut().now_or_never().is_none());
        drop((first, second));
        permits.add_permits(5);
        batcher.submit(write(3.0)).await.unwrap();
        // On threads, the slot may have taken the first before it was dropped.
        let last = seen.lock().unwrap().last().cloned().unwrap();
        assert_eq!(last, [3.0; ROW]);
    });
}

fn panics(_row: (&mut [f32],)) -> Result<(), warpline::serve::WriterError> {
    panic!("on purpose")
}

#[test]
fn what_a_writer_does_wrong_is_its_callers_alone() {
    on_threads_and_seeds(|device| async move {
        let (batcher, permits, seen) = held(&device, |builder| builder).await;
        permits.add_permits(10);
        let failed = batcher.submit(|(row,)| {
            row.fill(5.0);
            Err("not an image".into())
        });
        let panicked = AssertUnwindSafe(batcher.submit(panics)).catch_unwind();
        let (failed, panicked, fine) = futures::join!(failed, panicked, batcher.submit(write(1.0)));
        let failed = failed.unwrap_err();
        assert_eq!(failed.to_string(), "the row was not written: not an image");
        assert!(panicked.is_err());
        assert_eq!(fine.unwrap().outputs().0, [2.0; ROW]);
        assert_eq!(*seen.lock().unwrap(), [[1.0; ROW]]);
        assert_eq!(batcher.queued(), 0);
    });
}

#[test]
fn an_error_and_a_panic_of_the_model_are_those_of_its_batch() {
    on_threads_and_seeds(|device| async move {
        let batcher = builder(&device)
            .max_rows(4)
            .in_flight(1)
            .build(|_, (x,), _| async move {
                let rows = x.to_vec::<f32>().await?;
                assert!(rows[0] != 1.0, "a model that panics");
                if rows[0] == 2.0 {
                    // Two vectors of different lengths.
                    let wrong = Tensor::zeros([7], &x.device()).queued()?;
                    return Ok(((&x + &wrong).queued()?,));
                }
                Ok(((&x * 2.0).queued()?,))
            })
            .await
            .unwrap();
        let panicked = batcher.submit(write(1.0)).await.unwrap_err();
        assert_eq!(panicked.to_string(), "the model panicked for the whole batch: a model that panics");
        let failed = batcher.submit(write(2.0)).await.unwrap_err();
        let ServeError::Model(error) = failed else { panic!("{failed}") };
        assert_eq!(error.kind(), ErrorKind::Shape, "{error}");
        assert_eq!(batcher.submit(write(3.0)).await.unwrap().outputs().0, [6.0; ROW]);
    });
}

#[test]
fn outputs_of_another_shape_or_type_are_an_error_with_both() {
    on_threads_and_seeds(|device| async move {
        let batcher =
            builder(&device).build(|_, (x,), _| async move { Ok((x.sum().queued()?,)) }).await.unwrap();
        let error = batcher.submit(write(1.0)).await.unwrap_err().to_string();
        let text = "output 0 of the model is f32 of shape [], and f32 of shape [1, 3] is expected";
        assert!(error.contains(text), "{error}");
    });
}

#[test]
fn a_row_past_its_deadline_gets_into_no_batch() {
    warpline::testing::for_each_seed_tokio(0..8, |device| async move {
        let (batcher, permits, seen) = held(&device, |builder| builder.max_queued(8)).await;
        let mut first = pin!(batcher.submit(write(1.0)));
        assert!(first.as_mut().now_or_never().is_none());
        all_are_taken(&batcher).await;
        let began = Instant::now();
        let (soon, later) = (began + Duration::from_millis(20), seconds(5));
        let past = batcher.submit(write(4.0)).deadline(began);
        assert!(matches!(past.await, Err(ServeError::Late)));
        let mut late = pin!(batcher.submit(write(2.0)).deadline(soon));
        let mut in_time = pin!(batcher.submit(write(3.0)).deadline(later));
        assert!(late.as_mut().now_or_never().is_none());
        assert!(in_time.as_mut().now_or_never().is_none());
        assert!(matches!(late.await, Err(ServeError::Late)));
        assert_eq!(began.elapsed().as_millis(), 20);
        permits.add_permits(5);
        first.await.unwrap();
        in_time.await.unwrap();
        let all: Vec<_> = seen.lock().unwrap().concat();
        assert!(!all.contains(&2.0) && !all.contains(&4.0), "{all:?}");
        Ok(())
    });
}

#[test]
fn a_batch_is_taken_early_enough_for_a_deadline() {
    warpline::testing::for_each_seed_tokio(0..8, |device| async move {
        let batcher = builder(&device)
            .max_wait(Duration::from_secs(1))
            .build(|_, (x,), _| async move {
                tokio::time::sleep(Duration::from_millis(30)).await;
                Ok(((&x * 2.0).queued()?,))
            })
            .await
            .unwrap();
        batcher.submit(write(1.0)).await.unwrap();
        // 30 ms for a batch, as the last one, and three for the timers.
        let began = Instant::now();
        let answer = batcher.submit(write(1.0)).deadline(began + Duration::from_millis(200)).await;
        assert!(answer.is_ok());
        assert_eq!(began.elapsed().as_millis(), 197);
        Ok(())
    });
}

#[test]
fn a_model_is_swapped_between_batches() {
    on_threads_and_seeds(|device| async move {
        let batcher = builder(&device)
            .max_queued(64)
            .build(|_, (x,), _| async move { Ok(((&x * 1.0).queued()?,)) })
            .await
            .unwrap();
        let callers = (0..8).map(|_| {
            let batcher = batcher.clone();
            tokio::spawn(async move {
                for _ in 0..20 {
                    let answer = batcher.submit(write(1.0)).await.unwrap();
                    assert_eq!(answer.outputs().0, [answer.version() as f32 + 1.0; ROW]);
                    tokio::task::yield_now().await;
                }
            })
        });
        let callers: Vec<_> = callers.collect();
        for version in 1..=10 {
            tokio::task::yield_now().await;
            let factor = version as f32 + 1.0;
            let swapped =
                batcher.swap(move |_, (x,), _| async move { Ok(((&x * factor).queued()?,)) }).unwrap();
            assert_eq!(swapped, version);
        }
        for caller in callers {
            caller.await.unwrap();
        }
        assert_eq!(batcher.submit(write(1.0)).await.unwrap().version(), 10);
    });
}
