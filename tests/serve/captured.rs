//! Models that are captured as graphs, for each slot and each size.

use crate::support::says;
use crate::{ROW, builder, on_threads_and_seeds, write};
use futures::future::join_all;
use warpline::prelude::*;

/// Each element of the result is the sum of all rows.
fn total((x,): (Tensor,)) -> warpline::Result<(Tensor,)> {
    Ok(((&x * 0.0 + x.sum()).queued()?,))
}

#[test]
fn each_call_gets_its_own_row_at_every_size() {
    on_threads_and_seeds(|device| async move {
        let batcher = builder(&device)
            .max_rows(5)
            .max_queued(64)
            .build_captured(&[5, 1, 3], |(x,)| Ok(((&x * 2.0).queued()?,)))
            .await
            .unwrap();
        let calls = (0..24).map(|task| {
            let batcher = batcher.clone();
            tokio::spawn(async move {
                for n in 0..4 {
                    let value = (task * 10 + n) as f32;
                    let answer = batcher.submit(write(value)).await.unwrap();
                    assert_eq!(answer.outputs().0, [2.0 * value; ROW]);
                }
            })
        });
        for call in join_all(calls.collect::<Vec<_>>()).await {
            call.unwrap();
        }
    });
}

#[test]
fn rows_that_no_call_has_are_zeros() {
    on_threads_and_seeds(|device| async move {
        let batcher = builder(&device).max_rows(4).in_flight(1).build_captured(&[4], total).await.unwrap();
        let full = join_all([1.0, 2.0, 3.0, 4.0].map(|value| batcher.submit(write(value)))).await;
        let sums: f32 = full.into_iter().map(|answer| answer.unwrap().outputs().0[0] / 3.0).sum();
        // In one batch 4 × 10, and less in several.
        assert!(sums <= 40.0);
        let alone = batcher.submit(write(1.0)).await.unwrap();
        assert_eq!(alone.outputs().0, [3.0; ROW], "the rows of the batch before are gone");
    });
}

#[test]
fn a_captured_model_says_its_memory_and_is_swapped() {
    on_threads_and_seeds(|device| async move {
        let called = builder(&device).max_rows(4).build(|_, (x,), _| async move { Ok((x,)) }).await.unwrap();
        assert_eq!(called.captured_bytes(), 0);
        assert_eq!(called.swap_captured(&[2, 4], total).await.unwrap(), 1);
        // Inputs of 2 and 4 rows, for each of two slots, and what the graphs hold.
        assert!(called.captured_bytes() > 2 * 6 * ROW * 4, "{}", called.captured_bytes());
        let answer = called.submit(write(1.0)).await.unwrap();
        assert_eq!((answer.outputs().0, answer.version()), ([3.0; ROW].as_slice(), 1));
        let failed = called.swap_captured(&[4], |_| Err(Error::new(ErrorKind::Data, "planned"))).await;
        assert_eq!(failed.unwrap_err().to_string(), "planned");
        assert_eq!(called.submit(write(1.0)).await.unwrap().version(), 1);
        assert_eq!(called.swap(|_, (x,), _| async move { Ok((x,)) }).unwrap(), 2);
        assert_eq!(called.submit(write(5.0)).await.unwrap().outputs().0, [5.0; ROW]);
    });
}

#[test]
fn sizes_have_to_end_with_the_most_rows_of_a_batch() {
    on_threads_and_seeds(|device| async move {
        for sizes in [&[][..], &[0, 4], &[2], &[8]] {
            let built = builder(&device).max_rows(4).build_captured(sizes, total).await;
            let error = built.map(drop).unwrap_err();
            says(
                &error,
                ErrorKind::InvalidArgument,
                &["the largest has to be max_rows, 4", &format!("{sizes:?}")],
            );
        }
    });
}

#[test]
fn an_output_of_another_shape_fails_its_batches_and_no_stream_is_left_behind() {
    on_threads_and_seeds(|device| async move {
        let batcher =
            builder(&device).max_rows(2).build_captured(&[2], |(x,)| Ok((x.sum().queued()?,))).await.unwrap();
        for _ in 0..3 {
            let error = batcher.submit(write(1.0)).await.unwrap_err().to_string();
            assert!(error.contains("output 0 of the model is f32 of shape []"), "{error}");
        }
        // On new streams, with the same buffers.
        batcher.swap_captured(&[2], total).await.unwrap();
        assert_eq!(batcher.submit(write(1.0)).await.unwrap().outputs().0, [3.0; ROW]);
    });
}
