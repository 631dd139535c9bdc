//! The state of the process: whether it was forked, and whether it is ending.

use crate::environment::CUDA_LAUNCH_BLOCKING;
use crate::error::{Error, ErrorKind};
use crate::exit::{Exit, Inside};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};

static FORKED: AtomicBool = AtomicBool::new(false);
static EXIT: Exit = Exit { ending: AtomicBool::new(false), inside: AtomicUsize::new(0) };

/// The longest time that the exit handler waits for calls of Warpline's threads. The calls take
/// microseconds, except those that page-lock memory.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// Registers handlers for forks and for the end of the process. Called when a runtime is made.
pub fn watch() {
    static ONCE: Once = Once::new();
    #[cfg(unix)]
    ONCE.call_once(|| {
        extern "C" fn in_child() {
            FORKED.store(true, Ordering::Relaxed);
        }
        // SAFETY: pthread_atfork takes functions that may run in the child of a fork; this one
        // stores a flag. If the registration fails, forks go unnoticed.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        end_before_the_libraries();
    });
}

/// Registers Warpline's exit handler, which then runs before those registered until now: handlers
/// run in reverse order. Called after each load or initialisation of a library that may have
/// registered one.
pub fn end_before_the_libraries() {
    #[cfg(unix)]
    {
        extern "C" fn at_exit() {
            // The handler is registered several times. All of its runs share one time limit.
            static SINCE: OnceLock<Instant> = OnceLock::new();
            EXIT.begin();
            let since = *SINCE.get_or_init(Instant::now);
            // In the child of a fork, Warpline's threads are counted but do not exist.
            while !EXIT.is_clear() && !is_forked() && since.elapsed() < LONGEST_WAIT {
                std::thread::yield_now();
            }
        }
        // SAFETY: atexit takes a function that may run while the process ends, more than once; this
        // one touches statics that are never dropped.
        unsafe { libc::atexit(at_exit) };
    }
}

/// Lets a thread of Warpline call the driver until the returned value is dropped. Returns `None` if
/// the process is ending.
pub fn enter_driver() -> Option<Inside<'static>> {
    EXIT.enter()
}

/// Returns true if each op is to be waited for where it is enqueued: `CUDA_LAUNCH_BLOCKING` is 1.
/// Asked when a device is opened.
pub fn launches_block() -> bool {
    CUDA_LAUNCH_BLOCKING.text().is_some_and(|on| on == "1")
}

/// Returns true if this process is the child of a fork, in which neither the workers nor the
/// driver's threads exist.
///
/// A thread that held a lock at the fork never releases it in the child. So every call and every
/// `Drop` asks this before it takes a lock, and a `Drop` leaks what it would have released.
#[inline]
pub fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Returns true if the driver may be tearing itself down, so that nothing must be released through
/// it. Also true in the child of a fork.
#[inline]
pub fn is_ending() -> bool {
    EXIT.is_ending() || is_forked()
}

/// Returns the error of every device call in the child of a fork.
#[cold]
pub fn forked() -> Error {
    Error::new(
        ErrorKind::Forked,
        "this process was forked from one that used warpline, and a fork copies neither its \
         threads nor its devices; start a new process instead (exec, or a spawn that does not \
         fork), or fork before the first device is used",
    )
}
