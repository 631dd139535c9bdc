//! Streams: the note's incorrect example, and its correction.

use crate::note::sum_on_a_side_stream;
use crate::support::{refusal, runtime, says};
use std::cell::RefCell;
use warpline::prelude::*;
use warpline::testing::for_each_seed_on;

const SEEDS: std::ops::Range<u64> = 0..64;

/// X3: random numbers on the default stream, summed on a side stream without an edge: refused; with
/// the check off, wrong under some seeds; with the edge, the same sum in every run. Each order mode
/// needs runtimes of its own, with seeds.
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
