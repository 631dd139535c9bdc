//! The loader. It gives the same batches on every executor, and its memory is bounded.

use crate::support::{block_on, runtime, says, streams, within_a_minute};
use futures::{FutureExt as _, TryStreamExt as _};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use warpline::Result;
use warpline::ops::Shape;
use warpline::ops::data::{Batches, InMemory, InOrder, Rows, SequentialDataset};
use warpline::prelude::*;
use warpline::testing::for_each_seed;

/// Returns a dataset that is read by index, whose row i is `[i, -i]` with label i.
pub(crate) fn counting(rows: usize) -> InMemory<(f32, i64)> {
    let labels: Vec<_> = (0..rows as i64).collect();
    let x = labels.iter().flat_map(|&label| [label as f32, -label as f32]).collect();
    InMemory::new(2, x, labels).unwrap()
}

/// Returns the rows of `counting` as a sequential dataset.
pub(crate) fn one_by_one(rows: u64) -> impl SequentialDataset<Sample = (f32, i64)> {
    calls(move |row| Ok((row < rows).then_some(row as i64)))
}

/// A sequential dataset of a function that is called with a row's index and returns its label. The
/// features are the index and its negative.
pub(crate) struct Calls<F>(Arc<F>);

impl<F: Fn(u64) -> Result<Option<i64>> + Send + Sync + 'static> SequentialDataset for Calls<F> {
    type Sample = (f32, i64);

    fn shapes(&self) -> [Shape; 2] {
        [[2].into(), [].into()]
    }

    fn open(&self) -> Result<Box<dyn Rows<(f32, i64)>>> {
        Ok(Box::new(CallRows(self.0.clone(), 0)))
    }
}

struct CallRows<F>(Arc<F>, u64);

impl<F: Fn(u64) -> Result<Option<i64>> + Send + Sync> Rows<(f32, i64)> for CallRows<F> {
    fn next_row(&mut self, (features, label): (&mut [f32], &mut [i64])) -> Result<bool> {
        features.copy_from_slice(&[self.1 as f32, -(self.1 as f32)]);
        self.1 += 1;
        let next = (self.0)(self.1 - 1)?;
        label[0] = next.unwrap_or_default();
        Ok(next.is_some())
    }
}

pub(crate) fn calls<F: Fn(u64) -> Result<Option<i64>> + Send + Sync + 'static>(row: F) -> Calls<F> {
    Calls(Arc::new(row))
}

/// Returns the labels of each batch, read on another stream than the one that copied them. Checks
/// that the features belong to the labels.
pub(crate) async fn labels(mut batches: Batches<(f32, i64)>) -> Result<Vec<Vec<i64>>> {
    let mut all = Vec::new();
    let mut at = (0, 0);
    while let Some(batch) = batches.try_next().await? {
        at = (batch.epoch, if batch.epoch == at.0 { at.1 } else { 0 });
        let (x, labels) = batch.tensors();
        assert_eq!((x.shape(), labels.shape()), (&[batch.rows, 2][..], &[batch.rows][..]));
        let compute = x.device().new_stream()?;
        compute.wait_event(&batch.copied);
        let (x, labels) = compute.enter(|| (x.to_vec::<f32>(), labels.to_vec::<i64>()));
        let (index, rows) = (batch.index, batch.rows);
        drop(batch);
        let (x, labels) = (x.await?, labels.await?);
        let expected: Vec<_> = labels.iter().flat_map(|&label| [label as f32, -label as f32]).collect();
        assert_eq!((x, labels.len(), index), (expected, rows, at.1));
        at.1 += 1;
        all.push(labels);
    }
    assert_eq!(batches.stats().rows, all.iter().map(|batch| batch.len() as u64).sum::<u64>());
    assert_eq!(batches.stats().batches, all.len() as u64);
    Ok(all)
}

pub(crate) fn tokio(threads: usize) -> tokio::runtime::Runtime {
    match threads {
        1 => tokio::runtime::Builder::new_current_thread().build().unwrap(),
        _ => tokio::runtime::Builder::new_multi_thread().worker_threads(threads).build().unwrap(),
    }
}

#[test]
fn batches_are_the_rows_in_order_with_a_shorter_one_at_the_end() {
    let (_runtime, _, [copy]) = streams(["copy"]);
    let loader = Loader::new(counting(10)).batch_size(4).on(&copy);
    let all = block_on(labels(loader.clone().build().unwrap())).unwrap();
    assert_eq!(all, [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]]);
    let whole = block_on(labels(loader.drop_last(true).build().unwrap())).unwrap();
    assert_eq!(whole, [vec![0, 1, 2, 3], vec![4, 5, 6, 7]]);
}

