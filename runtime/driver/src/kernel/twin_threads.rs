//! The threads among which a twin may divide large work.
//!
//! # Rules
//! 1. A CPU device's workers [enter](TwinThreads::enter) the threads of their device once, when
//!    they start. A twin finds them on its own thread. On a thread without them, such as one that
//!    polls a seeded schedule, a twin uses its own thread alone.
//! 2. The twin's own thread does the first part of the work. The threads of a pool do the others.
//!    The pool starts when there are other parts for the first time, and ends with its device.
//! 3. Twins that run at the same time share the pool. So a runtime has as many such threads as its
//!    setting says, and no call starts any.
//! 4. A twin returns only when all its parts are done. Parts wait for nothing, so a pool that is
//!    busy with other parts only delays them.
// Decision: docs/decisions/0057-twins-share-one-pool-of-threads.md

use crate::reentry;
use rayon_core::{ThreadPool, ThreadPoolBuilder};
use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

thread_local! {
    static CURRENT: RefCell<Option<TwinThreads>> = const { RefCell::new(None) };
}

/// The threads among which the twins of CPU devices may divide large work. Clones share them.
///
/// Waking a thread takes some 20 µs, so this is for milliseconds of work. If a result does not
/// depend on how the work is cut into parts, its bits are the same for any number of threads.
///
/// # Examples
/// The body of a twin that squares the elements of `x`:
/// ```
/// use warpline::kernel::TwinThreads;
///
/// fn square(x: &mut [f32]) {
///     let threads = TwinThreads::current().unwrap_or_else(|| TwinThreads::new(1));
///     let part = x.len().div_ceil(threads.most()).max(1);
///     threads.for_each(x.chunks_mut(part), |part| part.iter_mut().for_each(|x| *x *= *x));
/// }
/// # let mut x = [1.0, 2.0, 3.0];
/// # square(&mut x);
/// # assert_eq!(x, [1.0, 4.0, 9.0]);
/// # let _entered = TwinThreads::new(2).enter();
/// # square(&mut x);
/// # assert_eq!(x, [1.0, 16.0, 81.0]);
/// ```
#[derive(Clone)]
pub struct TwinThreads(Arc<Inner>);

struct Inner {
    most: usize,
    /// `most` - 1 threads, or `None` if they could not be started.
    pool: OnceLock<Option<ThreadPool>>,
}

impl TwinThreads {
    /// Allows a twin `most` threads, its own included. Starts none.
    pub fn new(most: usize) -> Self {
        TwinThreads(Arc::new(Inner { most: most.max(1), pool: OnceLock::new() }))
    }

    /// Returns the number of threads that a twin may use, its own included.
    pub fn most(&self) -> usize {
        self.0.most
    }

    /// Gives these threads to the twins on the calling thread, until the returned value is dropped.
    pub fn enter(&self) -> EnteredTwinThreads {
        let before = CURRENT.replace(Some(self.clone()));
        EnteredTwinThreads { before, on_this_thread: PhantomData }
    }

    /// Returns the threads that the calling thread has entered. They are `None` outside the workers
    /// of a CPU device.
    pub fn current() -> Option<TwinThreads> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Calls `f` with each part, and returns when all calls have returned.
    ///
    /// The calling thread takes the first part. If there is no pool, it takes all of them.
    ///
    /// # Panics
    /// If a call panics, with that panic, after all calls have ended.
    pub fn for_each<P: Send>(&self, parts: impl IntoIterator<Item = P>, f: impl Fn(P) + Sync) {
        let mut parts = parts.into_iter().peekable();
        let Some(first) = parts.next() else { return };
        let pool = if parts.peek().is_some() { self.pool() } else { None };
        let Some(pool) = pool else {
            f(first);
            return parts.for_each(f);
        };
        // A part is code of the caller, also on another thread, and may call what the caller may.
        let (f, caller) = (&f, reentry::caller());
        pool.in_place_scope(|scope| {
            parts.for_each(|part| {
                scope.spawn(move |_| {
                    let _calling = reentry::calling(caller);
                    f(part);
                });
            });
            f(first);
        });
    }

