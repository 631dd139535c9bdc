//! Divides a twin's work among several threads, if there is enough of it.
//!
//! A worker runs one op at a time, so a program with one stream would leave the other cores idle.
//! Waking a thread of the pool costs some 20 µs, and another core may be busy, so this is for work
//! of milliseconds.
//!
//! # Rule
//! The result for an element must not depend on where `y` is cut. Then its bits do not depend on
//! the number of threads.

use warpline_runtime::kernel::TwinThreads;

/// Cuts `y` into one part per thread that the twin may use, and calls `f` with each part's start
/// and the part.
///
/// A part consists of whole units of `unit` elements, and of at least `least` units.
pub(crate) fn share_out<T: Send>(y: &mut [T], unit: usize, least: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    match TwinThreads::current() {
        Some(threads) => share_out_among(&threads, y, unit, least, f),
        None => f(0, y),
    }
}

fn share_out_among<T: Send>(
    threads: &TwinThreads,
    y: &mut [T],
    unit: usize,
    least: usize,
    f: impl Fn(usize, &mut [T]) + Sync,
) {
    let units = y.len().div_ceil(unit);
    let part = units.div_ceil(threads.most()).max(least).saturating_mul(unit);
    if part >= y.len() {
        return f(0, y);
    }
    threads.for_each(y.chunks_mut(part).enumerate(), |(at, part_of_y)| f(at * part, part_of_y));
}

/// Does the same with a given number of threads.
#[cfg(test)]
pub(crate) fn share_out_to<T: Send>(
    threads: usize,
    y: &mut [T],
    unit: usize,
    least: usize,
    f: impl Fn(usize, &mut [T]) + Sync,
) {
    share_out_among(&TwinThreads::new(threads), y, unit, least, f);
}

#[cfg(test)]
mod tests {
    use super::share_out_to;

    #[test]
    fn every_element_is_in_one_part_and_parts_are_whole_units() {
        for (len, unit, least) in [(0, 4, 1), (1, 4, 1), (100, 4, 1), (1001, 7, 3), (64, 64, 1), (50, 1, 60)]
        {
            for threads in [1, 2, 3, 8] {
                let mut y = vec![0usize; len];
                share_out_to(threads, &mut y, unit, least, |start, part| {
                    assert!(start.is_multiple_of(unit));
                    part.iter_mut().enumerate().for_each(|(i, y)| *y += start + i + 1);
                });
                assert!(y.iter().enumerate().all(|(i, y)| *y == i + 1), "{len} {unit} {least} {threads}");
            }
        }
    }
}
