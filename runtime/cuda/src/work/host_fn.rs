//! Runs host functions in stream order, on a thread of CUDA that may not call it.
//!
//! A function, and the drop of what it owns, may still release streams and buffers. Other threads
//! make the calls to CUDA that this needs: the holder of the stream's lock writes markers
//! ([`DriverStream::may_signal`](warpline_driver::DriverStream)), and `background` frees memory.
//! Any other call that would reach CUDA from here is refused
//! ([`Context::enter`](crate::context::Context)).

use crate::api::{Answer, CUstream, opened};
use crate::completion::reactor;
use crate::completion::track::Track;
use parking_lot::Mutex;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use warpline_driver::background::{self, Duty};
use warpline_driver::reentry::{self, Caller};
use warpline_driver::timeline::Ticket;
use warpline_driver::{Error, ErrorKind, HostFn, Site};

/// An enqueued host function.
///
/// CUDA holds one reference until it has called the function, which it never does on a dead
/// context.
pub(crate) struct Job {
    function: Mutex<Option<HostFn>>,
    track: Arc<Track>,
    site: Site,
    ticket: Ticket,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Job({})", self.site)
    }
}

impl Job {
    /// Drops the function without calling it.
    pub(crate) fn forget(&self) {
        let function = self.function.lock().take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(function)));
    }
}

/// Enqueues `function`. The context is current.
pub(crate) fn enqueue(
    stream: CUstream,
    track: &Arc<Track>,
    site: Site,
    ticket: Ticket,
    function: HostFn,
) -> Answer {
    let job = Arc::new(Job { function: Mutex::new(Some(function)), track: track.clone(), site, ticket });
    let data = Arc::into_raw(job.clone());
    // SAFETY: cuLaunchHostFunc takes a live stream, and data that the function may use when it is
    // called: a reference of its own.
    let launched = unsafe { opened().cuLaunchHostFunc(stream, call, data.cast_mut().cast::<c_void>()) };
    match launched {
        Ok(()) => track.holds_job(&job),
        Err(_) => {
            // SAFETY: `from_raw` takes back what `into_raw` returned; CUDA did not take it.
            drop(unsafe { Arc::from_raw(data) });
            background::detach(move || job.forget());
        }
    }
    launched
}

unsafe extern "C" fn call(data: *mut c_void) {
    // SAFETY: `data` is the reference that `enqueue` handed over; CUDA calls this once.
    let job = unsafe { Arc::from_raw(data.cast_const().cast::<Job>()) };
    let Some(HostFn(function)) = job.function.lock().take() else { return };
    let before = background::set_duty(Duty::Callback);
    let calling = reentry::calling(Caller::HostFunction);
    let outcome = catch_unwind(AssertUnwindSafe(function));
    drop(calling);
    background::set_duty(before);
    let Err(panic) = outcome else { return };
    let why = warpline_driver::message_of(panic);
    let error = Error::new(
        ErrorKind::Fault,
        format!(
            "{}: panicked: {why}; cuda:{} accepts no more work in this runtime",
            crate::faults::fault::named(job.site, job.track.label(), job.ticket),
            job.track.context.ordinal
        ),
    );
    // Noted before this returns, and so before any work behind the function runs, on any stream.
    job.track.fail_device(job.ticket, error);
    // The reactor calls the wakers: they may call CUDA, and this thread may not.
    reactor::wake(job.track.health().clone());
}
