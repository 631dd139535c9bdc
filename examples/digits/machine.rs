//! The work that two busy threads of this machine do in the time of one.
//!
//! Loading and computing overlap only as far as the machine runs two threads side by side. On a
//! shared or hyper-threaded machine that may be far less than twice the work of one thread.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

/// The length of one measurement: several turns of the operating system's scheduler.
const SPAN: Duration = Duration::from_millis(40);
const ROUNDS: usize = 5;

/// Returns the ratio of the work of two threads to the work of one in the same time: 2 if neither
/// slows the other down. It is the median of several rounds, which take 0.4 s in all.
pub(crate) fn two_threads() -> f64 {
    let mut ratios = [(); ROUNDS].map(|()| {
        let one = busy();
        let two = thread::scope(|scope| {
            let other = scope.spawn(busy);
            busy() + other.join().expect("arithmetic does not panic")
        });
        two / one
    });
    ratios.sort_by(f64::total_cmp);
    ratios[ROUNDS / 2]
}

/// Computes until the time is up, and returns the number of steps per second.
fn busy() -> f64 {
    let began = Instant::now();
    let (mut steps, mut state) = (0_u32, 1_u64);
    while began.elapsed() < SPAN {
        for _ in 0..1000 {
            // The multiplier of Knuth's generator MMIX, The Art of Computer Programming, 3.3.4.
            state = black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
        steps += 1000;
    }
    f64::from(steps) / began.elapsed().as_secs_f64()
}
