//! The runtime's `sync`, made of loom's primitives in the shape of `parking_lot`'s and
//! `crossbeam`'s, and tokio's `Notify` and `oneshot`.

pub(crate) mod oneshot;

pub(crate) use loom::sync::MutexGuard;
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
use std::future::Future;
use std::pin::Pin;
pub(crate) use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

#[derive(Debug)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("no model panics under a lock")
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().expect("no model panics under a lock")
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// Stands in for the padding of a cache line.
#[derive(Debug, Default)]
pub(crate) struct CachePadded<T>(T);

impl<T> std::ops::Deref for CachePadded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Blocks its thread until there is a token, and takes it.
pub(crate) struct Parker(Unparker);

#[derive(Clone)]
pub(crate) struct Unparker(Arc<(loom::sync::Mutex<bool>, loom::sync::Condvar)>);

impl Parker {
    pub(crate) fn here() -> Self {
        Parker(Unparker(Arc::new((loom::sync::Mutex::new(false), loom::sync::Condvar::new()))))
    }

    pub(crate) fn unparker(&self) -> &Unparker {
        &self.0
    }

    pub(crate) fn park(&self) {
        let (token, arrived) = &*self.0.0;
        let mut token = token.lock().expect("no model panics under a lock");
        while !*token {
            token = arrived.wait(token).expect("no model panics under a lock");
        }
        *token = false;
    }
}

impl Unparker {
    pub(crate) fn unpark(&self) {
        let (token, arrived) = &*self.0;
        *token.lock().expect("no model panics under a lock") = true;
        arrived.notify_one();
    }
}

/// A sequentially consistent fence, like the runtime's on every processor but x86. There the
/// operation before it already is one.
pub(crate) fn fence_after_rmw() {
    fence(Ordering::SeqCst);
}

/// Tokio's `Notify`, as far as the waits for memory need it.
#[derive(Debug, Default)]
pub(crate) struct Notify(Mutex<Notices>);

#[derive(Debug, Default)]
struct Notices {
    /// The number of calls so far.
    calls: u64,
    wakers: Vec<(u64, Waker)>,
    /// The number of wakers so far.
    added: u64,
}

impl Notify {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn notified(&self) -> Notified<'_> {
        Notified { notify: self, seen: self.0.lock().calls, waker: None }
    }

    pub(crate) fn notify_waiters(&self) {
        let mut notices = self.0.lock();
        notices.calls += 1;
        let wakers = std::mem::take(&mut notices.wakers);
        drop(notices);
        wakers.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

/// A future that is ready after the next call of `notify_waiters`.
pub(crate) struct Notified<'a> {
    notify: &'a Notify,
    /// The number of calls before it.
    seen: u64,
    /// The number of its waker.
    waker: Option<u64>,
}

impl Notified<'_> {
    /// Does nothing: it counts calls from its creation, like tokio's.
    pub(crate) fn enable(self: Pin<&mut Self>) -> bool {
        false
    }
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let notify = self.notify;
        let mut notices = notify.0.lock();
        if notices.calls > self.seen {
            return Poll::Ready(());
        }
        notices.wakers.retain(|(of, _)| Some(*of) != self.waker);
        notices.added += 1;
        let number = notices.added;
        notices.wakers.push((number, cx.waker().clone()));
        self.waker = Some(number);
        Poll::Pending
    }
}

/// A waker that stayed would hide that a later wake-up is lost.
impl Drop for Notified<'_> {
    fn drop(&mut self) {
        if self.waker.is_some() && !crate::process::is_forked() {
            self.notify.0.lock().wakers.retain(|(of, _)| Some(*of) != self.waker);
        }
    }
}

/// Tokio's module of this name.
pub(crate) mod futures {
    pub(crate) use super::Notified;
}
