//! Marks on a stream: a driver's own, and the time when the stream got somewhere.

use std::any::Any;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// A driver's own mark on a stream.
pub type DriverEvent = Arc<dyn Any + Send + Sync>;

/// Where [`Command::Stamp`](crate::Command::Stamp) leaves the time: as a time of the host's clock, or as a mark that the driver
/// compares with others.
#[derive(Debug, Default)]
pub struct Stamp {
    time: OnceLock<Instant>,
    mark: OnceLock<DriverEvent>,
}

impl Stamp {
    /// By the driver, when the stream gets there.
    pub fn set(&self, time: Instant) {
        let _ = self.time.set(time);
    }

    /// By the driver, when the command is submitted: what will hold the time.
    pub fn mark(&self, mark: DriverEvent) {
        let _ = self.mark.set(mark);
    }

    /// The host's time, if the driver says it so and the stream has got there.
    pub fn time(&self) -> Option<Instant> {
        self.time.get().copied()
    }

    /// The driver's mark, if it made one.
    pub fn marked(&self) -> Option<&DriverEvent> {
        self.mark.get()
    }
}
