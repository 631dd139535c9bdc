//! The library's exit handler, after which calls return `CUDA_ERROR_DEINITIALIZED`, and its handler
//! of forks.
//!
//! `cuInit` registers the handler, as libcuda does. Handlers that were registered earlier run later
//! and find the driver gone (ucx #11275, rmm #2366). So do threads that still run. Work already
//! enqueued continues. Functions that work without `cuInit` still answer, except `cuInit` itself.

use crate::counts;
use crate::door::INITIALISED;
use crate::entries::{Entry, NAMES};
use crate::errors::{Code, say, thread_name};
use crate::plan;
use std::fs::File;
use std::io::Write;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

static ENDED: AtomicBool = AtomicBool::new(false);
static FORKED: AtomicBool = AtomicBool::new(false);
static LATE: AtomicU64 = AtomicU64::new(0);

/// The duration of the exit handler if late calls are written to a file or end the process.
const TEARDOWN: Duration = Duration::from_millis(20);

/// The effect of a late call besides its code.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LateCalls {
    /// Only the count grows, as it does for every late call.
    Count,
    /// The call's name is appended to this file, one name a line.
    Write(String),
    /// The call ends the process.
    Abort,
}

impl LateCalls {
    /// Parses `abort` or the name of a file.
    pub(crate) fn parse(text: &str) -> Option<LateCalls> {
        Some(match text {
            "" => LateCalls::Count,
            "abort" => LateCalls::Abort,
            file => LateCalls::Write(file.to_owned()),
        })
    }
}

extern "C" fn at_exit() {
    if plan::get().counts {
        counts::print();
    }
    ENDED.store(true, Ordering::Release);
    // Stored after `ENDED`, so that a call that loads false here sees `ENDED` set.
    INITIALISED.store(false, Ordering::Release);
    if plan::get().late_calls != LateCalls::Count {
        // A driver takes milliseconds to tear down contexts, while other threads keep running.
        std::thread::sleep(TEARDOWN);
    }
}

/// Runs in the child of a fork.
extern "C" fn in_forked_child() {
    FORKED.store(true, Ordering::Release);
    INITIALISED.store(false, Ordering::Release);
}

/// Returns true in a process whose parent initialized the driver before it forked. The threads that
/// run the work of streams are in the parent alone.
pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Acquire)
}

/// Registers the exit handler and that of forks, once.
pub(crate) fn register() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: `at_exit` is a function of this library, which is never unloaded.
        let _ = unsafe { libc::atexit(at_exit) };
        // SAFETY: `in_forked_child` is a function of this library, which is never unloaded. It only
        // stores to atomics, which the child of a process with several threads may do.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_forked_child)) };
    });
}

/// Returns true once the exit handler has begun to refuse calls.
pub(crate) fn has_ended() -> bool {
    ENDED.load(Ordering::Acquire)
}

/// Counts and reports a call after the exit handler began. Returns the call's code.
#[cold]
pub(crate) fn late(entry: Entry) -> Code {
    LATE.fetch_add(1, Ordering::Relaxed);
    let name = NAMES[entry as usize];
    match &plan::get().late_calls {
        LateCalls::Count => {}
        LateCalls::Write(file) => {
            let file = File::options().append(true).create(true).open(file);
            if file.and_then(|mut file| file.write_all(format!("{name}\n").as_bytes())).is_err() {
                say(&format!(
                    "{name} was called after the driver's exit handler, and that cannot be written"
                ));
            }
        }
        LateCalls::Abort => {
            let thread = thread_name();
            say(&format!("{name} was called after the driver's exit handler on thread {thread}"));
            std::process::abort();
        }
    }
    Code::DEINITIALIZED
}

/// Returns the number of late calls so far.
pub(crate) fn late_calls() -> u64 {
    LATE.load(Ordering::Relaxed)
}
