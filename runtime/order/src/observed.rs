//! A table of how far the host has observed each stream and which streams are gone, one per runtime
//! and read without a lock.
//!
//! # Rules
//! * A stream's id is the number of its slot and the slot's generation. Ids are never reused. A
//!   slot is reused by its next generation; after its last generation it stays unused.
//! * A slot is one word: the generation that owns it, whether its stream is closed, and the end,
//!   which is one past the newest observed ticket. An end of 0 means that nothing has been
//!   observed; ticket 0, a stream's creation, can be observed. So every query is one load.
//! * A word is changed only under the lock of its group of 64: compare the generation and the
//!   end, then store. So many words are changed for the price of one atomic read-modify-write. A
//!   late observation of a stream that is gone finds another generation and does not affect the
//!   slot's next stream. No other lock is taken meanwhile.
//! * A stream that is closed and drained is **gone** and ordered before everything: its slot is in
//!   a later generation or, after the last one, observed to the maximal end. When that happens
//!   depends on timing, so no verdict depends on it, only whether the runtime adds an edge. For
//!   verdicts the check asks whether a stream [is closed](Observed::is_closed), which only the
//!   program decides.
// Decision: docs/decisions/0007-observed-table-is-one-word-a-stream.md

use super::clock::{Clock, StreamId, Ticket, Use};
use parking_lot::{Mutex, MutexGuard};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const SLOT_BITS: u32 = 20;
const SLOTS: usize = 1 << SLOT_BITS;
const CHUNK: usize = 1 << 9;
/// The number of slots that share a lock.
const GROUP: usize = 64;
const GENERATION_BITS: u32 = 16;
const GENERATION_SHIFT: u32 = 64 - GENERATION_BITS;
const CLOSED: u64 = 1 << (GENERATION_SHIFT - 1);
const END_MASK: u64 = CLOSED - 1;

/// The maximum number of tickets that a stream can take: 2^47 - 2, or four years at a million per
/// second.
pub const MAX_TICKET: Ticket = END_MASK - 1;

/// The table of observed work. [`admit`](Self::admit) enters a stream.
pub struct Observed {
    /// Chunks are allocated when first needed and stay allocated.
    chunks: Box<[OnceLock<Box<Chunk>>]>,
    free: Mutex<Free>,
}

struct Chunk {
    words: [AtomicU64; CHUNK],
    changing: [Mutex<()>; CHUNK / GROUP],
}

impl Chunk {
    fn new() -> Box<Self> {
        Box::new(Chunk {
            words: [const { AtomicU64::new(0) }; CHUNK],
            changing: [const { Mutex::new(()) }; CHUNK / GROUP],
        })
    }
}

#[derive(Default)]
struct Free {
    ids: Vec<StreamId>,
    slots_used: usize,
}

impl Default for Observed {
    fn default() -> Self {
        Observed { chunks: (0..SLOTS / CHUNK).map(|_| OnceLock::new()).collect(), free: Mutex::default() }
    }
}

impl StreamId {
    #[inline]
    fn slot(self) -> usize {
        self.0 as usize & (SLOTS - 1)
    }

    /// Returns the group of the stream's slot.
    #[inline]
    fn group(self) -> usize {
        self.slot() / GROUP
    }

    #[inline]
    fn generation(self) -> u64 {
        self.0 >> SLOT_BITS
    }

    /// Returns the slot and its generation.
    #[inline]
    pub(super) fn parts(self) -> (usize, u64) {
        (self.slot(), self.generation())
    }

    pub(super) fn of_slot(slot: usize, generation: u64) -> Self {
        StreamId(generation << SLOT_BITS | slot as u64)
    }
}

impl Observed {
    #[inline]
    fn word(&self, id: StreamId) -> Option<&AtomicU64> {
        let at = id.slot();
        self.chunks[at / CHUNK].get().map(|chunk| &chunk.words[at % CHUNK])
    }

