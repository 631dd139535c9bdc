//! New memory from the driver, and memory that returns to it.
//!
//! Called under the lock `growing`.

use super::{DeviceMemory, Need};
use crate::background;
use crate::memory::pool::{GRANULE_BYTES, Grant, Leaving, Request, ReuseOrder};
use crate::order::Use;
use std::ops::Range;
use warpline_driver::internal::ErrorParts;
use warpline_driver::{ByteSize, DriverError, Error, ErrorKind, FreeMemory, MemoryShortage};

/// The least number of addresses that are reserved for a class of blocks, in bytes. Free blocks of
/// every length lie between live ones, so there are more addresses than memory.
const LEAST_ADDRESSES: usize = 64 << 30;
/// The most addresses that are reserved at once, unless a single request is longer.
const MOST_ADDRESSES: usize = 1 << 42;

impl DeviceMemory {
    /// Serves `request` with new memory. Otherwise returns the reason, and the bytes that have to
    /// be returned first.
    pub(super) fn take_memory(
        &self,
        request: &Request,
        order: &impl ReuseOrder,
    ) -> Result<Result<Grant, (MemoryShortage, usize)>, Error> {
        if self.maps && !request.pool.is_graph() {
            return self.map_memory(request, order);
        }
        self.move_before_growing(request, request.segment_bytes(), &(0..0), order);
        self.take_segment(request, request.segment_bytes())
    }

    /// Unmaps memory that lies where no request can use it, before the device grows by `more`
    /// bytes: rule 4 of `pool/growth.rs`. Returns true if it unmapped any.
    fn move_before_growing(
        &self,
        request: &Request,
        more: usize,
        spared: &Range<u64>,
        order: &impl ReuseOrder,
    ) -> bool {
        let excess = self.pool.lock().bytes_to_move(request, more);
        if !self.maps || excess == 0 || !self.driver.can_free() {
            return false;
        }
        let leaving = self.pool.lock().take_pieces(excess, spared, &|used| order.is_over(used));
        self.unmap(leaving, false) > 0
    }

    /// Serves `request` with memory that is mapped to a segment that grows (`pool/growth.rs`).
    fn map_memory(
        &self,
        request: &Request,
        order: &impl ReuseOrder,
    ) -> Result<Result<Grant, (MemoryShortage, usize)>, Error> {
        loop {
            let mut pool = self.pool.lock();
            let extent = pool.extent_to_map(request, order);
            if extent.as_ref().is_some_and(|extent| extent.len == 0) {
                // A use has ended since the pool looked for a block.
                if let Some(grant) = pool.find(request, order, false) {
                    return Ok(Ok(grant));
                }
                continue;
            }
            drop(pool);
            let Some(extent) = extent else {
                if self.reserve_addresses(request) {
                    continue;
                }
                return self.take_segment(request, request.segment_bytes());
            };
            if self.move_before_growing(request, extent.len, &extent.beside, order) {
                // The hole may be a part of a longer one now.
                continue;
            }
            let room = self.limit.map_or(usize::MAX, |limit| limit.free_bytes(self.reserved()));
            if extent.len > room {
                // A limit may leave less than a granule. The memory of budgets is whole granules.
                let rest = if request.share.is_none() {
                    self.take_segment(request, request.size)?
                } else {
                    Err((self.shortage_now(), 0))
                };
                return Ok(rest.map_err(|(shortage, _)| (shortage, extent.len - room)));
            }
            let mapping = self.pool.lock().mapping(&extent);
            // SAFETY: `map` needs reserved addresses without memory: the extent is in a hole of a
            // segment that `reserve` made, and holes change under the lock `growing` alone, which
            // the caller holds.
            let mapped = unsafe { self.driver.map(mapping.at, mapping.span, mapping.piece_span) };
            if let Err(error) = mapped {
                let shortage = self.not_taken(request, error)?;
                // The driver may have less than a granule, too.
                let has_some = matches!(shortage, MemoryShortage::Device { free_bytes, .. } if free_bytes >= request.size);
                if has_some
                    && request.share.is_none()
                    && let Ok(grant) = self.take_segment(request, request.size)?
                {
                    return Ok(Ok(grant));
                }
                return Ok(Err((shortage, extent.len)));
            }
            self.note_growth(extent.len);
            let mut pool = self.pool.lock();
            pool.mapped(&extent);
            if let Some(grant) = pool.find_grown(request, order) {
                return Ok(Ok(grant));
            }
        }
    }

    /// Reserves addresses for a segment that grows. Returns false if there are none, or if the
    /// device does not have the memory in any case.
    fn reserve_addresses(&self, request: &Request) -> bool {
        let total_bytes = self.driver.properties().total_bytes;
        let most_bytes = self.limit.map_or(usize::MAX, |limit| limit.bytes);
        if request.size > most_bytes || total_bytes > 0 && request.size > total_bytes {
            return false;
        }
        let len = LEAST_ADDRESSES.max(total_bytes.saturating_mul(2).min(MOST_ADDRESSES));
        let len = len.max(request.size).next_multiple_of(GRANULE_BYTES);
        let reserved = self.driver.reserve(self.zones.span(request.class(), len));
        let Ok(at) = reserved else { return false };
        self.pool.lock().add_addresses(at, len, request.class(), request.pool);
        true
    }

    /// Returns the bytes that count against the limit.
    pub(super) fn reserved(&self) -> usize {
        self.pool.lock().reserved() + self.not_freed()
    }

    fn note_growth(&self, len_bytes: usize) {
        tracing::debug!(target: "warpline", device = %self.driver.id(), len_bytes, "device memory grew");
    }

