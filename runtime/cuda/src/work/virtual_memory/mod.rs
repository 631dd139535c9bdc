//! Virtual memory: reserved addresses, and the device memory that is mapped there.
//!
//! # Rules
//! 1. The handle of memory is released as soon as it is mapped. The memory then lives until it is
//!    unmapped.
//! 2. Mappings start without access. A device may use its own, and those of each device that it
//!    has enabled peer access to: enabling it does not include mapped memory.
//! 3. Unmapping does not always wait for the device, as freeing does (pytorch,
//!    `ExpandableSegment::unmapHandles`). So all uses have finished before. Where it does wait, a
//!    closed gate would delay it, so no gate is closed meanwhile (`work/gate.rs`).
//! 4. CUDA is not called under the lock of the mappings.

mod calls;
pub(crate) mod mappings;
pub(crate) mod reserved;

use super::gate::{freeing_unless_held, note_not_freed};
use crate::api::{Answer, CUdevice, CUdeviceptr};
use crate::context::{Context, attribute};
use calls::{Calls, Handle, calls, let_use, memory_of};
use cudarc::driver::sys::CUmemAllocationGranularity_flags;
use mappings::Unit;
use std::ffi::c_uint;
use warpline_driver::{DevicePtr, background, process};

/// The largest granule that the runtime takes.
const LARGEST_GRANULE: usize = 2 << 20;

/// Memory that is being mapped. When this is dropped, its handles are released, and pieces that
/// are still listed are unmapped.
struct NewPieces<'a> {
    context: &'static Context,
    calls: &'a Calls,
    handles: Vec<Handle>,
    mapped: Vec<(CUdeviceptr, usize)>,
}

impl Drop for NewPieces<'_> {
    fn drop(&mut self) {
        let note = |failed| note_not_freed(self.context, failed);
        for &(at, len) in &self.mapped {
            // SAFETY: cuMemUnmap takes a whole mapping that nothing uses: no caller has it yet.
            unsafe { self.calls.cuMemUnmap(at, len) }.unwrap_or_else(note);
        }
        for &handle in &self.handles {
            // SAFETY: cuMemRelease takes a live handle. Memory that is mapped outlives it.
            unsafe { self.calls.cuMemRelease(handle) }.unwrap_or_else(note);
        }
    }
}

impl Context {
    /// Returns the granule of the device's virtual memory; `None` if it has none, or one that does
    /// not fit.
    pub(crate) fn granule_bytes(&self) -> Option<usize> {
        self.unit().ok().flatten().map(|unit| unit.granule_bytes)
    }

    fn unit(&self) -> Answer<Option<Unit>> {
        if let Some(known) = self.work.mappings.unit.get() {
            return Ok(*known);
        }
        // A failure is not kept: a host function may have asked.
        let unit = self.ask_for_unit()?;
        Ok(*self.work.mappings.unit.get_or_init(|| unit))
    }

    fn ask_for_unit(&self) -> Answer<Option<Unit>> {
        let Ok(calls) = calls() else { return Ok(None) };
        if self.attribute(attribute::VIRTUAL_MEMORY)? == 0 {
            return Ok(None);
        }
        let direct_rdma = self.attribute(attribute::DIRECT_RDMA_TO_MAPPED).unwrap_or(0) != 0;
        let _entered = self.enter_relaxed()?;
        let (mut granule_bytes, of) = (0, memory_of(self.device, false));
        let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM as c_uint;
        // SAFETY: cuMemGetAllocationGranularity reads a description and writes a size.
        unsafe { calls.cuMemGetAllocationGranularity(&raw mut granule_bytes, &raw const of, least) }?;
        let fits = granule_bytes.is_power_of_two() && granule_bytes <= LARGEST_GRANULE;
        Ok(fits.then_some(Unit { granule_bytes, direct_rdma }))
    }

