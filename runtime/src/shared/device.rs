//! The state that a device's streams, buffers and handles share, and the numbers of streams without
//! a label.

use super::stream::{ForeignTurns, Stream};
use super::{RuntimeShared, Tally};
use crate::generator::Generator;
use crate::health::Reported;
use crate::memory::{DeviceMemory, MemoryOptions, PinnedPool, Zones};
use crate::order::Use;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use warpline_driver::internal::ErrorParts;
use warpline_driver::{Completion, DeviceId, Driver, DriverError, Error, ErrorKind, Health, Result, process};

/// A handle to a device of a runtime.
///
/// Handles are cheap to clone; all clones refer to the same device.
#[derive(Clone)]
pub struct Device(Arc<DeviceShared>);

/// The state that a device's streams, buffers and handles share.
pub(crate) struct DeviceShared {
    pub(crate) id: DeviceId,
    pub(crate) runtime: Arc<RuntimeShared>,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) health: Arc<Health>,
    /// The state of its health, as it is reported.
    pub(crate) reported: Arc<Reported>,
    pub(crate) memory: DeviceMemory,
    pub(crate) pinned: Arc<PinnedPool>,
    /// Page-locked memory for short copies alone, so that they do not wait for long ones.
    pub(crate) pinned_reserve: Arc<PinnedPool>,
    /// True if markers have to be written for tickets to complete.
    pub(crate) signalled: bool,
    pub(crate) runs_in_turns: bool,
    /// True if each op is waited for where it is enqueued (`stream/launch_blocking.rs`).
    pub(crate) launches_block: bool,
    pub(crate) foreign_turns: ForeignTurns,
    /// True if every allocation is zeroed before it is handed out.
    pub(crate) zero_on_free: bool,
    pub(crate) default_stream: Mutex<Option<Stream>>,
    /// The number of streams that were created without a label.
    unlabelled: AtomicU64,
    pub(crate) generator: Generator,
    pub(crate) tally: Tally,
}

impl DeviceShared {
    /// Creates the state of a device.
    ///
    /// # Errors
    /// The errors of [`MemoryOptions::limit_of`].
    pub(crate) fn new(
        runtime: Arc<RuntimeShared>,
        driver: Arc<dyn Driver>,
        health: Arc<Health>,
        options: MemoryOptions,
    ) -> Result<Arc<Self>> {
        let limit = options.limit_of(&*driver)?;
        let zones = if let DeviceId::Cpu(_) = driver.id() { Zones::Behind } else { Zones::None };
        if driver.runs_in_turns() {
            runtime.takes_turns_of(&driver);
        }
        let reported = Arc::<Reported>::default();
        reported.of(&health);
        runtime.health.of(&health);
        let of_device = reported.clone();
        let of_runtime = Arc::downgrade(&runtime);
        health.listen(move |fault| {
            of_device.fails(fault);
            if let Some(runtime) = of_runtime.upgrade() {
                runtime.health.fails(fault);
            }
        });
        if runtime.is_shut_down() {
            reported.shuts_down();
        }
        Ok(Arc::new(DeviceShared {
            id: driver.id(),
            runtime,
            memory: DeviceMemory::new(driver.clone(), limit, zones),
            pinned: PinnedPool::new(driver.clone(), options.pinned_cap_bytes),
            pinned_reserve: PinnedPool::reserve(driver.clone(), PINNED_RESERVE_BYTES),
            signalled: driver.completion() == Completion::Signalled,
            runs_in_turns: driver.runs_in_turns(),
            launches_block: blocks_launches(driver.id()),
            driver,
            health,
            reported,
            foreign_turns: ForeignTurns::default(),
            zero_on_free: options.zero_on_free,
            default_stream: Mutex::new(None),
            unlabelled: AtomicU64::new(0),
            generator: Generator::default(),
            tally: Tally::default(),
        }))
    }

    /// Returns a label for a stream that got none: `stream 1` for the first.
    pub(crate) fn next_label(&self) -> Arc<str> {
        let before = self.unlabelled.fetch_add(1, Ordering::Relaxed);
        format!("stream {}", before + 1).into()
    }

    /// Checks that the device takes work.
    #[inline]
    pub(crate) fn ensure_open(&self) -> Result<()> {
        let is_open = !process::is_forked() && self.health.fault().is_none() && !self.runtime.is_shut_down();
        if is_open { Ok(()) } else { Err(self.closed_error()) }
    }

    #[cold]
    fn closed_error(&self) -> Error {
        if process::is_forked() {
            return process::forked();
        }
        if let Some(fault) = self.health.fault() {
            return fault.clone();
        }
        Error::new(
            ErrorKind::ShutDown,
            format!(
                "{} accepts no more work: its runtime was shut down; keep the Runtime alive while \
                 its devices are used",
                self.id
            ),
        )
    }

