//! The contract, traits and types of a device backend.
//!
//! A driver runs the work that is submitted to each stream, in ticket order, and advances that
//! stream's [`Timeline`]. A driver **does not**:
//! * check shapes, devices, ranges or order. The runtime checks them before it calls the driver,
//!   and the driver may rely on that.
//! * decide which work waits for which.
//! * own memory that users see.
//! * call user code other than host functions and twins.
//!
//! A new backend implements two traits: [`Driver`], once per device, and [`DriverStream`], once per
//! stream. It needs no other crate of Warpline. Its devices are [`DeviceId::Other`], and
//! `RuntimeBuilder::driver` adds them to a runtime. The folder `tests/outside_driver` of the
//! repository is a backend of about 400 lines that passes all tests of the contract.
//!
//! # Contract
//! 1. [`DriverStream::submit`] is called with growing tickets, by one caller at a time. An
//!    [`Edge`](Command::Edge) has the ticket of the work after it, which is submitted next.
//! 2. `submit` returns before the work has run, or behaves as if it did. After an error nothing of
//!    the work runs and the ticket may be used again, except after [`DriverError::Halfway`].
//! 3. Work on a stream runs one piece at a time in ticket order. Each piece starts after the
//!    previous one has ended and its writes are visible.
//! 4. A driver whose [`completion`](Driver::completion) is `EveryOp` calls [`Timeline::complete`]
//!    with [`Submission::reaches`] after each piece of work, waits included. It holds no lock
//!    during that call. For an edge, the timeline may have reached that ticket already. A driver
//!    with `Signalled` advances the timeline at each [`signal`](DriverStream::signal).
//! 5. A device that fails permanently reports it once through [`Health::fail`], with an error of
//!    kind [`Fault`](ErrorKind::Fault) that names the op. It runs nothing more. It then releases
//!    the values that its timelines keep: it calls [`Timeline::abandon`] for each stream once
//!    nothing of that stream can still run. After that it calls [`Timeline::wake_all`], since
//!    `abandon` wakes no waiter.
//!
//! # Waits
//! A [`Point`] is a ticket on a timeline: of this device, of another device of the same backend, or
//! of a gate that the host opens. A driver handles waits in one of two ways. It records events
//! ([`DriverStream::record`]) and waits for those, or it registers with the timeline and checks
//! again when it is woken.
//!
//! A point on a failed device is never reached. The waiting device then fails as well, since the
//! work after the wait can never run. The failing device calls [`Timeline::give_up`] with its error
//! before `abandon`. The waiting device reads [`Timeline::fault`] after it has registered, and
//! finds the reason there.
//!
//! # Code that a driver calls
//! A twin ([`kernel::Twin`]) and a host function ([`HostFn`]) may make only some calls to the
//! runtime; [`reentry`] lists the rules. The driver announces each call of such code with
//! [`reentry::calling`]. Without that the rules are not enforced on its device. A driver thread
//! that completes timelines runs wakers, and calls [`reentry::become_awaited`] once when it starts.
//!
//! A panic of a twin is a fault of the device. The runtime catches panics of host functions. A
//! panic that reaches the driver therefore comes from foreign work, and is a fault as well.
//!
//! # The end
//! [`Driver::shut_down`] is called when the runtime is shut down or its last handle is dropped,
//! perhaps after a fault. Work that the runtime accepted before and held back may still be
//! submitted afterwards, and has to run. A stream, or the driver itself, is dropped together with
//! the last buffer, stream or `Pending` that needs it. That drop may happen on any thread, also on
//! one of the driver's own. The driver must therefore not join that thread.
//!
//! # Copies between backends
//! A copy between this device and a CPU device is a [`StagedCopy`] on a stream of this device. The
//! driver runs its [`steps`](StagedCopy::steps) in order.
//!
//! # Optional parts
//! * Drivers with `Signalled` completion implement [`signal`](DriverStream::signal),
//!   [`may_signal`](DriverStream::may_signal) and
//!   [`signals_every_op`](DriverStream::signals_every_op).
//! * Drivers that run work only inside polls implement [`turn`](Driver::turn),
//!   [`runs_in_turns`](Driver::runs_in_turns), [`after_submit`](Driver::after_submit) and
//!   [`on_change`](Driver::on_change).
//! * Drivers with graphs implement [`instantiate`](Driver::instantiate) and
//!   [`workspace_bytes`](Driver::workspace_bytes). The default refuses captures.
//! * Drivers that [set the event](Stamp::set_event) of a [`Stamp`] implement
//!   [`elapsed`](Driver::elapsed). Drivers that [`set`](Stamp::set) a time do not need it.
//! * Drivers whose streams accept work from other code implement [`raw`](DriverStream::raw),
//!   [`make_current`](DriverStream::make_current),
//!   [`foreign_begins`](DriverStream::foreign_begins), [`foreign_ends`](DriverStream::foreign_ends)
//!   and [`call_now`](DriverStream::call_now).
//! * Drivers with device code implement [`load`](Driver::load), [`suggest`](Driver::suggest),
//!   [`global`](Driver::global), [`ready_library`](Driver::ready_library) and
//!   [`release_idle`](Driver::release_idle). The defaults do nothing, or report that there is no
//!   device code.
//! * Drivers that page-lock memory implement [`register_host`](Driver::register_host),
//!   [`unregister_host`](Driver::unregister_host),
//!   [`host_memory_is_slow`](Driver::host_memory_is_slow),
//!   [`alloc_host_ahead`](Driver::alloc_host_ahead), [`can_free`](Driver::can_free) and
//!   [`free_in_time`](Driver::free_in_time). The defaults are those of a device that copies from
//!   any memory.
//! * Drivers that learn of faults late implement [`confirm`](Driver::confirm).
//! * Drivers whose ops appear in traces call `op_started` and `op_finished` of [`op_events`] around
//!   each op, with its [`caller`](Submission::caller).
//!
//! Three modules serve special drivers. [`background`] is for a driver library that forbids calls
//! from some threads, [`process`] for one that ends with the process, and [`sync`] for code that is
//! modelled with loom. [`environment`] serves the crates of Warpline, which read their environment
//! variables through it.
// Decision: docs/decisions/0012-seam-holds-errors-timelines-and-kernels.md
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod affinity;
pub mod background;
mod byte_size;
mod command;
mod device_id;
mod device_ptr;
mod element;
pub mod environment;
mod error;
mod exit;
mod failure;
mod health;
pub mod kernel;
pub mod op_events;
mod out_of_memory;
mod panic;
mod plan;
pub mod process;
mod properties;
pub mod reentry;
pub mod report;
mod seam;
mod staged_copy;
mod stamp;
pub mod sync;
pub mod timeline;
mod unwind;

