//! Copies and fills: the call checks and translates their addresses, and the bytes move in stream
//! order.
//!
//! Of host memory, only page-locked memory makes a copy asynchronous. A call that reads pageable
//! memory stages it before it returns. A call that writes pageable memory returns after the copy.
//! In a capture neither applies: each launch of the graph reads and writes the pageable memory.

use crate::abi::CUstream;
use crate::context::Context;
use crate::errors::{Code, Outcome, refuse};
use crate::host;
use crate::memory::{self, Asker};
use crate::op::Op;
use crate::plan;
use crate::stream::{self, Stream};
use crate::virtual_memory;
use crate::work::HostRange;

/// `height` rows of `width` bytes, `pitch` bytes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) pitch: usize,
}

impl Shape {
    /// Returns the bytes from the start of the first row to the end of the last. Fails if the rows
    /// overlap or the number overflows.
    fn extent(self) -> Outcome<usize> {
        if self.width == 0 || self.height == 0 {
            return Ok(0);
        }
        let rows = (self.height - 1).checked_mul(self.pitch);
        match rows.and_then(|rows| rows.checked_add(self.width)) {
            Some(extent) if self.height == 1 || self.pitch >= self.width => Ok(extent),
            _ => refuse!(INVALID_VALUE, "rows of {} bytes, {} bytes apart", self.width, self.pitch),
        }
    }
}

/// One end of a copy, as the caller names it.
#[derive(Clone, Copy)]
pub(crate) enum End {
    /// Host memory.
    Host(usize),
    /// A device address, of memory that the stream's context or a peer of it owns.
    Device(u64),
    /// A device address, of memory that exactly this context owns, for copies between peers.
    Of(&'static Context, u64),
    /// An address of any kind of memory.
    Any(u64),
}

/// One end of a copy, translated to a host address.
struct Located {
    address: usize,
    memory: Memory,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    Device,
    /// Mapped device memory.
    Mapped,
    Locked,
    Pageable,
}

impl Memory {
    /// Returns true for memory that may end while work uses it.
    fn may_end(self) -> bool {
        matches!(self, Memory::Mapped | Memory::Locked)
    }
}

impl End {
    fn place(self, context: &Context, extent: usize, side: &str) -> Outcome<Located> {
        let device = |address, range| match range {
            Ok(translated) => {
                let memory = match virtual_memory::behind(address) {
                    Some(_) => Memory::Mapped,
                    None if translated as u64 == address => Memory::Locked,
                    None => Memory::Device,
                };
                Ok(Located { address: translated, memory })
            }
            Err(bad) => refuse!(INVALID_VALUE, "the {side}, {extent} bytes at {address:#x}, {bad}"),
        };
        let reached = |address| memory::device_range(context, address, extent, Asker::Call);
        match self {
            End::Device(address) => device(address, reached(address)),
            End::Of(owner, address) => device(address, memory::own_range(owner, address, extent)),
            End::Any(address) if memory::is_device_address(address) => device(address, reached(address)),
            End::Host(address) if memory::is_device_address(address as u64) => {
                refuse!(INVALID_VALUE, "the {side}, {address:#x}, is a device address, not a host's")
            }
            End::Host(0) | End::Any(0) => refuse!(INVALID_VALUE, "the {side} is null"),
            End::Host(address) => host_place(context, address, extent),
            End::Any(address) => host_place(context, address as usize, extent),
        }
    }
}

fn host_place(context: &Context, address: usize, extent: usize) -> Outcome<Located> {
    let locked = host::is_locked(context, address, extent)?;
    Ok(Located { address, memory: if locked { Memory::Locked } else { Memory::Pageable } })
}

/// A copy whose ends are translated to host addresses.
pub(crate) struct CopyWork {
    src: usize,
    src_pitch: usize,
    dst: usize,
    dst_pitch: usize,
    width: usize,
    height: usize,
    /// The rows of a pageable source, one after the other.
    staged: Option<Vec<u8>>,
    /// True if the source may end while the copy is queued, as page-locked and mapped memory may.
    src_may_end: bool,
    dst_may_end: bool,
    /// True if the copy takes at least as long as `SOFTCUDA_COPY_DELAY_US` says.
    pub(crate) delayed: bool,
}

impl CopyWork {
    /// Moves the bytes.
    pub(crate) fn execute(&self) {
        let (src, src_pitch) = match &self.staged {
            Some(rows) => (rows.as_ptr() as usize, self.width),
            None => (self.src, self.src_pitch),
        };
        for row in 0..self.height {
            let from = (src + row * src_pitch) as *const u8;
            let to = (self.dst + row * self.dst_pitch) as *mut u8;
            // SAFETY: the call checked both ranges. The system keeps device memory mapped. Ending
            // page-locked memory waits for running work that touches it. A pageable source is
            // staged, and the call waits for a copy to pageable memory. Before a graph's node runs,
            // its device and page-locked memory is looked up again; the launching program promises
            // that pageable memory still exists.
            unsafe { std::ptr::copy(from, to, self.width) };
        }
    }

