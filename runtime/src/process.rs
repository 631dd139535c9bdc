//! What becomes of the process: whether it was forked, and whether it ends.

use crate::error::{Error, ErrorKind};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static FORKED: AtomicBool = AtomicBool::new(false);
static ENDING: AtomicBool = AtomicBool::new(false);

/// Has the system tell us. Called when a runtime is made.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    #[cfg(unix)]
    ONCE.call_once(|| {
        extern "C" fn in_child() {
            FORKED.store(true, Ordering::Relaxed);
        }
        extern "C" fn at_exit() {
            ENDING.store(true, Ordering::Relaxed);
        }
        // SAFETY: pthread_atfork takes functions that may run in the child of a fork; this one stores a flag. If it is not
        // taken, forks go unnoticed.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        // SAFETY: atexit takes a function that may run while the process ends; this one stores a flag.
        unsafe { libc::atexit(at_exit) };
    });
}

/// Whether this is the child of a fork, where neither the workers nor the driver's threads are.
#[inline]
pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Whether the driver may be tearing itself down, so that nothing is to be given back to it. Also in the child of a fork.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only drivers that tear themselves down"))]
pub(crate) fn is_ending() -> bool {
    ENDING.load(Ordering::Relaxed) || is_forked()
}

/// The error of everything that is asked of a device in the child of a fork.
#[cold]
pub(crate) fn forked() -> Error {
    Error::new(
        ErrorKind::Forked,
        "this process was forked from one that used warpline, and neither its threads nor its devices came along; start \
         a new process instead (exec, or a spawn that does not fork), or fork before the first device is used",
    )
}
