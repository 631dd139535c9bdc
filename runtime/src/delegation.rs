//! A lock that others can leave a request at instead of waiting for it.
//!
//! A stream's state is behind such a desk. Enqueuing sits down at it and may stay for as long as a driver call takes.
//! `poll` and `drop` must not wait that long; all they ever want is a marker for some ticket. If the desk is free they sit down
//! and serve themselves; else they **leave the request, then try the lock**. Whoever sits at the desk serves requests before
//! getting up.
//!
//! # Rules
//! 1. `request` never blocks.
//! 2. A request is served by somebody, once the desk is free: by the one who sits there, or by the one who left it.
//! 3. Serving happens under the lock, in order of getting up.
//!
//! # Why none is lost
//! The leaver: *leave, fence, try the lock*. The sitter: *serve, unlock, fence, look again; if
//! there is something, try the lock, and start over*. Say the leaver's try fails because the sitter
//! still holds the lock. Then, in the order of the two fences: if the leaver's is first, the
//! sitter's look after unlocking sees the request. If the sitter's is first, its unlock came before
//! the leaver's try, which then failed because of a third party, who is a sitter too and whose own
//! unlock is still to come. A sitter whose second try fails leaves the request to the holder by the
//! same argument.

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, fence};
use std::ops::{Deref, DerefMut};

/// What sits behind a [`Desk`].
pub(crate) trait Serve {
    /// Serves requests up to `ticket`.
    fn serve(&mut self, ticket: u64);
}

/// In this order, so that what `state` begins with lies beside what is looked at when it is left.
#[repr(C)]
pub(crate) struct Desk<S> {
    serves: bool,
    requested: AtomicU64,
    state: Mutex<S>,
}

impl<S: Serve> Desk<S> {
    /// `serves`: whether requests can come at all; without them leaving the desk costs one branch.
    pub(crate) fn new(state: S, serves: bool) -> Self {
        Desk { state: Mutex::new(state), requested: AtomicU64::new(0), serves }
    }

    /// Waits for the desk.
    #[inline]
    pub(crate) fn sit(&self) -> Seat<'_, S> {
        Seat { desk: self, state: Some(self.state.lock()) }
    }

    /// Leaves a request for `ticket`, and serves it at once if the desk is free.
    pub(crate) fn request(&self, ticket: u64) {
        if !self.serves {
            return;
        }
        // Nobody sits there: no request needs to be left.
        if let Some(mut state) = self.state.try_lock() {
            state.serve(ticket);
            drop(Seat { desk: self, state: Some(state) });
            return;
        }
        self.requested.fetch_max(ticket, Ordering::AcqRel);
        fence(Ordering::SeqCst); // weaken: leave-then-try
        if let Some(state) = self.state.try_lock() {
            drop(Seat { desk: self, state: Some(state) });
        }
    }

    #[inline]
    fn get_up<'a>(&'a self, mut state: MutexGuard<'a, S>) {
        loop {
            // What this look misses is found by the next, behind the fence.
            if self.requested.load(Ordering::Relaxed) != 0 {
                let ticket = self.requested.swap(0, Ordering::AcqRel);
                if ticket > 0 {
                    state.serve(ticket);
                }
            }
            drop(state);
            fence(Ordering::SeqCst); // weaken: unlock-then-look
            if self.requested.load(Ordering::Relaxed) == 0 {
                return;
            }
            match self.state.try_lock() {
                Some(again) => state = again,
                None => return,
            }
        }
    }
}

/// The place at a [`Desk`]: getting up serves what was left there meanwhile.
pub(crate) struct Seat<'a, S: Serve> {
    desk: &'a Desk<S>,
    state: Option<MutexGuard<'a, S>>,
}

impl<S: Serve> Deref for Seat<'_, S> {
    type Target = S;
    #[inline]
    fn deref(&self) -> &S {
        self.state.as_ref().expect("the seat is held until it is dropped")
    }
}

impl<S: Serve> DerefMut for Seat<'_, S> {
    #[inline]
    fn deref_mut(&mut self) -> &mut S {
        self.state.as_mut().expect("the seat is held until it is dropped")
    }
}

impl<S: Serve> Drop for Seat<'_, S> {
    #[inline]
    fn drop(&mut self) {
        let Some(state) = self.state.take() else { return };
        if self.desk.serves {
            self.desk.get_up(state);
        }
    }
}