#[test]
fn every_executor_and_every_seed_gives_the_same_batches() {
    let loader = |copy: &Stream| {
        Loader::sequential(one_by_one(103))
            .batch_size(8)
            .shuffle(5)
            .shuffle_capacity(20)
            .prefetch(3)
            .on(copy)
            .build()
    };
    let (_runtime, _, [copy]) = streams(["copy"]);
    let expected: Vec<_> =
        (0..3).map(|epoch| block_on(labels(loader(&copy).unwrap().epoch(epoch))).unwrap()).collect();
    assert_ne!(expected[0], expected[1]);
    let mut sorted = expected[0].concat();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..103).collect::<Vec<_>>());

    for threads in [1, 4] {
        let batches = loader(&copy).unwrap();
        for epoch in [2, 0, 1] {
            let got = tokio(threads).block_on(labels(batches.epoch(epoch))).unwrap();
            assert_eq!(got, expected[epoch as usize], "{threads} threads, epoch {epoch}");
        }
        let got = tokio(threads).block_on(labels(batches.epochs(0..3))).unwrap();
        assert_eq!(got, expected.concat(), "{threads} threads, one epoch after the other");
    }
    let inside_tokio = tokio(1);
    for_each_seed(0..20, |device| {
        let (expected, inside) = (&expected[1], inside_tokio.enter());
        async move {
            let batches = loader(&device.new_stream()?)?.epoch(1);
            assert_eq!(&labels(batches).await?, expected);
            drop(inside);
            Ok(())
        }
    });
}

#[test]
fn epochs_say_which_they_are_and_drop_their_own_rest() {
    let (_runtime, _, [copy]) = streams(["copy"]);
    for shuffled in [false, true] {
        let mut loader = Loader::sequential(one_by_one(10)).batch_size(4).drop_last(true).on(&copy);
        if shuffled {
            loader = loader.shuffle(1).shuffle_capacity(3);
        }
        let batches: Vec<_> = block_on(loader.build().unwrap().epochs(5..8).try_collect()).unwrap();
        let places: Vec<_> = batches.iter().map(|batch| (batch.epoch, batch.index, batch.rows)).collect();
        assert_eq!(places, [(5, 0, 4), (5, 1, 4), (6, 0, 4), (6, 1, 4), (7, 0, 4), (7, 1, 4)]);
    }
    let none: Vec<_> =
        block_on(Loader::new(counting(10)).on(&copy).build().unwrap().epochs(3..3).try_collect::<Vec<_>>())
            .unwrap();
    assert!(none.is_empty());
    let last = Loader::new(counting(10)).shuffle(1).on(&copy).build().unwrap().epoch(u64::MAX - 1);
    let last: Vec<_> = block_on(last.try_collect()).unwrap();
    assert_eq!(last.iter().map(|batch| batch.epoch).collect::<Vec<_>>(), [u64::MAX - 1]);
}

#[test]
fn while_one_epochs_buffer_runs_empty_the_next_ones_fills() {
    // The number of rows read so far. The dataset has 100 rows, and the buffer holds 40.
    let read = Arc::new(AtomicU64::new(0));
    let count = read.clone();
    let dataset = calls(move |row| {
        Ok((row < 100).then(|| {
            count.fetch_add(1, Ordering::Relaxed);
            row as i64
        }))
    });
    let (_runtime, _, [copy]) = streams(["copy"]);
    let loader =
        Loader::sequential(dataset).batch_size(10).prefetch(1).shuffle(3).shuffle_capacity(40).on(&copy);
    let mut batches = loader.build().unwrap().epochs(0..3);
    let mut before = 0;
    let mut reads = Vec::new();
    while let Some(batch) = block_on(batches.try_next()).unwrap() {
        let now = read.load(Ordering::Relaxed);
        reads.push((batch.epoch, now - before));
        before = now;
    }
    // A poll that reads inline reads only as much as the released memory allows: at most two
    // batches, and never a full buffer.
    assert!(reads[1..].iter().all(|&(_, rows)| rows <= 21), "{reads:?}");
}

