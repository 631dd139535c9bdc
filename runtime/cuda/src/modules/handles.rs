//! Pools of library handles: how calls get them, and when they are made and destroyed.
//!
//! A cuBLAS handle takes about 60 MB of device memory on recent GPUs (pika #1234), which no
//! allocator counts. So there are as many handles as concurrent calls, not as streams.
//!
//! # Rules
//! 1. A call takes a handle out of its device's pool and puts it back when it returns. Meanwhile no
//!    other call has it: cuBLAS allows calls with one handle from several threads, but they share
//!    the stream that the handle is set to (pytorch #6962).
//! 2. No call waits for a handle. A call may block in CUDA until its stream has room, and
//!    room may come only after a call on another stream: waiting for the handle there would be a
//!    deadlock. If no handle is free, one is made.
//! 3. Making a handle allocates, takes milliseconds, may wait for the device, and breaks a capture.
//!    So [`ready`] makes a device's first handle before the op takes its stream's lock, and a graph
//!    reserves one before its capture begins ([`Reserved`]). Further handles are made under that
//!    lock, when calls coincide. On a capturing stream the kernel's own code runs instead, and also
//!    where there is no memory for a handle.
//! 4. Each call sets its stream and then its workspace, in that order: `cublasSetStream` takes the
//!    workspace away. The workspace is memory of the op (`stream/library.rs`) or of the graph (the
//!    runtime's captures). So work in flight on two streams shares no workspace, as the manual
//!    demands for reproducible results.
//! 5. Destroying a handle waits for all work on the device, according to the manual of
//!    `cublasDestroy`. Handles are destroyed when an allocation finds no memory and when a cache is
//!    emptied ([`release`]). Only handles in the pool are destroyed, and only where memory may be
//!    freed: on a thread that may block, and when no gate is closed. While a gate is closed,
//!    handles stay in the pool and may be used.
//! 6. A handle of a device that died is not touched any more. Nor is any handle in the child of a
//!    fork, or while the process ends.
//!
//! # Lock order
//! a stream's lock → pools; `making` → pools; `growing` → `HELD` → pools. The lock of the pools is
//! a leaf: no call of a library or of CUDA is made under it. `making` is held while the
//! library makes a handle. The threads that take it hold no other lock, and would need as long to
//! make a handle of their own.
// Decision: docs/decisions/0043-busy-library-handles-are-not-waited-for.md
// Decision: docs/decisions/0044-handles-for-captures-are-made-before.md

use super::library;
use crate::api::Answer;
use crate::context::Context;
use crate::work::capturing::Relaxed;
use crate::work::gate::free_unless_held;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use warpline_driver::kernel::{LibraryHandle, LibraryProvider, NoHandle};
use warpline_driver::{ByteSize, DriverError, FreeMemory, background};

/// The free memory from which on a failure was not for lack of memory.
///
/// It is four times what a handle takes, since the library also loads its code.
const PLENTY_BYTES: usize = 256 << 20;

/// The handles of a device. Those that no call has are in its pools.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    pools: Mutex<Vec<Pool>>,
    /// Held while the first handle is made, with no stream's lock held.
    making: Mutex<()>,
}

/// The handles of one library.
#[derive(Debug)]
struct Pool {
    provider: &'static LibraryProvider,
    free: Vec<LibraryHandle>,
    /// The number of handles, in the pool or in a call.
    made: usize,
    /// True if the library made no handle and did not say clearly why.
    in_doubt: bool,
}

impl Pool {
    /// Notes a failure that leaves open whether memory was lacking.
    ///
    /// Returns whether it counts as a lack of memory however much is free. It does if cached memory
    /// has not been returned yet, or if the library works.
    fn is_first_doubt(&mut self) -> bool {
        !std::mem::replace(&mut self.in_doubt, true) || self.made > 0
    }
}

impl Handles {
    fn with<T>(&self, provider: &'static LibraryProvider, f: impl FnOnce(&mut Pool) -> T) -> T {
        let mut pools = self.pools.lock();
        let at = pools.iter().position(|pool| std::ptr::eq(pool.provider, provider));
        let at = at.unwrap_or_else(|| {
            pools.push(Pool { provider, free: Vec::new(), made: 0, in_doubt: false });
            pools.len() - 1
        });
        f(&mut pools[at])
    }

