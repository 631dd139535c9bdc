//! Loaders whose pinned memory is scarce.

use crate::loader::tokio;
use crate::support::{says, within_a_minute};
use futures::TryStreamExt as _;
use warpline::ops::data::{Batches, InMemory};
use warpline::prelude::*;
use warpline::{Result, TensorOps};

/// The bytes of a batch of 32 rows of [`rows`].
const BATCH: usize = 32 * 4096;

/// Rows of 4 KiB.
fn rows(count: usize) -> InMemory<(f32,)> {
    InMemory::from_columns([[1024].into()], (vec![1.0; 1024 * count],)).unwrap()
}

/// Returns a device whose pinned memory has room for so many batches.
fn device_for(batches: usize) -> (Runtime, Device) {
    let runtime = Runtime::builder().pinned_cap(batches * BATCH).build().unwrap();
    let device = runtime.device(DeviceId::Cpu(0)).unwrap();
    (runtime, device)
}

/// Reads an epoch of 16 batches, with the sum of each.
async fn read(mut batches: Batches<(f32,)>, copy: &Stream) -> Result<()> {
    let mut read = 0;
    while let Some(batch) = batches.try_next().await? {
        let sum = copy.enter(|| batch.tensors().0.sum().item::<f32>()).await?;
        assert_eq!(sum, (32 * 1024) as f32, "batch {}", batch.index);
        read += 1;
    }
    assert_eq!(read, 16);
    Ok(())
}

#[test]
fn a_loader_that_takes_all_memory_leaves_some_for_the_losses() {
    within_a_minute(|| {
        for workers in [0, 1, 3] {
            let (_runtime, device) = device_for(4);
            let copy = device.new_stream().unwrap();
            let loader = Loader::new(rows(512)).batch_size(32).prefetch(3).workers(workers).on(&copy);
            let loader = loader.build().unwrap();
            tokio(2).block_on(async {
                for epoch in 0..3 {
                    read(loader.epoch(epoch), &copy).await.unwrap();
                }
            });
            assert!(device.pinned_stats().peak_reserved_bytes <= 4 * BATCH);
        }
    });
}

#[test]
fn several_loaders_on_one_cap_end_their_epochs() {
    within_a_minute(|| {
        for (workers, of) in [(0, 2), (1, 2), (2, 3), (1, 4)] {
            let (_runtime, device) = device_for(4);
            let loaders: Vec<_> = (0..of)
                .map(|_| {
                    let copy = device.new_stream().unwrap();
                    let loader = Loader::new(rows(512)).batch_size(32).prefetch(3).workers(workers).on(&copy);
                    (loader.build().unwrap(), copy)
                })
                .collect();
            let runtime = tokio(2);
            let tasks: Vec<_> = loaders
                .into_iter()
                .map(|(loader, copy)| {
                    runtime.spawn(async move {
                        for epoch in 0..4 {
                            // Some are left before their end, with copies in flight.
                            let mut left = loader.epoch(epoch);
                            left.try_next().await?;
                            left.try_next().await?;
                            drop(left);
                            read(loader.epoch(epoch), &copy).await?;
                        }
                        Ok::<_, Error>(())
                    })
                })
                .collect();
            tasks.into_iter().for_each(|task| runtime.block_on(task).unwrap().unwrap());
        }
    });
}

#[test]
fn an_epoch_within_another_one_has_the_memory_of_its_own_loader() {
    within_a_minute(|| {
        let (_runtime, device) = device_for(4);
        let (copy, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let training = Loader::new(rows(512)).batch_size(32).prefetch(3).on(&copy).build().unwrap();
        let validation = Loader::new(rows(512)).batch_size(32).prefetch(3).on(&other).build().unwrap();
        tokio(2).block_on(async {
            let mut batches = training.epoch(0);
            while let Some(batch) = batches.try_next().await.unwrap() {
                if batch.index % 8 == 0 {
                    read(validation.epoch(0), &other).await.unwrap();
                }
            }
            // Two epochs of one loader at once do not fit: the second is refused, and does not
            // hang.
            let mut first = training.epoch(1);
            first.try_next().await.unwrap();
            let mut second = training.epoch(2);
            let error = second.try_next().await.unwrap_err();
            says(
                &error,
                ErrorKind::OutOfMemory,
                &["128 KiB asked", "512 KiB in use of 512 KiB", "drop pinned buffers"],
            );
            drop(first);
            read(training.epoch(2), &copy).await.unwrap();
        });
    });
}

#[test]
fn a_loader_for_which_there_can_be_no_memory_is_not_built() {
    let (_runtime, device) = device_for(4);
    let copy = device.new_stream().unwrap();
    let build = |prefetch, workers, rows_per_batch| {
        let loader = Loader::new(rows(512)).batch_size(rows_per_batch).prefetch(prefetch).workers(workers);
        loader.on(&copy).build()
    };
    let error = build(4, 2, 32).unwrap_err();
    let text = "with prefetch 4 and 2 workers it needs 5 pinned batches of 128 KiB, and the pinned memory of \
        cpu:0 is capped at 512 KiB, which is 4 of them; lower prefetch to 3 or batch_size, or raise pinned_cap";
    says(&error, ErrorKind::InvalidArgument, &["a loader cannot be built", text]);
    let error = build(1, 1, 200).unwrap_err();
    let text = "2 pinned batches of 1.0 MiB, and the pinned memory of cpu:0 is capped at 512 KiB, which is 0 of \
        them; lower batch_size, or raise pinned_cap";
    says(&error, ErrorKind::InvalidArgument, &[text]);
    // Beside buffers that are held.
    let held = device.blocking_pinned::<u8>(4 * BATCH).unwrap();
    let error = build(1, 1, 32).unwrap_err();
    let text = "a loader cannot be built: there is no pinned memory for a batch: the pinned memory of cpu:0 is \
        at its cap: 128 KiB asked, 512 KiB in use of 512 KiB";
    says(&error, ErrorKind::OutOfMemory, &[text]);
    drop(held);
    drop(build(3, 1, 32).unwrap());
    assert_eq!(device.pinned_stats().allocated_bytes, 0);
}
