//! Reports of blocking calls on a thread that polls a task.
//!
//! Such a call stops the other tasks of the executor, and it may wait for one of them. Like
//! PyTorch's `torch.cuda.set_sync_debug_mode`, the check is for finding these calls. A call is
//! reported by its place in the program, even if its work has finished and it would not block.
//!
//! # How a poll is recognized
//! * On a thread of a tokio runtime, by tokio's budget for cooperative scheduling: a thread has one
//!   exactly while it polls. `spawn_blocking` and `block_in_place`, where blocking is allowed, have
//!   none. The future of tokio's `block_on`, and so `#[tokio::main]`, has one and counts as a task.
//!   (`tokio::task::try_id` would miss that future, and report `spawn_blocking`.)
//! * On other threads, inside a poll of a [`Scope`](crate::Scope), or of a pipeline that
//!   `testing::for_each_seed` runs.
//!
//! Polls of another executor outside of these are not recognized. Nor are its polls on a thread
//! that has entered a tokio runtime with `Handle::enter`, nor a future in
//! `tokio::task::unconstrained`.

use crate::order::Site;
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::HashSet;
use std::str::FromStr;
use std::task::{Context, Waker};
use tokio::runtime::Handle;
use tokio::task::coop;
use warpline_driver::{Error, ErrorKind, Result};

/// The reaction to a `blocking_*` call on a thread that polls a task, such as
/// [`Pending::blocking_wait`](crate::Pending::blocking_wait) in an `async fn`. `Tensor::pin_memory`
/// counts as such a call.
///
/// The call stops the other tasks of that thread. A call is found by where it is made, even if it
/// would not have to wait. Calls in tokio's `spawn_blocking` and `block_in_place` may block and are
/// not reported.
///
/// # What counts as polling a task
/// Polls of tasks and of `block_on` in a tokio runtime, so also in `#[tokio::main]`. With other
/// executors, only polls inside [`Stream::scope`](crate::Stream::scope),
/// [`Device::scope`](crate::Device::scope) or
/// [`in_current_stream`](crate::InCurrentStream::in_current_stream), on threads that have not
/// entered a tokio runtime. Futures in `tokio::task::unconstrained` do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SyncMode {
    /// Do not check.
    #[default]
    Off,
    /// Warn once for each source line, and block. The warning is a `tracing` event, or a line on
    /// standard error if no subscriber is set.
    Warn,
    /// Return an error of kind [`Reentrant`](ErrorKind::Reentrant) before blocking. The work of the
    /// `Pending` continues, as if it had been dropped.
    Error,
}

impl FromStr for SyncMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "off" => Ok(SyncMode::Off),
            "warn" => Ok(SyncMode::Warn),
            "error" => Ok(SyncMode::Error),
            _ => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("\"{text}\" is not a sync mode; expected off, warn or error"),
            )),
        }
    }
}

/// The check of a runtime's blocking calls.
#[derive(Debug, Default)]
pub(crate) struct SyncCheck {
    pub(crate) mode: SyncMode,
    warned: Mutex<HashSet<Site>>,
}

impl SyncCheck {
    pub(crate) fn new(mode: SyncMode) -> Self {
        SyncCheck { mode, warned: Mutex::default() }
    }

    /// Checks the blocking call at `site` before it blocks. `instead` is the advice to its caller.
    ///
    /// # Errors
    /// `Reentrant` if this thread polls a task, in the mode `Error`.
    #[inline]
    pub(crate) fn may_block(&self, site: Site, instead: &str) -> Result<()> {
        if self.mode == SyncMode::Off { Ok(()) } else { self.may_block_now(site, instead) }
    }

    #[cold]
    fn may_block_now(&self, site: Site, instead: &str) -> Result<()> {
        if !polls_a_task() {
            return Ok(());
        }
        let text = format!(
            "{site}: it blocks a thread that is polling a task, which stops the other tasks of the \
             thread; {instead}, or call it in spawn_blocking"
        );
        if self.mode == SyncMode::Error {
            return Err(Error::new(ErrorKind::Reentrant, text));
        }
        if self.warned.lock().insert(site) {
            crate::report::blocks_a_task(&text);
        }
        Ok(())
    }
}

thread_local! {
    /// True while this thread polls a future of this crate that contains a program's future.
    static POLLING: Cell<bool> = const { Cell::new(false) };
}

/// Restores the earlier state when it is dropped.
pub(crate) struct Polling(bool);

impl Drop for Polling {
    fn drop(&mut self) {
        POLLING.set(self.0);
    }
}

/// Notes that this thread polls a program's future, until the returned value is dropped.
pub(crate) fn polling() -> Polling {
    Polling(POLLING.replace(true))
}

fn polls_a_task() -> bool {
    if Handle::try_current().is_ok() { has_budget() } else { POLLING.get() }
}

/// Returns true if tokio limits what this thread does before it has to return from a poll. Leaves
/// the budget as it was.
fn has_budget() -> bool {
    /// More than tokio's budget, which is an 8-bit number.
    const MORE_THAN_ALL: u32 = 256;
    let mut cx = Context::from_waker(Waker::noop());
    // Without `made_progress`, dropping the first value restores the budget.
    let before = coop::poll_proceed(&mut cx);
    before.is_pending()
        || (0..MORE_THAN_ALL)
            .any(|_| coop::poll_proceed(&mut cx).map(|spent| spent.made_progress()).is_pending())
}
