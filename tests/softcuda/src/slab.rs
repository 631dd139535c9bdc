//! Slots for objects that handles name. Slots are never freed.
//!
//! A handle is a number made of a kind, a generation and a slot. A check compares it with the
//! handle that its slot stores. This detects a handle that is null, of another kind or destroyed,
//! even if the slot has been reused. The check writes nothing, so threads that check the same
//! handle do not slow each other down. A call that races with a destroy still finds an object,
//! because slots are never freed.

use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Slots of the first chunk. Each further chunk has twice as many as the one before.
const FIRST: u32 = 64;
const CHUNKS: usize = 22;

/// The objects of one kind.
pub(crate) struct Slab<T: 'static> {
    kind: u8,
    chunks: [OnceLock<Box<[Slot<T>]>>; CHUNKS],
    used: AtomicU32,
    free: Mutex<Vec<u32>>,
}

struct Slot<T> {
    handle: AtomicU64,
    generation: AtomicU32,
    value: OnceLock<T>,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Slot { handle: AtomicU64::new(0), generation: AtomicU32::new(0), value: OnceLock::new() }
    }
}

impl<T: Send + Sync> Slab<T> {
    /// Creates an empty slab whose handles carry `kind`.
    pub(crate) const fn new(kind: u8) -> Self {
        Slab {
            kind,
            chunks: [const { OnceLock::new() }; CHUNKS],
            used: AtomicU32::new(0),
            free: Mutex::new(Vec::new()),
        }
    }

    fn slot(&'static self, index: u32) -> Option<&'static Slot<T>> {
        let place = index.checked_add(FIRST)?;
        let chunk = place.ilog2() - FIRST.ilog2();
        let slots = self.chunks.get(chunk as usize)?.get()?;
        slots.get((place - (FIRST << chunk)) as usize)
    }

    /// Takes a free slot and returns it with its object, which no handle names yet. `new` makes the
    /// object, unless the slot still has one from an earlier use.
    pub(crate) fn take(&'static self, new: impl FnOnce(u32) -> T) -> (u32, &'static T) {
        let recycled = self.free.lock().pop();
        let index = recycled.unwrap_or_else(|| self.used.fetch_add(1, Ordering::Relaxed));
        let chunk = (index + FIRST).ilog2() - FIRST.ilog2();
        self.chunks[chunk as usize].get_or_init(|| (0..FIRST << chunk).map(|_| Slot::default()).collect());
        let slot = self.slot(index).expect("its chunk was just made");
        (index, slot.value.get_or_init(|| new(index)))
    }

    /// Makes a handle for a slot whose object is ready.
    pub(crate) fn publish(&'static self, index: u32) -> u64 {
        let slot = self.slot(index).expect("only taken slots are published");
        let generation = slot.generation.fetch_add(1, Ordering::Relaxed) & 0xff_ffff;
        let handle = (self.kind as u64) << 56 | (generation as u64) << 32 | (index as u64 + 1);
        slot.handle.store(handle, Ordering::Release);
        handle
    }

    /// Returns the object that a live handle names.
    #[inline]
    pub(crate) fn get(&'static self, handle: u64) -> Option<&'static T> {
        let slot = self.slot((handle as u32).wrapping_sub(1))?;
        if handle == 0 || slot.handle.load(Ordering::Acquire) != handle {
            return None;
        }
        slot.value.get()
    }

    /// Ends a handle and returns its object, if the handle was live. The slot is not reused before
    /// [`recycle`](Self::recycle).
    pub(crate) fn revoke(&'static self, handle: u64) -> Option<&'static T> {
        let slot = self.slot((handle as u32).wrapping_sub(1))?;
        if handle == 0 {
            return None;
        }
        slot.handle.compare_exchange(handle, 0, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        slot.value.get()
    }

    /// Makes a slot available for reuse.
    pub(crate) fn recycle(&'static self, index: u32) {
        self.free.lock().push(index);
    }

    /// Returns the object in a slot, even if no handle names it.
    #[inline]
    pub(crate) fn at(&'static self, index: u32) -> Option<&'static T> {
        self.slot(index)?.value.get()
    }

    /// Iterates over the objects of all slots, even those that no handle names.
    pub(crate) fn all(&'static self) -> impl Iterator<Item = &'static T> {
        (0..self.used.load(Ordering::Relaxed)).filter_map(|index| self.at(index))
    }

    /// Describes a handle that is not live, for messages.
    pub(crate) fn what_is(&'static self, handle: u64) -> &'static str {
        let known = self.slot((handle as u32).wrapping_sub(1)).is_some_and(|slot| slot.value.get().is_some());
        match handle {
            0 => "null",
            _ if (handle >> 56) as u8 == self.kind && known => "destroyed",
            _ => "not a handle of this kind",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_taken_again_does_not_revive_the_old_handle() {
        static SLAB: Slab<u32> = Slab::new(7);
        let (index, _) = SLAB.take(|index| index);
        let old = SLAB.publish(index);
        assert_eq!(SLAB.get(old), Some(&0));
        assert!(SLAB.revoke(old).is_some());
        assert!(SLAB.revoke(old).is_none(), "destroyed twice");
        SLAB.recycle(index);
        let (again, _) = SLAB.take(|index| index);
        assert_eq!(again, index);
        let new = SLAB.publish(again);
        assert_eq!(SLAB.get(new), Some(&0));
        assert_eq!(SLAB.get(old), None);
        assert_eq!(SLAB.what_is(old), "destroyed");
        assert_eq!(SLAB.what_is(42), "not a handle of this kind");
    }

    #[test]
    fn slots_keep_their_place_across_chunks() {
        static SLAB: Slab<u32> = Slab::new(8);
        for _ in 0..1000 {
            let (index, value) = SLAB.take(|index| index);
            assert_eq!(*value, index);
            SLAB.publish(index);
        }
        assert!(SLAB.all().copied().eq(0..1000));
    }
}
