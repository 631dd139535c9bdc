//! Datasets that are read by index: samplers, fields of any type, and several workers, which give
//! the same batches as one.

use crate::loader::{counting, labels, sizes_after_epochs, tokio};
use crate::loader_ends::{Told, ends_with_its_tokio_runtime};
use crate::support::{block_on, says, streams, within_a_minute};
use futures::TryStreamExt as _;
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier, Mutex};
use warpline::Result;
use warpline::ops::Shape;
use warpline::ops::data::{
    BatchPlace, Dataset, InMemory, InOrder, Indices, Sampler, Shuffled, Subset, Weighted, WithReplacement,
};
use warpline::prelude::*;
use warpline::testing::for_each_seed;

/// A dataset of a function that is called with a sample's index and returns its label. The features
/// are the index and its negative.
struct Calls<F> {
    len: usize,
    label: F,
}

impl<F: Fn(usize) -> Result<i64> + Send + Sync + 'static> Dataset for Calls<F> {
    type Sample = (f32, i64);

    fn shapes(&self) -> [Shape; 2] {
        [[2].into(), [].into()]
    }

    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, index: usize, (features, label): (&mut [f32], &mut [i64])) -> Result<()> {
        features.copy_from_slice(&[index as f32, -(index as f32)]);
        label[0] = (self.label)(index)?;
        Ok(())
    }
}

fn calls<F: Fn(usize) -> Result<i64> + Send + Sync + 'static>(len: usize, label: F) -> Calls<F> {
    Calls { len, label }
}

/// A sampler that calls a function with the epoch's number.
struct Draws<F>(F);

impl<F: Fn(u64) -> Result<Indices> + Send + Sync + 'static> Sampler for Draws<F> {
    fn indices(&self, _: usize, epoch: u64) -> Result<Indices> {
        (self.0)(epoch)
    }
}

fn endless() -> impl Sampler {
    Draws(|_| Ok(Box::new(std::iter::repeat(0_usize)) as Indices))
}

