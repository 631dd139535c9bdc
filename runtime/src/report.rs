//! What is said through `tracing` when there is nobody to return it to.

pub(crate) fn waker_panicked() {
    tracing::error!(target: "warpline", "a task's waker panicked; the other waiters were woken");
}