    /// Copies a pageable source, so that the call can return before the copy runs.
    fn stage(&mut self) {
        let mut rows = vec![0u8; self.width * self.height];
        for (row, bytes) in rows.chunks_exact_mut(self.width).enumerate() {
            let from = (self.src + row * self.src_pitch) as *const u8;
            // SAFETY: the caller of the copy promises that the source can be read until the call
            // returns.
            unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), self.width) };
        }
        self.staged = Some(rows);
    }

    /// Returns true if the copy has one row: an update can replace it with any other such copy.
    pub(crate) fn has_one_row(&self) -> bool {
        self.height == 1
    }

    /// Returns true if both copies have the same addresses and the same shape.
    pub(crate) fn is_as(&self, other: &CopyWork) -> bool {
        let all = |it: &CopyWork| (it.src, it.src_pitch, it.dst, it.dst_pitch, it.width, it.height);
        all(self) == all(other)
    }

    /// Returns the addresses of the source and the destination.
    pub(crate) fn addresses(&self) -> [usize; 2] {
        [self.src, self.dst]
    }

    /// Returns the page-locked and the mapped memory at its ends.
    pub(crate) fn host_ranges(&self) -> Vec<HostRange> {
        let extent = |pitch: usize| (self.height - 1) * pitch + self.width;
        let src = self.src_may_end.then(|| HostRange { start: self.src, len: extent(self.src_pitch) });
        let dst = self.dst_may_end.then(|| HostRange { start: self.dst, len: extent(self.dst_pitch) });
        src.into_iter().chain(dst).collect()
    }
}

/// Enqueues a copy; `src` and `dst` come with their pitches. The call waits for the copy if `wait`
/// is set or the destination is pageable, unless the stream is capturing.
pub(crate) fn copy(
    stream: &'static Stream,
    (dst, dst_pitch): (End, usize),
    (src, src_pitch): (End, usize),
    (width, height): (usize, usize),
    wait: bool,
) -> Outcome {
    if plan::get().immediate && !stream.is_capturing() {
        return Ok(());
    }
    if width == 0 || height == 0 {
        return Ok(());
    }
    let context = stream.context();
    let from = src.place(context, Shape { width, height, pitch: src_pitch }.extent()?, "source")?;
    let to = dst.place(context, Shape { width, height, pitch: dst_pitch }.extent()?, "destination")?;
    let mut work = CopyWork {
        src: from.address,
        src_pitch,
        dst: to.address,
        dst_pitch,
        width,
        height,
        staged: None,
        src_may_end: from.memory.may_end(),
        dst_may_end: to.memory.may_end(),
        delayed: !wait,
    };
    if from.memory == Memory::Pageable && !stream.is_capturing() {
        work.stage();
    }
    let ticket = stream.submit(Op::Copy(Box::new(work)))?;
    match ticket {
        Some(ticket) if wait || to.memory == Memory::Pageable => stream.wait(ticket),
        _ => Ok(()),
    }
}

/// Enqueues a copy of one row on the stream that a handle names.
pub(crate) fn copy_async(dst: End, src: End, bytes: usize, on: CUstream) -> Outcome {
    copy(stream::named(on)?, (dst, bytes), (src, bytes), (bytes, 1), false)
}

/// Copies one row on the null stream and waits for it.
pub(crate) fn copy_now(dst: End, src: End, bytes: usize) -> Outcome {
    crate::capture::refuse_unsafe()?;
    copy(stream::named(CUstream(0))?, (dst, bytes), (src, bytes), (bytes, 1), true)
}

/// A fill: rows of memory and the pattern to write there.
pub(crate) struct FillWork {
    dst: usize,
    shape: Shape,
    pattern: [u8; 4],
    pattern_bytes: usize,
    /// True if the memory may end while the fill is queued.
    may_end: bool,
}

impl FillWork {
    /// Writes the pattern.
    pub(crate) fn execute(&self) {
        for row in 0..self.shape.height {
            let start = self.dst + row * self.shape.pitch;
            if self.pattern_bytes == 1 {
                // SAFETY: the call checked the range. Device memory is never unmapped, and ending
                // page-locked memory waits for running work that touches it.
                unsafe { std::ptr::write_bytes(start as *mut u8, self.pattern[0], self.shape.width) };
                continue;
            }
            for at in (0..self.shape.width).step_by(self.pattern_bytes) {
                // SAFETY: the call checked the range, which stays mapped while work runs. The width
                // is a multiple of the pattern, so the last write ends inside the row.
                unsafe {
                    let to = (start + at) as *mut u8;
                    std::ptr::copy_nonoverlapping(self.pattern.as_ptr(), to, self.pattern_bytes);
                }
            }
        }
    }

