//! One at a time has the lock, and whoever waits for it gets it.

use crate::raw_lock::RawLock;
use crate::sync::Arc;
use loom::cell::UnsafeCell;
use loom::thread;

#[derive(Default)]
struct Guarded {
    lock: RawLock,
    count: UnsafeCell<u64>,
}

// SAFETY: `count` is only touched under the lock; loom finds out if that is not so.
unsafe impl Sync for Guarded {}

impl Guarded {
    fn increment(&self) {
        self.lock.lock();
        // SAFETY: the lock is held.
        self.count.with_mut(|count| unsafe { *count += 1 });
        self.lock.unlock();
    }

    /// Once all threads are done.
    fn count(&self) -> u64 {
        // SAFETY: nobody else is there.
        self.count.with(|count| unsafe { *count })
    }

    fn try_increment(&self) -> bool {
        let taken = self.lock.try_lock();
        if taken {
            // SAFETY: the lock is held.
            self.count.with_mut(|count| unsafe { *count += 1 });
            self.lock.unlock();
        }
        taken
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn two_threads_each_have_it_twice() {
    loom::model(|| {
        let guarded = Arc::new(Guarded::default());
        let other = thread::spawn({
            let guarded = guarded.clone();
            move || (0..2).for_each(|_| guarded.increment())
        });
        (0..2).for_each(|_| guarded.increment());
        other.join().unwrap();
        assert_eq!(guarded.count(), 4);
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn of_three_threads_one_only_tries_and_nobody_stays_asleep() {
    loom::model(|| {
        let guarded = Arc::new(Guarded::default());
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let guarded = guarded.clone();
                thread::spawn(move || guarded.increment())
            })
            .collect();
        let taken = guarded.try_increment();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(guarded.count(), 2 + u64::from(taken));
    });
}
