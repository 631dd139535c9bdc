//! Random fills: the words are the same bits, and the normal numbers are close.
#![cfg(target_os = "linux")]

use host_check::{Agree, Check, Launch, WARPS, launches};
use warpline_kernels::launch;
use warpline_test_counts::count;

/// Compares every size at every offset in the stream and every alignment, and then a large size.
fn compare(name: &str, [a, b]: [f32; 2], agree: Agree) {
    let check = |n: usize, offset: u64, start: usize| {
        let y = vec![9.0f32; n];
        let numbers = Check::of(name).scalar(n as u64).scalar(0xdead_beef_0123_4567u64).scalar(u64::MAX - 6);
        numbers.scalar(offset).scalar(a).scalar(b).slice(&y, start)
    };
    for n in [0, 1, 3, 4, 5, 31, 32, 33, 259] {
        for offset in [0, 1, 2, 3, 4, 7, u64::from(u32::MAX) * 4 - 1, u64::MAX - 2] {
            for start in 0..4 {
                // SAFETY: `y` has n elements.
                unsafe { check(n, offset, start).agrees(agree, &launches()) };
            }
        }
    }
    let n = count(200_003, 1_000_003);
    for (start, launch) in [(0, Launch::new(launch::elements(n as u64))), (1, WARPS)] {
        // SAFETY: `y` has n elements.
        unsafe { check(n, 3, start).agrees(agree, &[launch]) };
    }
}

#[test]
fn uniform_numbers_are_the_same_bits() {
    compare("philox_uniform", [-1.0, 3.0], Agree::Bits);
    compare("philox_uniform", [0.0, 1.0], Agree::Bits);
}

#[test]
fn normal_numbers_are_close() {
    // The angle lacks a rounding of 2.4e-7, times a radius of at most 6.7. Some units in the last
    // place come on top.
    compare("philox_normal", [0.0, 1.0], Agree::Within { absolute: 3e-6, relative: 1e-6 });
    compare("philox_normal", [5.0, 0.1], Agree::Within { absolute: 1e-6, relative: 1e-6 });
}
