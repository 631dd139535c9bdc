//! Allocation of device memory in the order of a stream.
//!
//! # What fresh memory holds
//! Fresh memory holds whatever its last owner left, unless it is zeroed. [`Stream::alloc_zeroed`]
//! zeroes one allocation, and [`zero_on_free`](crate::RuntimeBuilder::zero_on_free) zeroes every
//! allocation of a runtime.
//!
//! Zeroing is a fill. It is the first op on the memory, on the allocating stream, and is recorded
//! in the memory's history like any other op. So every later use of the memory is ordered after the
//! fill. The fill is ordered after every use by earlier owners, on any stream: either the allocator
//! hands out only such memory, or the fill waits, as any first op on the memory does.
//!
//! In a capture the fill is a step of the graph, and each launch zeroes the memory again. If the
//! fill is refused, the allocation is refused too. Its block was never handed out, and the next
//! allocation of that block is zeroed.
//!
//! *Why at the allocation and not when the memory is freed?* Memory is freed by drops, on any
//! thread. On the reactor thread or in a host function nothing can be enqueued, and a fill would
//! have to wait for uses in flight on several streams. An allocation has a stream, and can return
//! an error. A free block therefore keeps its contents until an allocation takes it. A split or
//! joined block needs no bookkeeping: the memory is zeroed when it is handed out, wherever it came
//! from.
// Decision: docs/decisions/0025-memory-is-zeroed-at-allocation.md

use super::{At, error};
use crate::buffer::Buffer;
use crate::memory::{BudgetId, Grant, MemoryCall, PoolId};
use crate::order::{AccessMode, ByteRange, Site, Use};
use crate::scope;
use crate::shared::{
    Allocation, Budgeted, Operand, Request, Short, Stream, StreamCore, Terms, await_memory, unserved,
    wait_for_memory,
};
use std::future::Future;
use std::sync::Arc;
use warpline_driver::{Command, Element, Error, ErrorKind, Fill, Result};

impl Stream {
    /// Allocates `len` elements in the order of this stream. Their contents are unspecified, and
    /// may be an earlier owner's.
    ///
    /// # Ordering
    /// Earlier ops of this stream may still use the memory. If another stream is the first to use
    /// the buffer, it needs an edge from this one.
    ///
    /// # When memory is short
    /// If unfinished work uses memory that would serve this call, the call waits for that work, as
    /// a call waits that finds the driver's queue full. It does not wait behind host functions,
    /// foreign work and gates, in wakers, and where live memory leaves too little: then it is
    /// refused. [`alloc_async`](Self::alloc_async) waits without blocking the thread.
    ///
    /// # On a CUDA device
    /// If the allocator has no memory that fits, it asks the driver for more. The driver may make
    /// that call wait for work that is running, and the calling thread waits with it. In a task,
    /// allocate before that work begins, or use memory again.
    ///
    /// # Errors
    /// `OutOfMemory`, which gives the sizes and the lines that hold the most memory, also as
    /// [`Error::out_of_memory`]. It is also returned in the scope of a [`Budget`](crate::Budget)
    /// that has too little left. `Fault`, `ShutDown` or `Closed` if the stream accepts no more
    /// work; `Reentrant` in a host function, and in a task with
    /// [`SyncMode::Error`](crate::SyncMode::Error) if it would have to wait. A function given to
    /// [`on_out_of_memory`](crate::RuntimeBuilder::on_out_of_memory) may free memory first.
    #[track_caller]
    #[inline]
    pub fn alloc<T: Element>(&self, len: usize) -> Result<Buffer<T>> {
        self.at(Site::here(&"alloc")).alloc(len)
    }

