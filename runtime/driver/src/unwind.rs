//! The types that can be used inside `catch_unwind` and after it.
//!
//! The compiler cannot derive this where a lock or a driver is inside. It holds because no caller's
//! code runs under a lock of this crate, so a panic of the caller finds each call either done or not
//! begun.

use crate::op_events::HostTrack;
use crate::{Error, Timeline};
use std::panic::{RefUnwindSafe, UnwindSafe};

impl UnwindSafe for Error {}
impl RefUnwindSafe for Error {}
impl UnwindSafe for HostTrack {}
impl RefUnwindSafe for HostTrack {}
impl UnwindSafe for Timeline {}
impl RefUnwindSafe for Timeline {}
