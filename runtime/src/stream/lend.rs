//! Buffers over memory that other code allocated, and the device addresses of buffers.

use super::error;
use crate::background::{self, Duty};
use crate::buffer::Buffer;
use crate::kernel::Kernel;
use crate::memory::Pinned;
use crate::order::{Site, Use};
use crate::shared::{Allocation, Stream};
use std::any::Any;
use std::sync::Arc;
use warpline_driver::reentry::{self, Caller};
use warpline_driver::{DeviceId, DevicePtr, Element, ErrorKind, Result};

impl Stream {
    /// Returns a buffer over device memory that other code allocated. `owner` is dropped once the
    /// buffer and its views are dropped and the device has finished every use of it.
    ///
    /// To the order check the memory counts as allocated on this stream now: other streams need an
    /// edge from here. It does not count in the device's
    /// [`memory_stats`](crate::Device::memory_stats).
    ///
    /// # Cancel safety
    /// Dropping the buffer never waits. If uses of it are in flight, `owner` is dropped when they
    /// have finished, on a thread of the runtime, where it may call the driver and may block. If a
    /// host function drops the buffer, `owner` is dropped on such a thread too. With
    /// [`Schedule::Seeded`](warpline_cpu::Schedule::Seeded) there is no such thread, and `owner` is
    /// dropped inside the host function.
    ///
    /// # Safety
    /// `address` must be that of `len` elements in memory of this stream's device, aligned for
    /// them. The memory must stay valid for as long as `owner` lives. Each use of the memory by
    /// other code must be ordered either before all work enqueued on this stream after this call,
    /// or after all uses through the buffer.
    ///
    /// # Errors
    /// `InvalidArgument` if the address is null for a length above 0 or not aligned, or if the
    /// length is more than can be addressed; `Fault`, `ShutDown` or `Closed` when the stream
    /// accepts no more work.
    #[track_caller]
    pub unsafe fn borrow_memory<T: Element>(
        &self,
        address: u64,
        len: usize,
        owner: impl Any + Send + Sync,
    ) -> Result<Buffer<T>> {
        let site = Site::here(&"borrow_memory");
        let core = self.core();
        core.ensure_open(site)?;
        let align = align_of::<T>() as u64;
        if (address == 0 && len > 0) || !address.is_multiple_of(align) {
            let why = format_args!(
                "address {address:#x} cannot hold {len} elements of {}, which need an alignment of {align} \
                 bytes; pass the address of device memory",
                T::NAME
            );
            return Err(error(core, site, ErrorKind::InvalidArgument, why));
        }
        let len_bytes = len.checked_mul(size_of::<T>());
        let len_bytes = len_bytes.filter(|&bytes| address.checked_add(bytes as u64).is_some());
        let len_bytes = len_bytes.ok_or_else(|| {
            let name = T::NAME;
            let why = format_args!("{len} elements of {name} at {address:#x} are more than can be addressed");
            error(core, site, ErrorKind::InvalidArgument, why)
        })?;
        let used = Use { stream: core.id, ticket: core.issued() };
        let ptr = DevicePtr(address);
        let runs_in_turns = core.device.runs_in_turns;
        let owner = Arc::new(Owner { owner: Some(Box::new(owner)), runs_in_turns });
        let allocation = Allocation::lent(core.device.clone(), ptr, len_bytes, used, site, owner);
        Ok(Buffer::new(Arc::new(allocation), len))
    }
}

