//! Data loaders, and copies of batches that the host does not wait for.

use crate::support::software::in_child;
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

/// X22: a loader with a sampler, several workers and pinned batches. Every batch in flight occupies
/// pinned memory, the order is the sampler's, and leaving in mid-epoch ends the workers and returns
/// the memory.
#[test]
fn a_loader_with_workers_and_a_sampler_ends_cleanly_in_mid_epoch() {
    in_child(&[], || {
        let tokio = tokio::runtime::Runtime::new().unwrap();
        for name in ["cpu", "cuda:0"] {
            let device = Device::open(name).unwrap();
            let (read, alive) = (Arc::<AtomicUsize>::default(), Arc::new(()));
            let dataset = Images { read: read.clone(), _alive: alive.clone() };
            let train = Subset::new((0..800).collect::<Vec<_>>()).shuffled(1);
            let order: Vec<_> = train.indices(1000, 0).unwrap().map(|index| index as i64).collect();

            let (copy, compute) = (device.new_stream().unwrap(), device.new_stream().unwrap());
            let loader = Loader::new(dataset).batch_size(BATCH).sampler(train).workers(4);
            let mut batches = loader.prefetch(7).on(&copy).build().unwrap();
            tokio.block_on(async {
                every_batch_is_pinned(&mut batches, &copy).await;
                let mut labels = Vec::new();
                while labels.len() < 320 {
                    let batch = batches.try_next().await.unwrap().unwrap();
                    compute.wait_event(&batch.copied);
                    let (images, of_batch) = batch.tensors();
                    assert_eq!((images.shape(), images.device()), (&[BATCH, 1, 28, 28][..], device.clone()));
                    let first = compute.enter(|| images.to_vec::<f32>()).await.unwrap();
                    let of_batch = compute.enter(|| of_batch.to_vec::<i64>()).await.unwrap();
                    for (image, label) in first.chunks_exact(IMAGE).zip(&of_batch) {
                        assert_eq!(
                            (image[0], image[783]),
                            ((label % 256) as f32, ((label + 783) % 256) as f32)
                        );
                    }
                    labels.extend(of_batch);
                }
                // The first batches were used above to see that they are pinned.
                assert_eq!(labels, order[4 * BATCH..][..labels.len()]);
            });
            drop(batches);
            while Arc::strong_count(&alive) > 1 || device.pinned_stats().allocated_bytes > 0 {
                std::thread::yield_now();
            }
            assert!(
                read.load(Ordering::SeqCst) <= 320 + (4 + 8) * BATCH,
                "the epoch was not read to its end"
            );
        }
    });
}

/// Takes four batches while their copies are held.
async fn every_batch_is_pinned(batches: &mut Batches<(f32, i64)>, copy: &Stream) {
    let device = copy.device();
    let gate = copy.hold().unwrap();
    let mut held = Vec::new();
    for number in 1..=4 {
        held.push(batches.try_next().await.unwrap().unwrap());
        let bytes = BATCH * (IMAGE * size_of::<f32>() + size_of::<i64>());
        assert!(device.pinned_stats().allocated_bytes >= number * bytes);
    }
    assert!(held.iter().all(|batch| !batch.copied.query().unwrap()), "no copy has finished");
    gate.open();
    for batch in held {
        batch.copied.await.unwrap();
    }
}

/// X23: the input and the target are copied without waiting. Both copies are in flight before the
/// first wait, and both are right after it.
#[test]
fn input_and_target_are_copied_without_waiting() {
    in_child(&[], || {
        let device = Device::open("cuda:0").unwrap();
        let copy = device.new_stream().unwrap();
        let compute = device.new_stream().unwrap();
        let mut input = device.blocking_pinned::<f32>(4 * 3).unwrap();
        input.iter_mut().enumerate().for_each(|(i, x)| *x = i as f32);
        let mut target = device.blocking_pinned::<i64>(4).unwrap();
        target.copy_from_slice(&[7, 8, 9, 10]);

        let gate = copy.hold().unwrap();
        let (x, mut x_sent) = Tensor::from_pinned(input, [4, 3], &copy).unwrap();
        let (y, mut y_sent) = Tensor::from_pinned(target, [4], &copy).unwrap();
        assert!(!x_sent.query().unwrap() && !y_sent.query().unwrap(), "both copies are in flight");
        compute.wait_stream(&copy);
        let values = compute.enter(|| (x.to_vec::<f32>(), y.to_vec::<i64>()));
        gate.open();
        assert_eq!((x.device(), y.device()), (device.clone(), device.clone()));
        assert_eq!(values.0.blocking_wait().unwrap(), (0..12).map(|i| i as f32).collect::<Vec<_>>());
        assert_eq!(values.1.blocking_wait().unwrap(), [7, 8, 9, 10]);
        // The pinned buffers come back unchanged, for the next batch.
        assert_eq!(x_sent.blocking_wait().unwrap()[11], 11.0);
        assert_eq!(*y_sent.blocking_wait().unwrap(), [7, 8, 9, 10]);
    });
}
