//! A driver with memory and nothing else, for the tests of this module.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use warpline_driver::timeline::Timeline;
use warpline_driver::{
    Completion, DeviceId, DevicePtr, Driver, DriverError, DriverStream, FreeMemory, StreamOptions,
};

/// The unit of mapped memory. The zones of pieces are multiples of this.
const GRANULE_BYTES: usize = 64 << 10;

/// A driver whose device addresses are made up and never reused. Its host memory is real.
#[derive(Debug)]
pub(crate) struct TestDriver {
    total: usize,
    slow: bool,
    maps: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Reserved addresses: the length of each range by its start.
    reserved: BTreeMap<u64, usize>,
    /// True if no addresses can be reserved any more.
    has_no_addresses: bool,
    /// The number of pieces after which each call that unmaps some refuses the next.
    unmaps_at_most: Option<usize>,
    held: BTreeMap<u64, usize>,
    host: BTreeMap<usize, Vec<[u64; 8]>>,
    host_bytes: usize,
    calls: usize,
}

impl TestDriver {
    pub(crate) fn new(total: usize) -> Arc<Self> {
        Self::with(total, false, false)
    }

    /// Creates a driver that also maps memory to reserved addresses.
    pub(crate) fn mapping(total: usize) -> Arc<Self> {
        Self::with(total, false, true)
    }

    /// Creates a driver whose host memory counts as slow.
    pub(crate) fn slow() -> Arc<Self> {
        Self::with(usize::MAX, true, false)
    }

    fn with(total: usize, slow: bool, maps: bool) -> Arc<Self> {
        let state = Mutex::new(State { next: GRANULE_BYTES as u64, ..State::default() });
        Arc::new(TestDriver { total, slow, maps, state })
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

    /// Returns true if all of these addresses have memory.
    pub(crate) fn holds(&self, address: u64, len: usize) -> bool {
        let (state, mut reached) = (self.state.lock(), address);
        while reached < address + len as u64 {
            let before = state.held.range(..=reached).next_back();
            let Some(end) = before.map(|(start, held)| start + *held as u64).filter(|end| *end > reached)
            else {
                return false;
            };
            reached = end;
        }
        true
    }

    /// Returns the bytes of all pieces and allocations in which one of `blocks` lies.
    pub(crate) fn occupied_bytes(&self, blocks: &[(u64, usize)]) -> usize {
        let is_in = |start: u64, held: usize| {
            blocks.iter().any(|&(at, len)| at < start + held as u64 && start < at + len as u64)
        };
        self.state
            .lock()
            .held
            .iter()
            .filter(|&(&start, &held)| is_in(start, held))
            .map(|(_, held)| held)
            .sum()
    }

    /// Makes each later call that reserves addresses fail.
    pub(crate) fn reserve_nothing(&self) {
        self.state.lock().has_no_addresses = true;
    }

    /// Makes each later call that unmaps pieces refuse all after the first few.
    pub(crate) fn unmap_at_most(&self, pieces: Option<usize>) {
        self.state.lock().unmaps_at_most = pieces;
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

    fn granule_bytes(&self) -> Option<usize> {
        self.maps.then_some(GRANULE_BYTES)
    }

    fn reserve(&self, len_bytes: usize) -> Result<DevicePtr, DriverError> {
        let mut state = self.state.lock();
        if state.has_no_addresses {
            return Err(DriverError::Refused("no addresses".into()));
        }
        let start = state.next.next_multiple_of(GRANULE_BYTES as u64);
        state.next = start + len_bytes as u64 + 512;
        state.reserved.insert(start, len_bytes);
        Ok(DevicePtr(start))
    }

    unsafe fn map(&self, at: DevicePtr, len_bytes: usize, piece_bytes: usize) -> Result<(), DriverError> {
        let mut state = self.state.lock();
        let (at, end) = (at.0, at.0 + len_bytes as u64);
        assert!([at, end, piece_bytes as u64].iter().all(|bytes| bytes % GRANULE_BYTES as u64 == 0));
        let range = state.reserved.range(..=at).next_back();
        assert!(range.is_some_and(|(start, len)| end <= start + *len as u64), "mapped outside every range");
        let before = state.held.range(..end).next_back();
        assert!(before.is_none_or(|(start, held)| start + *held as u64 <= at), "mapped twice");
        self.ensure_free(len_bytes, state.held.values().sum())?;
        for start in (0..len_bytes).step_by(piece_bytes) {
            state.held.insert(at + start as u64, piece_bytes.min(len_bytes - start));
        }
        state.calls += 1;
        Ok(())
    }

    unsafe fn unmap(&self, pieces: &[(DevicePtr, usize)], _: bool) -> usize {
        let mut state = self.state.lock();
        let count = state.unmaps_at_most.unwrap_or(usize::MAX).min(pieces.len());
        for &(at, len_bytes) in &pieces[..count] {
            assert_eq!(state.held.remove(&at.0), Some(len_bytes), "unmapped as it was mapped");
        }
        count
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
