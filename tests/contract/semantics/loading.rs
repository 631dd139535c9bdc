//! Data loaders, and copies of batches that the host does not wait for.

use crate::{contract, pinned};
use futures::TryStreamExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use warpline::Result;
use warpline::ops::Shape;
use warpline::ops::data::{Batches, Dataset, Sampler, Subset};
use warpline::prelude::*;

const BATCH: usize = 16;
const IMAGE: usize = 28 * 28;

/// Images of bytes with a label: pixel p of image i is i + p, modulo 256, and its label is i.
struct Images {
    read: Arc<AtomicUsize>,
    /// The test learns by this reference that nothing uses the dataset any more.
    _alive: Arc<()>,
}

impl Dataset for Images {
    type Sample = (f32, i64);

    fn shapes(&self) -> [Shape; 2] {
        [[1, 28, 28].into(), [].into()]
    }

    fn len(&self) -> usize {
        1000
    }

    fn read(&self, index: usize, (image, label): (&mut [f32], &mut [i64])) -> Result<()> {
        self.read.fetch_add(1, Ordering::SeqCst);
        image.iter_mut().zip(index..).for_each(|(pixel, i)| *pixel = (i % 256) as f32);
        label[0] = index as i64;
        Ok(())
    }
}

contract! {
    /// X22: a loader with a sampler, several workers and pinned batches. Every batch in flight
    /// occupies pinned memory, the order is the sampler's, and leaving in mid-epoch ends the
    /// workers and returns the memory.
    async fn a_loader_with_workers_and_a_sampler_ends_cleanly_in_mid_epoch([device]) {
        let (read, alive) = (Arc::<AtomicUsize>::default(), Arc::new(()));
        let dataset = Images { read: read.clone(), _alive: alive.clone() };
        let train = Subset::new((0..800).collect::<Vec<_>>()).shuffled(1);
        let order: Vec<_> = train.indices(1000, 0)?.map(|index| index as i64).collect();

        fill_the_pool(&device).await?;
        let (copy, compute) = (device.new_stream()?, device.new_stream()?);
        let loader = Loader::new(dataset).batch_size(BATCH).sampler(train).workers(4);
        let mut batches = loader.prefetch(7).on(&copy).build()?;
        every_batch_is_pinned(&mut batches, &copy).await?;
        let mut labels = Vec::new();
        while labels.len() < 320 {
            let batch = batches.try_next().await?.expect("the epoch goes on");
            compute.wait_event(&batch.copied);
            let (images, of_batch) = batch.tensors();
            assert_eq!((images.shape(), images.device()), (&[BATCH, 1, 28, 28][..], device.clone()));
            let first = compute.enter(|| images.to_vec::<f32>()).await?;
            let of_batch = compute.enter(|| of_batch.to_vec::<i64>()).await?;
            for (image, label) in first.chunks_exact(IMAGE).zip(&of_batch) {
                assert_eq!((image[0], image[783]), ((label % 256) as f32, ((label + 783) % 256) as f32));
            }
            labels.extend(of_batch);
        }
        // The first batches were used above to see that they are pinned.
        assert_eq!(labels, order[4 * BATCH..][..labels.len()]);
        drop(batches);
        while Arc::strong_count(&alive) > 1 || device.pinned_stats().allocated_bytes > 0 {
            // Under a seeded schedule, copies finish while this function waits.
            device.synchronize().await?;
            std::thread::yield_now();
        }
        assert!(read.load(Ordering::SeqCst) <= 320 + (4 + 8) * BATCH, "the epoch was not read to its end");
    }

    /// X23: the input and the target are copied without waiting. Both copies are in flight before
    /// the first wait, and both are right after it.
    async fn input_and_target_are_copied_without_waiting([device]) {
        let (copy, compute) = (device.new_stream()?, device.new_stream()?);
        let input = pinned(&device, &(0..12).map(|i| i as f32).collect::<Vec<_>>()).await?;
        let target = pinned(&device, &[7, 8, 9, 10_i64]).await?;

        let gate = copy.hold()?;
        let (x, mut x_sent) = Tensor::from_pinned(input, [4, 3], &copy)?;
        let (y, mut y_sent) = Tensor::from_pinned(target, [4], &copy)?;
        assert!(!x_sent.query()? && !y_sent.query()?, "both copies are in flight");
        compute.wait_stream(&copy);
        let values = compute.enter(|| (x.to_vec::<f32>(), y.to_vec::<i64>()));
        gate.open();
        assert_eq!((x.device(), y.device()), (device.clone(), device.clone()));
        assert_eq!(values.0.await?, (0..12).map(|i| i as f32).collect::<Vec<_>>());
        assert_eq!(values.1.await?, [7, 8, 9, 10]);
        // The pinned buffers come back unchanged, for the next batch.
        assert_eq!(x_sent.await?[11], 11.0);
        assert_eq!(*y_sent.await?, [7, 8, 9, 10]);
    }
}

/// Grows the pools for as many batches as are in flight, because a device may refuse to do so
/// while a stream is held.
async fn fill_the_pool(device: &Device) -> Result<()> {
    let mut batches = Vec::new();
    for _ in 0..4 + 8 {
        batches.push((device.pinned::<f32>(BATCH * IMAGE).await?, device.pinned::<i64>(BATCH).await?));
    }
    Ok(())
}

/// Takes four batches while their copies are held.
async fn every_batch_is_pinned(batches: &mut Batches<(f32, i64)>, copy: &Stream) -> Result<()> {
    let device = copy.device();
    let gate = copy.hold()?;
    let mut held = Vec::new();
    for number in 1..=4 {
        held.push(batches.try_next().await?.expect("the epoch goes on"));
        let bytes = BATCH * (IMAGE * size_of::<f32>() + size_of::<i64>());
        assert!(device.pinned_stats().allocated_bytes >= number * bytes);
    }
    assert!(held.iter().all(|batch| !batch.copied.query().unwrap()), "no copy has finished");
    gate.open();
    for batch in held {
        batch.copied.await?;
    }
    Ok(())
}
