//! The ends of a loader: the last batch, an error, a panic, a dropped stream, and a runtime that is
//! shut down. Everything that a loader starts ends, and all memory returns.

use crate::loader::{calls, counting, one_by_one, tokio};
use crate::support::{block_on, says, streams, within_a_minute};
use futures::stream::FusedStream as _;
use futures::{FutureExt as _, TryStreamExt as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use warpline::Result;
use warpline::ops::Shape;
use warpline::ops::data::{Batches, Rows, SequentialDataset};
use warpline::prelude::*;
use warpline::testing::for_each_seed;

#[test]
fn it_is_terminated_only_after_the_end_or_the_error_was_yielded() {
    let (_runtime, _, [copy]) = streams(["copy"]);
    let failing = calls(|row| match row {
        12 => Err(Error::new(ErrorKind::Data, "row 12 is bad")),
        _ => Ok(Some(row as i64)),
    });
    let whole = Loader::sequential(one_by_one(12)).batch_size(4).prefetch(3).on(&copy).build().unwrap();
    let cut = Loader::sequential(failing).batch_size(4).prefetch(3).on(&copy).build().unwrap();
    for (mut batches, errors) in [(whole, 0), (cut, 1)] {
        let mut got = (0, 0);
        block_on(async {
            // The first poll reads everything inline, but the later batches are still to be
            // yielded.
            while !batches.is_terminated() {
                futures::select! {
                    batch = batches.next() => match batch {
                        Some(Ok(_)) => got.0 += 1,
                        Some(Err(error)) => { says(&error, ErrorKind::Data, &["row 12 is bad"]); got.1 += 1 }
                        None => {}
                    },
                    complete => break,
                }
            }
        });
        assert_eq!(got, (3, errors));
        assert!(block_on(batches.next()).is_none());
    }
}

#[test]
fn dropping_the_stream_anywhere_gives_everything_back() {
    for polls in 0..40 {
        for_each_seed([polls], |device| async move {
            let copy = device.new_stream()?;
            let mut batches = Loader::new(counting(40)).batch_size(4).prefetch(2).on(&copy).build()?;
            for _ in 0..polls {
                // A poll that finds nothing is dropped with its future, and the next one continues.
                if batches.next().now_or_never().is_some_and(|next| next.is_none()) {
                    break;
                }
            }
            drop(batches);
            device.synchronize().await?;
            assert_eq!((device.memory_stats().live_blocks, device.pinned_stats().allocated_bytes), (0, 0));
            Ok(())
        });
    }
}

#[test]
fn polls_that_are_dropped_lose_no_batch() {
    let (_runtime, _, [copy]) = streams(["copy"]);
    tokio(2).block_on(async {
        let mut batches = Loader::new(counting(400)).batch_size(4).prefetch(2).on(&copy).build().unwrap();
        let mut indices = Vec::new();
        loop {
            let polled = batches.try_next().now_or_never();
            match polled {
                None => tokio::task::yield_now().await,
                Some(Ok(Some(batch))) => indices.push(batch.index),
                Some(end) => break drop(end.unwrap()),
            }
        }
        assert_eq!(indices, (0..100).collect::<Vec<_>>());
        assert!(batches.next().await.is_none(), "it stays ended");
    });
}

/// Sends a message when it is dropped.
pub(crate) struct Told(pub(crate) Sender<()>);

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// Returns an endless dataset, and a receiver that gets a message when everything of the dataset is
/// gone.
fn endless() -> (impl SequentialDataset<Sample = (f32, i64)>, Receiver<()>) {
    let (gone, told) = channel();
    let gone = Mutex::new(Told(gone));
    let dataset = calls(move |_| {
        let _kept = &gone;
        Ok(Some(0))
    });
    (dataset, told)
}

#[test]
fn dropping_the_stream_stops_its_reader() {
    within_a_minute(|| {
        let (_runtime, device, [copy]) = streams(["copy"]);
        let tokio = tokio(2);
        for taken in 0..10 {
            let (dataset, gone) = endless();
            let mut batches =
                Loader::sequential(dataset).batch_size(4).prefetch(2).on(&copy).build().unwrap();
            tokio.block_on(async {
                drop(batches.next().now_or_never());
                for _ in 0..taken {
                    batches.try_next().await.unwrap().unwrap();
                }
            });
            drop(batches);
            gone.recv().unwrap();
            // The reader releases the batch that it was filling last of all.
            while (device.memory_stats().live_blocks, device.pinned_stats().allocated_bytes) != (0, 0) {
                std::thread::yield_now();
            }
        }
    });
}

#[test]
fn a_reader_in_the_middle_of_a_batch_or_of_filling_its_buffer_stops_at_the_next_row() {
    within_a_minute(|| {
        let (_runtime, _, [copy]) = streams(["copy"]);
        let tokio = tokio(2);
        for shuffled in [false, true] {
            let ((gone, told), (arrived, arrival), (release, released)) = (channel(), channel(), channel());
            let (gone, inner) = (Mutex::new(Told(gone)), Mutex::new((arrived, released)));
            let rows = Arc::new(AtomicUsize::new(0));
            let counter = rows.clone();
            let dataset = calls(move |row| {
                let _kept = &gone;
                counter.store(row as usize, Ordering::SeqCst);
                if row == 10 {
                    let inner = inner.lock().unwrap();
                    inner.0.send(()).unwrap();
                    inner.1.recv().unwrap();
                }
                Ok(Some(0))
            });
            let loader = Loader::sequential(dataset).batch_size(1000).on(&copy);
            let loader = if shuffled { loader.shuffle(1) } else { loader };
            let mut batches = loader.build().unwrap();
            tokio.block_on(async { assert!(batches.next().now_or_never().is_none()) });
            arrival.recv().unwrap();
            drop(batches);
            release.send(()).unwrap();
            told.recv().unwrap();
            assert_eq!(rows.load(Ordering::SeqCst), 10, "no row was read after the stream was dropped");
        }
    });
}

#[test]
fn a_tokio_runtime_that_is_shut_down_neither_hangs_nor_ends_the_epoch_quietly() {
    within_a_minute(|| {
        let (_runtime, _, [copy]) = streams(["copy"]);
        let (dataset, _gone) = endless();
        let tokio = tokio(2);
        let mut batches = Loader::sequential(dataset).batch_size(4).prefetch(2).on(&copy).build().unwrap();
        tokio.block_on(async {
            batches.try_next().await.unwrap().unwrap();
        });
        // The reader has no memory left to read into, and waits.
        drop(tokio);
        ends_with_its_tokio_runtime(batches);
    });
}

#[test]
fn a_device_that_takes_no_more_work_ends_the_batches_although_the_dataset_waits() {
    for fails in [true, false] {
        within_a_minute(move || {
            let (runtime, _, [copy, failing]) = streams(["copy", "failing"]);
            let (tell, told) = channel();
            let (go, gone) = channel::<()>();
            let gone = Mutex::new(gone);
            let dataset = calls(move |row| {
                if row == 4 {
                    tell.send(()).unwrap();
                    let _ = gone.lock().unwrap().recv();
                }
                Ok(Some(row as i64))
            });
            let mut batches =
                Loader::sequential(dataset).batch_size(4).prefetch(2).on(&copy).build().unwrap();
            tokio(2).block_on(async {
                batches.try_next().await.unwrap().unwrap();
                let ended = tokio::spawn(async move {
                    told.recv().unwrap();
                    if fails {
                        crate::support::break_device(&failing).await.unwrap_err();
                        return Some(runtime);
                    }
                    runtime.shut_down().await.unwrap();
                    None
                });
                let error = batches.try_next().await.unwrap_err();
                match fails {
                    true => says(&error, ErrorKind::Fault, &["fails failed on stream \"failing\""]),
                    false => says(
                        &error,
                        ErrorKind::ShutDown,
                        &["cpu:0 accepts no more work", "until the last batch"],
                    ),
                }
                assert!(batches.next().await.is_none());
                drop((go, ended.await.unwrap()));
            });
        });
    }
}

/// Checks that the batches end with an error because the tokio runtime that read them was shut
/// down.
pub(crate) fn ends_with_its_tokio_runtime(mut batches: Batches<(f32, i64)>) {
    let error = block_on(async {
        loop {
            if let Err(error) = batches.try_next().await {
                break error;
            }
        }
    });
    says(&error, ErrorKind::Closed, &["epochs 0..1", "the tokio runtime that read them was shut down"]);
    assert!(block_on(batches.next()).is_none());
}

#[test]
fn a_panic_or_an_error_in_a_dataset_comes_in_its_place() {
    let (_runtime, _, [copy]) = streams(["copy"]);
    let failing = |row: u64| match row {
        10 => Err(Error::new(ErrorKind::Data, "row 10 is bad")),
        _ => Ok(Some(row as i64)),
    };
    let panicking = |row: u64| if row == 10 { panic!("on purpose at row {row}") } else { Ok(Some(0)) };
    let expect = |mut batches: Batches<(f32, i64)>, text: &'static str| async move {
        for index in 0..2 {
            assert_eq!(batches.try_next().await.unwrap().unwrap().index, index);
        }
        says(&batches.try_next().await.unwrap_err(), ErrorKind::Data, &[text]);
        assert!(batches.next().await.is_none(), "nothing comes after an error");
    };
    let failing = || Loader::sequential(calls(failing)).batch_size(4).on(&copy).build().unwrap();
    let panicking = || Loader::sequential(calls(panicking)).batch_size(4).on(&copy).build().unwrap();
    let text = "the dataset panicked at batch 2 of epoch 0: on purpose at row 10; correct its \
        code";
    block_on(expect(failing(), "row 10 is bad"));
    block_on(expect(panicking(), text));
    tokio(2).block_on(expect(failing(), "row 10 is bad"));
    tokio(2).block_on(expect(panicking(), text));
}

