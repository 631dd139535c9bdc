//! Brief busy-waiting of a host thread for an op, instead of going to sleep.
//!
//! Going to sleep and being woken takes ten times as long as a small op. A polling thread therefore
//! waits a moment for an op that is next on its stream. The state of the workers determines how it
//! waits, and it waits only where that mostly helped before. It waits at most about as long as
//! sleeping would cost, so waiting in vain at most doubles that cost. This module affects timing
//! only, so threads may overwrite each other's hints.
//!
//! The thread runs no op itself: the decision has the reasons.
// Decision: docs/decisions/0060-polls-wait-as-long-as-sleeping-costs.md

use super::idle::Rest;
use std::sync::atomic::{AtomicI16, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use warpline_driver::timeline::{Ticket, Timeline};

/// The longest wait for an op that is running: about what going to sleep and being woken costs
/// (measured: 15 µs on two cores of a virtual machine).
const SPIN: Duration = Duration::from_micros(15);
/// The longest wait for a worker that is waking up.
const GETTING_UP: Duration = Duration::from_micros(20);

/// The record of waits that yield, shared by the streams of a device.
pub(super) type Yields = Adaptive<8, 1024>;

/// The busy-waiting state of one stream.
#[derive(Debug, Default)]
pub(super) struct Awake {
    spins: Adaptive<4, 64>,
    /// The bound below which a host thread busy-waits for tickets.
    awaited: AtomicU64,
}

impl Awake {
    /// Waits a moment for `ticket`, in a way that suits the state of the workers. Returns whether
    /// the ticket is reached.
    pub(super) fn wait(&self, timeline: &Timeline, ticket: Ticket, rest: Rest, yields: &Yields) -> bool {
        // An op that is behind other work takes longer.
        if timeline.newest() + 1 < ticket {
            return false;
        }
        let is_reached = || timeline.settle(ticket);
        match rest {
            Rest::Awake => self.spins.wait(SPIN, std::hint::spin_loop, || self.announce(ticket), is_reached),
            // The scheduler tends to put a woken worker on the core of the thread that woke it,
            // where the worker has to wait until this thread yields.
            Rest::GettingUp => {
                yields.wait(GETTING_UP, std::thread::yield_now, || self.announce(ticket), is_reached)
            }
            Rest::Asleep => false,
        }
    }

    /// Records that a thread waits for `ticket` before it enqueues its next op.
    fn announce(&self, ticket: Ticket) {
        const FEW: Ticket = 8;
        // Do not store each time: the worker uses this cache line too.
        if self.awaited.load(Relaxed) < ticket + FEW / 2 {
            self.awaited.store(ticket + FEW, Relaxed);
        }
    }

    /// Returns whether a thread busy-waits for `ticket`, or did so for one of the few tickets
    /// before it. A thread announces nothing if its first look finds its ticket reached.
    #[inline]
    pub(super) fn is_awaited(&self, ticket: Ticket) -> bool {
        self.awaited.load(Relaxed) > ticket
    }
}

/// Attempts a wait where earlier attempts mostly succeeded. Gives up after `ATTEMPTS` net failures,
/// then skips `PAUSE` opportunities.
///
/// A positive number is the number of net failures left. At zero or below, this opportunity is
/// skipped, and as many more as the number is below zero.
#[derive(Debug)]
pub(super) struct Adaptive<const ATTEMPTS: i16, const PAUSE: i16>(AtomicI16);

impl<const ATTEMPTS: i16, const PAUSE: i16> Default for Adaptive<ATTEMPTS, PAUSE> {
    fn default() -> Self {
        Adaptive(AtomicI16::new(ATTEMPTS))
    }
}

impl<const ATTEMPTS: i16, const PAUSE: i16> Adaptive<ATTEMPTS, PAUSE> {
    /// Calls `pause` until `done` returns `true` or `limit` has passed, unless this opportunity is
    /// skipped. Returns whether `done` returned `true`.
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
                    // Another thread had the core meanwhile.
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

    /// Records the result of an attempt: 1 for a success, -1 for a failure, less for an expensive
    /// attempt.
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

    /// Returns the number of attempts out of 10 000 opportunities, if those chosen by `fails` fail.
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
        assert_eq!((0..100).position(|_| adaptive.tries()), Some(64), "an expensive failure counts thrice");
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
