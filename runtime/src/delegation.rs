//! A lock whose holder does what others ask for instead of waiting: a delegation lock.
//!
//! A stream's state is behind one. Enqueuing holds it, for as long as a driver call may take. `poll` and `drop` must not
//! wait that long; all they ever want is a marker for some ticket. If the lock is free they take it and write the marker
//! themselves; else they **leave the request, then try the lock**. Whoever holds the lock serves requests before
//! letting it go.
//!
//! # Rules
//! 1. `delegate` never blocks.
//! 2. A request is served by somebody, once the lock is free: by who held it, or by who left the request.
//! 3. Serving happens under the lock, in the order in which it is let go.
//!
//! # Why none is lost
//! Who asks: *leave, fence, try the lock*. Who holds it: *serve, unlock, fence, look again; if
//! there is something, try the lock, and start over*. Say the asker's try fails because the holder
//! still has the lock. Then, in the order of the two fences: if the asker's is first, the
//! holder's look after unlocking sees the request. If the holder's is first, its unlock came before
//! the asker's try, which then failed because of a third party, who is a holder too and whose own
//! unlock is still to come. A holder whose second try fails leaves the request to the next by the
//! same argument.

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, fence};
use std::ops::{Deref, DerefMut};

/// What is behind a [`DelegationLock`].
pub(crate) trait Serve {
    /// Serves requests up to `ticket`.
    fn serve(&mut self, ticket: u64);
}

/// In this order, so that what `state` begins with lies beside what is looked at when it is let go.
#[repr(C)]
pub(crate) struct DelegationLock<S> {
    serves: bool,
    requested: AtomicU64,
    state: Mutex<S>,
}

impl<S: Serve> DelegationLock<S> {
    /// `serves`: whether requests can come at all; without them letting it go costs one branch more.
    pub(crate) fn new(state: S, serves: bool) -> Self {
        DelegationLock { state: Mutex::new(state), requested: AtomicU64::new(0), serves }
    }

    /// Waits for the lock.
    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_, S> {
        Locked { lock: self, state: Some(self.state.lock()) }
    }

    /// Asks the holder to serve `ticket`, or serves it at once if nobody holds the lock.
    pub(crate) fn delegate(&self, ticket: u64) {
        if !self.serves {
            return;
        }
        if let Some(mut state) = self.state.try_lock() {
            state.serve(ticket);
            drop(Locked { lock: self, state: Some(state) });
            return;
        }
        self.requested.fetch_max(ticket, Ordering::AcqRel);
        fence(Ordering::SeqCst); // weaken: leave-then-try
        if let Some(state) = self.state.try_lock() {
            drop(Locked { lock: self, state: Some(state) });
        }
    }

    #[inline]
    fn unlock<'a>(&'a self, mut state: MutexGuard<'a, S>) {
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

/// A [`DelegationLock`] that is held. Letting it go serves what was asked for meanwhile.
pub(crate) struct Locked<'a, S: Serve> {
    lock: &'a DelegationLock<S>,
    state: Option<MutexGuard<'a, S>>,
}

impl<S: Serve> Deref for Locked<'_, S> {
    type Target = S;
    #[inline]
    fn deref(&self) -> &S {
        self.state.as_ref().expect("it is held until this is dropped")
    }
}

impl<S: Serve> DerefMut for Locked<'_, S> {
    #[inline]
    fn deref_mut(&mut self) -> &mut S {
        self.state.as_mut().expect("it is held until this is dropped")
    }
}

impl<S: Serve> Drop for Locked<'_, S> {
    #[inline]
    fn drop(&mut self) {
        let Some(state) = self.state.take() else { return };
        if self.lock.serves {
            self.lock.unlock(state);
        }
    }
}
