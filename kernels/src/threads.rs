//! Divides a twin's work among several threads, if there is enough of it.
//!
//! A worker runs one op at a time, so a program with one stream would leave the other cores idle.
//! Starting a thread costs some 20 µs, and another core may be busy, so this is for work of
//! milliseconds. The threads live as long as the call.
//!
//! # Rule
//! The result for an element must not depend on where `y` is cut. Then its bits do not depend on
//! the number of threads.

use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::thread;

/// Cuts `y` into one part per core, and calls `f` with each part's start and the part.
///
/// A part consists of whole units of `unit` elements, and of at least `least` units.
pub(crate) fn share_out<T: Send>(y: &mut [T], unit: usize, least: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    share_out_to(cores(), y, unit, least, f);
}

pub(crate) fn share_out_to<T: Send>(
    threads: usize,
    y: &mut [T],
    unit: usize,
    least: usize,
    f: impl Fn(usize, &mut [T]) + Sync,
) {
    let units = y.len().div_ceil(unit);
    let part = units.div_ceil(threads).max(least).saturating_mul(unit);
    if part >= y.len() {
        return f(0, y);
    }
    let f = &f;
    thread::scope(|scope| {
        let (first, rest) = y.split_at_mut(part);
        for (at, part_of_y) in rest.chunks_mut(part).enumerate() {
            scope.spawn(move || f((at + 1) * part, part_of_y));
        }
        f(0, first);
    });
}

fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| thread::available_parallelism().map_or(1, NonZeroUsize::get))
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
