//! The list of visible devices as the driver has read it, and the report if it changed since.
//!
//! The driver reads `CUDA_VISIBLE_DEVICES` when it is initialised, and never again. A program that
//! sets the variable later selects nothing, so errors and a warning say so. If other code has
//! initialised the driver before, the value that it read is not known: the note is then the value
//! at this crate's own initialisation.

use std::ffi::OsString;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use warpline_driver::environment::CUDA_VISIBLE_DEVICES;

static READ: OnceLock<Option<OsString>> = OnceLock::new();

/// Notes the present value. Called right before the driver is initialised.
pub(crate) fn note() {
    READ.get_or_init(|| CUDA_VISIBLE_DEVICES.value());
}

/// Returns the list that the driver has read, if the variable was set then.
pub(crate) fn list() -> Option<String> {
    READ.get()?.as_ref().map(|list| list.to_string_lossy().into_owned())
}

/// A change of the variable after the driver was initialised.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change {
    read: Option<OsString>,
    now: Option<OsString>,
}

/// Returns the change of the variable since the driver was initialised, if it changed.
pub(crate) fn change() -> Option<Change> {
    let (read, now) = (READ.get()?.clone(), CUDA_VISIBLE_DEVICES.value());
    (read != now).then_some(Change { read, now })
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |value: &Option<OsString>| match value {
            Some(list) => format!("\"{}\"", list.display()),
            None => "not set".to_owned(),
        };
        write!(
            f,
            "{CUDA_VISIBLE_DEVICES} is {} now and was {} when the NVIDIA driver was initialised, which \
             reads it only then; set it before the first use of a CUDA device, or on the command line",
            value(&self.now),
            value(&self.read)
        )
    }
}

/// Warns once for each process if the variable has changed.
pub(crate) fn warn_of_change() {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if let Some(change) = change()
        && !WARNED.swap(true, Ordering::Relaxed)
    {
        crate::report::visible_devices_changed(&change.to_string());
    }
}