    /// Takes the handle that was put back last.
    pub(crate) fn take(&self, provider: &'static LibraryProvider) -> Option<LibraryHandle> {
        self.with(provider, |pool| pool.free.pop())
    }

    pub(crate) fn put(&self, provider: &'static LibraryProvider, handle: LibraryHandle) {
        self.with(provider, |pool| pool.free.push(handle));
    }

    fn have_some(&self, provider: &'static LibraryProvider) -> bool {
        self.with(provider, |pool| pool.made > 0)
    }

    /// Takes the free handles, to destroy them.
    fn take_free(&self) -> Vec<(&'static LibraryProvider, Vec<LibraryHandle>)> {
        let take = |pool: &mut Pool| {
            pool.made -= pool.free.len();
            (pool.provider, std::mem::take(&mut pool.free))
        };
        self.pools.lock().iter_mut().map(take).collect()
    }
}

/// Makes the device's first handle, if it has none.
pub(crate) fn ready(context: &Context, provider: &'static LibraryProvider) -> Result<(), DriverError> {
    let handles = &context.modules.handles;
    if handles.have_some(provider) {
        return Ok(());
    }
    let _making = handles.making.lock();
    if handles.have_some(provider) {
        return Ok(());
    }
    let _entered = context.enter().map_err(|failed| context.driver_error(failed))?;
    handles.put(provider, make(context, provider)?);
    Ok(())
}

/// Makes a handle. The context is current.
pub(crate) fn make(
    context: &Context,
    provider: &'static LibraryProvider,
) -> Result<LibraryHandle, DriverError> {
    let _relaxed = Relaxed::new();
    let made = (provider.make)(library::device(context.ordinal)).map_err(|why| match why {
        NoHandle::NoMemory => context.out_of_memory(),
        NoHandle::PerhapsNoMemory(why) => {
            let is_first = context.modules.handles.with(provider, Pool::is_first_doubt);
            match context.out_of_memory() {
                DriverError::OutOfMemory(Some(FreeMemory { free_bytes, .. }))
                    if !is_first && free_bytes >= PLENTY_BYTES =>
                {
                    let free = ByteSize(free_bytes);
                    DriverError::Refused(format!("{why}, with {free} of device memory free").into())
                }
                error => error,
            }
        }
        NoHandle::Failed(why) => DriverError::Refused(why.into()),
    })?;
    context.modules.handles.with(provider, |pool| pool.made += 1);
    Ok(made)
}

/// Destroys the handles that no call has, now or when no gate is closed.
///
/// Returns true if one was destroyed.
pub(crate) fn release(context: &'static Context) -> bool {
    if context.modules.handles.pools.lock().iter().all(|pool| pool.free.is_empty()) {
        return false;
    }
    let some = Arc::new(AtomicBool::new(false));
    let destroyed = some.clone();
    let destroy = move || -> Answer {
        let _entered = context.enter_relaxed()?;
        if context.death().is_some() {
            return Ok(());
        }
        for (provider, handles) in context.modules.handles.take_free() {
            for handle in handles {
                // SAFETY: `destroy` needs a handle that its library made and that is never used
                // again: it was in a pool, and has been taken out. Its context is current.
                unsafe { (provider.destroy)(handle) };
                some.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    };
    background::run_where_it_may_block(move || free_unless_held(context, Box::new(destroy)));
    destroyed.load(Ordering::Relaxed)
}

/// The handles that a graph uses while it is captured, one for each library.
///
/// They return to the device's pools when this is dropped.
pub(crate) struct Reserved {
    context: &'static Context,
    pub(crate) handles: Handles,
}

impl Reserved {
    pub(crate) fn none(context: &'static Context) -> Self {
        Reserved { context, handles: Handles::default() }
    }

    /// Adds a handle of `provider`, unless there is one. The context is current.
    pub(crate) fn add(&self, provider: &'static LibraryProvider) -> Result<(), DriverError> {
        if self.handles.have_some(provider) {
            return Ok(());
        }
        let handle = match self.context.modules.handles.take(provider) {
            Some(handle) => handle,
            None => make(self.context, provider)?,
        };
        self.handles.with(provider, |pool| {
            pool.made += 1;
            pool.free.push(handle);
        });
        Ok(())
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if warpline_driver::process::is_forked() {
            return;
        }
        for (provider, handles) in self.handles.take_free() {
            handles.into_iter().for_each(|handle| self.context.modules.handles.put(provider, handle));
        }
    }
}
