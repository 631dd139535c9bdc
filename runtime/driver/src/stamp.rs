//! Events of a driver on a stream, and stamps: times at which a stream reached a point.

use std::any::Any;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// An event that a driver recorded on a stream, in the driver's own type.
pub type DriverEvent = Arc<dyn Any + Send + Sync>;

/// The result of a [`Command::Stamp`](crate::Command::Stamp): a time of the host's clock, or a
/// driver event that the driver compares with other events.
#[derive(Debug, Default)]
pub struct Stamp {
    time: OnceLock<Instant>,
    event: OnceLock<DriverEvent>,
}

impl Stamp {
    /// Sets the time. Called by the driver when the stream reaches the command.
    pub fn set(&self, time: Instant) {
        let _ = self.time.set(time);
    }

    /// Sets the event that will hold the time. Called by the driver when the command is submitted.
    pub fn set_event(&self, event: DriverEvent) {
        let _ = self.event.set(event);
    }

    /// Returns the host's time, if the driver sets one and the stream has reached the command.
    pub fn time(&self) -> Option<Instant> {
        self.time.get().copied()
    }

    /// Returns the driver's event, if it recorded one.
    pub fn event(&self) -> Option<&DriverEvent> {
        self.event.get()
    }
}
