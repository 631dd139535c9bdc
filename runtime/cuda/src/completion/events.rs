//! Pools of reusable CUDA events, with and without timing.
//!
//! An event may be recorded again as soon as it is back in its pool: waits that were already issued
//! keep referring to the record they saw.

use crate::api::{Answer, CUevent, CUstream, opened};
use crate::context::Context;
use crate::work::capturing::Relaxed;
use parking_lot::Mutex;

/// The flag `CU_EVENT_DISABLE_TIMING`: an event without a time stamp costs a tenth.
pub(crate) const DISABLE_TIMING: u32 = 2;

#[derive(Debug)]
pub(crate) struct EventPool {
    free: Mutex<Vec<SendEvent>>,
    flags: u32,
}

#[derive(Debug)]
struct SendEvent(CUevent);

// SAFETY: an event may be used from any thread.
unsafe impl Send for SendEvent {}

impl EventPool {
    pub(crate) const fn untimed() -> Self {
        EventPool { free: Mutex::new(Vec::new()), flags: DISABLE_TIMING }
    }

    pub(crate) const fn timed() -> Self {
        EventPool { free: Mutex::new(Vec::new()), flags: 0 }
    }

    /// Records an event at the current end of `stream`. `context` owns this pool and `stream`, and
    /// is current.
    pub(crate) fn record(&'static self, context: &'static Context, stream: CUstream) -> Answer<PooledEvent> {
        let event = match self.free.lock().pop() {
            Some(SendEvent(event)) => event,
            None => {
                let (_relaxed, mut event) = (Relaxed::new(), std::ptr::null_mut());
                // SAFETY: cuEventCreate writes an event.
                unsafe { opened().cuEventCreate(&raw mut event, self.flags) }?;
                event
            }
        };
        let event = PooledEvent { context, pool: self, event };
        event.record_again(stream)?;
        Ok(event)
    }
}

/// A recorded event that returns to its pool when dropped.
#[derive(Debug)]
pub(crate) struct PooledEvent {
    context: &'static Context,
    pool: &'static EventPool,
    event: CUevent,
}

// SAFETY: an event may be used from any thread.
unsafe impl Send for PooledEvent {}
// SAFETY: as above; waiting for an event and querying it do not change it.
unsafe impl Sync for PooledEvent {}

impl PooledEvent {
    pub(crate) fn raw(&self) -> CUevent {
        self.event
    }

    /// Records the event at the current end of `stream`, a stream of the context that the event was
    /// recorded in. That context is current.
    pub(crate) fn record_again(&self, stream: CUstream) -> Answer {
        // SAFETY: cuEventRecord takes a live event and a live stream of one context.
        unsafe { opened().cuEventRecord(self.event, stream) }
    }

    /// Returns the context that it was recorded in.
    pub(crate) fn context(&self) -> &'static Context {
        self.context
    }

    /// Returns true if the stream has passed the event.
    pub(crate) fn query(&self) -> Answer<bool> {
        let _entered = self.context.enter_relaxed()?;
        // SAFETY: cuEventQuery takes a live event.
        match unsafe { opened().cuEventQuery(self.event) } {
            Ok(()) => Ok(true),
            Err(failed) if failed.is_not_ready() => Ok(false),
            Err(failed) => Err(failed),
        }
    }
}

impl Drop for PooledEvent {
    fn drop(&mut self) {
        if warpline_driver::process::is_forked() {
            return;
        }
        self.pool.free.lock().push(SendEvent(self.event));
    }
}
