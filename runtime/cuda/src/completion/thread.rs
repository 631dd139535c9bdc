//! The scheduling settings of the threads that watch devices: precise sleeps, and permission to run
//! on every core.

use crate::work::capturing;
use warpline_driver::background::{self, Duty};

/// Prepares the calling thread to watch devices. The reactor and each device's thread call it once.
///
/// A new thread inherits the CPU affinity of the thread that starts it. If that is a worker pinned
/// to a core, the reactor would spin on the worker's core. So the calling thread asks for all
/// cores, and the system grants those that the process may use. Timer slack is time that the system
/// may add to each of the thread's sleeps, 50 µs by default.
pub(crate) fn become_reactor() {
    background::set_duty(Duty::Reactor);
    warpline_driver::reentry::become_awaited();
    capturing::become_ours();
    #[cfg(target_os = "linux")]
    {
        // SAFETY: an all-zero CPU set is a valid, empty set.
        let mut cores: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for core in 0..libc::CPU_SETSIZE as usize {
            // SAFETY: the core is below the set's size.
            unsafe { libc::CPU_SET(core, &mut cores) };
        }
        // SAFETY: sched_setaffinity reads a CPU set of that size, for this thread. If the call
        // fails, the affinity is unchanged.
        unsafe { libc::sched_setaffinity(0, size_of_val(&cores), &raw const cores) };
        // SAFETY: prctl with PR_SET_TIMERSLACK takes nanoseconds, for this thread. If the call
        // fails, sleeps take longer.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1usize) };
    }
}
