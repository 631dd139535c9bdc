//! Reports through `tracing` for errors that cannot be returned to a caller.

pub(crate) fn worker_not_started(error: &std::io::Error) {
    tracing::error!(target: "warpline", %error, "a worker thread of the cpu device could not be started");
}
