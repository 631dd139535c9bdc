//! Rows of different lengths.

use crate::support::{self, says};
use crate::{on_threads_and_seeds, write};
use futures::FutureExt;
use futures::future::join_all;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use tokio::sync::Semaphore;
use warpline::prelude::*;
use warpline::serve::{Batcher, BatcherBuilder, ServeError, WriterError};

/// The most elements of a row.
const LONGEST: usize = 7;

/// Rows of numbers, each with two more, to the sums of both.
type In = (f32, i32);
type Out = (f32,);

fn builder(device: &Device) -> BatcherBuilder<In, Out> {
    Batcher::builder(device, [[LONGEST].into(), [LONGEST, 2].into()], [[2].into()])
}

/// Returns the sums of each row, over its own elements alone.
async fn sums(device: Device, (x, y): (Tensor, Tensor), lens: Vec<usize>) -> warpline::Result<(Tensor,)> {
    let total: usize = lens.iter().sum();
    assert_eq!((x.shape(), y.shape()), (&[total][..], &[total, 2][..]));
    let (x, y) = (x.to_vec::<f32>().await?, y.to_vec::<i32>().await?);
    let (mut sums, mut at) = (Vec::new(), 0);
    for len in &lens {
        sums.push(x[at..at + len].iter().sum::<f32>());
        sums.push(y[2 * at..2 * (at + len)].iter().sum::<i32>() as f32);
        at += len;
    }
    Ok((Tensor::from_host(&sums, [lens.len(), 2], &device).queued()?,))
}

/// Writes `n` and the place of an element to each element.
fn fill(n: usize, (x, y): (&mut [f32], &mut [i32])) -> Result<(), WriterError> {
    for (at, x) in x.iter_mut().enumerate() {
        *x = (100 * n + at) as f32;
    }
    for (at, y) in y.iter_mut().enumerate() {
        *y = (1000 * n + at) as i32;
    }
    Ok(())
}

fn expected(n: usize, len: usize) -> [f32; 2] {
    let (mut x, mut y) = (vec![0.0; len], vec![0; 2 * len]);
    fill(n, (&mut x, &mut y)).unwrap();
    [x.iter().sum(), y.iter().sum::<i32>() as f32]
}

#[test]
fn each_call_gets_the_outputs_of_its_own_elements() {
    on_threads_and_seeds(|device| async move {
        let lens_of_batches = Arc::new(Mutex::new(Vec::new()));
        let (noted, on) = (lens_of_batches.clone(), device.clone());
        let batcher = builder(&device).max_rows(5).max_queued(200).build_packed(16, move |_, x, lens| {
            noted.lock().unwrap().push(lens.clone());
            sums(on.clone(), x, lens)
        });
        let batcher = batcher.await.unwrap();
        // Some of them fail while they write, and some leave, so that rows have to move.
        let calls = (0..60).map(|n| {
            let (batcher, len) = (batcher.clone(), 1 + n * n % LONGEST);
            async move {
                let mut call = pin!(
                    batcher
                        .submit(move |(x, y)| {
                            assert_eq!((x.len(), y.len()), (len, 2 * len));
                            assert!(x.iter().all(|x| *x == 0.0) && y.iter().all(|y| *y == 0));
                            fill(n, (x, y))?;
                            if n % 7 == 3 { Err("on purpose".into()) } else { Ok(()) }
                        })
                        .length(len)
                );
                let polled = call.as_mut().now_or_never();
                match (n % 7, polled) {
                    (3, Some(Err(ServeError::Writer(_)))) => return,
                    // It leaves.
                    (5, None) => return,
                    (_, None) => {}
                    (_, polled) => panic!("call {n} is {polled:?}"),
                }
                tokio::task::yield_now().await;
                let answer = call.await.unwrap();
                assert_eq!(answer.outputs().0, expected(n, len), "call {n} of length {len}");
            }
        });
        join_all(calls.map(tokio::spawn)).await.into_iter().for_each(|done| done.unwrap());
        let batches = lens_of_batches.lock().unwrap();
        assert!(
            batches.iter().all(|lens| lens.len() <= 5 && lens.iter().sum::<usize>() <= 16),
            "{batches:?}"
        );
        assert!(batches.iter().any(|lens| lens.len() > 1), "{batches:?}");
    });
}

