//! A driver with memory and nothing else, for the tests of this module.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use warpline_driver::timeline::Timeline;
use warpline_driver::{
    Completion, DeviceId, DevicePtr, Driver, DriverError, DriverStream, FreeMemory, StreamOptions,
};

/// A driver whose device addresses are made up and never reused. Its host memory is real.
#[derive(Debug)]
pub(crate) struct TestDriver {
    total: usize,
    slow: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    held: BTreeMap<u64, usize>,
    host: BTreeMap<usize, Vec<[u64; 8]>>,
    host_bytes: usize,
    calls: usize,
}

impl TestDriver {
    pub(crate) fn new(total: usize) -> Arc<Self> {
        Self::with(total, false)
    }

    /// Creates a driver whose host memory counts as slow.
    pub(crate) fn slow() -> Arc<Self> {
        Self::with(usize::MAX, true)
    }

    fn with(total: usize, slow: bool) -> Arc<Self> {
        let state = Mutex::new(State { next: 512, ..State::default() });
        Arc::new(TestDriver { total, slow, state })
    }

    /// Refuses a length that exceeds the free memory.
    fn ensure_free(&self, len_bytes: usize, used_bytes: usize) -> Result<(), DriverError> {
        let free = FreeMemory { free_bytes: self.total - used_bytes, total_bytes: self.total };
        if len_bytes > free.free_bytes { Err(DriverError::OutOfMemory(Some(free))) } else { Ok(()) }
    }

    pub(crate) fn device_bytes(&self) -> usize {
        self.state.lock().held.values().sum()
    }

    pub(crate) fn host_bytes(&self) -> usize {
        self.state.lock().host_bytes
    }

    /// Returns the number of successful allocations of device memory so far.
    pub(crate) fn calls(&self) -> usize {
        self.state.lock().calls
    }

    pub(crate) fn holds(&self, address: u64, len: usize) -> bool {
        let state = self.state.lock();
        let segment = state.held.range(..=address).next_back();
        segment.is_some_and(|(start, held)| address + len as u64 <= start + *held as u64)
    }
}

// SAFETY: device addresses are made up, but nothing here runs work on them.
unsafe impl Driver for TestDriver {
    fn id(&self) -> DeviceId {
        DeviceId::Cpu(0)
    }

    fn completion(&self) -> Completion {
        Completion::EveryOp
    }

    fn new_stream(&self, _: &StreamOptions, _: Arc<Timeline>) -> Result<Arc<dyn DriverStream>, DriverError> {
        Err(DriverError::Refused("no streams here".into()))
    }

    fn alloc(&self, len_bytes: usize) -> Result<DevicePtr, DriverError> {
        let mut state = self.state.lock();
        self.ensure_free(len_bytes, state.held.values().sum())?;
        let address = state.next;
        state.next += len_bytes as u64 + 512;
        state.held.insert(address, len_bytes);
        state.calls += 1;
        Ok(DevicePtr(address))
    }

    unsafe fn free(&self, ptr: DevicePtr, len_bytes: usize) {
        assert_eq!(self.state.lock().held.remove(&ptr.0), Some(len_bytes), "freed as it was allocated");
    }

    fn free_bytes(&self) -> Option<usize> {
        Some(self.total - self.state.lock().held.values().sum::<usize>())
    }

    fn host_memory_is_slow(&self) -> bool {
        self.slow
    }

    fn alloc_host(&self, len_bytes: usize) -> Result<*mut u8, DriverError> {
        let mut state = self.state.lock();
        self.ensure_free(len_bytes, state.host_bytes)?;
        // Longer by a line than needed, so that an aligned block is inside.
        let mut memory = vec![[0_u64; 8]; len_bytes / 64 + 2];
        let start = memory.as_mut_ptr().cast::<u8>();
        let aligned = start.wrapping_add(start.align_offset(64));
        state.host.insert(aligned.addr(), memory);
        state.host_bytes += len_bytes;
        Ok(aligned)
    }

    unsafe fn free_host(&self, ptr: *mut u8, len_bytes: usize) {
        let mut state = self.state.lock();
        assert!(state.host.remove(&ptr.addr()).is_some(), "freed as it was allocated");
        state.host_bytes -= len_bytes;
    }

    fn runs_in_turns(&self) -> bool {
        // Nothing here runs on other threads.
        true
    }

    fn shut_down(&self) {}
}
