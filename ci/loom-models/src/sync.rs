//! The runtime's `sync`, made of loom's primitives in the shape of `parking_lot`'s and `crossbeam`'s.

pub(crate) use loom::sync::MutexGuard;
pub(crate) use loom::sync::MutexGuard as LockGuard;
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
pub(crate) use std::sync::Arc;

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
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// Blocks its thread until there is a token, and takes it.
pub(crate) struct Parker(Unparker);

#[derive(Clone)]
pub(crate) struct Unparker(Arc<(loom::sync::Mutex<bool>, loom::sync::Condvar)>);

impl Parker {
    pub(crate) fn new() -> Self {
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

/// A model of code around a lock has loom's own; `models/raw_lock.rs` is that of the lock.
pub(crate) type Lock<T> = Mutex<T>;

/// Of a pair of which one is heavy, both are as if sequentially consistent. Between two light ones the runtime's promise nothing: that no
/// protocol relies on two is for whoever reads it, since these do not show it.
pub(crate) fn light_fence() {
    fence(Ordering::SeqCst);
}

pub(crate) fn heavy_fence() {
    fence(Ordering::SeqCst);
}

/// Everywhere but on x86, where it follows from what comes before it.
pub(crate) fn fence_after_rmw() {
    fence(Ordering::SeqCst);
}

/// Sleepers of one lock.
#[derive(Debug)]
pub(crate) struct Parking {
    beds: loom::sync::Mutex<Beds>,
    woken: loom::sync::Condvar,
}

/// How many sleep, of how many that is over, and of how many of those with the lock.
#[derive(Debug, Default)]
struct Beds {
    asleep: usize,
    to_try: usize,
    with_lock: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    ToTry,
    WithLock,
}

impl Default for Parking {
    fn default() -> Self {
        Parking { beds: loom::sync::Mutex::new(Beds::default()), woken: loom::sync::Condvar::new() }
    }
}

impl Parking {
    pub(crate) fn sleep_if(&self, still: impl Fn() -> bool) -> Woken {
        let mut beds = self.beds.lock().expect("no model panics under a lock");
        if !still() {
            return Woken::ToTry;
        }
        beds.asleep += 1;
        while beds.to_try + beds.with_lock == 0 {
            beds = self.woken.wait(beds).expect("no model panics under a lock");
        }
        if beds.with_lock > 0 {
            beds.with_lock -= 1;
            return Woken::WithLock;
        }
        beds.to_try -= 1;
        Woken::ToTry
    }

    pub(crate) fn wake_one(&self, woken: Woken) -> bool {
        let mut beds = self.beds.lock().expect("no model panics under a lock");
        if beds.asleep == 0 {
            return false;
        }
        beds.asleep -= 1;
        match woken {
            Woken::ToTry => beds.to_try += 1,
            Woken::WithLock => beds.with_lock += 1,
        }
        self.woken.notify_one();
        true
    }
}

/// No spinning in a model: it changes nothing but the number of executions.
pub(crate) fn spin_until(done: impl Fn() -> bool) -> bool {
    done()
}
