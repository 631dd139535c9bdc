//! A delegation lock: its holder serves the requests of threads that must not wait for it.
//!
//! A stream's state is behind one. Enqueuing holds the lock for as long as a driver call may take.
//! `poll` and `drop` must not wait that long; they only ever need a marker for some ticket. If the
//! lock is free, they take it and write the marker themselves. Otherwise they **leave the request,
//! then try the lock**. The holder serves requests before it releases the lock.
//!
//! # Rules
//! 1. `delegate` never blocks.
//! 2. Each request is served once the lock is free: by the thread that held the lock, or by the
//!    thread that left the request.
//! 3. Serving happens under the lock, in the order in which the lock is released.
//!
//! # Why none is lost
//! The requester: *leave, fence, try the lock*. The holder: *serve, unlock, fence, look again; if
//! there is something, try the lock, and start over*. Say the requester's try fails because the
//! holder still has the lock. Consider the order of the two fences. If the requester's is first,
//! the holder's look after unlocking sees the request. If the holder's is first, its unlock came
//! before the requester's try. So that try failed because of a third thread, which is a holder too
//! and whose own unlock is still to come. A holder whose second try fails leaves the request to the
//! next holder, by the same argument.

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, fence, fence_after_rmw};
use std::ops::{Deref, DerefMut};

/// A state behind a [`DelegationLock`].
pub(crate) trait Serve {
    /// Serves requests up to `ticket`.
    fn serve(&mut self, ticket: u64);
}

/// A lock whose holder serves the requests of other threads.
///
/// The order of the fields puts the beginning of `state` beside the fields that are read at
/// release.
#[repr(C)]
pub(crate) struct DelegationLock<S> {
    serves: bool,
    requested: AtomicU64,
    state: Mutex<S>,
}

impl<S: Serve> DelegationLock<S> {
    /// The offset of the state, at most.
    pub(crate) const STATE_AT: usize = size_of::<Self>() - size_of::<S>();

    /// Creates the lock. `serves`: true if there can be requests at all. Without them a release
    /// costs one more branch.
    pub(crate) fn new(state: S, serves: bool) -> Self {
        DelegationLock { state: Mutex::new(state), requested: AtomicU64::new(0), serves }
    }

    /// Waits for the lock.
    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_, S> {
        Locked { lock: self, state: Some(self.state.lock()) }
    }

    /// Asks the holder to serve `ticket`, or serves it immediately if the lock is free.
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
            // A request that this load misses is found by the load after the fence.
            if self.requested.load(Ordering::Relaxed) != 0 {
                let ticket = self.requested.swap(0, Ordering::AcqRel);
                if ticket > 0 {
                    state.serve(ticket);
                }
            }
            drop(state);
            // The mutex is unlocked by a read-modify-write, which tells it whether other threads
            // wait.
            fence_after_rmw(); // weaken: unlock-then-look
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

/// A [`DelegationLock`] that is held. Its release serves the requests left meanwhile.
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