    /// Converts the driver's refusal of memory for `request`.
    fn not_taken(&self, request: &Request, error: DriverError) -> Result<MemoryShortage, Error> {
        match error {
            DriverError::OutOfMemory(Some(FreeMemory { free_bytes, total_bytes })) => {
                Ok(MemoryShortage::Device { free_bytes, total_bytes })
            }
            DriverError::OutOfMemory(None) => Ok(MemoryShortage::System),
            DriverError::Refused(why) | DriverError::Halfway(why) | DriverError::Captured(why) => {
                let message =
                    format!("{} could not allocate {}: {why}", self.driver.id(), ByteSize(request.size));
                Err(Error::new(ErrorKind::Driver, message).caused_by(why))
            }
        }
    }

    /// Serves `request` from a new segment of fixed length: of `usual_bytes` or, if that is too
    /// much, of the request's own. Otherwise returns as [`take_memory`](Self::take_memory) does.
    fn take_segment(
        &self,
        request: &Request,
        usual_bytes: usize,
    ) -> Result<Result<Grant, (MemoryShortage, usize)>, Error> {
        let mut shortage = MemoryShortage::Unaddressable;
        let own = (usual_bytes > request.size).then_some(request.size);
        for len in std::iter::once(usual_bytes).chain(own) {
            let reserved = self.reserved();
            if let Some(limit) = self.limit.filter(|limit| len > limit.free_bytes(reserved)) {
                shortage = limit.shortage(reserved);
                continue;
            }
            match self.driver.alloc(self.zones.span(request.class(), len)) {
                Ok(ptr) => {
                    self.note_growth(len);
                    return Ok(Ok(self.pool.lock().grow(ptr, len, request)));
                }
                Err(error) => shortage = self.not_taken(request, error)?,
            }
        }
        Ok(Err((shortage, request.size)))
    }

    /// Returns memory to the driver until it amounts to `enough_bytes`: pieces of segments that
    /// grow first, whose return stops no device. Returns the bytes of what was returned. Called
    /// under `growing`.
    pub(super) fn give_back(&self, enough_bytes: usize, finished: impl Fn(Use) -> bool, need: Need) -> usize {
        if !self.driver.can_free() {
            return 0;
        }
        let leaving = self.pool.lock().take_pieces(enough_bytes, &(0..0), &finished);
        let unmapped = self.unmap(leaving, need == Need::Now);
        if unmapped >= enough_bytes {
            return unmapped;
        }
        let segments = self.pool.lock().give_back(enough_bytes - unmapped, &finished);
        let bytes: usize = segments.iter().map(|segment| segment.len).sum();
        self.free_segments(segments, need);
        unmapped + bytes
    }

    /// Unmaps pieces. Those that the driver keeps return to the pool. Returns the bytes of the
    /// others.
    fn unmap(&self, leaving: Vec<Leaving>, is_needed: bool) -> usize {
        if leaving.is_empty() {
            return 0;
        }
        let pieces: Vec<_> = leaving.iter().map(|piece| (piece.at, piece.span)).collect();
        // SAFETY: `unmap` needs whole pieces that `map` mapped, without a use of them unfinished
        // or to come. The pool took out whole pieces, all of whose bytes were free and for whose
        // every use `finished` held, and it hands none out until it is told.
        let count = unsafe { self.driver.unmap(&pieces, is_needed) };
        let mut pool = self.pool.lock();
        let before = pool.reserved();
        leaving[..count].iter().for_each(|piece| pool.unmapped(piece));
        leaving[count..].iter().for_each(|piece| pool.not_unmapped(piece));
        before - pool.reserved()
    }

    /// Returns the bytes that the allocator can hold at most: what the limit and the device allow.
    pub(super) fn capacity(&self) -> Result<usize, Error> {
        if let Some(capacity) = self.capacity.get() {
            return Ok(*capacity);
        }
        let total = Some(self.driver.properties().total_bytes).filter(|total| *total > 0);
        let known = if background::duty().is_barred() {
            // This thread must not call the driver.
            total
        } else {
            // Under the lock, no memory is on its way between the driver and the pool.
            let _growing = self.growing.lock();
            self.driver.free_bytes().map(|free| free.saturating_add(self.reserved())).or(total)
        };
        let limit = self.limit.map(|limit| limit.bytes);
        let Some(capacity) = limit.into_iter().chain(known).min() else {
            let text = format!(
                "a budget is a share of the memory of {}, and its driver does not report how much that is; \
                 set memory_limit",
                self.driver.id()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        };
        // Two of this length can be added.
        let capacity = capacity.min(isize::MAX as usize);
        Ok(if background::duty().is_barred() { capacity } else { *self.capacity.get_or_init(|| capacity) })
    }

    /// Returns the bytes that can still be taken from the driver after a shortage. A driver that
    /// has them and did not give them has none.
    pub(super) fn room(&self, shortage: MemoryShortage, refused_bytes: usize) -> usize {
        match (self.limit, shortage) {
            (Some(limit), MemoryShortage::Limit { .. } | MemoryShortage::Fraction { .. }) => {
                let of_driver = self.driver.free_bytes().unwrap_or(usize::MAX);
                limit.free_bytes(self.reserved()).min(of_driver)
            }
            (_, MemoryShortage::Device { free_bytes, .. }) if free_bytes < refused_bytes => free_bytes,
            _ => 0,
        }
    }

    /// Returns the shortage of a request that would have to wait behind others.
    pub(super) fn shortage_now(&self) -> MemoryShortage {
        if let Some(limit) = self.limit {
            return limit.shortage(self.reserved());
        }
        match self.driver.free_bytes() {
            Some(free_bytes) => {
                MemoryShortage::Device { free_bytes, total_bytes: self.driver.properties().total_bytes }
            }
            None => MemoryShortage::System,
        }
    }
}