#[test]
fn a_row_has_the_most_elements_unless_it_says_its_length() {
    on_threads_and_seeds(|device| async move {
        let on = device.clone();
        let batcher = builder(&device).build_packed(LONGEST, move |_, x, lens| sums(on.clone(), x, lens));
        let batcher = batcher.await.unwrap();
        let answer = batcher.submit(|row| fill(1, row)).await.unwrap();
        assert_eq!(answer.outputs().0, expected(1, LONGEST));
        for given in [0, LONGEST + 1] {
            let refused = batcher.submit(|_| unreachable!("it has no row")).length(given).await.unwrap_err();
            assert!(
                matches!(refused, ServeError::Length { given: was, longest: Some(LONGEST) } if was == given)
            );
            let text = refused.to_string();
            assert!(text.contains(&format!("length {given}, and 1 to 7 are possible")), "{text}");
        }
        let swapped = batcher.swap(|_, (x, _), _| async move { Ok((x,)) }).unwrap_err();
        says(&swapped, ErrorKind::InvalidArgument, &["different lengths", "use swap_packed"]);
        let on = device.clone();
        let doubled = batcher.swap_packed(move |_, x, lens| {
            let on = on.clone();
            async move {
                let (sums,) = sums(on, x, lens).await?;
                Ok(((&sums * 2.0).queued()?,))
            }
        });
        assert_eq!(doubled.unwrap(), 1);
        let answer = batcher.submit(|row| fill(1, row)).length(3).await.unwrap();
        assert_eq!((answer.outputs().0, answer.version()), (&expected(1, 3).map(|sum| 2.0 * sum)[..], 1));
        let captured = batcher.swap_captured(&[32], |(x, _)| Ok((x,))).await.unwrap_err();
        says(&captured, ErrorKind::InvalidArgument, &["different lengths", "use swap_packed"]);

        let alike = crate::builder(&device).build(|_, (x,), _| async move { Ok((x,)) }).await.unwrap();
        let refused = alike.submit(write(1.0)).length(3).await.unwrap_err();
        assert!(refused.to_string().contains("the length 3, and all rows of this batcher have one length"));
        let swapped = alike.swap_packed(|_, (x,), _| async move { Ok((x,)) }).unwrap_err();
        says(&swapped, ErrorKind::InvalidArgument, &["one length", "use swap"]);
    });
}

#[test]
fn as_many_of_the_longest_rows_wait_as_of_short_ones() {
    on_threads_and_seeds(|device| async move {
        for len in [1, LONGEST] {
            let (permits, on) = (Arc::new(Semaphore::new(0)), device.clone());
            let model = permits.clone();
            // A batch has room for two of the longest.
            let held = builder(&device).max_rows(5).max_queued(11).in_flight(1);
            let held = held.build_packed(2 * LONGEST + 1, move |_, x, lens| {
                let (permits, on) = (model.clone(), on.clone());
                async move {
                    permits.acquire().await.expect("it is not closed").forget();
                    sums(on, x, lens).await
                }
            });
            let held = held.await.unwrap();
            let call = |n: usize| Box::pin(held.submit(move |row| fill(n, row)).length(len));
            let mut calls = vec![call(0)];
            assert!(calls[0].as_mut().now_or_never().is_none());
            while held.stats().running == 0 {
                tokio::task::yield_now().await;
            }
            for n in 1..=11 {
                calls.push(call(n));
                assert!(calls[n].as_mut().now_or_never().is_none(), "call {n} of length {len}");
            }
            let full = call(12).await.unwrap_err();
            assert!(matches!(full, ServeError::Full { max_queued: 11 }), "{full}");
            permits.add_permits(12);
            for (n, answer) in join_all(calls).await.into_iter().enumerate() {
                assert_eq!(answer.unwrap().outputs().0, expected(n, len));
            }
        }
    });
}

#[test]
fn the_builder_refuses_shapes_and_sizes_that_do_not_fit() {
    support::within_a_minute(|| {
        let runtime = support::runtime(1);
        let device = runtime.devices()[0].clone();
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio.block_on(async {
            let model = |_, (x, _): (Tensor, Tensor), _| async move { Ok((x,)) };
            let few = builder(&device).build_packed(LONGEST - 1, model).await.unwrap_err();
            says(
                &few,
                ErrorKind::InvalidArgument,
                &["max_elements is 6", "7 elements", "raise max_elements"],
            );
            let fixed = builder(&device).fixed_rows().build_packed(LONGEST, model).await.unwrap_err();
            says(&fixed, ErrorKind::InvalidArgument, &["fixed_rows"]);
            for shapes in [[[3].into(), [4].into()], [[3].into(), [].into()]] {
                let differ = Batcher::<In, Out>::builder(&device, shapes, [[2].into()]);
                let differ = differ.build_packed(LONGEST, model).await.unwrap_err();
                says(&differ, ErrorKind::InvalidArgument, &["same first dimension", "[3], ["]);
            }
        });
    });
}
