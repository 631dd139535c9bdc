//! The addresses of device memory: which ones are taken, and the lookup of an allocation by any
//! address in it.
//!
//! An allocation of 1 MiB or more takes whole chunks of 2 MiB, any other whole grains of 512 bytes.
//! So a lookup reads the entry of the address's chunk and, if that is empty, the entry of its
//! grain. Memory is counted in grains. The address range is four times the memory, so that rounding
//! up never makes an allocation fail.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The unit of small allocations, and the alignment of all allocations.
pub(crate) const GRAIN: u64 = 512;
/// The unit of large allocations.
pub(crate) const CHUNK: u64 = 2 << 20;
const LARGE: u64 = 1 << 20;

/// The addresses of one device, counted from 0.
pub(crate) struct Arena {
    chunks: Box<[Chunk]>,
}

/// The allocations in a chunk, by number from 1; 0 means none.
#[derive(Default)]
struct Chunk {
    whole: AtomicU32,
    grains: OnceLock<Box<[AtomicU32]>>,
}

/// The free memory and addresses of one device. Its owner keeps it under a lock.
pub(crate) struct Book {
    /// Bytes that can still be allocated.
    pub(crate) free_bytes: u64,
    /// Bytes in total.
    pub(crate) total_bytes: u64,
    gaps: Gaps,
}

/// The free address ranges: start and length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gaps(BTreeMap<u64, u64>);

/// Returns the size of the address range of a device with that much memory.
pub(crate) fn span(memory_bytes: u64) -> u64 {
    (memory_bytes * 4 + (64 << 20)).next_multiple_of(CHUNK)
}

/// Returns the bytes that an allocation counts as.
fn counted(len: u64) -> u64 {
    len.next_multiple_of(GRAIN)
}

/// Returns the size and the alignment of the address range that an allocation takes.
fn taken(len: u64) -> (u64, u64) {
    if len >= LARGE { (len.next_multiple_of(CHUNK), CHUNK) } else { (counted(len), GRAIN) }
}

impl Book {
    /// Creates a book in which all memory is free.
    pub(crate) fn new(memory_bytes: u64) -> Self {
        let gaps = Gaps::new(span(memory_bytes));
        Book { free_bytes: memory_bytes, total_bytes: memory_bytes, gaps }
    }

    /// Takes `len` bytes at the lowest address where they fit.
    pub(crate) fn take(&mut self, len: u64) -> Option<u64> {
        let (room, align) = taken(len);
        if counted(len) > self.free_bytes {
            return None;
        }
        let place = self.gaps.take(room, align)?;
        self.free_bytes -= counted(len);
        Some(place)
    }

    /// Frees a place that [`take`](Self::take) found for `len` bytes.
    pub(crate) fn give(&mut self, place: u64, len: u64) {
        self.gaps.give(place, taken(len).0);
        self.free_bytes += counted(len);
    }

    /// Takes `len` bytes without addresses. Returns false if there are too few.
    pub(crate) fn take_bytes(&mut self, len: u64) -> bool {
        let left = self.free_bytes.checked_sub(len);
        self.free_bytes = left.unwrap_or(self.free_bytes);
        left.is_some()
    }

    /// Frees bytes from [`take_bytes`](Self::take_bytes).
    pub(crate) fn give_bytes(&mut self, len: u64) {
        self.free_bytes += len;
    }
}

impl Gaps {
    /// Creates a list without free addresses.
    pub(crate) const fn none() -> Self {
        Gaps(BTreeMap::new())
    }

    /// Creates a range of `len` addresses from 0 on, all free.
    fn new(len: u64) -> Self {
        Gaps(BTreeMap::from([(0, len)]))
    }

    /// Takes `room` addresses from the lowest multiple of `align` where they fit.
    pub(crate) fn take(&mut self, room: u64, align: u64) -> Option<u64> {
        let fits = |(start, gap): (&u64, &u64)| {
            let place = start.checked_next_multiple_of(align)?;
            (place.checked_add(room)? <= start + gap).then_some((*start, *gap, place))
        };
        let (start, gap, place) = self.0.iter().find_map(fits)?;
        self.0.remove(&start);
        if place > start {
            self.0.insert(start, place - start);
        }
        if place + room < start + gap {
            self.0.insert(place + room, start + gap - (place + room));
        }
        Some(place)
    }