#[test]
fn an_error_ahead_of_its_epoch_waits_for_it() {
    let opened = Arc::new(AtomicUsize::new(0));
    let broken = opened.clone();
    let dataset = calls(move |row| {
        if row == 0 {
            broken.fetch_add(1, Ordering::Relaxed);
        }
        // The first opening is by `build`, the second is read to its end, and the third fails.
        if broken.load(Ordering::Relaxed) > 2 {
            return Err(Error::new(ErrorKind::Data, "row 0 is broken"));
        }
        Ok((row < 50).then_some(row as i64))
    });
    let (_runtime, _, [copy]) = streams(["copy"]);
    let loader = Loader::sequential(dataset).batch_size(10).shuffle(3).shuffle_capacity(30).on(&copy);
    let mut batches = loader.build().unwrap().epochs(0..2);
    for index in 0..5 {
        let batch = block_on(batches.try_next()).unwrap().unwrap();
        assert_eq!((batch.epoch, batch.index, batch.rows), (0, index, 10));
    }
    let error = block_on(batches.try_next()).unwrap_err();
    says(&error, ErrorKind::Data, &["row 0 is broken"]);
    assert_eq!(opened.load(Ordering::Relaxed), 3);
}

#[test]
fn a_batch_that_no_edge_orders_is_refused_under_every_seed() {
    for_each_seed(0..20, |device| async move {
        let (copy, compute) = (device.stream().label("copy").build()?, device.new_stream()?);
        let mut batches = Loader::new(counting(64)).batch_size(8).prefetch(2).on(&copy).build()?;
        while let Some(batch) = batches.try_next().await? {
            let error = compute.enter(|| batch.tensors().0.sum().item::<f32>()).await.unwrap_err();
            says(&error, ErrorKind::Unordered, &["\"copy\"", "wait_stream"]);
            compute.wait_event(&batch.copied);
            compute.enter(|| batch.tensors().0.sum().item::<f32>()).await?;
        }
        Ok(())
    });
}

#[test]
fn with_each_batchs_own_edge_verdicts_are_the_same_at_any_speed_of_the_reader() {
    let (_runtime, _, [copy, compute]) = streams(["copy", "compute"]);
    let verdicts = move |slow: bool| {
        let (go, wait) = channel();
        let wait = Mutex::new(wait);
        // A slow reader starts a batch only after the verdicts on the previous one.
        let dataset = calls(move |row| {
            if slow && row > 0 && row % 4 == 0 {
                wait.lock().unwrap().recv().unwrap();
            }
            Ok((row < 40).then_some(row as i64))
        });
        let mut batches = Loader::sequential(dataset).batch_size(4).prefetch(4).on(&copy).build().unwrap();
        tokio(2).block_on(async {
            let mut accepted = Vec::new();
            while let Some(batch) = batches.try_next().await.unwrap() {
                let sum = || compute.enter(|| batch.tensors().0.sum().item::<f32>());
                let without = sum().await.is_ok();
                compute.wait_event(&batch.copied);
                accepted.push((without, sum().await.is_ok()));
                // This fails once a fast reader has ended.
                let _ = go.send(());
            }
            accepted
        })
    };
    within_a_minute(move || {
        for slow in [false, true] {
            assert_eq!(verdicts(slow), [(false, true); 10], "slow: {slow}");
        }
    });
}

#[test]
fn the_next_batches_arrive_while_a_step_is_held() {
    let (_runtime, _, [copy, compute]) = streams(["copy", "compute"]);
    within_a_minute(move || {
        tokio(2).block_on(async {
            let mut batches = Loader::new(counting(100)).batch_size(4).prefetch(3).on(&copy).build().unwrap();
            let first = batches.try_next().await.unwrap().unwrap();
            compute.wait_event(&first.copied);
            let gate = compute.hold().unwrap();
            let mut step = compute.enter(|| first.tensors().0.sum().item::<f32>());
            // Each batch is read and copied before the step on the first one begins.
            for _ in 0..10 {
                batches.try_next().await.unwrap().unwrap().copied.await.unwrap();
            }
            assert!(!step.query().unwrap());
            gate.open();
            assert_eq!(step.await.unwrap(), 0.0);
        });
    });
}

