//! Allocating device memory in the order of a stream.

use super::core::StreamCore;
use super::handle::Stream;
use crate::element::Element;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{Allocation, Buffer};
use crate::order::Use;
use crate::site::Site;
use std::sync::Arc;

impl Stream {
    /// Allocates `len` elements in the order of this stream. Their contents are unspecified.
    ///
    /// # Ordering
    /// The memory may have been freed by an op that is still ahead on this stream. Another stream that wants to use it first
    /// needs an edge from this one.
    ///
    /// # Errors
    /// `OutOfMemory`, with the numbers and the largest holders; `Fault` or `ShutDown` when the device takes no more work.
    #[track_caller]
    #[inline]
    pub fn alloc<T: Element>(&self, len: usize) -> Result<Buffer<T>> {
        self.alloc_at(Site::here(&"alloc"), len)
    }

    /// As [`alloc`](Self::alloc), under the name and line in `site`: for ops that allocate what they return.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    #[inline]
    pub fn alloc_at<T: Element>(&self, site: Site, len: usize) -> Result<Buffer<T>> {
        let Some(len_bytes) = len.checked_mul(size_of::<T>()) else {
            return Err(too_long(len, size_of::<T>()));
        };
        Ok(Buffer::new(self.core().alloc(site, len_bytes)?, len))
    }
}

#[cold]
fn too_long(len: usize, element_bytes: usize) -> Error {
    Error::new(
        ErrorKind::OutOfMemory,
        format!("alloc of {len} elements of {element_bytes} bytes is more than can be addressed"),
    )
}

impl StreamCore {
    fn alloc(self: &Arc<Self>, site: Site, len_bytes: usize) -> Result<Arc<Allocation>> {
        self.ensure_open(site)?;
        if self.is_captured()
            && let Some(capture) = self.capture(site)?
        {
            return capture.alloc(self, site, len_bytes);
        }
        let memory = &self.device.memory;
        let grant = memory.alloc(len_bytes, self.id, &**self, site).map_err(|error| {
            // What refused the memory may have shown that the device has failed.
            match error.kind() {
                ErrorKind::Driver => self.device.ensure_open().err().unwrap_or(error),
                _ => error,
            }
        })?;
        let ticket = match grant.wait {
            None => self.allocation_ticket(site),
            Some(used) => self.wait_for_block(site, used),
        };
        let ticket = ticket.inspect_err(|_| memory.free(grant.block, &[]))?;
        let used = Use { stream: self.id, ticket };
        Ok(Allocation::new(self.device.clone(), &grant, len_bytes, used, site))
    }
}
