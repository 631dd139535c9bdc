//! The training of `examples/digits`. It gives the same weights for every interleaving of the
//! streams, and a step that lacks its edge is refused.

#[allow(dead_code, unreachable_pub, reason = "the example uses all of it")]
#[path = "../../examples/digits/model.rs"]
mod model;
#[allow(dead_code, unreachable_pub, reason = "the example uses all of it")]
#[path = "../../examples/digits/steps.rs"]
mod steps;
#[allow(dead_code, unreachable_pub, reason = "the example uses all of it")]
#[path = "../../examples/digits/train.rs"]
mod train;

use crate::support::{block_on, runtime, within_a_minute};
use futures::TryStreamExt;
use model::Mlp;
use train::{Progress, Settings, Training};
use warpline::Result;
use warpline::prelude::*;
use warpline::testing::for_each_seed;
use warpline_test_counts::count;

fn settings(epochs: u64) -> Settings {
    Settings { epochs, prefetch: 3, ..Settings::default() }
}

/// Returns the bits of all weights after training, and the number of test rows that they get right.
async fn trained(device: &Device, epochs: u64) -> Result<(Vec<u32>, i64)> {
    trained_with(device, &settings(epochs)).await
}

async fn trained_with(device: &Device, settings: &Settings) -> Result<(Vec<u32>, i64)> {
    let training = Training::new(device, settings)?;
    assert_eq!(training.run(settings, |_| {}).await?, 45 * settings.epochs);
    let (right, rows) = training.test(settings).await?;
    assert_eq!(rows, 360);
    let mut bits = Vec::new();
    for (_, tensor) in training.model.parameters() {
        let values = training.compute.enter(|| tensor.to_vec::<f32>()).await?;
        bits.extend(values.into_iter().map(f32::to_bits));
    }
    Ok((bits, right))
}

#[test]
fn one_epoch_gives_the_same_weights_for_every_seed_and_with_threads() {
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let with_threads = runtime(1);
    let expected = threads.block_on(trained(&with_threads.device(DeviceId::Cpu(0)).unwrap(), 1)).unwrap();
    assert_eq!(expected.0.len(), 64 * 128 + 128 + 128 * 10 + 10);
    for_each_seed(0..count(10, 40), |device| {
        let expected = &expected;
        async move {
            assert!(&trained(&device, 1).await? == expected, "other weights than with threads");
            Ok(())
        }
    });
}

#[test]
fn steps_as_graphs_give_the_same_weights_as_op_by_op() {
    within_a_minute(|| {
        let runtime = runtime(1);
        let device = runtime.device(DeviceId::Cpu(0)).unwrap();
        let graphs = Settings { graph: true, ..settings(4) };
        // The last 29 of the 1437 rows are a batch of their own, and so a graph of their own.
        let [as_graphs, op_by_op] =
            [graphs, settings(4)].map(|settings| block_on(trained_with(&device, &settings)).unwrap());
        assert!(as_graphs == op_by_op, "other weights");
    });
    let expected = block_on(trained(&runtime(1).device(DeviceId::Cpu(0)).unwrap(), 1)).unwrap();
    for_each_seed(0..count(3, 8), |device| {
        let expected = &expected;
        async move {
            let settings = Settings { graph: true, ..settings(1) };
            assert!(&trained_with(&device, &settings).await? == expected, "other weights than op by op");
            Ok(())
        }
    });
}

#[test]
fn a_few_epochs_are_enough_to_read_most_digits() {
    within_a_minute(|| {
        let runtime = runtime(1);
        let (_, right) = block_on(trained(&runtime.device(DeviceId::Cpu(0)).unwrap(), 10)).unwrap();
        // Training usually gets 350 right, and chance 36.
        assert!(right > 330, "{right} of 360");
    });
}

#[test]
fn the_loss_of_every_epoch_is_told_in_order_and_falls() {
    within_a_minute(|| {
        let runtime = runtime(1);
        let device = runtime.device(DeviceId::Cpu(0)).unwrap();
        let told = |settings: &Settings| {
            let training = Training::new(&device, settings).unwrap();
            let (mut steps, mut losses) = (0, Vec::new());
            let tell = |progress| match progress {
                Progress::Step => steps += 1,
                Progress::Loss { epoch, loss } => {
                    assert_eq!(epoch, losses.len() as u64);
                    losses.push(loss);
                }
            };
            block_on(training.run(settings, tell)).unwrap();
            assert_eq!((steps, losses.len()), (4 * 45, 4));
            losses
        };
        let losses = told(&settings(4));
        assert_eq!(losses, told(&Settings { graph: true, ..settings(4) }));
        assert!(losses.is_sorted_by(|a, b| a > b), "{losses:?}");
    });
}

#[test]
fn a_step_that_does_not_wait_for_its_batch_is_refused() {
    let runtime = runtime(1);
    let device = runtime.device(DeviceId::Cpu(0)).unwrap();
    let settings = settings(1);
    let (copy, compute) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let model = compute.enter(|| Mlp::new(1, &device)).unwrap();
    let mut batches = settings.training(&copy).unwrap();
    let batch = block_on(batches.try_next()).unwrap().unwrap();
    let (x, labels) = batch.tensors();
    let error = compute.enter(|| model.step(&x, &labels, settings.sgd)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unordered);
    assert!(error.to_string().starts_with("linear on stream \""), "{error}");
}

#[test]
fn memory_does_not_grow_with_the_epochs() {
    within_a_minute(|| {
        let runtime = runtime(1);
        let device = runtime.device(DeviceId::Cpu(0)).unwrap();
        let reserved = |epochs| {
            block_on(trained(&device, epochs)).unwrap();
            (device.memory_stats().reserved_bytes, device.pinned_stats().reserved_bytes)
        };
        let (first, later) = (reserved(1), reserved(5));
        assert_eq!(first.0, later.0);
        // The number of losses in flight at once varies with timing.
        assert!(later.1 <= 2 * first.1, "{} bytes pinned after one epoch, {} after five", first.1, later.1);
    });
}
