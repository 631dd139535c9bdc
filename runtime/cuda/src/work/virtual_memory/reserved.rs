//! Address ranges that a device reserves, and how they end with it.

use super::calls::calls;
use crate::api::{Answer, CUdeviceptr};
use crate::context::Context;
use crate::work::gate::free_unless_held;
use parking_lot::Mutex;
use warpline_driver::{DevicePtr, background, process};

/// The addresses that a device of a runtime has reserved. When this is dropped, nothing uses them,
/// and they are given back.
#[derive(Debug)]
pub(crate) struct Reserved {
    context: &'static Context,
    ranges: Mutex<Vec<(CUdeviceptr, usize)>>,
}

impl Reserved {
    pub(crate) fn none(context: &'static Context) -> Self {
        Reserved { context, ranges: Mutex::default() }
    }

    /// Reserves `len` addresses, a multiple of the granule.
    pub(crate) fn reserve(&self, len: usize) -> Answer<DevicePtr> {
        let (mut address, calls) = (0, calls()?);
        let align = self.context.granule_bytes().unwrap_or(0);
        let _entered = self.context.enter_relaxed()?;
        // SAFETY: cuMemAddressReserve writes an address.
        unsafe { calls.cuMemAddressReserve(&raw mut address, len, align, 0, 0) }?;
        self.ranges.lock().push((address, len));
        Ok(DevicePtr(address))
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let (context, ranges) = (self.context, std::mem::take(self.ranges.get_mut()));
        if ranges.is_empty() || process::is_ending() {
            return;
        }
        let end = move || {
            ranges.into_iter().try_for_each(|(at, len)| {
                // SAFETY: a driver is dropped when nothing uses its memory any more.
                unsafe { context.end_reservation(at, len) }
            })
        };
        background::run_where_it_may_block(move || free_unless_held(context, Box::new(end)));
    }
}

impl Context {
    /// Unmaps what is left at reserved addresses, and ends the reservation.
    ///
    /// # Safety
    /// No unfinished work uses the addresses, and nothing will.
    unsafe fn end_reservation(&self, at: CUdeviceptr, len: usize) -> Answer {
        // CUDA tears down what a dead context holds.
        if self.death().is_some() {
            return Ok(());
        }
        let _entered = self.enter_relaxed()?;
        let within = at..at + len as CUdeviceptr;
        let pieces: Vec<_> =
            self.work.mappings.state.lock().pieces.range(within).map(|(at, len)| (*at, *len)).collect();
        for (at, len) in pieces {
            // SAFETY: the piece was mapped as it is listed, and the caller vouches for its uses.
            unsafe { self.unmap_piece(at, len) }?;
        }
        // SAFETY: cuMemAddressFree takes a whole reservation without mappings.
        unsafe { calls()?.cuMemAddressFree(at, len) }
    }
}
