//! Memory that others made, and the addresses of ours.

use crate::background::{self, Duty};
use crate::buffer::Buffer;
use crate::kernel::Kernel;
use crate::order::{Site, Use};
use crate::shared::{Allocation, Stream};
use std::any::Any;
use std::sync::Arc;
use warpline_driver::reentry::{self, Caller};
use warpline_driver::{DeviceId, DevicePtr, Element, Error, ErrorKind, Result};

impl Stream {
    /// A buffer over device memory that somebody else allocated. `owner` is dropped once nobody holds the buffer or a view of it
    /// and the device has done with every use of it.
    ///
    /// To the order check it is as if it had been allocated on this stream now: other streams need an edge from here. It is none of
    /// the device's [`memory_stats`](crate::Device::memory_stats).
    ///
    /// # Cancel safety
    /// Dropping the buffer never waits. If uses of it are in flight, `owner` is dropped when they
    /// are over, on a thread of the runtime, where it may call the driver and may block. So it is
    /// if a host function drops the buffer; with
    /// [`Schedule::Seeded`](warpline_cpu::Schedule::Seeded) that drop is part of the
    /// function.
    ///
    /// # Safety
    /// `address` is that of `len` elements in memory of this stream's device, aligned for them; it stays theirs for as long as
    /// `owner` lives; and what others do with it is ordered before this call on this stream, or after what is done through the
    /// buffer.
    ///
    /// # Errors
    /// `InvalidArgument` if the address is null, though there are elements, or not aligned, or the length cannot be; `Fault`, `ShutDown` or `Closed` when
    /// the stream takes no more work.
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
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{}: address {address:#x} cannot hold {len} elements of {}, which are aligned to {align} bytes; pass the \
                     address of device memory",
                    site.on(&core.label),
                    T::NAME
                ),
            ));
        }
        let Some(len_bytes) =
            len.checked_mul(size_of::<T>()).filter(|&bytes| address.checked_add(bytes as u64).is_some())
        else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{}: {len} elements of {} at {address:#x} are more than can be addressed",
                    site.on(&core.label),
                    T::NAME
                ),
            ));
        };
        let used = Use { stream: core.id, ticket: core.issued() };
        let ptr = DevicePtr(address);
        let owner: Option<Box<dyn Any + Send + Sync>> = Some(Box::new(owner));
        let owner = Arc::new(Owner { owner, runs_in_turns: core.device.runs_in_turns });
        let allocation = Allocation::lent(core.device.clone(), ptr, len_bytes, used, site, owner);
        Ok(Buffer::new(Arc::new(allocation), len))
    }
}

/// Whose memory it is: dropped where that may block, since it may call the driver.
struct Owner {
    owner: Option<Box<dyn Any + Send + Sync>>,
    runs_in_turns: bool,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let owner = self.owner.take();
        match reentry::caller() {
            Caller::User if background::duty() != Duty::PageLocking => drop(owner),
            _ if !self.runs_in_turns => background::detach(move || drop(owner)),
            // A schedule without threads has none to send it to, and to block in a poll is to poll
            // again.
            Caller::Waker => {
                let _calling = reentry::calling(Caller::User);
                drop(owner);
            }
            Caller::User | Caller::HostFunction | Caller::Twin => drop(owner),
        }
    }
}

impl Stream {
    /// The variable `name` of the module that `kernel` was loaded from: a `__device__` or `__constant__` variable of its CUDA
    /// C++. To the order check it is as if it had been allocated on this stream now.
    ///
    /// Two calls for one variable give two histories of the same memory, which the order check does not connect: ask once and
    /// keep the buffer. Nor does it see what kernels do with the variable by its name: they are ordered by their operands alone.
    ///
    /// # On the CPU device
    /// There are no modules: `Unsupported`.
    ///
    /// # Errors
    /// `Unsupported`; `Driver` if the kernel cannot be loaded or its module has no such variable; `Shape` if the variable's size
    /// is not a whole number of elements.
    #[track_caller]
    pub fn global<T: Element>(&self, kernel: &'static Kernel, name: &str) -> Result<Buffer<T>> {
        let site = Site::here(&"global");
        let core = self.core();
        core.may_ask(site)?;
        if matches!(core.device.id, DeviceId::Cpu(_)) {
            let text = format!(
                "{}: {} has no modules; pass a buffer to the kernel",
                site.on(&core.label),
                core.device.id
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        core.ensure_open(site)?;
        let (ptr, bytes) =
            core.device.driver.global(kernel, name).map_err(|error| core.refused(site, &error))?;
        if !bytes.is_multiple_of(size_of::<T>()) {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "{}: {name} has {bytes} bytes, which are no whole number of {} of {} bytes; ask for its own type",
                    site.on(&core.label),
                    T::NAME,
                    size_of::<T>()
                ),
            ));
        }
        let used = Use { stream: core.id, ticket: core.issued() };
        let allocation = Allocation::lent(core.device.clone(), ptr, bytes, used, site, Arc::new(()));
        Ok(Buffer::new(Arc::new(allocation), bytes / size_of::<T>()))
    }
}

impl<T: Element> Buffer<T> {
    /// The address of its first element on its device: for the driver's and its libraries' own functions, inside
    /// [`Stream::external`]. On the CPU device it is a host address.
    ///
    /// What is done with it elsewhere the order check does not see.
    pub fn device_ptr(&self) -> DevicePtr {
        DevicePtr(self.address())
    }
}
