//! Room for pinned buffers that are made later, for authors of ops.

use super::pinned::{host_bytes, zeroed};
use crate::memory::{Pinned, Promises};
use crate::order::Site;
use crate::shared::{Device, DeviceShared, pinned_room, pinned_room_now};
use std::fmt;
use std::sync::Arc;
use warpline_driver::{Element, Error, ErrorKind, Result};

/// Room for several pinned buffers in a device's pool. Dropping it releases what was not used.
///
/// For authors of ops; unstable, like `warpline::backend`.
pub struct PinnedRoom {
    device: Arc<DeviceShared>,
    /// In the reverse order of the buffers.
    promises: Promises,
}

impl Device {
    /// Waits for room for buffers of these lengths in bytes, which it gets together, like
    /// [`pinned`](Self::pinned). For the call at `site`.
    ///
    /// # Errors
    /// The errors of [`pinned`](Self::pinned).
    pub async fn pinned_room(&self, site: Site, lens_bytes: &[usize]) -> Result<PinnedRoom> {
        Ok(self.room_of(pinned_room(self.shared(), site, lens_bytes).await?))
    }

    /// Returns room like [`pinned_room`](Self::pinned_room), or `None` if it would have to wait.
    ///
    /// # Errors
    /// The errors of [`pinned`](Self::pinned).
    pub fn try_pinned_room(&self, site: Site, lens_bytes: &[usize]) -> Result<Option<PinnedRoom>> {
        Ok(pinned_room_now(self.shared(), site, lens_bytes)?.map(|promises| self.room_of(promises)))
    }

    fn room_of(&self, mut promises: Promises) -> PinnedRoom {
        promises.reverse();
        PinnedRoom { device: self.shared().clone(), promises }
    }
}

impl PinnedRoom {
    /// Makes the next buffer, of `len` elements. If the pool has to grow, that can take
    /// milliseconds on the calling thread.
    ///
    /// # Errors
    /// `OutOfMemory` or `Driver` if the driver has no memory; `InvalidArgument` if no room is left
    /// or the buffer has another length than was asked for.
    pub fn make<T: Element>(&mut self, len: usize) -> Result<Pinned<T>> {
        let len_bytes = host_bytes::<T>(len)?;
        let promise = self.promises.pop().filter(|promise| promise.len_bytes() == len_bytes);
        let promise = promise.ok_or_else(|| {
            let text =
                format!("there is no room for a buffer of {len_bytes} bytes next; make what was asked for");
            Error::new(ErrorKind::InvalidArgument, text)
        })?;
        let pinned = Pinned::new(self.device.with_pinned(|| promise.keep())?, len);
        Ok(if self.device.zero_on_free { zeroed(pinned) } else { pinned })
    }
}

impl fmt::Debug for PinnedRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedRoom").field("buffers", &self.promises.len()).finish_non_exhaustive()
    }
}
