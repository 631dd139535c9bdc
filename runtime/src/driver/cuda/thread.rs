//! What threads may do, and what the reactor's asks of the system: to wake on time, and to be allowed on every core.

use std::cell::Cell;

/// What the calling thread is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Anybody's: may call the driver.
    Free,
    /// The reactor: may make calls that do not block.
    Reactor,
    /// One of the driver's, in a host function: may make no call.
    HostFunction,
}

thread_local! {
    static ROLE: Cell<Role> = const { Cell::new(Role::Free) };
}

/// Whether this thread may make calls that block.
pub(super) fn is_free() -> bool {
    ROLE.get() == Role::Free
}

/// Whether this thread may make any call.
#[inline]
pub(super) fn may_call() -> bool {
    ROLE.get() != Role::HostFunction
}

/// Runs a host function, on a thread of the driver's.
pub(super) fn as_host_function<R>(f: impl FnOnce() -> R) -> R {
    let before = ROLE.replace(Role::HostFunction);
    let result = f();
    ROLE.set(before);
    result
}

/// Called by the reactor, once.
///
/// A thread starts with the affinity of whoever starts it. If that is a worker pinned to a core, the reactor would spin on that
/// worker's core; so it asks for all of them, and the system takes those that the process may use. Timer slack, 50 µs by
/// default, is time that the system may add to each of its sleeps.
pub(super) fn become_reactor() {
    ROLE.set(Role::Reactor);
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
