//! Page-locked host memory of a device.

use crate::background;
use crate::memory::{Pinned, Preparing};
use crate::order::Site;
use crate::shared::{Device, pinned_bytes, pinned_bytes_blocking, pinned_bytes_now};
use std::future::Future;
use warpline_driver::internal::ErrorParts;
use warpline_driver::{Element, Error, ErrorKind, Result};

impl Device {
    /// Returns page-locked host memory for `len` elements, from the device's pool. Its contents are
    /// unspecified, or zeros with [`zero_on_free`](crate::RuntimeBuilder::zero_on_free).
    ///
    /// If the pool has to grow, that can take milliseconds. It happens on a thread of the runtime,
    /// so it does not block the executor.
    ///
    /// # At the cap
    /// Requests wait for what copies in flight give back by themselves, and are granted it in the
    /// order of their calls. Buffers that handles hold are no reason to wait, even if they are in
    /// a copy whose `Pending` will return them. So a request that does not fit beside them is
    /// refused at once. Otherwise two tasks could wait for each other for ever. The same holds for
    /// copies behind a host function, foreign work or a closed gate.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: it leaves the queue, and memory that is already being
    /// allocated for it goes to the pool.
    ///
    /// # Errors
    /// `OutOfMemory` if it does not fit beside what is held, or the driver has no memory; `Driver`
    /// if the driver refuses; `Reentrant` in a host function; the device's fault once it has
    /// failed; `ShutDown`.
    #[track_caller]
    pub fn pinned<T: Element>(
        &self,
        len: usize,
    ) -> impl Future<Output = Result<Pinned<T>>> + Send + use<'_, T> {
        let site = Site::here(&"pinned");
        async move {
            let device = self.shared();
            let len_bytes = host_bytes::<T>(len)?;
            let mut bytes = pinned_bytes(device, site, len_bytes).await?;
            if !device.zero_on_free || len_bytes <= ZEROED_AT_ONCE_BYTES || device.runs_in_turns {
                let pinned = Pinned::new(bytes, len);
                return Ok(if device.zero_on_free { zeroed(pinned) } else { pinned });
            }
            let preparing = Preparing::new(&device.pinned);
            bytes.will_return(preparing.returns());
            let bytes = background::run(move || zeroed(Pinned::<T>::new(bytes, len)).into_bytes()).await;
            Ok(Pinned::new(preparing.over(bytes), len))
        }
    }

    /// Like [`pinned`](Self::pinned), but does not wait for copies in flight, nor behind others
    /// that wait. If the pool has to grow, the calling thread allocates.
    ///
    /// # Errors
    /// The errors of [`pinned`](Self::pinned); also `OutOfMemory` if it would have to wait.
    #[track_caller]
    pub fn try_pinned<T: Element>(&self, len: usize) -> Result<Pinned<T>> {
        let (device, site) = (self.shared(), Site::here(&"try_pinned"));
        let pinned = Pinned::new(pinned_bytes_now(device, site, host_bytes::<T>(len)?)?, len);
        Ok(if device.zero_on_free { zeroed(pinned) } else { pinned })
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
            device.ensure_open().and_then(|()| device.with_pinned(|| device.pinned.register(&mut elements)));
        pinned.map_err(|error| error.with(Box::new(elements)))
    }

    /// Like [`pinned`](Self::pinned), but allocates and waits on the calling thread. A waker does
    /// not wait: its request is refused.
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
        let bytes = pinned_bytes_blocking(device, &device.pinned, None, site, host_bytes::<T>(len)?)?;
        let pinned = Pinned::new(bytes, len);
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
