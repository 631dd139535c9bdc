//! Devices.

mod id;
pub use id::DeviceId;