    /// Allocates like [`alloc`](Self::alloc), and waits without blocking the thread.
    ///
    /// Requests that wait are served in the order in which they began to: this one at its first
    /// poll. In a capture, it waits like `alloc`.
    ///
    /// # Cancel safety
    /// Dropping the future gives up its place in the queue. Nothing is lost.
    ///
    /// # Errors
    /// The errors of [`alloc`](Self::alloc), and the device's fault if it fails meanwhile.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> warpline::Result<()> {
    /// let runtime = warpline::Runtime::builder().memory_limit(64 << 20).build()?;
    /// let stream = runtime.device("cpu".parse()?)?.new_stream()?;
    /// for _ in 0..10 {
    ///     // 10 times 40 MiB under a limit of 64 MiB: each waits for the fill before.
    ///     let block = stream.alloc_async::<u8>(40 << 20).await?;
    ///     stream.fill(&block, 7).queued()?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn alloc_async<T: Element>(&self, len: usize) -> impl Future<Output = Result<Buffer<T>>> + Send {
        let (core, site) = (self.core().clone(), Site::here(&"alloc_async"));
        let budget = scope::budget_on(&core.device);
        async move {
            let len_bytes = len.checked_mul(size_of::<T>());
            let len_bytes = len_bytes.ok_or_else(|| too_long(&core, site, len, size_of::<T>()))?;
            Ok(Buffer::new(alloc_async(&core, site, len_bytes, budget.as_ref()).await?, len))
        }
    }

    /// Allocates `len` elements in the order of this stream and zeroes them with a fill, the first
    /// op on the memory.
    ///
    /// # Ordering
    /// The rules of [`alloc`](Self::alloc) apply. The fill is an op of this stream, so another
    /// stream needs an edge from this one even if the host has observed all earlier work. In a
    /// capture, each launch of the graph zeroes the memory again.
    ///
    /// # Errors
    /// The errors of [`alloc`](Self::alloc), and those of a refused op. The fill does not count
    /// towards the stream's [`max_in_flight`](crate::StreamBuilder::max_in_flight).
    ///
    /// # Examples
    /// ```
    /// # fn main() -> warpline::Result<()> {
    /// # let runtime = warpline::Runtime::builder().build()?;
    /// # let stream = runtime.device("cpu".parse()?)?.new_stream()?;
    /// let counters = stream.alloc_zeroed::<u32>(256)?;
    /// assert_eq!(stream.read(&counters).blocking_wait()?, [0; 256]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn alloc_zeroed<T: Element>(&self, len: usize) -> Result<Buffer<T>> {
        self.at(Site::here(&"alloc_zeroed")).alloc_zeroed(len)
    }
}

impl At<'_> {
    /// Does the same as [`Stream::alloc`].
    #[inline]
    pub fn alloc<T: Element>(self, len: usize) -> Result<Buffer<T>> {
        self.buffer(len, false)
    }

    /// Does the same as [`Stream::alloc_zeroed`].
    pub fn alloc_zeroed<T: Element>(self, len: usize) -> Result<Buffer<T>> {
        self.buffer(len, true)
    }

    #[inline]
    fn buffer<T: Element>(self, len: usize, zeroed: bool) -> Result<Buffer<T>> {
        let (core, site) = (self.stream.core(), self.site);
        let len_bytes = len.checked_mul(size_of::<T>());
        let len_bytes = len_bytes.ok_or_else(|| too_long(core, site, len, size_of::<T>()))?;
        Ok(Buffer::new(alloc(core, site, len_bytes, zeroed)?, len))
    }
}

#[cold]
fn too_long(core: &StreamCore, site: Site, len: usize, element_bytes: usize) -> Error {
    let why = format_args!(
        "{len} elements of {element_bytes} bytes are more than can be addressed; allocate fewer"
    );
    let error = error(core, site, ErrorKind::OutOfMemory, why);
    core.count_refusal(&error);
    error
}

/// Allocates memory, and zeroes it first if `zeroed` is true or the runtime zeroes every
/// allocation. If there is none, the program may free some, and it is tried once more.
#[inline]
fn alloc(core: &Arc<StreamCore>, site: Site, len_bytes: usize, zeroed: bool) -> Result<Arc<Allocation>> {
    let budget = |core: &StreamCore| scope::budget_on(&core.device).map(|budget| budget.id);
    let allocation = match alloc_unspecified(core, site, len_bytes, budget) {
        Err(error) if core.device.observe_out_of_memory(&error) => {
            alloc_unspecified(core, site, len_bytes, budget)
        }
        result => result,
    };
    zeroed_if(zeroed, core, site, allocation)
}

/// Does the same as [`alloc`], and waits for memory without a thread.
async fn alloc_async(
    core: &Arc<StreamCore>,
    site: Site,
    len_bytes: usize,
    budget: Option<&Arc<Budgeted>>,
) -> Result<Arc<Allocation>> {
    let allocation = match await_unspecified(core, site, len_bytes, budget).await {
        Err(error) if core.device.observe_out_of_memory(&error) => {
            await_unspecified(core, site, len_bytes, budget).await
        }
        result => result,
    };
    zeroed_if(false, core, site, allocation)
}

#[inline]
fn zeroed_if(
    zeroed: bool,
    core: &Arc<StreamCore>,
    site: Site,
    allocation: Result<Arc<Allocation>>,
) -> Result<Arc<Allocation>> {
    let allocation = allocation.inspect_err(|error| core.count_refusal(error))?;
    if zeroed || core.device.zero_on_free {
        zero(core, site, &allocation)?;
    }
    Ok(allocation)
}

