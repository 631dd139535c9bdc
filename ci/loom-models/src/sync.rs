//! The runtime's `sync`, made of loom's primitives in the shape of `parking_lot`'s and
//! `crossbeam`'s.

pub(crate) use loom::sync::MutexGuard;
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
pub(crate) use std::sync::{Arc, OnceLock};

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
