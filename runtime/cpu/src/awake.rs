//! Waiting awake: a host thread that waits a moment for an op, instead of going to sleep.
//!
//! Going to sleep and being woken takes ten times as long as a small op. So who polls waits a
//! moment for an op that comes next, in the way that the workers are in, and where that mostly
//! helped before. Nothing depends on any of this but time, so threads may overwrite each other's
//! hints.

use super::idle::Rest;
use std::sync::atomic::{AtomicI16, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use warpline_driver::timeline::{Ticket, Timeline};

/// For an op that runs now.
const SPIN: Duration = Duration::from_micros(2);
/// For a worker that is getting up.
const GETTING_UP: Duration = Duration::from_micros(20);

/// Shared by the streams of a device.
pub(super) type Yields = Adaptive<8, 1024>;

/// Of one stream.
#[derive(Debug, Default)]
pub(super) struct Awake {
    spins: Adaptive<4, 64>,
    /// A host thread waits awake for what is below.
    awaited: AtomicU64,
}

impl Awake {
    /// Waits a moment until `ticket` is reached, while the workers rest so. Returns whether it is.
    pub(super) fn wait(&self, timeline: &Timeline, ticket: Ticket, rest: Rest, yields: &Yields) -> bool {
        // An op that is behind other work takes longer.
        if timeline.newest() + 1 < ticket {
            return false;
        }
        let is_reached = || timeline.settle(ticket);
        match rest {
            Rest::Awake => self.spins.wait(SPIN, std::hint::spin_loop, || self.announce(ticket), is_reached),
            // The scheduler likes to put who is woken where the waking thread runs, and has it wait
            // there.
            Rest::GettingUp => {
                yields.wait(GETTING_UP, std::thread::yield_now, || self.announce(ticket), is_reached)
            }
            Rest::Asleep => false,
        }
    }

    /// Says that a thread waits for `ticket`: what it brings next, it brings then.
    fn announce(&self, ticket: Ticket) {
        const FEW: Ticket = 8;
        // Not each time: the line is the worker's too.
        if self.awaited.load(Relaxed) < ticket + FEW / 2 {
            self.awaited.store(ticket + FEW, Relaxed);
        }
    }

    /// Returns whether a thread so waits for `ticket`, or did for one of the few before it: it does
    /// not say so where its first look finds the ticket reached.
    #[inline]
    pub(super) fn is_awaited(&self, ticket: Ticket) -> bool {
        self.awaited.load(Relaxed) > ticket
    }
}

/// Waits where that mostly helped before: while at most `ATTEMPTS` more attempts fail than succeed.
/// Then it lets `PAUSE` occasions pass.
///
/// Above 0 the number is that of the attempts left. Else this occasion, and as many more as it is
/// below 0, are let pass.
#[derive(Debug)]
pub(super) struct Adaptive<const ATTEMPTS: i16, const PAUSE: i16>(AtomicI16);

impl<const ATTEMPTS: i16, const PAUSE: i16> Default for Adaptive<ATTEMPTS, PAUSE> {
    fn default() -> Self {
        Adaptive(AtomicI16::new(ATTEMPTS))
    }
}

impl<const ATTEMPTS: i16, const PAUSE: i16> Adaptive<ATTEMPTS, PAUSE> {
    /// Pauses until `done` or `limit` is over, if that is worth it. Returns whether it is done.
    fn wait(&self, limit: Duration, pause: fn(), begin: impl FnOnce(), done: impl Fn() -> bool) -> bool {
        if !self.tries() {
            return false;
        }
        begin();
        let since = Instant::now();
        loop {
            pause();
            let took = since.elapsed();
            let is_done = done();
            if is_done || took >= limit {
                self.learn(match is_done {
                    // Somebody else had the processor.
                    _ if took > limit * 4 => -3,
                    true => 1,
                    false => -1,
                });
                return is_done;
            }
        }
    }

    fn tries(&self) -> bool {
        let now = self.0.load(Relaxed);
        if now <= 0 {
            self.0.store(now + 1, Relaxed);
        }
        now > 0
    }

    /// How an attempt went: 1 for one that succeeded, -1 for one that did not, less for one that
    /// was dear.
    fn learn(&self, gained: i16) {
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
        let adaptive = Adaptive::<4, 64>::default();
        let mut attempts = 0;
        for _ in 0..10_000 {
            if adaptive.tries() {
                attempts += 1;
                adaptive.learn(if fails(attempts) { -1 } else { 1 });
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
        let adaptive = Adaptive::<4, 64>::default();
        adaptive.learn(-3);
        assert!(adaptive.tries());
        adaptive.learn(-3);
        assert_eq!((0..100).position(|_| adaptive.tries()), Some(64), "a dear failure counts thrice");
    }

    #[test]
    fn who_waits_awake_is_taken_to_do_so_for_a_few_tickets_more() {
        let awake = Awake::default();
        assert!(!awake.is_awaited(1));
        awake.announce(3);
        assert!(awake.is_awaited(3) && awake.is_awaited(5));
        assert!(!awake.is_awaited(100));
    }
}