    /// Adds `room` free addresses from `place` on.
    pub(crate) fn give(&mut self, place: u64, room: u64) {
        let (mut start, mut room) = (place, room);
        if let Some((before, gap)) = self.0.range(..place).next_back()
            && before + gap == place
        {
            (start, room) = (*before, room + gap);
            self.0.remove(&start);
        }
        if let Some(gap) = self.0.remove(&(start + room)) {
            room += gap;
        }
        self.0.insert(start, room);
    }
}

impl Arena {
    /// Creates the arena of a device with that much memory.
    pub(crate) fn new(memory_bytes: u64) -> Self {
        Arena { chunks: (0..span(memory_bytes) / CHUNK).map(|_| Chunk::default()).collect() }
    }

    /// Marks the addresses of an allocation as belonging to `number`, or as free if it is 0.
    pub(crate) fn mark(&self, place: u64, len: u64, number: u32) {
        let (room, _) = taken(len);
        if len >= LARGE {
            let first = (place / CHUNK) as usize;
            for chunk in &self.chunks[first..first + (room / CHUNK) as usize] {
                chunk.whole.store(number, Ordering::Release);
            }
            return;
        }
        let mut at = place;
        while at < place + room {
            let chunk = &self.chunks[(at / CHUNK) as usize];
            let grains = chunk.grains.get_or_init(|| (0..CHUNK / GRAIN).map(|_| AtomicU32::new(0)).collect());
            grains[(at % CHUNK / GRAIN) as usize].store(number, Ordering::Release);
            at += GRAIN;
        }
    }

    /// Returns the number of the allocation at an address; 0 if there is none.
    pub(crate) fn find(&self, place: u64) -> u32 {
        let Some(chunk) = self.chunks.get((place / CHUNK) as usize) else { return 0 };
        match chunk.whole.load(Ordering::Acquire) {
            0 => {
                let grain = (place % CHUNK / GRAIN) as usize;
                chunk.grains.get().map_or(0, |grains| grains[grain].load(Ordering::Acquire))
            }
            number => number,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_aligned_and_found_by_any_address_in_them() {
        let (mut book, arena) = (Book::new(64 << 20), Arena::new(64 << 20));
        let mut places = Vec::new();
        for (number, len) in [1u64, 512, 513, 1 << 20, 3 << 20, 4096, 100].into_iter().enumerate() {
            let place = book.take(len).unwrap();
            assert_eq!(place % GRAIN, 0);
            arena.mark(place, len, number as u32 + 1);
            places.push((place, len));
        }
        for (number, (place, len)) in places.iter().enumerate() {
            assert_eq!(arena.find(*place), number as u32 + 1);
            assert_eq!(arena.find(place + len - 1), number as u32 + 1);
        }
        let (place, len) = places[4];
        arena.mark(place, len, 0);
        assert_eq!(arena.find(place), 0);
        assert_eq!(arena.find(u64::MAX), 0);
    }

    #[test]
    fn what_is_given_back_joins_its_neighbours() {
        let mut book = Book::new(1 << 20);
        let whole = book.gaps.clone();
        let places: Vec<u64> = (0..8).map(|_| book.take(1000).unwrap()).collect();
        assert_eq!(book.free_bytes, (1 << 20) - 8 * 1024);
        for place in [3, 1, 2, 7, 0, 6, 5, 4].map(|place: usize| places[place]) {
            book.give(place, 1000);
        }
        assert_eq!(book.gaps, whole);
        assert_eq!(book.free_bytes, 1 << 20);
    }

    #[test]
    fn all_memory_can_be_had_in_pieces_of_any_size() {
        for len in [512, 4096, (1 << 20) - 512, 1 << 20, (2 << 20) + 512] {
            let mut book = Book::new(32 << 20);
            while book.free_bytes >= len {
                book.take(len).unwrap_or_else(|| panic!("{len} of {}", book.free_bytes));
            }
            assert_eq!(book.take(len), None);
        }
    }
}