    fn pool(&self) -> Option<&ThreadPool> {
        let Inner { most, pool } = &*self.0;
        let start = || {
            let threads = most - 1;
            let builder = ThreadPoolBuilder::new()
                .num_threads(threads)
                .start_handler(|_| crate::affinity::follow_main_thread())
                .thread_name(|number| format!("warpline-twin-{number}"));
            // With 0 threads, rayon-core would start one per core.
            let started = (threads > 0).then(|| builder.build())?;
            started
                .inspect_err(|error| {
                    tracing::warn!(
                        target: "warpline",
                        "{threads} threads for kernels on the CPU could not be started: {error}; each \
                         kernel runs on one thread; allow the process more threads, or lower \
                         kernel_threads"
                    );
                })
                .ok()
        };
        pool.get_or_init(start).as_ref()
    }
}

impl fmt::Debug for TwinThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TwinThreads").field("most", &self.0.most).finish_non_exhaustive()
    }
}

/// Restores the threads that the calling thread had before, when it is dropped.
#[must_use = "the threads are left when this is dropped"]
#[derive(Debug)]
pub struct EnteredTwinThreads {
    before: Option<TwinThreads>,
    on_this_thread: PhantomData<*const ()>,
}

impl Drop for EnteredTwinThreads {
    fn drop(&mut self) {
        drop(CURRENT.replace(self.before.take()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Mutex;
    use std::thread::{ThreadId, current};

    fn threads_of(threads: &TwinThreads, parts: usize) -> HashSet<ThreadId> {
        let seen = Mutex::new(HashSet::new());
        threads.for_each(0..parts, |_| {
            seen.lock().unwrap().insert(current().id());
        });
        seen.into_inner().unwrap()
    }

    #[test]
    fn one_thread_is_the_callers_and_more_are_the_same_in_every_call() {
        let one = TwinThreads::new(1);
        assert_eq!(threads_of(&one, 5), HashSet::from([current().id()]));
        assert_eq!(one.0.pool.get().map(Option::is_some), Some(false));

        let two = TwinThreads::new(2);
        assert_eq!(threads_of(&two, 1), HashSet::from([current().id()]));
        assert!(two.0.pool.get().is_none(), "one part starts no thread");
        let both = threads_of(&two, 2);
        assert!(both.len() == 2 && both.contains(&current().id()));
        for parts in 2..6 {
            assert_eq!(threads_of(&two, parts), both);
        }
    }

    #[test]
    fn a_part_may_call_what_its_caller_may() {
        let callers = |threads: &TwinThreads| {
            let seen = Mutex::new(Vec::new());
            threads.for_each(0..3, |_| seen.lock().unwrap().push(reentry::caller()));
            seen.into_inner().unwrap()
        };
        let threads = TwinThreads::new(2);
        let twin = reentry::calling(reentry::Caller::Twin);
        assert_eq!(callers(&threads), [reentry::Caller::Twin; 3]);
        drop(twin);
        assert_eq!(callers(&threads), [reentry::Caller::User; 3]);
    }

    #[test]
    fn every_part_is_done_once_by_the_time_the_call_returns() {
        for most in [0, 1, 2, 4] {
            let threads = TwinThreads::new(most);
            for parts in [0, 1, 2, 7, 100] {
                let mut done = vec![0; parts];
                threads.for_each(done.iter_mut(), |part| *part += 1);
                assert_eq!(done, vec![1; parts]);
            }
        }
    }

    #[test]
    fn a_panic_in_any_part_reaches_the_caller_and_leaves_the_pool_usable() {
        let threads = TwinThreads::new(2);
        for bad in 0..4 {
            let run = || threads.for_each(0..4, |part| assert_ne!(part, bad, "on purpose"));
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        }
        assert_eq!(threads_of(&threads, 2).len(), 2);
    }

    #[test]
    fn entering_nests_and_ends() {
        let most = || TwinThreads::current().map(|threads| threads.most());
        assert_eq!(most(), None);
        let outer = TwinThreads::new(3).enter();
        {
            let _inner = TwinThreads::new(2).enter();
            assert_eq!(most(), Some(2));
            assert_eq!(std::thread::spawn(|| TwinThreads::current().is_none()).join().ok(), Some(true));
        }
        assert_eq!(most(), Some(3));
        drop(outer);
        assert_eq!(most(), None);
    }
}