    /// Returns true if the fill has one row: an update can replace it with any other such fill.
    pub(crate) fn has_one_row(&self) -> bool {
        self.shape.height == 1
    }

    /// Returns true if both fills write the same bytes to the same place.
    pub(crate) fn is_as(&self, other: &FillWork) -> bool {
        let all = |it: &FillWork| (it.dst, it.shape, it.pattern, it.pattern_bytes);
        all(self) == all(other)
    }

    /// Returns the address of the first byte.
    pub(crate) fn address(&self) -> usize {
        self.dst
    }

    /// Returns the page-locked or mapped memory that the fill writes.
    pub(crate) fn host_ranges(&self) -> Vec<HostRange> {
        let len = (self.shape.height - 1) * self.shape.pitch + self.shape.width;
        if self.may_end { vec![HostRange { start: self.dst, len }] } else { Vec::new() }
    }
}

/// Fills `count` patterns on the null stream. Waits for it if the host can read the memory: "except
/// when the target is pinned host memory or a Unified Memory region" (CUDA driver API, "API
/// synchronization behavior", Memset).
pub(crate) fn fill_now(dst: u64, pattern: (u32, usize), count: usize) -> Outcome {
    crate::capture::refuse_unsafe()?;
    let stream = stream::named(CUstream(0))?;
    match enqueue_fill(dst, pattern, count, (1, None), stream)? {
        Some((ticket, true)) => stream.wait(ticket),
        _ => Ok(()),
    }
}

/// Enqueues a fill: `height` rows of `count` patterns of `pattern_bytes` each.
pub(crate) fn fill(
    dst: u64,
    pattern: (u32, usize),
    count: usize,
    rows: (usize, Option<usize>),
    on: CUstream,
) -> Outcome {
    enqueue_fill(dst, pattern, count, rows, stream::named(on)?).map(drop)
}

/// Returns the ticket of the fill, unless nothing waits for it, and true if the host can read the
/// memory.
fn enqueue_fill(
    dst: u64,
    (pattern, pattern_bytes): (u32, usize),
    count: usize,
    (height, pitch): (usize, Option<usize>),
    stream: &'static Stream,
) -> Outcome<Option<(u64, bool)>> {
    if plan::get().immediate && !stream.is_capturing() {
        return Ok(None);
    }
    let width = count.checked_mul(pattern_bytes).ok_or(Code::INVALID_VALUE)?;
    let shape = Shape { width, height, pitch: pitch.unwrap_or(width) };
    let extent = shape.extent()?;
    let aligned = dst.is_multiple_of(pattern_bytes as u64);
    if !aligned || height > 1 && !shape.pitch.is_multiple_of(pattern_bytes) {
        refuse!(INVALID_VALUE, "{dst:#x} or the pitch {} is not aligned to {pattern_bytes}", shape.pitch);
    }
    if extent == 0 {
        return Ok(None);
    }
    let place = End::Device(dst).place(stream.context(), extent, "destination")?;
    let (locked, may_end) = (place.memory == Memory::Locked, place.memory.may_end());
    let pattern = pattern.to_le_bytes();
    let work = FillWork { dst: place.address, shape, pattern, pattern_bytes, may_end };
    let ticket = stream.submit(Op::Fill(Box::new(work)))?;
    Ok(ticket.map(|ticket| (ticket, locked)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(width: usize, height: usize, pitch: usize) -> Option<usize> {
        Shape { width, height, pitch }.extent().ok()
    }

    #[test]
    fn rows_reach_from_the_first_to_the_last_byte() {
        assert_eq!(extent(10, 1, 0), Some(10));
        assert_eq!(extent(10, 3, 16), Some(42));
        assert_eq!(extent(10, 3, 9), None);
        assert_eq!(extent(0, 3, 0), Some(0));
        assert_eq!(extent(10, 0, 16), Some(0));
        assert_eq!(extent(8, usize::MAX, 8), None);
    }

    #[test]
    fn a_staged_copy_does_not_read_its_source_again() {
        let (mut src, dst) = (*b"ab..cd..", [b'-'; 8]);
        let mut work = CopyWork {
            src: src.as_ptr() as usize,
            src_pitch: 4,
            dst: dst.as_ptr() as usize,
            dst_pitch: 3,
            width: 2,
            height: 2,
            staged: None,
            src_may_end: false,
            dst_may_end: false,
            delayed: false,
        };
        work.stage();
        src.fill(b'x');
        work.execute();
        assert_eq!(&std::hint::black_box(dst), b"ab-cd---");
    }
}
