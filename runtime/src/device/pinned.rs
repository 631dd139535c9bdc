//! Page-locked host memory of a device.

use crate::background;
use crate::memory::Pinned;
use crate::order::Site;
use crate::shared::Device;
use warpline_driver::internal::ErrorParts;
use warpline_driver::{Element, Error, ErrorKind, Result, reentry};

impl Device {
    /// Returns page-locked host memory for `len` elements, from the device's pool. Its contents are
    /// unspecified, or zeros with [`zero_on_free`](crate::RuntimeBuilder::zero_on_free).
    ///
    /// If the pool has to grow, that can take milliseconds. It happens on a thread of the runtime,
    /// so it does not block the executor.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: memory that is already being allocated for it goes to the
    /// pool.
    ///
    /// # Errors
    /// `OutOfMemory` if the pool is at its cap or the driver has no memory; `Driver` if the driver
    /// refuses; `Reentrant` in a host function; the device's fault once it has failed; `ShutDown`.
    pub async fn pinned<T: Element>(&self, len: usize) -> Result<Pinned<T>> {
        let device = self.shared();
        let len_bytes = host_bytes::<T>(len)?;
        device.ensure_open()?;
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

    /// Page-locks existing memory, so that copies from it are asynchronous, like copies from
    /// [`pinned`](Self::pinned) memory.
    ///
    /// This pays off for data that is copied repeatedly: page-locking takes milliseconds on the
    /// calling thread, and so does unlocking when the buffer is dropped. The memory does not go to
    /// the pool and does not count in [`pinned_stats`](Self::pinned_stats). Drivers lock whole
    /// pages, so use a buffer from the pool for less than some tens of KiB.
    ///
    /// # Cancel safety
    /// The memory stays locked, and the vector alive, until the buffer is dropped and the last copy
    /// has finished, even if no task awaits the copy.
    ///
    /// # On the CPU device
    /// No memory is locked. The vector is wrapped as it is.
    ///
    /// # Errors
    /// `Driver` if the driver refuses, because part of the memory is page-locked already or the
    /// system allows no more; `Reentrant` in a host function; the device's fault once it has
    /// failed; `ShutDown`. [`Error::into_vec`] takes the vector back out of the error.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> warpline::Result<()> {
    /// # let runtime = warpline::Runtime::builder().build()?;
    /// # let device = runtime.device("cpu".parse()?)?;
    /// # let stream = device.new_stream()?;
    /// let table = device.pin(vec![0.5f32; 1 << 20])?;
    /// let x = stream.alloc::<f32>(table.len())?;
    /// // As from any pinned buffer.
    /// let table = stream.copy_into(&x, table).blocking_wait()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn pin<T: Element>(&self, mut elements: Vec<T>) -> Result<Pinned<T>> {
        let device = self.shared();
        let pinned =
            device.ensure_open().and_then(|()| device.with_pinned(|pool| pool.register(&mut elements)));
        pinned.map_err(|error| error.with(Box::new(elements)))
    }

    /// Like [`pinned`](Self::pinned), but allocates on the calling thread.
    ///
    /// # Errors
    /// Returns the errors of [`pinned`](Self::pinned); `Reentrant` in a task with
    /// [`SyncMode::Error`](crate::SyncMode::Error).
    #[track_caller]
    pub fn blocking_pinned<T: Element>(&self, len: usize) -> Result<Pinned<T>> {
        self.blocking_pinned_for(Site::here(&"blocking_pinned"), "await device.pinned(len) instead", len)
    }

    /// Like [`blocking_pinned`](Self::blocking_pinned), for the call at `site`. `instead` is the
    /// advice to its caller. For authors of ops; unstable, like `warpline::backend`.
    ///
    /// # Errors
    /// The errors of [`blocking_pinned`](Self::blocking_pinned).
    pub fn blocking_pinned_for<T: Element>(
        &self,
        site: Site,
        instead: &str,
        len: usize,
    ) -> Result<Pinned<T>> {
        let device = self.shared();
        device.ensure_open()?;
        device.runtime.sync.may_block(site, instead)?;
        let pinned = Pinned::new(device.pinned_bytes(host_bytes::<T>(len)?)?, len);
        Ok(if device.zero_on_free { zeroed(pinned) } else { pinned })
    }
}

/// The most bytes that are zeroed on an executor's thread, which takes some tens of microseconds.
const ZEROED_AT_ONCE_BYTES: usize = 1 << 20;

pub(crate) fn zeroed<T: Element>(mut pinned: Pinned<T>) -> Pinned<T> {
    pinned.fill(T::new_zeroed());
    pinned
}

pub(crate) fn host_bytes<T: Element>(len: usize) -> Result<usize> {
    let size = size_of::<T>();
    len.checked_mul(size).ok_or_else(|| {
        let why = format!("pinned: {len} elements of {size} bytes are more than can be addressed");
        Error::new(ErrorKind::OutOfMemory, why)
    })
}
