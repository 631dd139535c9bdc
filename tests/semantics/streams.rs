//! Streams: the note's incorrect example, and its correction.

use crate::support::{refusal, runtime, says};
use std::cell::RefCell;
use warpline::ops::{normal_, sum};
use warpline::prelude::*;
use warpline::testing::for_each_seed_on;

const SEEDS: std::ops::Range<u64> = 0..64;

/// Fills a matrix on the default stream, and sums it on another stream.
fn sum_on_a_side_stream(device: &Device, with_the_edge: bool) -> Pending<f32> {
    let side = device.stream().label("side").build().unwrap();
    let a = device.alloc::<f32>(100 * 100).unwrap();
    normal_(&a, 42, 0.0, 1.0).queued().unwrap();
    if with_the_edge {
        side.wait_stream(&device.default_stream().unwrap());
    }
    side.enter(|| sum(&a))
}

/// X3: random numbers on the default stream, summed on a side stream without an edge: refused; with
/// the check off, wrong under some seeds; with the edge, the same sum in every run.
#[test]
fn a_sum_on_a_side_stream_without_an_edge_is_refused_and_with_one_it_is_right() {
    let threads = runtime(1);
    let device = threads.device(DeviceId::Cpu(0)).unwrap();
    let expected = sum_on_a_side_stream(&device, true).blocking_wait().unwrap();
    assert_ne!(expected, 0.0, "the memory was zero before it was filled");
    let sums = |mode: OrderMode, with_the_edge: bool| {
        let sums = RefCell::new(Vec::new());
        for_each_seed_on(Runtime::builder().order(mode), SEEDS, |devices| {
            let sums = &sums;
            async move {
                let sum = sum_on_a_side_stream(&devices[0], with_the_edge).await?;
                sums.borrow_mut().push(sum);
                Ok(())
            }
        });
        sums.into_inner()
    };
    for seed in SEEDS {
        let seeded = Runtime::builder().schedule(Schedule::Seeded(seed)).build().unwrap();
        let error = refusal(sum_on_a_side_stream(&seeded.device(DeviceId::Cpu(0)).unwrap(), false));
        says(
            &error,
            ErrorKind::Unordered,
            &["sum on stream \"side\"", "wrote, and no edge orders them; call side.wait_stream(&default)"],
        );
    }
    assert!(sums(OrderMode::Deny, true).iter().all(|&sum| sum == expected));
    assert!(sums(OrderMode::Wait, false).iter().all(|&sum| sum == expected));
    let unchecked = sums(OrderMode::Off, false);
    let wrong = unchecked.iter().filter(|&&sum| sum != expected).count();
    assert!(0 < wrong && wrong < unchecked.len(), "{wrong} of {} are wrong", unchecked.len());
    assert!(sums(OrderMode::Off, true).iter().all(|&sum| sum == expected));
}