    /// Locks the group of `id`'s word, so that the words of the group can be changed.
    #[inline]
    fn change(&self, id: StreamId) -> Option<MutexGuard<'_, ()>> {
        let at = id.slot();
        self.chunks[at / CHUNK].get().map(|chunk| chunk.changing[at % CHUNK / GROUP].lock())
    }

    /// Returns an id for a new stream; `None` if there are 2^20 live ones.
    pub fn admit(&self) -> Option<StreamId> {
        let mut free = self.free.lock();
        if let Some(id) = free.ids.pop() {
            return Some(id);
        }
        let at = free.slots_used;
        if at == SLOTS {
            return None;
        }
        free.slots_used += 1;
        self.chunks[at / CHUNK].get_or_init(Chunk::new);
        Some(StreamId(at as u64))
    }

    /// Notes that no more work comes on the stream.
    pub fn close(&self, id: StreamId) {
        let Some(word) = self.word(id) else { return };
        let _changing = self.change(id);
        let now = word.load(Ordering::Acquire);
        if now >> GENERATION_SHIFT == id.generation() {
            word.store(now | CLOSED, Ordering::Release);
        }
    }

    /// Notes that the stream is closed and all of its work has finished. From now on it is before
    /// everything.
    ///
    /// Called once for a stream, after [`close`](Self::close).
    ///
    /// The work that the stream itself had waited for is not before everything, because the program
    /// has not observed it. Otherwise a verdict could depend on when the stream drained.
    pub fn retire(&self, id: StreamId) {
        let Some(word) = self.word(id) else { return };
        let next = id.generation() + 1;
        let changing = self.change(id);
        if next >> GENERATION_BITS != 0 {
            // The last generation keeps its slot forever, as a stream that was observed to its end.
            word.store(id.generation() << GENERATION_SHIFT | CLOSED | END_MASK, Ordering::Release);
            return;
        }
        word.store(next << GENERATION_SHIFT, Ordering::Release);
        drop(changing);
        self.free.lock().ids.push(StreamId(next << SLOT_BITS | id.slot() as u64));
    }

    /// Returns whether the stream is closed, drained or not.
    #[inline]
    pub fn is_closed(&self, id: StreamId) -> bool {
        self.word(id).is_none_or(|word| {
            let word = word.load(Ordering::Acquire);
            word >> GENERATION_SHIFT != id.generation() || word & CLOSED != 0
        })
    }

    /// Returns whether the stream is closed and drained.
    #[inline]
    pub fn is_gone(&self, id: StreamId) -> bool {
        self.word(id).is_none_or(|word| {
            let word = word.load(Ordering::Acquire);
            word >> GENERATION_SHIFT != id.generation() || word & END_MASK == END_MASK
        })
    }

    /// Returns whether the host has observed `used`.
    #[inline]
    pub fn covers(&self, used: Use) -> bool {
        let Some(word) = self.word(used.stream) else { return true };
        let word = word.load(Ordering::Acquire);
        word >> GENERATION_SHIFT != used.stream.generation() || word & END_MASK > used.ticket
    }

    /// Returns the newest observed ticket of a stream that is not gone, for messages.
    pub fn newest(&self, stream: StreamId) -> Option<Ticket> {
        (self.word(stream)?.load(Ordering::Acquire) & END_MASK).checked_sub(1)
    }

    /// Notes that the host has observed `used`, and with it all work in `clock`, the stated clock
    /// of that op.
    #[inline]
    pub fn observe(&self, used: Use, clock: &Clock) {
        // Earlier work is published before the op itself: a thread that sees the op sees its past.
        let mut changing = Changing { table: self, group: usize::MAX, lock: None };
        clock.for_each(|earlier| changing.observe(earlier));
        changing.observe(used);
    }

    /// Returns the number of slots ever used, for statistics.
    pub fn slots_used(&self) -> usize {
        self.free.lock().slots_used
    }
}

/// A thread that notes uses as observed, one after the other. It locks a group once for uses that
/// follow each other.
struct Changing<'a> {
    table: &'a Observed,
    group: usize,
    lock: Option<MutexGuard<'a, ()>>,
}

