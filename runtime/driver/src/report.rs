//! Reports of panics in code that is not Warpline's, for which no caller can get an error.

/// Reports that a task's waker panicked.
pub fn waker_panicked() {
    tracing::error!(target: "warpline", "a task's waker panicked; the other waiters were woken");
}

/// Reports that a value inside work that was dropped unrun panicked.
pub fn drop_panicked() {
    tracing::error!(target: "warpline", "a value owned by work that never ran panicked while it \
        was dropped");
}
