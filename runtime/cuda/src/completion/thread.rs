//! The scheduling settings of the threads that watch devices: precise sleeps, and the cores of the
//! main thread.

use crate::work::capturing;
use warpline_driver::background::{self, Duty};

/// Prepares the calling thread to watch devices. The reactor and each device's thread call it once.
///
/// If it was started by a worker pinned to a core, the reactor would spin on the worker's core.
/// Timer slack is time that the system may add to each of the thread's sleeps, 50 µs by default.
pub(crate) fn become_reactor() {
    background::set_duty(Duty::Reactor);
    warpline_driver::reentry::become_awaited();
    capturing::become_ours();
    warpline_driver::affinity::follow_main_thread();
    #[cfg(target_os = "linux")]
    {
        // SAFETY: prctl with PR_SET_TIMERSLACK takes nanoseconds, for this thread. If the call
        // fails, sleeps take longer.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1usize) };
    }
}
