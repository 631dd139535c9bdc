//! Whether waiting a moment for something is worth it, going by how it went before.
//!
//! Where a few more attempts fail than succeed, that ends it for a while: what mostly fails is seldom tried.
//! Nothing depends on the answer but time, so threads may overwrite each other's.

use std::sync::atomic::{AtomicI16, Ordering::Relaxed};

/// So many more `ATTEMPTS` than succeed may fail; so many occasions are let pass (`PAUSE`) after that.
///
/// Above 0: attempts left. Else: this one and minus so many occasions are let pass.
#[derive(Debug)]
pub(crate) struct Hope<const ATTEMPTS: i16, const PAUSE: i16>(AtomicI16);

impl<const ATTEMPTS: i16, const PAUSE: i16> Default for Hope<ATTEMPTS, PAUSE> {
    fn default() -> Self {
        Hope(AtomicI16::new(ATTEMPTS))
    }
}

impl<const ATTEMPTS: i16, const PAUSE: i16> Hope<ATTEMPTS, PAUSE> {
    /// Whether to try this time.
    #[inline]
    pub(crate) fn tries(&self) -> bool {
        let now = self.0.load(Relaxed);
        if now <= 0 {
            self.0.store(now + 1, Relaxed);
        }
        now > 0
    }

    /// How an attempt went: 1 for one that succeeded, -1 for one that did not, less for one that was dear.
    #[inline]
    pub(crate) fn learn(&self, gained: i16) {
        let now = self.0.load(Relaxed);
        let next = match now + gained {
            ..=0 => 1 - PAUSE,
            left => left.min(ATTEMPTS),
        };
        if next != now {
            self.0.store(next, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of 10 000 occasions are taken where the attempts that `fails` names fail.
    fn taken(fails: impl Fn(usize) -> bool) -> usize {
        let hope = Hope::<4, 64>::default();
        let mut attempts = 0;
        for _ in 0..10_000 {
            if hope.tries() {
                attempts += 1;
                hope.learn(if fails(attempts) { -1 } else { 1 });
            }
        }
        attempts
    }

    #[test]
    fn what_mostly_fails_is_seldom_tried_and_what_mostly_succeeds_always() {
        assert_eq!(taken(|_| true), 4 + (10_000 - 4) / 65, "four, and one after each pause of 64");
        assert_eq!(taken(|_| false), 10_000);
        assert_eq!(taken(|attempt| attempt % 3 == 0), 10_000);
        assert!(taken(|attempt| attempt % 2 == 0) > 9_000);
        assert!(taken(|attempt| attempt % 3 != 0) < 500);
        let hope = Hope::<4, 64>::default();
        hope.learn(-3);
        assert!(hope.tries());
        hope.learn(-3);
        assert_eq!((0..100).position(|_| hope.tries()), Some(64), "a dear failure counts thrice");
    }
}