/// Returns one of the samplers of a dataset with `len` samples.
fn sampler(which: usize, len: usize, seed: u64) -> Arc<dyn Sampler> {
    let weights: Vec<_> = (0..len).map(|index| (index % 3) as f64 + 0.5).collect();
    match which {
        0 => Arc::new(InOrder),
        1 => Arc::new(Shuffled::new(seed)),
        2 => Arc::new(WithReplacement::new(seed, len + 3)),
        3 => Arc::new(Weighted::new(seed, 2 * len, &weights).unwrap()),
        _ => Arc::new(Subset::new((0..len).step_by(2).collect::<Vec<_>>()).shuffled(seed)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn any_number_of_workers_yields_the_samplers_order_in_batches(
        len in 1_usize..60, which in 0_usize..5, seed: u64, batch_size in 1_usize..12,
        workers in prop::sample::select(vec![0, 1, 2, 4]), more_prefetch in 0_usize..4,
        drop_last: bool, threads in 1_usize..3,
    ) {
        let (_runtime, device, [copy]) = streams(["copy"]);
        let sampler = sampler(which, len, seed);
        let mut expected = Vec::new();
        for epoch in 0..2 {
            let order: Vec<_> = sampler.indices(len, epoch).unwrap().map(|index| index as i64).collect();
            expected.extend(
                order.chunks(batch_size).filter(|batch| !drop_last || batch.len() == batch_size).map(<[_]>::to_vec),
            );
        }
        let batches = Loader::new(counting(len))
            .sampler(sampler)
            .batch_size(batch_size)
            .workers(workers)
            .prefetch(workers.max(1) + more_prefetch)
            .drop_last(drop_last)
            .on(&copy)
            .build()
            .unwrap()
            .epochs(0..2);
        let got = tokio(threads).block_on(labels(batches));
        match got {
            Ok(got) => prop_assert_eq!(got, expected),
            Err(error) => {
                says(&error, ErrorKind::Data, &["epoch 0 has no batch", "batch_size is", "the sampler's order"]);
                prop_assert!(expected.is_empty());
            }
        }
        block_on(device.synchronize()).unwrap();
        prop_assert_eq!((device.memory_stats().live_blocks, device.pinned_stats().allocated_bytes), (0, 0));
    }
}

#[test]
fn workers_change_nothing_on_a_device_that_runs_in_turns() {
    let (_runtime, _, [copy]) = streams(["copy"]);
    let loader =
        |copy: &Stream| Loader::new(counting(50)).batch_size(8).shuffle(3).workers(4).on(copy).build();
    let expected = block_on(labels(loader(&copy).unwrap())).unwrap();
    let inside_tokio = tokio(2);
    for_each_seed(0..20, |device| {
        let (expected, inside) = (&expected, inside_tokio.enter());
        async move {
            assert_eq!(&labels(loader(&device.new_stream()?)?).await?, expected);
            drop(inside);
            Ok(())
        }
    });
}

#[test]
fn a_batch_has_a_buffer_for_each_field_with_the_fields_type() {
    let (_runtime, device, [copy]) = streams(["copy"]);
    let dataset = InMemory::<(u8, i64, f64)>::from_columns(
        [[2, 2].into(), [].into(), [3].into()],
        (
            (0..20_u8).collect(),
            (0..5_i64).map(|i| -i).collect(),
            (0..15).map(|i| f64::from(i) / 3.0).collect(),
        ),
    )
    .unwrap();
    for workers in [0, 1, 2] {
        let loader = Loader::new(dataset.clone()).batch_size(2).workers(workers).on(&copy);
        let subset = Subset::new([4, 0, 2]);
        tokio(2).block_on(async {
            let batches: Vec<_> = loader.sampler(subset).build().unwrap().try_collect().await.unwrap();
            let mut got = Vec::new();
            for batch in batches {
                device.default_stream().unwrap().wait_event(&batch.copied);
                let (image, label, point) = &batch.buffers;
                let stream = device.default_stream().unwrap();
                got.push((
                    stream.read(image).await.unwrap(),
                    stream.read(label).await.unwrap(),
                    stream.read(point).await.unwrap(),
                ));
            }
            let thirds = |of: [i32; 3]| of.map(|i| f64::from(i) / 3.0);
            let first = (
                vec![16, 17, 18, 19, 0, 1, 2, 3],
                vec![-4, 0],
                [thirds([12, 13, 14]), thirds([0, 1, 2])].concat(),
            );
            let second = (vec![8, 9, 10, 11], vec![-2], thirds([6, 7, 8]).to_vec());
            assert_eq!(got, [first, second], "{workers} workers");
        });
    }
}

#[test]
fn fields_of_a_wrong_length_or_without_elements_are_refused() {
    let (_runtime, _, [copy]) = streams(["copy"]);
    let error =
        InMemory::<(u8, i64)>::from_columns([[4].into(), [].into()], (vec![0; 9], vec![0; 2])).unwrap_err();
    says(&error, ErrorKind::Shape, &["(u8, i64) with shapes ([4], [])", "[9, 2] elements", "pass [4, 1]"]);
    let error = InMemory::<(u8,)>::from_columns([[4, 0].into()], (vec![],)).unwrap_err();
    says(&error, ErrorKind::Shape, &["(u8) with shapes ([4, 0])", "a field has no elements"]);

    struct Empty;
    impl Dataset for Empty {
        type Sample = (f32, u8);

        fn shapes(&self) -> [Shape; 2] {
            [[2].into(), [3, 0].into()]
        }

        fn len(&self) -> usize {
            1
        }

        fn read(&self, _: usize, _: (&mut [f32], &mut [u8])) -> Result<()> {
            unreachable!("it is refused before")
        }
    }
    let error = Loader::new(Empty).on(&copy).build().unwrap_err();
    says(&error, ErrorKind::InvalidArgument, &["field 1 of the dataset has the shape [3, 0]", "at least 1"]);
}

#[test]
fn batches_are_read_at_the_same_time_and_yielded_in_order() {
    within_a_minute(|| {
        let (_runtime, _, [copy]) = streams(["copy"]);
        // Batch 0 ends only when batches 1 and 2 have ended.
        let (read, was_read) = channel();
        let (read, was_read) = (Mutex::new(read), Mutex::new(was_read));
        let began = Barrier::new(3);
        let dataset = calls(30, move |index| {
            if index < 12 && index % 4 == 0 {
                began.wait();
            }
            match index {
                3 => (0..2).for_each(|_| was_read.lock().unwrap().recv().unwrap()),
                7 | 11 => read.lock().unwrap().send(()).unwrap(),
                _ => {}
            }
            Ok(index as i64)
        });
        let batches = Loader::new(dataset).batch_size(4).workers(3).on(&copy).build().unwrap();
        let got = tokio(1).block_on(labels(batches)).unwrap();
        assert_eq!(got.concat(), (0..30).collect::<Vec<_>>());
    });
}

#[test]
fn workers_are_never_further_ahead_than_asked_for() {
    const BATCH: u64 = 4;
    for (workers, prefetch) in [(2, 1), (2, 3), (4, 5)] {
        let (_runtime, device, [copy]) = streams(["copy"]);
        let yielded = Arc::new(AtomicU64::new(0));
        let seen = yielded.clone();
        let dataset = calls(100, move |index| {
            let (batch, yielded) = (index as u64 / BATCH, seen.load(Ordering::SeqCst));
            assert!(batch <= yielded + prefetch, "batch {batch} is read when {yielded} were yielded");
            Ok(index as i64)
        });
        let loader = Loader::new(dataset).batch_size(BATCH as usize).workers(workers);
        let mut batches = loader.prefetch(prefetch as usize).on(&copy).build().unwrap();
        tokio(2).block_on(async {
            while let Some(batch) = batches.try_next().await.unwrap() {
                yielded.store(batch.index + 1, Ordering::SeqCst);
            }
        });
        assert_eq!(batches.stats().rows, 100);
        // 4 KiB is the smallest block of pinned memory: one for the features, one for the labels.
        assert!(device.pinned_stats().peak_reserved_bytes <= (prefetch as usize + 1) * 2 * 4096);
    }
}

#[test]
fn the_first_failed_batch_ends_the_stream_whichever_fails_first() {
    within_a_minute(|| {
        let (_runtime, device, [copy]) = streams(["copy"]);
        for panics in [false, true] {
            // Batch 2 fails only when batch 3 has failed.
            let (failed, has_failed) = channel();
            let (failed, has_failed) = (Mutex::new(failed), Mutex::new(has_failed));
            let dataset = calls(100, move |index| match index {
                10 => {
                    has_failed.lock().unwrap().recv().unwrap();
                    assert!(!panics, "on purpose at sample 10");
                    Err(Error::new(ErrorKind::Data, "sample 10 is bad"))
                }
                13 => {
                    failed.lock().unwrap().send(()).unwrap();
                    Err(Error::new(ErrorKind::Data, "sample 13 is bad"))
                }
                _ => Ok(index as i64),
            });
            let mut batches =
                Loader::new(dataset).batch_size(4).workers(2).prefetch(4).on(&copy).build().unwrap();
            tokio(2).block_on(async {
                for index in 0..2 {
                    assert_eq!(batches.try_next().await.unwrap().unwrap().index, index);
                }
                let text = match panics {
                    true => "the dataset panicked at batch 2 of epoch 0: on purpose at sample 10; correct its code",
                    false => "sample 10 is bad",
                };
                says(&batches.try_next().await.unwrap_err(), ErrorKind::Data, &[text]);
                assert!(batches.next().await.is_none(), "nothing comes after an error");
            });
            drop(batches);
            block_on(device.synchronize()).unwrap();
            until_all_memory_is_back(&device);
        }
    });
}

fn until_all_memory_is_back(device: &Device) {
    while (device.memory_stats().live_blocks, device.pinned_stats().allocated_bytes) != (0, 0) {
        std::thread::yield_now();
    }
}

#[test]
fn the_errors_of_a_sampler_end_the_stream_at_their_batch() {
    let (_runtime, _, [copy]) = streams(["copy"]);
    fn indices(indices: impl Iterator<Item = usize> + Send + 'static) -> Result<Indices> {
        Ok(Box::new(indices))
    }
    let ends_with = |sampler: Arc<dyn Sampler>, before: usize, kind: ErrorKind, text: &str| {
        for workers in [0, 1, 2] {
            let loader = Loader::new(counting(5)).batch_size(2).sampler(sampler.clone());
            let mut batches = loader.workers(workers).on(&copy).build().unwrap().epochs(0..3);
            tokio(2).block_on(async {
                for _ in 0..before {
                    batches.try_next().await.unwrap().unwrap();
                }
                says(&batches.try_next().await.unwrap_err(), kind, &[text]);
                assert!(batches.next().await.is_none());
            });
        }
    };
    ends_with(
        Arc::new(Subset::new([0, 4, 1, 5])),
        1,
        ErrorKind::InvalidArgument,
        "index 5 for batch 1 of epoch 0, and the dataset has 5 samples; correct the sampler",
    );
    ends_with(
        Arc::new(Draws(|_| {
            indices([0, 1, 2, 3].into_iter().inspect(|index| assert!(*index < 3, "on purpose")))
        })),
        1,
        ErrorKind::Data,
        "the sampler panicked at batch 1 of epoch 0: on purpose; correct its code",
    );
    ends_with(
        Arc::new(Draws(|epoch| match epoch {
            1 => Err(Error::new(ErrorKind::Data, "no order for epoch 1")),
            _ => indices(0..5),
        })),
        3,
        ErrorKind::Data,
        "no order for epoch 1",
    );
    ends_with(
        Arc::new(Subset::new([])),
        0,
        ErrorKind::Data,
        "epoch 0 has no batch: the sampler's order of the dataset has 0 rows and batch_size is 2",
    );
}

#[test]
fn collating_changes_a_batch_before_it_is_copied() {
    let (_runtime, device, [copy]) = streams(["copy"]);
    for workers in [0, 1, 2] {
        // The exact lengths show that the last batch is the shorter one.
        let number = |place: BatchPlace, (x, labels): (&mut [f32], &mut [i64])| {
            assert_eq!((x.len(), labels.len()), (2 * place.rows, place.rows));
            labels.fill((10 * place.epoch + place.index) as i64);
            Ok(())
        };
        let loader = Loader::new(counting(5)).batch_size(2).workers(workers).collate(number).on(&copy);
        let batches = loader.build().unwrap().epochs(0..2);
        let got: Vec<_> = tokio(2).block_on(batches.try_collect()).unwrap();
        let mut labels = Vec::new();
        for batch in got {
            let stream = device.default_stream().unwrap();
            stream.wait_event(&batch.copied);
            labels.extend(block_on(stream.read(&batch.buffers.1)).unwrap());
        }
        assert_eq!(labels, [0, 0, 1, 1, 2, 10, 10, 11, 11, 12]);

        let fails = |place: BatchPlace, _: (&mut [f32], &mut [i64])| {
            assert_ne!(place.index, 1, "on purpose");
            Ok(())
        };
        let loader = Loader::new(counting(5)).batch_size(2).workers(workers).collate(fails).on(&copy);
        let mut batches = loader.build().unwrap();
        tokio(2).block_on(async {
            batches.try_next().await.unwrap().unwrap();
            let error = batches.try_next().await.unwrap_err();
            says(&error, ErrorKind::Data, &["the collate function panicked at batch 1 of epoch 0"]);
        });
    }
}

/// Returns a dataset that counts its reads, and a receiver that gets a message when everything of
/// the dataset is gone.
fn counted(read: &Arc<AtomicUsize>) -> (impl Dataset<Sample = (f32, i64)> + use<>, Receiver<()>) {
    let (gone, told) = channel();
    let (gone, read) = (Mutex::new(Told(gone)), read.clone());
    let dataset = calls(1, move |_| {
        let _kept = &gone;
        read.fetch_add(1, Ordering::SeqCst);
        Ok(0)
    });
    (dataset, told)
}

#[test]
fn dropping_the_stream_in_an_epoch_ends_its_workers_and_returns_all_memory() {
    within_a_minute(|| {
        let (_runtime, device, [copy]) = streams(["copy"]);
        let tokio = tokio(2);
        for taken in 0..10 {
            let (dataset, gone) = counted(&Arc::default());
            let loader = Loader::new(dataset).sampler(endless()).batch_size(4).workers(3);
            let mut batches = loader.on(&copy).build().unwrap();
            tokio.block_on(async {
                for _ in 0..taken {
                    batches.try_next().await.unwrap().unwrap();
                }
            });
            drop(batches);
            gone.recv().unwrap();
            until_all_memory_is_back(&device);
        }
    });
}

#[test]
fn workers_in_the_middle_of_a_batch_stop_at_the_next_sample() {
    within_a_minute(|| {
        let (_runtime, _, [copy]) = streams(["copy"]);
        let ((gone, told), (arrived, arrival)) = (channel(), channel());
        let (gone, arrived) = (Mutex::new(Told(gone)), Mutex::new(arrived));
        let (read, released) = (Arc::new(AtomicUsize::new(0)), Arc::new(Barrier::new(3)));
        let (count, barrier) = (read.clone(), released.clone());
        let dataset = calls(4000, move |index| {
            let _kept = &gone;
            count.fetch_add(1, Ordering::SeqCst);
            if index % 1000 == 10 {
                arrived.lock().unwrap().send(()).unwrap();
                barrier.wait();
            }
            Ok(0)
        });
        let loader = Loader::new(dataset).batch_size(1000).workers(2).on(&copy);
        let mut batches = loader.build().unwrap();
        let tokio = tokio(2);
        tokio.block_on(async { assert!(futures::poll!(batches.next()).is_pending()) });
        (0..2).for_each(|_| arrival.recv().unwrap());
        drop(batches);
        released.wait();
        told.recv().unwrap();
        assert_eq!(read.load(Ordering::SeqCst), 22, "no sample was read after the stream was dropped");
    });
}

#[test]
fn workers_of_a_tokio_runtime_that_is_shut_down_neither_hang_nor_end_the_epoch_quietly() {
    within_a_minute(|| {
        let (_runtime, _, [copy]) = streams(["copy"]);
        let tokio = tokio(2);
        let (dataset, _gone) = counted(&Arc::default());
        let loader = Loader::new(dataset).sampler(endless()).batch_size(4).workers(2);
        let mut batches = loader.on(&copy).build().unwrap();
        tokio.block_on(async { batches.try_next().await.unwrap().unwrap() });
        drop(tokio);
        ends_with_its_tokio_runtime(batches);
    });
}

#[test]
fn workers_keep_to_the_memory_of_the_first_epoch() {
    let (_runtime, device, [copy, compute]) = streams(["copy", "compute"]);
    tokio(2).block_on(async {
        let loader =
            Loader::new(counting(1000)).batch_size(64).shuffle(1).workers(2).on(&copy).build().unwrap();
        let sizes = sizes_after_epochs(&loader, &device, &compute).await;
        // 5 pinned batches of two blocks, and one that the sum is copied to. 4 KiB is the smallest
        // block.
        assert!(sizes.iter().all(|(_, pinned)| *pinned <= (5 * 2 + 1) * 4096), "{sizes:?}");
    });
}
