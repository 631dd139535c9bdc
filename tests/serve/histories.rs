//! Random histories of a batcher. The model notes its batches, and afterwards each call has the
//! answer of the one batch that had its row.

use crate::support::programs::Dice;
use crate::{ROW, builder, support};
use futures::future::join_all;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use warpline::prelude::*;
use warpline::serve::{Batcher, ServeError};
use warpline_test_counts::count;

/// The model's treatment of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Did {
    Answered(u64),
    Failed,
    Panicked,
}

/// By the number of a row: what the model did with the batch that had it.
type Log = Arc<Mutex<BTreeMap<usize, Did>>>;

/// The end of a call, as its caller saw it.
#[derive(Debug)]
enum Saw {
    Answer(u64),
    Model,
    Panic,
    /// No batch may have had the row.
    NoBatch,
    /// A batch may have had the row.
    Left,
}

/// Adds a model that notes its batches, fails some, and panics at others.
fn swap(batcher: &Batcher<(f32,), (f32,)>, log: &Log, version: u64) -> u64 {
    let log = log.clone();
    batcher.swap(move |_, (x,), calls| model(log.clone(), x, calls, version)).unwrap()
}

async fn model(log: Log, x: Tensor, calls: usize, version: u64) -> warpline::Result<(Tensor,)> {
    let rows = x.to_vec::<f32>().await?;
    assert_eq!(rows.len() % ROW, 0);
    let numbers: Vec<_> = rows.chunks(ROW).map(|row| row[0] as usize).collect();
    for (row, number) in rows.chunks(ROW).zip(&numbers) {
        // Unused rows are zeros. Those of calls come first.
        assert_eq!(row, [*number as f32; ROW]);
    }
    assert!(
        numbers[..calls].iter().all(|&number| number > 0)
            && numbers[calls..].iter().all(|&number| number == 0)
    );
    let mut dice = Dice::new(numbers[0] as u64);
    sleep(Duration::from_millis(dice.below(4) as u64)).await;
    let did = match dice.below(10) {
        0 => Did::Failed,
        1 => Did::Panicked,
        _ => Did::Answered(version),
    };
    let mut log = log.lock().unwrap();
    for &number in &numbers[..calls] {
        assert_eq!(log.insert(number, did), None, "row {number} is in one batch");
    }
    drop(log);
    match did {
        Did::Failed => Err(Error::new(ErrorKind::Data, "planned")),
        Did::Panicked => panic!("planned"),
        Did::Answered(_) => Ok(((&x * 2.0).queued()?,)),
    }
}

async fn caller(batcher: Batcher<(f32,), (f32,)>, number: usize, seed: u64) -> Saw {
    let mut dice = Dice::new(seed * 1000 + number as u64);
    sleep(Duration::from_millis(dice.below(20) as u64)).await;
    let fails = dice.below(12) == 0;
    let mut call = batcher.submit(move |(row,)| {
        row.fill(number as f32);
        if fails { Err("planned".into()) } else { Ok(()) }
    });
    if dice.below(3) == 0 {
        call = call.deadline(Instant::now() + Duration::from_millis(dice.below(15) as u64));
    }
    let patience = if dice.below(4) == 0 { dice.below(6) as u64 } else { 10_000 };
    match timeout(Duration::from_millis(patience), call).await {
        Err(_) => Saw::Left,
        Ok(Ok(answer)) => {
            assert_eq!(answer.outputs().0, [2.0 * number as f32; ROW]);
            assert!(!fails);
            Saw::Answer(answer.version())
        }
        Ok(Err(error)) => match error {
            ServeError::Writer(_) => {
                assert!(fails);
                Saw::NoBatch
            }
            ServeError::Full { .. } | ServeError::Draining => Saw::NoBatch,
            ServeError::Late => Saw::Left,
            ServeError::Model(error) => {
                assert_eq!(error.to_string(), "planned");
                Saw::Model
            }
            ServeError::Panicked(why) => {
                assert_eq!(&*why, "planned");
                Saw::Panic
            }
            error => panic!("call {number}: {error}"),
        },
    }
}

async fn history(device: Device, seed: u64) {
    let mut dice = Dice::new(seed);
    let log = Log::default();
    let max_rows = 1 + dice.below(5);
    let mut built = builder(&device)
        .max_rows(max_rows)
        .in_flight(1 + dice.below(3))
        .max_queued(max_rows + dice.below(10))
        .max_wait(Duration::from_millis([0, 0, 2][dice.below(3)]));
    if dice.below(2) == 0 {
        built = built.fixed_rows();
    }
    let first = log.clone();
    let batcher = built.build(move |_, (x,), calls| model(first.clone(), x, calls, 0)).await.unwrap();
    let calls = 5 + dice.below(40);
    let callers = (1..=calls).map(|number| tokio::spawn(caller(batcher.clone(), number, seed)));
    let callers = join_all(callers.collect::<Vec<_>>());
    let others = async {
        for version in 1..=dice.below(4) as u64 {
            sleep(Duration::from_millis(dice.below(10) as u64)).await;
            assert_eq!(swap(&batcher, &log, version), version);
        }
        if dice.below(3) == 0 {
            sleep(Duration::from_millis(dice.below(15) as u64)).await;
            batcher.drain(Instant::now() + Duration::from_millis(dice.below(8) as u64)).await;
        }
    };
    let (saw, ()) = futures::join!(callers, others);
    let drained = batcher.drain(Instant::now() + Duration::from_secs(60)).await;
    assert_eq!((drained.refused, drained.running), (0, 0));
    let log = log.lock().unwrap();
    for (number, saw) in (1..).zip(saw) {
        let (saw, did) = (saw.unwrap(), log.get(&number).copied());
        let fits = match saw {
            Saw::Answer(version) => did == Some(Did::Answered(version)),
            Saw::Model => did == Some(Did::Failed),
            Saw::Panic => did == Some(Did::Panicked),
            Saw::NoBatch => did.is_none(),
            Saw::Left => true,
        };
        assert!(fits, "seed {seed}: call {number} saw {saw:?}, and the model did {did:?}");
    }
}

#[test]
fn each_call_has_the_answer_of_the_batch_that_had_its_row_under_seeds() {
    for seed in 1..=count(60, 10_000) {
        warpline::testing::for_each_seed_tokio([seed], |device| async move {
            history(device, seed).await;
            Ok(())
        });
    }
}

#[test]
fn each_call_has_the_answer_of_the_batch_that_had_its_row_on_threads() {
    let runtime = support::runtime(1);
    let device = runtime.devices()[0].clone();
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    tokio.block_on(async {
        for seed in 1..=count(20, 2_000) {
            history(device.clone(), seed).await;
        }
    });
    // With it, the tasks of the batchers end.
    drop(tokio);
    let in_use = (device.memory_stats().allocated_bytes, device.pinned_stats().allocated_bytes);
    assert_eq!(in_use, (0, 0));
}