impl Changing<'_> {
    #[inline]
    fn observe(&mut self, used: Use) {
        let table = self.table;
        // Without the lock first: usually the host has observed a part of this already.
        if table.covers(used) {
            return;
        }
        if self.group != used.stream.group() {
            // The old lock is released first: a thread never holds two.
            drop(self.lock.take());
            (self.group, self.lock) = (used.stream.group(), table.change(used.stream));
            if table.covers(used) {
                return;
            }
        }
        let Some(word) = table.word(used.stream) else { return };
        let rest = word.load(Ordering::Relaxed) & !END_MASK;
        word.store(rest | (used.ticket + 1), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retired_stream_is_before_everything_and_its_id_does_not_come_back() {
        let table = Observed::default();
        let first = table.admit().unwrap();
        let used = Use { stream: first, ticket: 3 };
        assert!(!table.covers(used) && !table.is_gone(first));
        table.observe(Use { ticket: 2, ..used }, &Clock::default());
        assert!(!table.covers(used) && table.covers(Use { ticket: 2, ..used }));
        table.retire(first);
        assert!(table.covers(used) && table.is_gone(first));
        let second = table.admit().unwrap();
        assert_ne!(first, second);
        assert_eq!(table.slots_used(), 1);
        table.observe(used, &Clock::default());
        assert!(
            !table.covers(Use { stream: second, ticket: 0 }),
            "a late observation fell upon the successor"
        );
    }

    #[test]
    fn a_closed_stream_is_only_observed_as_far_as_the_host_has_seen_it() {
        let table = Observed::default();
        let stream = table.admit().unwrap();
        table.observe(Use { stream, ticket: 2 }, &Clock::default());
        table.close(stream);
        assert!(table.is_closed(stream) && !table.is_gone(stream));
        assert!(!table.covers(Use { stream, ticket: 3 }));
        table.observe(Use { stream, ticket: 3 }, &Clock::default());
        assert!(table.is_closed(stream) && table.covers(Use { stream, ticket: 3 }));
        table.retire(stream);
        assert!(table.is_closed(stream) && table.is_gone(stream));
        assert!(!table.is_closed(table.admit().unwrap()), "the slot's next stream is open");
    }

    #[test]
    fn what_threads_observe_at_once_of_the_same_streams_is_all_there_and_never_goes_back() {
        let table = Observed::default();
        let streams: Vec<StreamId> = (0..3 * GROUP).map(|_| table.admit().unwrap()).collect();
        let nobody = Use { stream: table.admit().unwrap(), ticket: 0 };
        let clock = |ticket: Ticket, from: usize| {
            let mut clock = Clock::default();
            for &stream in streams[from..].iter().step_by(7) {
                clock.merge(nobody, Use { stream, ticket }, &Clock::default());
            }
            clock
        };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (table, streams, clock) = (&table, &streams, &clock);
                scope.spawn(move || {
                    for ticket in 0..50 {
                        let (used, clock) = (Use { stream: streams[thread], ticket }, clock(ticket, thread));
                        table.observe(used, &clock);
                        // Another thread may be ahead, never behind.
                        clock.for_each(|earlier| assert!(table.covers(earlier)));
                        assert!(table.covers(used));
                    }
                });
            }
        });
        for (at, &stream) in streams.iter().enumerate() {
            let seen = at % 7 < 4 || at < 4;
            assert_eq!(table.newest(stream), seen.then_some(49), "{at}");
        }
    }

    #[test]
    fn a_slot_that_used_up_its_generations_is_left_alone() {
        let table = Observed::default();
        let mut last = table.admit().unwrap();
        for _ in 0..(1 << GENERATION_BITS) {
            table.retire(last);
            let next = table.admit().unwrap();
            assert!(table.covers(Use { stream: last, ticket: MAX_TICKET }));
            assert!(!table.covers(Use { stream: next, ticket: 0 }));
            last = next;
        }
        assert_eq!(table.slots_used(), 2);
    }
}
