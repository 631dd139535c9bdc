//! Zones: unused addresses behind each block of a CPU device.
//!
//! The device code of a kernel may touch its operands alone. An overrun of one operand is refused,
//! unless it lands in another operand of the launch. So that it does not, no two blocks of a CPU
//! device are neighbours in memory.
//!
//! # Rules
//! 1. A segment has more addresses than bytes. The byte at offset `o` of a segment lies
//!    `o + o / least * zone` behind its start, where `least` is the length that each block of the
//!    class has at least. So any two starts of blocks, and the last start and the end of the
//!    addresses, have a zone between them that is in neither block.
//! 2. The address of a block depends on its offset alone. So blocks are cut and joined as without
//!    zones, in any order. A joined block lies where its left part did, and its bytes follow each
//!    other: it has more addresses than it needs.
//! 3. Lengths, limits and statistics count no zones. The driver allocates them, but nothing
//!    touches them, so the system keeps no memory for them.
//! 4. The zone behind a small block is as long as the block: the smallest is one unit, and
//!    addresses are multiples of it. That behind a large block is 64 KiB for each MiB.
// Decision: docs/decisions/0063-zones-are-addresses-without-memory.md
#![forbid(unsafe_code)]

use super::blocks::Class;
use super::pool::{SMALL_BYTES, UNIT_BYTES};

/// The zone for each MiB of large blocks. A longer one would be of use for overruns by whole rows,
/// but systems that do not overcommit count it as memory.
const LARGE_ZONE_BYTES: usize = 64 << 10;

/// The zones of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Zones {
    /// Blocks are neighbours.
    None,
    /// A zone lies behind each block.
    Behind,
}

impl Zones {
    /// Returns the least length of a block, and the length of the zone for each such length.
    fn of(self, class: Class) -> (usize, usize) {
        match (self, class) {
            (Zones::None, _) => (1, 0),
            (Zones::Behind, Class::Small) => (UNIT_BYTES, UNIT_BYTES),
            (Zones::Behind, Class::Large) => (SMALL_BYTES, LARGE_ZONE_BYTES),
        }
    }

    /// Returns the number of addresses that the first `len` bytes of a segment take, with their
    /// zones.
    pub(super) fn span(self, class: Class, len: usize) -> usize {
        let (least, zone) = self.of(class);
        len + len / least * zone
    }

    /// Returns the length for which [`span`](Self::span) returns `span`.
    pub(super) fn len(self, class: Class, span: usize) -> usize {
        let (least, zone) = self.of(class);
        span - span / (least + zone) * zone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_zone_lies_between_any_two_offsets_of_blocks(units in 0_usize..1 << 20, len in 1_usize..1 << 20) {
            for (class, least, zone) in [(Class::Small, 512, 512), (Class::Large, 1 << 20, 64 << 10)] {
                let (offset, len) = (units * UNIT_BYTES, (len * UNIT_BYTES).max(least));
                let (start, next) = (Zones::Behind.span(class, offset), Zones::Behind.span(class, offset + len));
                prop_assert!(next - start >= len + len / least * zone);
                prop_assert_eq!((start % UNIT_BYTES, Zones::Behind.len(class, start)), (0, offset));
                prop_assert_eq!(Zones::None.len(class, Zones::None.span(class, offset)), offset);
            }
        }
    }
}