#[cold]
fn zero(core: &Arc<StreamCore>, site: Site, allocation: &Arc<Allocation>) -> Result<()> {
    let len_bytes = allocation.len_bytes;
    let range = ByteRange::contiguous(0, len_bytes as u64);
    let operands = [Operand { allocation, range, access: AccessMode::Write }];
    // The fill belongs to the allocation, which takes no room.
    let mut request = Request::new("fill", site, &operands).on_terms(Terms::WithoutRoom);
    let (dst, pitch, width_bytes) = (allocation.ptr, len_bytes, len_bytes);
    let fill = Fill { dst, pitch, width_bytes, height: 1, pattern: 0, pattern_bytes: 1 };
    core.enqueue(&mut request, |_| Command::Fill(fill)).map(|place| place.is_not_awaited(core))
}

/// Allocates memory that holds whatever its last owner left. Waits for memory that unfinished work
/// still uses, if there is no other.
#[inline]
fn alloc_unspecified(
    core: &Arc<StreamCore>,
    site: Site,
    len_bytes: usize,
    budget: impl Fn(&StreamCore) -> Option<BudgetId>,
) -> Result<Arc<Allocation>> {
    let wait = |refusal| wait_and_alloc(core, site, (len_bytes, budget(core)), refusal);
    try_alloc(core, site, len_bytes, || budget(core), |allocation| allocation, wait)
}

/// Does the same for memory that stays when the scope of the caller's budget ends.
pub(crate) fn alloc_outside(core: &Arc<StreamCore>, site: Site, len_bytes: usize) -> Result<Arc<Allocation>> {
    alloc_unspecified(core, site, len_bytes, |_| None)
}

#[cold]
fn wait_and_alloc(
    core: &Arc<StreamCore>,
    site: Site,
    (len_bytes, budget): (usize, Option<BudgetId>),
    refusal: Error,
) -> Result<Arc<Allocation>> {
    let grant = wait_for_memory(core, short(core, site, (len_bytes, budget), refusal));
    Ok(granted(core, site, len_bytes, &grant.map_err(|error| refused(core, site, error))?))
}

async fn await_unspecified(
    core: &Arc<StreamCore>,
    site: Site,
    len_bytes: usize,
    budget: Option<&Arc<Budgeted>>,
) -> Result<Arc<Allocation>> {
    let budget = budget.map(|budget| budget.id);
    match try_alloc(core, site, len_bytes, || budget, Ok, |refusal| Ok(Err(refusal)))? {
        Ok(allocation) => Ok(allocation),
        Err(refusal) => {
            let grant = await_memory(core, short(core, site, (len_bytes, budget), refusal)).await;
            let grant = grant.map_err(|error| refused(core, site, error))?;
            let allocation = granted(core, site, len_bytes, &grant);
            // The stream may have been closed meanwhile.
            core.ensure_open(site)?;
            Ok(allocation)
        }
    }
}

/// Allocates memory without waiting for unfinished work, and returns what `found` makes of it. If
/// the default pool does not serve it, returns what `wait` makes of the refusal, which does not
/// name the call yet.
#[inline]
fn try_alloc<T>(
    core: &Arc<StreamCore>,
    site: Site,
    len_bytes: usize,
    budget: impl FnOnce() -> Option<BudgetId>,
    found: impl FnOnce(Arc<Allocation>) -> T,
    wait: impl FnOnce(Error) -> Result<T>,
) -> Result<T> {
    core.ensure_open(site)?;
    if core.is_captured()
        && let Some(capture) = core.capture(site)?
    {
        return capture.alloc(core, site, len_bytes).map(found);
    }
    match core.device.memory.alloc(len_bytes, core.id, &**core, site, budget) {
        Ok(grant) => Ok(found(granted(core, site, len_bytes, &grant))),
        Err(refusal) => wait(refusal),
    }
}

#[cold]
fn short(
    core: &Arc<StreamCore>,
    site: Site,
    (len_bytes, budget): (usize, Option<BudgetId>),
    refusal: Error,
) -> Short {
    let call = MemoryCall { len_bytes, pool: PoolId::DEFAULT, budget, stream: core.id, site };
    Short { call, order: core.clone(), refusal }
}

/// Returns the error of a call that got no memory.
#[cold]
fn refused(core: &StreamCore, site: Site, error: Error) -> Error {
    // The driver call that failed may have shown that the device has failed.
    let error = match error.kind() {
        ErrorKind::Driver => core.device.ensure_open().err().unwrap_or(error),
        _ => error,
    };
    unserved(&site.on(&core.label), error)
}

/// Returns the allocation of what the allocator granted.
#[inline]
fn granted(core: &StreamCore, site: Site, len_bytes: usize, grant: &Grant) -> Arc<Allocation> {
    // The memory counts as used at the last ticket taken, which is read after the grant. An
    // edge becomes known after its ticket was issued, so this ticket is as new as any edge that
    // the grant relies on.
    let used = Use { stream: core.id, ticket: core.issued() };
    Allocation::new(core.device.clone(), grant, len_bytes, used, site)
}
