//! Allocating device memory in the order of a stream.
//!
//! # What fresh memory holds
//! It holds whatever its last owner left, unless it is zeroed: by [`Stream::alloc_zeroed`], or for
//! every allocation of a runtime by [`zero_on_free`](crate::RuntimeBuilder::zero_on_free).
//!
//! Zeroing is a fill: the first op on the memory, on the allocating stream, entered in the memory's
//! history like any other. So everything that may touch the memory is ordered after the fill, and
//! the fill after every use by earlier owners, on whatever stream: the allocator hands nothing else
//! out, or the fill waits for it as any first op on the memory does. In a capture the fill is a
//! step of the graph, and each launch zeroes the memory again. If the fill is refused, so is the
//! allocation; its block was shown to nobody, and the next allocation of it is zeroed.
//!
//! *Why at the allocation and not when the memory is freed?* Memory is freed by drops, on any
//! thread: on the reactor, or in a host function, where nothing can be enqueued, and with uses in
//! flight on several streams, which a fill would have to wait for. An allocation has a stream and
//! an error to return. A free block therefore keeps its contents until an allocation takes it. A
//! split or joined block needs no bookkeeping: what is handed out is zeroed, however it came about.

use crate::buffer::Buffer;
use crate::order::{AccessMode, ByteRange, Site, Use};
use crate::shared::{Allocation, Op, Operand, Stream, StreamCore};
use std::sync::Arc;
use warpline_driver::{Command, Element, Error, ErrorKind, Fill, Result};

impl Stream {
    /// Allocates `len` elements in the order of this stream. Their contents are unspecified:
    /// perhaps what an earlier owner left.
    ///
    /// # Ordering
    /// The memory may have been freed by an op that is still ahead on this stream. Another stream
    /// that wants to use it first needs an edge from this one.
    ///
    /// # Errors
    /// `OutOfMemory`, with the numbers and the largest holders; `Fault` or `ShutDown` when the
    /// device takes no more work.
    #[track_caller]
    #[inline]
    pub fn alloc<T: Element>(&self, len: usize) -> Result<Buffer<T>> {
        self.alloc_at(Site::here(&"alloc"), len)
    }

    /// Allocates `len` elements in the order of this stream and zeroes them: a fill, as the first
    /// op on the memory.
    ///
    /// # Ordering
    /// As [`alloc`](Self::alloc); another stream needs an edge from this one also where the host
    /// has observed all that was enqueued before. In a capture each launch of the graph zeroes the
    /// memory again.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), and those of an op that is refused. Where
    /// [`max_in_flight`](crate::StreamBuilder::max_in_flight) limits the stream, the fill is not
    /// counted.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> warpline_runtime::Result<()> {
    /// # let runtime = warpline_runtime::Runtime::builder().build()?;
    /// # let stream = runtime.device("cpu".parse()?)?.new_stream()?;
    /// let counters = stream.alloc_zeroed::<u32>(256)?;
    /// assert_eq!(stream.read(&counters).blocking_wait()?, [0; 256]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn alloc_zeroed<T: Element>(&self, len: usize) -> Result<Buffer<T>> {
        self.alloc_zeroed_at(Site::here(&"alloc_zeroed"), len)
    }

    pub(super) fn alloc_zeroed_at<T: Element>(&self, site: Site, len: usize) -> Result<Buffer<T>> {
        let core = self.core();
        Ok(Buffer::new(core.alloc(site, core.bytes_of::<T>(site, len)?, true)?, len))
    }

    #[inline]
    pub(super) fn alloc_at<T: Element>(&self, site: Site, len: usize) -> Result<Buffer<T>> {
        let core = self.core();
        Ok(Buffer::new(core.alloc(site, core.bytes_of::<T>(site, len)?, false)?, len))
    }
}

impl StreamCore {
    #[inline]
    fn bytes_of<T: Element>(&self, site: Site, len: usize) -> Result<usize> {
        len.checked_mul(size_of::<T>()).ok_or_else(|| self.too_long(site, len, size_of::<T>()))
    }

    #[cold]
    fn too_long(&self, site: Site, len: usize, element_bytes: usize) -> Error {
        let why =
            format!("{len} elements of {element_bytes} bytes are more than can be addressed; allocate fewer");
        Error::new(ErrorKind::OutOfMemory, format!("{}: {why}", site.on(&self.label)))
    }

    /// The refusal of an op that got no memory, with its place. That of a device that takes no more
    /// work stays as it is.
    #[cold]
    pub(crate) fn unserved(&self, site: Site, error: Error) -> Error {
        match error.kind() {
            ErrorKind::OutOfMemory | ErrorKind::Driver => {
                Error::new(error.kind(), format!("{}: {error}", site.on(&self.label)))
            }
            _ => error,
        }
    }

    /// Memory that is zeroed first if `zeroed` says so, or if the runtime zeroes every allocation.
    #[inline]
    fn alloc(self: &Arc<Self>, site: Site, len_bytes: usize, zeroed: bool) -> Result<Arc<Allocation>> {
        let allocation = self.alloc_unspecified(site, len_bytes)?;
        if zeroed || self.device.zero_on_free {
            self.zero(site, &allocation)?;
        }
        Ok(allocation)
    }

    #[cold]
    fn zero(self: &Arc<Self>, site: Site, allocation: &Arc<Allocation>) -> Result<()> {
        let len_bytes = allocation.len_bytes;
        let range = ByteRange::contiguous(0, len_bytes as u64);
        let operands = [Operand { allocation, range, access: AccessMode::Write }];
        let mut op = Op::new("fill", site, &operands);
        // It belongs to the allocation, which takes no room.
        op.without_permit = true;
        let fill = Fill {
            dst: allocation.ptr,
            pitch: len_bytes,
            width_bytes: len_bytes,
            height: 1,
            pattern: 0,
            pattern_bytes: 1,
        };
        self.enqueue(&mut op, |_| Command::Fill(fill)).map(drop)
    }

    /// Memory that holds whatever its last owner left.
    pub(crate) fn alloc_unspecified(
        self: &Arc<Self>,
        site: Site,
        len_bytes: usize,
    ) -> Result<Arc<Allocation>> {
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
        });
        let grant = grant.map_err(|error| self.unserved(site, error))?;
        // It counts at the last ticket taken, which is read after the grant. An edge becomes known
        // after its ticket was issued, so this ticket is as new as any edge that the grant relies
        // on.
        let used = Use { stream: self.id, ticket: self.issued() };
        Ok(Allocation::new(self.device.clone(), &grant, len_bytes, used, site))
    }
}
