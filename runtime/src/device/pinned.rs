//! Page-locked host memory of a device.

use crate::background;
use crate::memory::Pinned;
use crate::shared::Device;
use warpline_driver::internal::ErrorParts;
use warpline_driver::{Element, Error, ErrorKind, Result, reentry};

impl Device {
    /// Returns page-locked host memory for `len` elements, from the device's pool. Contents are
    /// unspecified, or all zero with [`zero_on_free`](crate::RuntimeBuilder::zero_on_free).
    ///
    /// Growing the pool can take milliseconds. It runs on a thread of the runtime, not on the
    /// executor's.
    ///
    /// # Errors
    /// `OutOfMemory` if the pool is at its cap.
    pub async fn pinned<T: Element>(&self, len: usize) -> Result<Pinned<T>> {
        let device = self.shared();
        let len_bytes = host_bytes::<T>(len)?;
        if warpline_driver::process::is_forked() {
            return Err(warpline_driver::process::forked());
        }
        let bytes = match device.pinned.try_take(len_bytes) {
            Some(bytes) => bytes,
            None if reentry::holds_a_device() => return Err(reentry::refused(&"pinned")),
            None if !device.runs_in_turns => {
                let device = device.clone();
                background::run_pinning(device.id, move || device.pinned_bytes(len_bytes)).await?
            }
            None => device.pinned_bytes(len_bytes)?,
        };
        let pinned = Pinned::new(bytes, len);
        if !device.zero_on_free {
            Ok(pinned)
        } else if len_bytes > ZEROED_AT_ONCE_BYTES && !device.runs_in_turns {
            Ok(background::run(move || zeroed(pinned)).await)
        } else {
            Ok(zeroed(pinned))
        }
    }

    /// Page-locks existing memory, so that copies from it overlap with work as those from
    /// [`pinned`](Self::pinned) do.
    ///
    /// For data that is used repeatedly: page-locking takes milliseconds on the calling thread, and
    /// so does unlocking when the buffer is dropped. The memory does not go to the pool, nor count
    /// in its figures. Drivers lock whole pages: for less than some tens of KiB, use a buffer from
    /// the pool.
    ///
    /// # Cancel safety
    /// The memory stays locked, and the vector alive, until the buffer is dropped and the last copy
    /// has finished, even if no task awaits the copy.
    ///
    /// # On the CPU device
    /// There is nothing to lock.
    ///
    /// # Errors
    /// `Driver` if the driver refuses: part of the memory is page-locked already, or the system
    /// allows no more. The error returns the vector: [`Error::into_vec`].
    ///
    /// # Examples
    /// ```
    /// # fn main() -> warpline_runtime::Result<()> {
    /// # let runtime = warpline_runtime::Runtime::builder().build()?;
    /// # let device = runtime.device("cpu".parse()?)?;
    /// # let stream = device.new_stream()?;
    /// let table = device.pin(vec![0.5f32; 1 << 20])?;
    /// let x = stream.alloc::<f32>(table.len())?;
    /// let table = stream.copy_into(&x, table).blocking_wait()?; // as from any pinned buffer
    /// # Ok(())
    /// # }
    /// ```
    pub fn pin<T: Element>(&self, mut elements: Vec<T>) -> Result<Pinned<T>> {
        let pinned = self.shared().with_pinned(|pool| pool.register(&mut elements));
        pinned.map_err(|error| error.with(Box::new(elements)))
    }

    /// Like [`pinned`](Self::pinned), but allocates on the calling thread.
    ///
    /// # Errors
    /// As `pinned`.
    pub fn blocking_pinned<T: Element>(&self, len: usize) -> Result<Pinned<T>> {
        let device = self.shared();
        let pinned = Pinned::new(device.pinned_bytes(host_bytes::<T>(len)?)?, len);
        Ok(if device.zero_on_free { zeroed(pinned) } else { pinned })
    }
}

/// The most bytes that are zeroed on an executor's thread, which takes some tens of microseconds.
const ZEROED_AT_ONCE_BYTES: usize = 1 << 20;

pub(crate) fn zeroed<T: Element>(mut pinned: Pinned<T>) -> Pinned<T> {
    pinned.fill(T::zeroed());
    pinned
}

pub(crate) fn host_bytes<T: Element>(len: usize) -> Result<usize> {
    len.checked_mul(size_of::<T>()).ok_or_else(|| {
        Error::new(
            ErrorKind::OutOfMemory,
            format!("pinned: {len} elements of {} bytes are more than can be addressed", size_of::<T>()),
        )
    })
}
