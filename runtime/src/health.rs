//! The state that a device or a runtime reports: ready, shutting down, or failing.
//!
//! The state only moves forwards, from ready to shutting down to failing. It may skip shutting
//! down.

use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use tokio::sync::watch;
use warpline_driver::{Error, ErrorKind, Health, process};

/// The state of a device or of a runtime, from [`Device::health`](crate::Device::health) and
/// [`Runtime::health`](crate::Runtime::health).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum HealthState {
    /// It accepts work.
    Ready,
    /// The runtime was shut down or dropped. Enqueued work still runs; no more is accepted.
    ShuttingDown,
    /// The device has failed with this error, which names the op and its line as far as they are
    /// known. Of a runtime: the first of its devices that failed.
    ///
    /// Nothing brings the device back in this runtime.
    /// [`Device::needs_new_process`](crate::Device::needs_new_process) tells whether a new one can
    /// use it.
    Failing(Error),
}

impl HealthState {
    /// Returns true if work is accepted.
    pub fn is_ready(&self) -> bool {
        matches!(self, HealthState::Ready)
    }

    /// Returns the error of the failure, if there was one.
    pub fn fault(&self) -> Option<&Error> {
        match self {
            HealthState::Failing(fault) => Some(fault),
            HealthState::Ready | HealthState::ShuttingDown => None,
        }
    }
}

/// A watch on the health of a device or of a runtime, which it does not keep alive.
///
/// It returns copies of the state. The lock of the state is held for the copying alone, because a
/// thread that reports a failure takes it.
#[derive(Clone, Debug)]
pub struct HealthWatch {
    reported: watch::Receiver<HealthState>,
    healths: Healths,
}

impl HealthWatch {
    /// Returns the newest state.
    pub fn state(&self) -> HealthState {
        self.healths.newest(|| self.reported.borrow().clone())
    }

    /// Resolves to the next state that this watch has not returned here yet; `None` once there can
    /// be none, because the device or the runtime is gone. After a shutdown that is when the last
    /// handle, such as a stream or a buffer, is dropped. The state when the watch was made does not
    /// count as new. In the child of a fork nothing changes any more, so it is `None`.
    ///
    /// # Cancel safety
    /// Nothing is lost if the future is dropped.
    pub async fn changed(&mut self) -> Option<HealthState> {
        if process::is_forked() {
            return None;
        }
        self.reported.changed().await.ok()?;
        Some(self.reported.borrow_and_update().clone())
    }

    /// Resolves when no work is accepted any more, immediately if that is so already. A device or a
    /// runtime that is gone was shut down.
    ///
    /// # Cancel safety
    /// Nothing is lost if the future is dropped.
    pub async fn unready(&mut self) -> HealthState {
        // First, so that a change in between is not missed.
        self.reported.mark_unchanged();
        let mut state = self.state();
        while state.is_ready() {
            state = self.changed().await.unwrap_or(HealthState::ShuttingDown);
        }
        state
    }
}

/// The healths of the device, or of the devices of the runtime. They know of a failure before it is
/// reported, because no lock may be held then.
#[derive(Clone, Debug, Default)]
struct Healths(Arc<Mutex<Vec<Weak<Health>>>>);

impl Healths {
    /// Returns the failure of a device if there is one that `reported` does not have yet, and
    /// otherwise `reported`.
    fn newest(&self, reported: impl FnOnce() -> HealthState) -> HealthState {
        // In the child of a fork the lock may be held by a thread that does not exist there.
        if process::is_forked() {
            return HealthState::Failing(process::forked());
        }
        let reported = reported();
        if reported.fault().is_some() {
            return reported;
        }
        let healths = self.0.lock();
        let failure = |health: Arc<Health>| health.fault().filter(|fault| is_failure(fault)).cloned();
        let fault = healths.iter().filter_map(Weak::upgrade).find_map(failure);
        fault.map_or(reported, HealthState::Failing)
    }
}

/// Returns true if a device with this error has failed. A device that was shut down while work was
/// left that can never run has an error too.
fn is_failure(fault: &Error) -> bool {
    fault.kind() != ErrorKind::ShutDown
}

/// The state, for those who ask and those who watch.
#[derive(Debug)]
pub(crate) struct Reported {
    state: watch::Sender<HealthState>,
    healths: Healths,
}

impl Default for Reported {
    fn default() -> Self {
        Reported { state: watch::Sender::new(HealthState::Ready), healths: Healths::default() }
    }
}

impl Reported {
    /// Adds a device.
    pub(crate) fn of(&self, health: &Arc<Health>) {
        self.healths.0.lock().push(Arc::downgrade(health));
    }

    pub(crate) fn state(&self) -> HealthState {
        self.healths.newest(|| self.state.borrow().clone())
    }

    pub(crate) fn watch(&self) -> HealthWatch {
        HealthWatch { reported: self.state.subscribe(), healths: self.healths.clone() }
    }

    /// Reports a failure, unless one was reported before.
    pub(crate) fn fails(&self, fault: &Error) {
        if is_failure(fault) {
            self.report_if(|state| state.fault().is_none(), HealthState::Failing(fault.clone()));
        }
    }

    /// Reports a shutdown, unless a failure was reported before.
    pub(crate) fn shuts_down(&self) {
        self.report_if(HealthState::is_ready, HealthState::ShuttingDown);
    }

    /// Moves to the state `next`, if `is_before` holds for the present one.
    fn report_if(&self, is_before: fn(&HealthState) -> bool, next: HealthState) {
        self.state.send_if_modified(|state| {
            let moves = is_before(state);
            if moves {
                *state = next;
            }
            moves
        });
    }
}