#[test]
fn a_panic_ahead_of_its_epoch_waits_for_it() {
    // With a shuffle buffer, row 0 of the second epoch is read while the first epoch's buffer runs
    // empty. Without one, opening the second epoch panics instead.
    let (_runtime, _, [copy]) = streams(["copy"]);
    let opened = AtomicUsize::new(0);
    let dataset = calls(move |row| {
        if row == 0 && opened.fetch_add(1, Ordering::Relaxed) == 2 {
            panic!("on purpose at the second epoch's first row");
        }
        Ok((row < 50).then_some(row as i64))
    });
    let loader =
        Loader::sequential(dataset).batch_size(10).prefetch(1).shuffle(1).shuffle_capacity(30).on(&copy);
    let mut batches = loader.build().unwrap().epochs(0..2);
    for index in 0..5 {
        assert_eq!(block_on(batches.try_next()).unwrap().unwrap().index, index);
    }
    let error = block_on(batches.try_next()).unwrap_err();
    let text = "the dataset panicked at batch 0 of epoch 1: on purpose at the second epoch's \
        first row; correct its code";
    says(&error, ErrorKind::Data, &[text]);
    assert!(block_on(batches.next()).is_none());

    struct OpensTwice<D>(D, AtomicUsize);
    impl<D: SequentialDataset<Sample = (f32, i64)>> SequentialDataset for OpensTwice<D> {
        type Sample = (f32, i64);

        fn shapes(&self) -> [Shape; 2] {
            self.0.shapes()
        }

        fn open(&self) -> Result<Box<dyn Rows<(f32, i64)>>> {
            assert!(self.1.fetch_add(1, Ordering::Relaxed) < 2, "it opens twice");
            self.0.open()
        }
    }
    let dataset = OpensTwice(one_by_one(8), AtomicUsize::new(0));
    let loader = Loader::sequential(dataset).batch_size(4).on(&copy);
    let mut batches = loader.build().unwrap().epochs(3..5);
    for index in 0..2 {
        assert_eq!(block_on(batches.try_next()).unwrap().unwrap().index, index);
    }
    let text = "the dataset panicked at batch 0 of epoch 4: it opens twice";
    says(&block_on(batches.try_next()).unwrap_err(), ErrorKind::Data, &[text]);
}

#[test]
fn a_device_fault_ends_the_stream() {
    within_a_minute(|| {
        let runtime = Runtime::builder().fail_op(6).build().unwrap();
        let copy = runtime.device(DeviceId::Cpu(0)).unwrap().new_stream().unwrap();
        let (dataset, gone) = endless();
        let error = tokio(2).block_on(async {
            let mut batches = Loader::sequential(dataset).batch_size(4).on(&copy).build().unwrap();
            loop {
                if let Err(error) = batches.try_next().await {
                    break error;
                }
            }
        });
        says(&error, ErrorKind::Fault, &["the fault plan asked for it"]);
        gone.recv().unwrap();
    });
}