pub use byte_size::ByteSize;
pub use command::{
    Claim, Command, Copy, CopyKind, DriverGraph, Fill, HostFn, Launch, LaunchExtras, Point, ReachedMemory,
    StagedCopy, Submission,
};
pub use device_id::DeviceId;
pub use device_ptr::DevicePtr;
pub use element::Element;
pub use error::{Error, ErrorKind, Result};
pub use failure::DriverFailure;
pub use health::Health;
pub use out_of_memory::{MemoryHolder, MemoryShortage, OutOfMemory};
pub use panic::message_of;
pub use plan::{OF_ONE_DEVICE, Plan, PlanStream, Step, Work};
pub use properties::{
    Completion, DeviceProperties, FreeMemory, NotFreed, Priority, RawHandle, StreamOptions, WakeUp,
};
pub use seam::{Driver, DriverError, DriverStream};
pub use staged_copy::{StagedStep, copy_rows};
pub use stamp::{DriverEvent, Stamp};
pub use timeline::Timeline;
pub use warpline_order::{AccessMode, ByteRange, Conflict, Site, StreamId, Ticket, Use};

/// Internals of types that users see, for the crates of Warpline.
pub mod internal {
    pub use crate::error::{ErrorParts, Given, Unseen, leaves_a_mark};
    pub use crate::kernel::device_code::{check_compiled, check_device_code};
    pub use crate::plan::{append_plan, work_of};
}
