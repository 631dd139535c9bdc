//! Reports through `tracing`, where no caller can be given an error.

pub(crate) fn worker_not_started(error: &std::io::Error) {
    tracing::error!(target: "warpline", %error, "a worker thread of the cpu device could not be started");
}
