//! The limit on a device's memory, in bytes or as a fraction of the device's total.

use super::MemoryOptions;
use warpline_driver::{Driver, Error, ErrorKind, MemoryShortage, Result};

/// The maximum memory that the allocator of one device takes from its driver.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MemoryLimit {
    pub(crate) bytes: usize,
    /// The fraction and the device's total bytes, if the limit is that fraction of them.
    fraction_of: Option<(f64, usize)>,
}

impl MemoryLimit {
    pub(crate) fn of_bytes(bytes: usize) -> Self {
        MemoryLimit { bytes, fraction_of: None }
    }

    /// Returns the number of bytes that the limit leaves.
    pub(super) fn free_bytes(self, reserved: usize) -> usize {
        self.bytes.saturating_sub(reserved)
    }

    /// Returns the reason of a refusal by this limit.
    pub(super) fn shortage(self, reserved: usize) -> MemoryShortage {
        let (free_bytes, limit_bytes) = (self.free_bytes(reserved), self.bytes);
        match self.fraction_of {
            None => MemoryShortage::Limit { free_bytes, limit_bytes },
            Some((fraction, total_bytes)) => {
                MemoryShortage::Fraction { free_bytes, limit_bytes, fraction, total_bytes }
            }
        }
    }
}

impl MemoryOptions {
    /// Returns the limit for the device of `driver`: the lower one, if there are two.
    ///
    /// # Errors
    /// `InvalidArgument` if a fraction is set and the driver does not report a total.
    pub(crate) fn limit_of(&self, driver: &dyn Driver) -> Result<Option<MemoryLimit>> {
        let in_bytes = self.limit_bytes.map(MemoryLimit::of_bytes);
        let Some(fraction) = self.fraction else { return Ok(in_bytes) };
        let total_bytes = driver.properties().total_bytes;
        if total_bytes == 0 {
            let text = format!(
                "memory_fraction {fraction} cannot limit {}: its driver does not report how much memory it \
                 has; use memory_limit",
                driver.id()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let bytes = (total_bytes as f64 * fraction) as usize;
        let of_total = MemoryLimit { bytes, fraction_of: Some((fraction, total_bytes)) };
        Ok(Some(in_bytes.filter(|limit| limit.bytes < of_total.bytes).unwrap_or(of_total)))
    }
}
