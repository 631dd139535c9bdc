//! The seam between Warpline and a device.
//!
//! A driver runs what it is told, in ticket order on each stream, and advances that stream's [`Timeline`]. It **does not**
//! check shapes, devices, ranges or order (that is done before it is called, and it may rely on it), does not decide what
//! waits for what, does not own memory that users see, and never calls user code but for host functions and twins.
//!
//! A new backend fills in two traits: [`Driver`], one a device, and [`DriverStream`], one a stream.
//!
//! # Contract
//! 1. [`DriverStream::submit`] is called with growing tickets, by one caller at a time.
//! 2. It returns before the work has run, or as if. An error means that nothing of it will run and the ticket is free, but for
//!    [`DriverError::Halfway`].
//! 3. Work on a stream runs one after the other in ticket order, each starting after the one before has ended and its
//!    writes are visible.
//! 4. A driver whose [`completion`](Driver::completion) is `EveryOp` advances the timeline after each; with `Signalled`,
//!    at each [`signal`](DriverStream::signal).
//! 5. A device that fails for good says so once through [`Health::fail`], runs nothing more, and then lets go of what
//!    its timelines keep ([`Timeline::abandon`]) once nothing running can touch it.

//!
//! Users see little of this crate, through the `warpline` facade. A backend needs no other one of ours.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod background;
mod byte_size;
mod command;
mod device_id;
mod device_ptr;
mod element;
mod error;
mod exit;
mod health;
pub mod kernel;
pub mod op_events;
mod panic;
mod plan;
pub mod process;
mod properties;
pub mod reentry;
pub mod report;
mod seam;
mod stamp;
pub mod sync;
pub mod timeline;
mod unwind;

pub use byte_size::ByteSize;
pub use command::{
    Claim, Command, Copy, CopyKind, DriverEvent, DriverGraph, Fill, HostFn, Launch, Point, Submission,
};
pub use device_id::DeviceId;
pub use device_ptr::DevicePtr;
pub use element::Element;
pub use error::{Error, ErrorKind, Result};
pub use health::Health;
pub use panic::message_of;
pub use plan::{OF_ONE_DEVICE, Plan, PlanStream, Step, Work};
pub use properties::{Completion, DeviceProperties, FreeMemory, Priority, RawHandle, StreamOptions, WakeUp};
pub use seam::{Driver, DriverError, DriverStream};
pub use stamp::Stamp;
pub use timeline::Timeline;
pub use warpline_order::{AccessMode, ByteRange, Conflict, Site, StreamId, Ticket, Use};

/// What the crates of Warpline read and write of types that their users see.
pub mod internal {
    pub use crate::error::{ErrorParts, Given, Unseen, leaves_a_mark};
}
