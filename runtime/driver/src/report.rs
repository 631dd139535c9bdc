//! Reports of panics in code that is not ours, where no caller can be given an error.

/// A waker of a task did.
pub fn waker_panicked() {
    tracing::error!(target: "warpline", "a task's waker panicked; the other waiters were woken");
}

/// A value inside work that was dropped unrun did.
pub fn drop_panicked() {
    tracing::error!(target: "warpline", "a value inside work that was dropped unrun panicked when it was dropped");
}
