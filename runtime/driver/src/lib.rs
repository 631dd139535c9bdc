//! The seam between Warpline and a device.
//!
//! A driver runs what it is told, in ticket order on each stream, and advances that stream's [`Timeline`]. It **does not**
//! check shapes, devices, ranges or order (that is done before it is called, and it may rely on it), does not decide what
//! waits for what, does not own memory that users see, and never calls user code but for host functions and twins.
//!
//! A new backend implements two traits: [`Driver`], one a device, and [`DriverStream`], one a stream. It needs no other
//! crate of Warpline. Its devices are [`DeviceId::Other`], and `RuntimeBuilder::driver` adds them to a runtime. The folder
//! `tests/outside_driver` of the repository is a backend of 350 lines that passes all tests of the contract.
//!
//! # Contract
//! 1. [`DriverStream::submit`] is called with growing tickets, by one caller at a time. An [`Edge`](Command::Edge) has the
//!    ticket of the work behind it, which comes next.
//! 2. It returns before the work has run, or as if. An error means that nothing of it will run and the ticket is free, but for
//!    [`DriverError::Halfway`].
//! 3. Work on a stream runs one after the other in ticket order, each starting after the one before has ended and its
//!    writes are visible.
//! 4. A driver whose [`completion`](Driver::completion) is `EveryOp` calls [`Timeline::complete`] with
//!    [`Submission::reaches`] after each piece of work, waits included, while it holds no lock. The ticket of an edge may be
//!    reached already. With `Signalled` the driver advances the timeline at each [`signal`](DriverStream::signal).
//! 5. A device that fails for good says so once through [`Health::fail`], with an error of kind
//!    [`Fault`](ErrorKind::Fault) that names the op, and runs nothing more. Then it releases what its timelines keep: it
//!    calls [`Timeline::abandon`] for each stream once nothing of that stream can still run, and
//!    [`Timeline::wake_all`] after it, since `abandon` wakes no waiter.
//!
//! # Waits
//! A [`Point`] is a place on a timeline of the same backend, of this device or another one, or of a gate that the host
//! opens. A driver either gives marks ([`DriverStream::record`]) and waits for those, or registers with the timeline and
//! looks again when it is woken. A place on a device that failed is never reached. The waiting device then fails as well,
//! since what is behind the wait can never run. To let the waiter find the reason, the failing device calls
//! [`Timeline::give_up`] with its error before `abandon`, and the waiter looks at [`Timeline::fault`] after it has
//! registered.
//!
//! # Code that a driver calls
//! A twin ([`kernel::Twin`]) and a host function ([`HostFn`]) may not ask the runtime for everything. The driver marks each
//! call of them with [`reentry::calling`]; without the mark the rules do not hold on its device. A thread of the driver's
//! that completes timelines runs wakers, and calls [`reentry::become_awaited`] once when it starts. A panic of a twin is a
//! fault of the device. The runtime catches panics of host functions, so that one that arrives at the driver is that of
//! foreign work, and a fault as well.
//!
//! # The end
//! [`Driver::shut_down`] is called when the runtime is shut down or its last handle is dropped, perhaps after a fault.
//! No work is submitted afterwards. Streams, and the driver itself, are dropped when the last buffer, stream or `Pending`
//! that needs them is, on any thread: also on one of the driver's own, which it must therefore not join.
//!
//! # Optional parts
//! | methods | for drivers |
//! |---|---|
//! | [`signal`](DriverStream::signal), [`may_signal`](DriverStream::may_signal), [`marks_every_op`](DriverStream::marks_every_op) | with `Signalled` |
//! | [`turn`](Driver::turn), [`runs_in_turns`](Driver::runs_in_turns), [`after_submit`](Driver::after_submit) | that run work only in polls |
//! | [`instantiate`](Driver::instantiate), [`workspace_bytes`](Driver::workspace_bytes) | with graphs; the default refuses captures |
//! | [`elapsed`](Driver::elapsed) | that mark [`Stamp`]s; those that [`set`](Stamp::set) a time do not need it |
//! | [`raw`](DriverStream::raw), [`make_current`](DriverStream::make_current), [`foreign_begins`](DriverStream::foreign_begins), [`foreign_ends`](DriverStream::foreign_ends), [`call_now`](DriverStream::call_now) | whose streams other code can enqueue on |
//! | [`load`](Driver::load), [`suggest`](Driver::suggest), [`global`](Driver::global), [`ready_library`](Driver::ready_library), [`release_idle`](Driver::release_idle) | with device code; the defaults do nothing, or say that there is none |
//! | [`register_host`](Driver::register_host), [`unregister_host`](Driver::unregister_host), [`host_memory_is_slow`](Driver::host_memory_is_slow), [`alloc_host_ahead`](Driver::alloc_host_ahead), [`can_free`](Driver::can_free), [`free_in_time`](Driver::free_in_time) | that page-lock memory; the defaults are those of a device that copies from any memory |
//! | [`confirm`](Driver::confirm) | that learn of faults late |
//! | [`op_events`] | that want their ops in traces: `op_started` and `op_finished` around each |
//! | [`background`], [`process`], [`sync`] | over a driver library that ends with the process, forbids calls from some threads, or is modelled with loom |
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
pub use command::{Claim, Command, Copy, CopyKind, DriverGraph, Fill, HostFn, Launch, Point, Submission};
pub use device_id::DeviceId;
pub use device_ptr::DevicePtr;
pub use element::Element;
pub use error::{Error, ErrorKind, Result};
pub use health::Health;
pub use panic::message_of;
pub use plan::{OF_ONE_DEVICE, Plan, PlanStream, Step, Work};
pub use properties::{Completion, DeviceProperties, FreeMemory, Priority, RawHandle, StreamOptions, WakeUp};
pub use seam::{Driver, DriverError, DriverStream};
pub use stamp::{DriverEvent, Stamp};
pub use timeline::Timeline;
pub use warpline_order::{AccessMode, ByteRange, Conflict, Site, StreamId, Ticket, Use};

/// Internals of types that users see, for the crates of Warpline.
pub mod internal {
    pub use crate::error::{ErrorParts, Given, Unseen, leaves_a_mark};
    pub use crate::kernel::device_code::{check_compiled, check_device_code};
    pub use crate::plan::{append_plan, work_of};
}
