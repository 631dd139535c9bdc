//! The state that handles share: of runtimes, devices, streams, memory and captures.
//!
//! These refer to each other: a device to its runtime, a stream to its device, a runtime to its
//! streams, an allocation to its device, and a capture to all of them. So they are one folder. The
//! API that users call stands above it, in `stream/`, `device/`, `buffer.rs`, `graph/` and so on.

mod allocation;
mod budget_waits;
mod capture;
mod closed_gates;
mod device;
mod host_code;
mod memory_waits;
mod operand;
mod out_of_memory;
mod owned;
pub(crate) mod panics;
mod pinned_waits;
mod runtime;
pub(crate) mod stream;
mod tally;

pub(crate) use allocation::Allocation;
pub use budget_waits::Budget;
pub(crate) use budget_waits::{Budgeted, budget, budget_blocking};
pub(crate) use capture::{Capture, CaptureToken, Capturing, GraphPool, Recorded, captured, wait_for};
#[cfg(feature = "test-util")]
pub(crate) use closed_gates::ClosedGate;
pub use device::Device;
pub(crate) use device::{DeviceShared, SHORT_COPY_BYTES};
pub(crate) use host_code::HostCode;
pub(crate) use memory_waits::{Short, await_memory, wait_for_memory};
pub use operand::{Elements, IntoOperand, Operand};
pub(crate) use out_of_memory::unserved;
pub(crate) use owned::{OwnedOperand, Tracked};
pub(crate) use pinned_waits::{
    make_way, pinned_bytes, pinned_bytes_blocking, pinned_bytes_now, pinned_room, pinned_room_now,
};
pub(crate) use runtime::{Observer, RuntimeShared};
pub use stream::Stream;
pub(crate) use stream::{Effect, Place, Reach, Request, Snapshot, StreamCore, Terms};
pub use tally::OpStats;
pub(crate) use tally::Tally;
