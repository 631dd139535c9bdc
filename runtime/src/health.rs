//! What a device or a runtime says about itself: ready, shutting down, or failing.
//!
//! The state only moves forwards, from ready to shutting down to failing. It may skip shutting
//! down.

use tokio::sync::watch;
use warpline_driver::{Error, process};

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
    /// Nothing brings the device back in this runtime. If the error says that the device accepts no
    /// more work *in this process*, no other runtime can use it either, and only a new process can.
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

/// The state, for those who ask and those who watch.
#[derive(Debug)]
pub(crate) struct Reported(watch::Sender<HealthState>);

impl Default for Reported {
    fn default() -> Self {
        Reported(watch::Sender::new(HealthState::Ready))
    }
}

impl Reported {
    pub(crate) fn state(&self) -> HealthState {
        // In the child of a fork the lock may be held by a thread that does not exist there.
        if process::is_forked() {
            return HealthState::Failing(process::forked());
        }
        self.0.borrow().clone()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<HealthState> {
        self.0.subscribe()
    }

    /// Reports a failure, unless one was reported before.
    pub(crate) fn fails(&self, fault: &Error) {
        self.0.send_if_modified(|state| {
            let is_first = state.fault().is_none();
            if is_first {
                *state = HealthState::Failing(fault.clone());
            }
            is_first
        });
    }

    /// Reports a shutdown, unless a failure was reported before.
    pub(crate) fn shuts_down(&self) {
        self.0.send_if_modified(|state| {
            let was_ready = state.is_ready();
            if was_ready {
                *state = HealthState::ShuttingDown;
            }
            was_ready
        });
    }
}
