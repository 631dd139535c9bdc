//! Whether waiting a moment for something is worth it, going by how it went before.
//!
//! A few attempts in a row that fail end it for a while; one that succeeds renews it. Nothing depends on the answer but time, so
//! threads may overwrite each other's.

use std::sync::atomic::{AtomicI8, Ordering::Relaxed};

/// So many attempts may fail one after the other.
const ATTEMPTS: i8 = 4;
/// So many occasions are let pass after that.
const PAUSE: i8 = 64;

/// Above 0: attempts left. Else: minus the occasions to let pass.
#[derive(Debug)]
pub(crate) struct Hope(AtomicI8);

impl Default for Hope {
    fn default() -> Self {
        Hope(AtomicI8::new(ATTEMPTS))
    }
}

impl Hope {
    /// Whether to try this time.
    #[inline]
    pub(crate) fn tries(&self) -> bool {
        let now = self.0.load(Relaxed);
        if now <= 0 {
            self.0.store(now + 1, Relaxed);
        }
        now > 0
    }

    /// How an attempt went.
    #[inline]
    pub(crate) fn learn(&self, succeeded: bool) {
        let now = self.0.load(Relaxed);
        let next = match (succeeded, now) {
            (true, _) => ATTEMPTS,
            (false, ..=1) => -PAUSE,
            (false, _) => now - 1,
        };
        if next != now {
            self.0.store(next, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_end_it_for_a_while_and_a_success_renews_it() {
        let hope = Hope::default();
        let mut attempts = 0;
        for _ in 0..200 {
            if hope.tries() {
                attempts += 1;
                hope.learn(false);
            }
        }
        assert_eq!(attempts, 4 + 2, "four, and one after each pause");
        while !hope.tries() {}
        hope.learn(true);
        for _ in 0..3 {
            assert!(hope.tries());
            hope.learn(false);
        }
        assert!(hope.tries());
    }
}
