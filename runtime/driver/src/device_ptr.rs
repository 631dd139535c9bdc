//! Addresses in a device's memory.

/// An address in a device's memory. On the CPU device it is the host address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// Returns the address `bytes` bytes after this one.
    #[inline]
    pub const fn offset(self, bytes: u64) -> Self {
        DevicePtr(self.0 + bytes)
    }
}
