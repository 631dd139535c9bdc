//! The end of the process: the library's exit handler, after which every call returns
//! `CUDA_ERROR_DEINITIALIZED`.
//!
//! `cuInit` registers the handler, as libcuda does. Handlers that were registered earlier run later
//! and find the driver gone (ucx #11275, rmm #2366), and so do threads that still run. Enqueued
//! work is not stopped.

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
static LATE: AtomicU64 = AtomicU64::new(0);

/// The time that the exit handler takes if late calls are written or fatal.
const TEARDOWN: Duration = Duration::from_millis(20);

/// Consequences of a late call besides its code.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LateCalls {
    /// They are counted.
    Count,
    /// Their names go into this file, a line each.
    Write(String),
    /// The first ends the process.
    Abort,
}

impl LateCalls {
    /// Reads `abort` or the name of a file.
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
    // What every call looks at first.
    INITIALISED.store(false, Ordering::Release);
    if plan::get().late_calls != LateCalls::Count {
        // A driver takes milliseconds to tear contexts down, and other threads run meanwhile.
        std::thread::sleep(TEARDOWN);
    }
}

/// Arranges for the end, once.
pub(crate) fn register() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: registers a function of this library, which stays loaded.
        let _ = unsafe { libc::atexit(at_exit) };
    });
}

/// Returns true once the handler has run.
pub(crate) fn has_ended() -> bool {
    ENDED.load(Ordering::Acquire)
}

/// Notes a call that comes too late. Its code.
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

/// Late calls so far.
pub(crate) fn late_calls() -> u64 {
    LATE.load(Ordering::Relaxed)
}
