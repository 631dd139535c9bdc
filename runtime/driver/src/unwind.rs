//! The types that can be used inside and after `catch_unwind`.
//!
//! The compiler cannot derive this for a type that contains a lock or a driver. It holds because no
//! code of a caller runs under a lock of this crate. After a panic of the caller, each call is
//! either done or has not begun.

use crate::op_events::HostTrack;
use crate::{Error, Timeline};
use std::panic::{RefUnwindSafe, UnwindSafe};

impl UnwindSafe for Error {}
impl RefUnwindSafe for Error {}
impl UnwindSafe for HostTrack {}
impl RefUnwindSafe for HostTrack {}
impl UnwindSafe for Timeline {}
impl RefUnwindSafe for Timeline {}
