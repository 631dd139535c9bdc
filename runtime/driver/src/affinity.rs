//! The cores that Warpline's own threads run on: those of the main thread of the process.
//!
//! A new thread inherits the cores of the thread that starts it. Threads are started where a
//! program first needs them, which may be on a worker that the program pinned to one core. All of
//! Warpline's threads would then share that core for good. Asking for all cores instead would leave
//! those to which `taskset` limits the process.

/// Moves the calling thread to the cores of the main thread. If the system refuses, or does not say
/// which they are, the thread stays where it is.
pub fn follow_main_thread() {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: an all-zero CPU set is a valid, empty set.
        let mut cores: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        let len = size_of_val(&cores);
        // The main thread has the number of the process.
        let main = std::process::id() as libc::pid_t;
        // SAFETY: sched_getaffinity writes a CPU set of that size.
        if unsafe { libc::sched_getaffinity(main, len, &raw mut cores) } == 0 {
            // SAFETY: sched_setaffinity reads a CPU set of that size, for this thread.
            unsafe { libc::sched_setaffinity(0, len, &raw const cores) };
        }
    }
}

/// Returns how many threads can run at the same time on the cores of the main thread.
pub fn cores() -> usize {
    let here = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // The standard library answers for the thread that asks.
    let there = std::thread::Builder::new().name("warpline-cores".into()).spawn(move || {
        follow_main_thread();
        here()
    });
    there.ok().and_then(|thread| thread.join().ok()).unwrap_or_else(here)
}
