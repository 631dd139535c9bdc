//! What the threads that look after devices ask of the system: to wake on time, and to be allowed on every core.

use crate::work::capturing;
use warpline_driver::background::{self, Duty};

/// Called by the reactor and by each device's thread, once.
///
/// A thread starts with the affinity of whoever starts it. If that is a worker pinned to a core, the reactor would spin on that
/// worker's core; so it asks for all of them, and the system takes those that the process may use. Timer slack, 50 µs by
/// default, is time that the system may add to each of its sleeps.
pub(crate) fn become_reactor() {
    background::set_duty(Duty::Reactor);
    warpline_driver::reentry::become_awaited();
    capturing::become_ours();
    #[cfg(target_os = "linux")]
    {
        // SAFETY: an all-zero CPU set is a valid, empty one.
        let mut cores: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for core in 0..libc::CPU_SETSIZE as usize {
            // SAFETY: the core is below the set's size.
            unsafe { libc::CPU_SET(core, &mut cores) };
        }
        // SAFETY: sched_setaffinity reads a CPU set of that size, for this thread. If it is refused, the affinity stays.
        unsafe { libc::sched_setaffinity(0, size_of_val(&cores), &raw const cores) };
        // SAFETY: prctl with PR_SET_TIMERSLACK takes nanoseconds, for this thread. If it is refused, sleeps are longer.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1usize) };
    }
}
