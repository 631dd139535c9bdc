//! Reports through `tracing` for errors that cannot be returned to a caller.

pub(crate) fn worker_not_started(error: &std::io::Error) {
    tracing::error!(target: "warpline", %error, "a worker thread of the cpu device could not be started");
}

pub(crate) fn host_thread_not_started(error: &std::io::Error) {
    tracing::error!(
        target: "warpline",
        %error,
        "the thread that calls the host functions of a cpu device could not be started; worker threads call them, \
         and one that waits delays other work"
    );
}