    /// Returns the error of a refused driver call, or of the device if it has failed or closed
    /// meanwhile.
    #[cold]
    pub(crate) fn refused(&self, what: &dyn fmt::Display, error: &DriverError) -> Error {
        if let Err(cause) = self.ensure_open() {
            return cause;
        }
        let kind = match error {
            DriverError::OutOfMemory(_) => ErrorKind::OutOfMemory,
            DriverError::Refused(_) | DriverError::Halfway(_) => ErrorKind::Driver,
            DriverError::Captured(why) => {
                let text = format!("{what} is refused: {why}");
                return Error::new(ErrorKind::Captured, text).caused_by(why.clone());
            }
        };
        let refusal =
            Error::new(kind, format!("{what} failed on {}: {error}; the device is still usable", self.id));
        match error.failure() {
            Some(failure) => refusal.caused_by(failure.clone()),
            None => refusal,
        }
    }

    /// Calls the driver. If it has no memory, frees cached memory and calls it once more.
    pub(crate) fn with_room<T>(
        &self,
        ask: impl Fn(&dyn Driver) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        match ask(&*self.driver) {
            Err(DriverError::OutOfMemory(_)) => {
                self.memory.make_room(|used| self.runtime.is_finished(used));
                ask(&*self.driver)
            }
            answer => answer,
        }
    }

    /// Returns what `f` gets from the driver. If the driver refuses and the device has failed or
    /// closed, returns the device's error.
    pub(crate) fn with_pinned<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        if process::is_forked() {
            return Err(process::forked());
        }
        f().map_err(|error| match error.kind() {
            ErrorKind::Driver => self.ensure_open().err().unwrap_or(error),
            _ => error,
        })
    }

    /// Checks that the device still works, before success is reported to the caller.
    pub(crate) fn confirm(&self) -> Result<()> {
        match self.driver.confirm() {
            Ok(()) => Ok(()),
            Err(error) => Err(self.refused(&"synchronize", &error)),
        }
    }

    /// Checks that no work was lost: that the device has not failed, also if none of its streams is
    /// left to say so.
    pub(crate) fn confirm_nothing_is_lost(&self) -> Result<()> {
        if process::is_forked() {
            return Err(process::forked());
        }
        self.confirm()?;
        self.health.fault().map_or(Ok(()), |fault| Err(fault.clone()))
    }

    /// Checks that no host function of a closed stream panicked unseen.
    pub(crate) fn confirm_no_closed_panics(&self) -> Result<()> {
        let is_closed = |stream| self.runtime.observed.is_closed(stream);
        self.runtime.panics.end_on_closed(self.id, is_closed).map_or(Ok(()), Err)
    }

    /// Requests markers for the last uses of freed memory by streams other than the allocating one,
    /// whose use is the first. The end of those uses has to become known even if no task awaits
    /// them.
    #[inline]
    pub(crate) fn want_progress(&self, uses: &[Use]) {
        if self.signalled
            && let [_, others @ ..] = uses
        {
            self.want_markers(others);
        }
    }

    fn want_markers(&self, uses: &[Use]) {
        for used in uses {
            if let Some(core) = self.runtime.stream(used.stream) {
                core.want_marker(used.ticket);
            }
        }
    }

    pub(crate) fn take_default_stream(&self) -> Option<Stream> {
        self.default_stream.lock().take()
    }
}

/// The cap of the page-locked memory that is for short copies alone: sixteen of the longest.
const PINNED_RESERVE_BYTES: usize = 1 << 20;

/// The most bytes of a copy that may use that memory.
pub(crate) const SHORT_COPY_BYTES: usize = 64 << 10;

impl Drop for DeviceShared {
    fn drop(&mut self) {
        if warpline_driver::process::is_forked() {
            return;
        }
        // Buffers and streams hold the device, and a closed stream holds it until it is drained or
        // abandoned. A copy by another device's stream holds it too. So nothing can touch its
        // memory any more.
        self.memory.empty_cache(|_| true);
    }
}

impl fmt::Debug for DeviceShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.id)
    }
}

impl Device {
    pub(crate) fn of(shared: Arc<DeviceShared>) -> Self {
        Device(shared)
    }

    pub(crate) fn shared(&self) -> &Arc<DeviceShared> {
        &self.0
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.0.id)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.id.fmt(f)
    }
}

/// Returns true if the runtime waits for each op of a device (`stream/launch_blocking.rs`). Those
/// of other backends are their drivers' concern.
fn blocks_launches(id: DeviceId) -> bool {
    matches!(id, DeviceId::Cpu(_)) && process::launches_block()
}