impl Stream {
    /// Returns a buffer over page-locked memory, for ops of this stream's device, a CPU device. The
    /// memory returns to its pool once the buffer and its views are dropped and every use of it has
    /// finished.
    ///
    /// To the order check the memory counts as allocated on this stream now. It counts in the
    /// [`pinned_stats`](crate::Device::pinned_stats) of the device that page-locked it, and not in
    /// any [`memory_stats`](crate::Device::memory_stats). [`Buffer::is_pinned`] is true for it.
    ///
    /// [`copy_buffer_peer`](Self::copy_buffer_peer) copies between the buffer and a GPU of the
    /// backend that page-locked it directly, not in pieces.
    ///
    /// # Errors
    /// `Unsupported` if the stream is not on a CPU device; `Fault`, `ShutDown` or `Closed` when the
    /// stream accepts no more work. [`Pinned::from_error`] recovers the memory.
    ///
    /// # Examples
    /// ```
    /// use warpline::{Device, ops};
    /// # fn main() -> warpline::Result<()> {
    /// # let device = Device::open("cpu")?;
    /// let mut host = device.blocking_pinned::<f32>(3)?;
    /// host.copy_from_slice(&[1.0, 2.0, 3.0]);
    /// let x = device.default_stream()?.buffer_from_pinned(host)?;
    /// assert!(x.is_pinned());
    /// assert_eq!(ops::read(&x).blocking_wait()?, [1.0, 2.0, 3.0]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn buffer_from_pinned<T: Element>(&self, host: Pinned<T>) -> Result<Buffer<T>> {
        let site = Site::here(&"buffer_from_pinned");
        let core = self.core();
        if let Err(error) = core.ensure_open(site) {
            return Err(host.into_error(error));
        }
        if !matches!(core.device.id, DeviceId::Cpu(_)) {
            let why = format_args!(
                "{} does not compute in memory of the host; pass the buffer to copy_to_device, or use a \
                 stream of a CPU device",
                core.device.id
            );
            return Err(host.into_error(error(core, site, ErrorKind::Unsupported, why)));
        }
        let used = Use { stream: core.id, ticket: core.issued() };
        let (ptr, len) = (DevicePtr(host.as_ptr() as u64), host.len());
        // The block has no other owner from here on, so only ops of the buffer reach it.
        let bytes = Arc::new(host.into_bytes());
        let len_bytes = len * size_of::<T>();
        let allocation = Allocation::lent(core.device.clone(), ptr, len_bytes, used, site, bytes);
        Ok(Buffer::new(Arc::new(allocation), len))
    }
}

/// The owner of borrowed memory. It is dropped where blocking is allowed, since its drop may call
/// the driver.
struct Owner {
    owner: Option<Box<dyn Any + Send + Sync>>,
    runs_in_turns: bool,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let owner = self.owner.take();
        if warpline_driver::process::is_forked() {
            std::mem::forget(owner);
            return;
        }
        match reentry::caller() {
            Caller::User if background::duty() != Duty::Submitting => drop(owner),
            _ if !self.runs_in_turns => background::detach(move || drop(owner)),
            // A schedule without threads has no thread to drop it on, and blocking in a poll only
            // polls again.
            Caller::Waker => {
                let _calling = reentry::calling(Caller::User);
                drop(owner);
            }
            Caller::User | Caller::HostFunction | Caller::Twin => drop(owner),
        }
    }
}

impl Stream {
    /// Returns the variable `name` of the module that `kernel` was loaded from: a `__device__` or
    /// `__constant__` variable of its CUDA C++. To the order check it counts as allocated on this
    /// stream now.
    ///
    /// The order check treats the buffers of two calls as different memory, even for one variable:
    /// call once and keep the buffer. The order check does not see accesses that kernels make to
    /// the variable by its name: kernels are ordered by their operands alone.
    ///
    /// # On the CPU device
    /// Kernels that run their PTX there have modules. A kernel with a CPU form is refused as
    /// `Unsupported`.
    ///
    /// # Errors
    /// `Unsupported`; `Driver` if the kernel cannot be loaded or its module has no such variable;
    /// `Shape` if the variable's size is not a whole number of elements.
    #[track_caller]
    pub fn global<T: Element>(&self, kernel: &'static Kernel, name: &str) -> Result<Buffer<T>> {
        let site = Site::here(&"global");
        let core = self.core();
        core.may_ask(site)?;
        if matches!(core.device.id, DeviceId::Cpu(_)) && kernel.twin.is_some() {
            let (device, name) = (core.device.id, kernel.name);
            let why = format_args!(
                "{device} runs the CPU form of {name}, which has no module; pass a buffer to the kernel"
            );
            return Err(error(core, site, ErrorKind::Unsupported, why));
        }
        core.ensure_open(site)?;
        let (ptr, bytes) =
            core.device.driver.global(kernel, name).map_err(|error| core.refused(site, &error))?;
        if !bytes.is_multiple_of(size_of::<T>()) {
            let (element, size) = (T::NAME, size_of::<T>());
            let why = format_args!(
                "{name} has {bytes} bytes, not a whole number of {element} of {size} bytes; request it with \
                 its own type"
            );
            return Err(error(core, site, ErrorKind::Shape, why));
        }
        let used = Use { stream: core.id, ticket: core.issued() };
        let allocation = Allocation::lent(core.device.clone(), ptr, bytes, used, site, Arc::new(()));
        Ok(Buffer::new(Arc::new(allocation), bytes / size_of::<T>()))
    }
}

impl<T: Element> Buffer<T> {
    /// Returns the address of its first element on its device, for functions of the driver and its
    /// libraries, inside [`Stream::external`]. On the CPU device it is a host address.
    ///
    /// The order check does not see accesses through the address elsewhere.
    pub fn device_ptr(&self) -> DevicePtr {
        DevicePtr(self.address())
    }
}