#[test]
fn the_reader_is_never_further_ahead_than_asked_for() {
    const BATCH: u64 = 4;
    for prefetch in [1, 3] {
        let (_runtime, device, [copy]) = streams(["copy"]);
        let asked = Arc::new(AtomicU64::new(0));
        let (told, rows) = channel();
        let (told, seen) = (Mutex::new(told), asked.clone());
        let dataset = calls(move |row| {
            let (batch, yielded) = (row / BATCH, seen.load(Ordering::SeqCst));
            assert!(batch <= yielded + prefetch, "batch {batch} is read when {yielded} were yielded");
            told.lock().unwrap().send(row).unwrap();
            Ok((row < 100).then_some(0))
        });
        let mut batches = Loader::sequential(dataset)
            .batch_size(BATCH as usize)
            .prefetch(prefetch as usize)
            .on(&copy)
            .build()
            .unwrap();
        rows.recv().unwrap(); // `build` reads one row
        let gate = copy.hold().unwrap();
        tokio(2).block_on(async {
            let first = batches.try_next().await.unwrap().unwrap();
            // While the copies are held, this many rows are read ahead. Then there is no memory
            // left to read into.
            (0..(prefetch + 1) * BATCH).for_each(|row| assert_eq!(rows.recv().unwrap(), row));
            for index in 1..=prefetch {
                assert_eq!(batches.try_next().await.unwrap().unwrap().index, index);
            }
            assert!(batches.next().now_or_never().is_none(), "all pinned memory is in copies");
            assert!(!first.copied.query().unwrap());
            asked.store(prefetch + 1, Ordering::SeqCst);
            gate.open();
            while let Some(batch) = batches.try_next().await.unwrap() {
                asked.store(batch.index + 1, Ordering::SeqCst);
            }
        });
        // 4 KiB is the smallest block of pinned memory: one for the features, one for the labels.
        let most = (prefetch as usize + 1) * 2 * 4096;
        assert_eq!(device.pinned_stats().peak_reserved_bytes, most);
    }
}

#[test]
fn memory_stays_what_it_was_after_the_first_epoch() {
    let (_runtime, device, [copy, compute]) = streams(["copy", "compute"]);
    tokio(2).block_on(async {
        let loader =
            Loader::new(counting(1000)).batch_size(64).shuffle(1).prefetch(2).on(&copy).build().unwrap();
        let after = sizes_after_epochs(&loader, &device, &compute).await;
        assert!(after.iter().all(|sizes| *sizes == after[0]), "{after:?}");
    });
}

/// Reads 20 epochs. Returns the bytes reserved on the device and the peak of pinned bytes after
/// each, and checks that only the loader's own memory is in use then.
pub(crate) async fn sizes_after_epochs(
    loader: &Batches<(f32, i64)>,
    device: &Device,
    compute: &Stream,
) -> Vec<(usize, usize)> {
    let mut sizes = Vec::new();
    for epoch in 0..20 {
        let mut batches = loader.epoch(epoch);
        while let Some(batch) = batches.try_next().await.unwrap() {
            compute.wait_event(&batch.copied);
            compute.enter(|| batch.tensors().0.sum().item::<f32>()).await.unwrap();
        }
        device.synchronize().await.unwrap();
        let (memory, pinned) = (device.memory_stats(), device.pinned_stats());
        // The loader keeps memory for a batch: 64 rows of a number and a label.
        assert_eq!((memory.live_blocks, pinned.allocated_bytes), (0, 2 * 4096));
        sizes.push((memory.reserved_bytes, pinned.peak_reserved_bytes));
    }
    sizes
}

#[test]
fn with_little_prefetch_no_batch_is_kept_for_others() {
    // The first row of a batch waits until the previous batch was yielded.
    for prefetch in [1, 4] {
        within_a_minute(move || {
            let (_runtime, _, [copy]) = streams(["copy"]);
            let (yielded, wait) = channel();
            let wait = Mutex::new(wait);
            let dataset = calls(move |row| {
                if row % 4 == 0 && row > 0 {
                    wait.lock().unwrap().recv().unwrap();
                }
                Ok((row < 40).then_some(row as i64))
            });
            let loader = Loader::sequential(dataset).batch_size(4).prefetch(prefetch).on(&copy);
            let mut batches = loader.build().unwrap();
            tokio(2).block_on(async {
                while batches.try_next().await.unwrap().is_some() {
                    yielded.send(()).unwrap();
                }
            });
            assert_eq!(batches.stats().rows, 40);
        });
    }
}

#[test]
fn a_quick_batch_that_is_kept_for_others_goes_before_the_row_after_a_slow_one() {
    within_a_minute(|| {
        let (_runtime, _, [copy]) = streams(["copy"]);
        let (yielded, wait) = channel();
        let wait = Mutex::new(wait);
        let dataset = calls(move |row| {
            match row {
                // This row takes twice as long as a batch may be kept.
                5 => {
                    let began = Instant::now();
                    while began.elapsed() < Duration::from_millis(1) {}
                }
                6 => wait.lock().unwrap().recv().unwrap(),
                _ => {}
            }
            Ok((row < 40).then_some(row as i64))
        });
        let mut batches = Loader::sequential(dataset).batch_size(4).prefetch(8).on(&copy).build().unwrap();
        tokio(2).block_on(async {
            assert_eq!(batches.try_next().await.unwrap().unwrap().index, 0);
            yielded.send(()).unwrap();
            while batches.try_next().await.unwrap().is_some() {}
        });
        assert_eq!(batches.stats().rows, 40);
    });
}

