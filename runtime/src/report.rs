//! What is said through `tracing` when there is nobody to return it to.

use crate::error::Error;
use crate::order::Conflict;

pub(crate) fn waker_panicked() {
    tracing::error!(target: "warpline", "a task's waker panicked; the other waiters were woken");
}

pub(crate) fn error_not_awaited(stream: &str, error: &Error) {
    tracing::error!(target: "warpline", stream, %error, "a refused call was dropped without its error being looked at");
}

pub(crate) fn unordered(conflict: &Conflict) {
    tracing::warn!(target: "warpline", "{conflict}");
}

pub(crate) fn fell_back(missing: &Error) {
    tracing::info!(target: "warpline", %missing, "using cpu:0");
}

pub(crate) fn drop_panicked() {
    tracing::error!(target: "warpline", "a value inside work that was dropped unrun panicked when it was dropped");
}

pub(crate) fn worker_not_started(error: &std::io::Error) {
    tracing::error!(target: "warpline", %error, "a worker thread of the cpu device could not be started");
}
