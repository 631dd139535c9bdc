//! A driver that runs nothing: submitting completes the ticket immediately. The remaining cost of
//! an op is that of the host.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use warpline::Ticket;
use warpline::backend::Timeline;
use warpline::backend::{
    Completion, DevicePtr, Driver, DriverError, DriverEvent, DriverStream, Health, StreamOptions, Submission,
};
use warpline::prelude::*;

/// The number of driver calls: submissions, and all others.
#[derive(Debug, Default)]
pub struct Calls {
    pub others: AtomicU64,
    pub submits: AtomicU64,
}

#[derive(Debug)]
struct NullDriver {
    calls: Arc<Calls>,
    next_address: AtomicU64,
}

#[derive(Debug)]
struct NullStream {
    timeline: Arc<Timeline>,
    /// Present only if calls are counted. A shared counter would be a cache line between threads.
    calls: Option<Arc<Calls>>,
    completes: bool,
}

/// Returns a `deny` runtime over the null driver, its device, and the counts of its calls. Tickets
/// complete if `completes`.
pub fn runtime(count: bool, completes: bool) -> (Runtime, Device, Arc<Calls>) {
    let calls = Arc::new(Calls::default());
    let driver = Null {
        driver: NullDriver { calls: calls.clone(), next_address: AtomicU64::new(1 << 20) },
        count,
        completes,
    };
    let runtime = Runtime::over(vec![(Arc::new(driver), Arc::new(Health::default()))], OrderMode::Deny);
    let device = runtime.devices().remove(0);
    (runtime, device, calls)
}

/// Returns a stream of the driver without a runtime. Its tickets complete.
pub fn stream() -> Arc<dyn DriverStream> {
    Arc::new(NullStream { timeline: Arc::new(Timeline::new()), calls: None, completes: true })
}

#[derive(Debug)]
struct Null {
    driver: NullDriver,
    count: bool,
    completes: bool,
}

// SAFETY: device addresses are made up, but no work runs on them. Host memory comes from the system
// allocator.
unsafe impl Driver for Null {
    fn id(&self) -> DeviceId {
        DeviceId::Cpu(0)
    }

    fn completion(&self) -> Completion {
        Completion::EveryOp
    }

    fn new_stream(
        &self,
        _: &StreamOptions,
        timeline: Arc<Timeline>,
    ) -> Result<Arc<dyn DriverStream>, DriverError> {
        let calls = self.count.then(|| self.driver.calls.clone());
        Ok(Arc::new(NullStream { timeline, calls, completes: self.completes }))
    }

    fn alloc(&self, len_bytes: usize) -> Result<DevicePtr, DriverError> {
        self.driver.calls.others.fetch_add(1, Ordering::Relaxed);
        let rounded = (len_bytes as u64).next_multiple_of(512);
        Ok(DevicePtr(self.driver.next_address.fetch_add(rounded, Ordering::Relaxed)))
    }

    unsafe fn free(&self, _: DevicePtr, _: usize) {
        self.driver.calls.others.fetch_add(1, Ordering::Relaxed);
    }

    fn alloc_host(&self, len_bytes: usize) -> Result<*mut u8, DriverError> {
        let layout = Layout::from_size_align(len_bytes.max(1), 64).expect("a valid layout");
        // SAFETY: `alloc_zeroed` needs a layout of non-zero size, which `max(1)` ensures.
        Ok(unsafe { alloc_zeroed(layout) })
    }

    unsafe fn free_host(&self, ptr: *mut u8, len_bytes: usize) {
        let layout = Layout::from_size_align(len_bytes.max(1), 64).expect("a valid layout");
        // SAFETY: `dealloc` needs the pointer and layout of an allocation. The caller passes those
        // of `alloc_host`.
        unsafe { dealloc(ptr, layout) }
    }

    fn free_bytes(&self) -> Option<usize> {
        Some(1 << 40)
    }

    fn shut_down(&self) {}
}

// SAFETY: no work runs, so none runs out of order.
unsafe impl DriverStream for NullStream {
    unsafe fn submit(&self, work: Submission) -> Result<(), DriverError> {
        if let Some(calls) = &self.calls {
            calls.submits.fetch_add(1, Ordering::Relaxed);
        }
        if self.completes {
            self.timeline.complete(work.ticket);
        }
        Ok(())
    }

    fn signal(&self, _: Ticket) {}

    fn record(&self) -> Result<Option<DriverEvent>, DriverError> {
        if let Some(calls) = &self.calls {
            calls.others.fetch_add(1, Ordering::Relaxed);
        }
        Ok(None)
    }
}