#[test]
fn options_that_cannot_work_are_refused_when_it_is_built() {
    let (_runtime, _, [copy]) = streams(["copy"]);
    let loader = || Loader::new(counting(4)).on(&copy);
    let sequential = || Loader::sequential(one_by_one(4)).on(&copy);
    let refused = |loader: Loader<(f32, i64)>, part: &str| {
        let text = [part, "at least 1 is needed"];
        says(&loader.build().unwrap_err(), ErrorKind::InvalidArgument, &text);
    };
    refused(loader().batch_size(0), "batch_size is 0");
    refused(loader().prefetch(0), "prefetch is 0");
    refused(sequential().shuffle(1).shuffle_capacity(0), "shuffle_capacity is 0");
    let error = loader().batch_size(usize::MAX).build().unwrap_err();
    says(
        &error,
        ErrorKind::InvalidArgument,
        &["a batch of 18446744073709551615 samples of the shapes [2], []"],
    );
    for error in [
        Loader::new(counting(0)).on(&copy).build().unwrap_err(),
        Loader::sequential(one_by_one(0)).on(&copy).build().unwrap_err(),
    ] {
        says(&error, ErrorKind::Data, &["the dataset has 0 rows"]);
    }
    let text = ["18446744073709551615 workers", "the 512 blocking threads", "lower workers"];
    says(&loader().workers(usize::MAX).build().unwrap_err(), ErrorKind::InvalidArgument, &text);
    let exclude = |loader: Loader<(f32, i64)>, text: &[&str]| {
        says(&loader.build().unwrap_err(), ErrorKind::InvalidArgument, text);
    };
    exclude(
        loader().shuffle(1).sampler(InOrder),
        &["shuffle and a sampler are both set", "remove one of them"],
    );
    exclude(loader().shuffle_capacity(8), &["shuffle_capacity is for sequential datasets", "remove it"]);
    exclude(sequential().sampler(InOrder), &["this dataset is sequential", "remove the sampler"]);
    exclude(sequential().workers(2), &["this dataset is sequential", "set 1 worker"]);
    exclude(
        loader().workers(4).prefetch(2),
        &["4 workers need as many pinned batches, and a prefetch of 2 has 3", "lower workers"],
    );
    let limited = copy.device().stream().label("limited").max_in_flight(2).build().unwrap();
    let text = ["stream \"limited\" has a limit of ops in flight", "give it a stream without max_in_flight"];
    says(&loader().on(&limited).build().unwrap_err(), ErrorKind::InvalidArgument, &text);
    let full = [(); 2].map(|()| block_on(limited.room()).unwrap());
    says(&loader().on(&limited).build().unwrap_err(), ErrorKind::InvalidArgument, &text);
    drop(full);
    let error = InMemory::new(3, vec![0.0; 7], vec![0; 2]).unwrap_err();
    says(&error, ErrorKind::Shape, &["2 labels", "7 numbers", "expected 3 numbers for each label"]);
    let mut batches = loader().batch_size(32).drop_last(true).build().unwrap();
    let error = block_on(batches.try_next()).unwrap_err();
    says(&error, ErrorKind::Data, &["epoch 0 has no batch", "4 rows", "batch_size is 32"]);
    // The error is the same although the next epoch is opened before it is found.
    let small = sequential().batch_size(32).drop_last(true).shuffle(1);
    let error = block_on(small.build().unwrap().epochs(0..2).try_next()).unwrap_err();
    says(&error, ErrorKind::Data, &["epoch 0 has no batch", "4 rows", "batch_size is 32"]);
}

#[test]
fn without_a_stream_it_makes_one_on_the_current_device() {
    let runtime = runtime(2);
    let device = runtime.device("cpu:1".parse().unwrap()).unwrap();
    let mut batches = device.enter(|| Loader::new(counting(4)).build()).unwrap();
    let batch = block_on(batches.try_next()).unwrap().unwrap();
    assert_eq!(batch.buffers.0.device(), device);
}

#[test]
fn batches_can_be_sent_to_another_task() {
    fn is_send<T: Send + Unpin>(_: &T) {}
    let (_runtime, _, [copy]) = streams(["copy"]);
    let batches = Loader::new(counting(4)).on(&copy).build().unwrap();
    is_send(&batches);
    let got = tokio(2).block_on(async { tokio::spawn(labels(batches)).await.unwrap() });
    assert_eq!(got.unwrap(), [[0, 1, 2, 3]]);
}