    /// Maps new memory to `len` reserved addresses from `at` on, in pieces of `piece` bytes. Maps
    /// everything or nothing.
    ///
    /// # Safety
    /// The rules of `Driver::map`.
    pub(crate) unsafe fn map(&'static self, at: CUdeviceptr, len: usize, piece: usize) -> Answer {
        let calls = calls()?;
        let of = memory_of(self.device, self.unit()?.is_some_and(|unit| unit.direct_rdma));
        let _entered = self.enter_relaxed()?;
        let mut new = NewPieces { context: self, calls, handles: Vec::new(), mapped: Vec::new() };
        let pieces = || (0..len).step_by(piece).map(|from| (at + from as CUdeviceptr, piece.min(len - from)));
        // All memory is made first. If there is too little, nothing has to be unmapped.
        for (_, len) in pieces() {
            let mut handle = 0;
            // SAFETY: cuMemCreate reads a description and writes a handle.
            unsafe { calls.cuMemCreate(&raw mut handle, len, &raw const of, 0) }?;
            new.handles.push(handle);
        }
        for (index, (at, len)) in pieces().enumerate() {
            // SAFETY: cuMemMap takes reserved addresses without memory, for which the caller
            // vouches, and a live handle of that length.
            unsafe { calls.cuMemMap(at, len, 0, new.handles[index], 0) }?;
            new.mapped.push((at, len));
        }
        let mut told: Vec<CUdevice> = Vec::new();
        loop {
            let mut state = self.work.mappings.state.lock();
            let all = std::iter::once(&self.device).chain(&state.peers);
            let untold: Vec<CUdevice> = all.filter(|device| !told.contains(device)).copied().collect();
            if untold.is_empty() {
                state.pieces.extend(new.mapped.drain(..));
                return Ok(());
            }
            drop(state);
            let_use(calls, (at, len), &untold)?;
            told.extend(untold);
        }
    }

    /// Lets a peer use what is mapped on this device, now and later.
    pub(crate) fn let_use_mapped(&self, peer: CUdevice) -> Answer {
        let mut state = self.work.mappings.state.lock();
        if !state.peers.contains(&peer) {
            state.peers.push(peer);
        }
        let pieces = state.pieces.clone();
        drop(state);
        for piece @ (at, _) in pieces {
            let told = calls().and_then(|calls| let_use(calls, piece, &[peer]));
            // The piece may have been unmapped meanwhile.
            let mut state = self.work.mappings.state.lock();
            if told.is_err() && state.pieces.contains_key(&at) {
                state.peers.retain(|known| *known != peer);
                return told;
            }
        }
        Ok(())
    }

    /// Unmaps pieces in order, until one is refused. Returns how many were unmapped.
    ///
    /// # Safety
    /// The rules of `Driver::unmap`.
    pub(crate) unsafe fn unmap(&'static self, pieces: &[(DevicePtr, usize)], is_needed: bool) -> usize {
        if process::is_ending() || background::duty().is_barred() {
            return 0;
        }
        let mut unmapped = 0;
        let answer = freeing_unless_held(self, is_needed, || {
            let _entered = self.enter_relaxed()?;
            pieces.iter().try_for_each(|(at, len)| {
                // SAFETY: `unmap_piece` has the rules of this function.
                unsafe { self.unmap_piece(at.0, *len) }.inspect(|()| unmapped += 1)
            })
        });
        if let Some(Err(failed)) = answer {
            self.note_failure(failed);
        }
        unmapped
    }

    /// Unmaps a piece. The context is current.
    ///
    /// # Safety
    /// The rules of `Driver::unmap`.
    unsafe fn unmap_piece(&self, at: CUdeviceptr, len: usize) -> Answer {
        let state = &self.work.mappings.state;
        state.lock().pieces.remove(&at);
        // SAFETY: cuMemUnmap takes a whole mapping that no unfinished work uses; the caller
        // vouches for it.
        unsafe { calls()?.cuMemUnmap(at, len) }.inspect_err(|_| {
            state.lock().pieces.insert(at, len);
        })
    }
}
