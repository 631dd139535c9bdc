//! The state that handles share: of runtimes, devices, streams, memory and captures.
//!
//! These hold each other: a device its runtime, a stream its device, a runtime its streams, an allocation its device, and a
//! capture all of them. So they are one folder. What users call stands above it, in `stream/`, `device/`, `buffer.rs`,
//! `graph/` and so on.

mod allocation;
mod capture;
mod device;
mod operand;
pub(crate) mod panics;
mod runtime;
pub(crate) mod stream;

pub(crate) use allocation::Allocation;
pub(crate) use capture::{Capture, Capturing, GraphPool, Recorded, captured, wait_for};
pub use device::Device;
pub(crate) use device::DeviceShared;
pub(crate) use operand::OwnedOperand;
pub use operand::{Elements, IntoOperand, Operand};
pub(crate) use runtime::RuntimeShared;
pub use stream::Stream;
pub(crate) use stream::{Op, Place, Snapshot, StreamCore};
