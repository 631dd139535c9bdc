//! The shared memory of a cluster.
//!
//! The blocks of a cluster have their shared memory one after the other, with gaps, so that an
//! address beside it still belongs to the block. A generic address in it is an address of the
//! host. An address in the window `.shared::cluster` is one of `.shared`, which stands for the own
//! block, or has the number of a block plus 1 in its upper bits ([`ClusterMemory::address`]). Each
//! block of the cluster may use the latter, and its own one in `.shared`, too.
//!
//! `mapa` may run in a lane that does not access memory, and name a block that does not exist. So
//! its result is an address whose access fails.

use super::super::context::Context;
use super::super::fault::{FaultKind, NEAR, signed, wrapped};
use super::super::memory::Access;
use super::super::op::{Flow, Op};
use super::super::registers::{Cell, Mask, for_each_lane};
use super::super::warp::Lanes;

/// The shared memory of the blocks of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClusterMemory {
    /// The number in the cluster of the block that runs.
    pub(crate) rank: u32,
    /// The number of blocks.
    pub(super) blocks: u32,
    /// The address of the shared memory of the first block.
    pub(super) start: u64,
    /// The bytes from there to that of the next block.
    pub(super) stride: u64,
    /// The blocks all of whose threads have exited, as bits.
    pub(super) exited: u32,
}

/// The number of bits of an offset in the shared memory of a block, with a sign.
const OFFSET_BITS: u32 = 24;
/// The most bytes of shared memory of a block, of which GPUs have less.
pub(crate) const MOST_SHARED_BYTES: u32 = 1 << (OFFSET_BITS - 1);
/// The bytes between the shared memory of two blocks, at least.
pub(crate) const GAP: u64 = 512;
/// The bytes around the shared memory of a cluster that nothing uses. So an address that misses it
/// by half of them is nearer to it than to any other memory.
pub(super) const MARGIN: u64 = 8192;
/// The number of a block that stands for all larger ones. Addresses with a larger number are those
/// of the own block with a negative offset.
const MOST_RANK: u32 = 126;
/// The upper bits of a generic address in a block that does not exist. No host address has them.
const MISSING: u64 = 0xf1f1;
const MISSING_BITS: u32 = 48;

impl ClusterMemory {
    /// Returns the address of the shared memory of a block.
    pub(crate) fn of(self, rank: u32) -> u64 {
        self.start + u64::from(rank) * self.stride
    }

    /// Returns the addresses of the first byte and of the end.
    pub(crate) fn extent(self) -> (u64, u64) {
        (self.start, self.of(self.blocks))
    }

    /// Returns the block in or beside whose shared memory an address of the host is, and the
    /// offset there, which is negative or too large in a gap.
    pub(crate) fn place(self, address: u64) -> Option<(u32, u64)> {
        let rank = address.checked_sub(self.start - GAP / 2)? / self.stride;
        let rank = u32::try_from(rank).ok().filter(|rank| *rank < self.blocks)?;
        Some((rank, address.wrapping_sub(self.of(rank))))
    }

    /// Returns the block that has a generic address, or the own one if none has.
    fn rank_of(self, address: u64) -> u32 {
        self.place(address).map_or(self.rank, |(rank, _)| rank)
    }

    /// Returns the generic address that a block has in place of another one's.
    fn mapped(self, address: u64, rank: u32) -> u64 {
        let offset = address.wrapping_sub(self.of(self.rank_of(address)));
        if rank < self.blocks {
            return self.of(rank).wrapping_add(offset);
        }
        let missing = MISSING << MISSING_BITS | u64::from(rank.min(MOST_RANK)) << OFFSET_BITS;
        missing | offset & ((1 << OFFSET_BITS) - 1)
    }

    /// Returns what is wrong with a generic address that `mapa` has made of a wrong number.
    pub(crate) fn missing(self, address: u64) -> Option<FaultKind> {
        let rank = (address >> OFFSET_BITS) as u32 & 0xff_ffff;
        (address >> MISSING_BITS == MISSING).then_some(FaultKind::NoSuchRank { rank, blocks: self.blocks })
    }

    /// Returns the address in `.shared::cluster` of an offset in the memory of a block.
    pub(crate) fn address(self, rank: u32, offset: u64) -> u64 {
        (u64::from(rank.min(MOST_RANK) + 1) << OFFSET_BITS).wrapping_add(offset)
    }

    /// Returns the block and the offset of an address in `.shared::cluster`.
    pub(crate) fn parts(self, address: u64) -> (u32, u64) {
        match upper_part(address) {
            upper if (1..=u64::from(MOST_RANK + 1)).contains(&upper) => {
                (upper as u32 - 1, address.wrapping_sub(upper << OFFSET_BITS))
            }
            _ => (self.rank, address),
        }
    }

    /// Returns the generic address of one in `.shared` or `.shared::cluster`.
    pub(crate) fn generic(self, address: u64) -> u64 {
        let (rank, offset) = self.parts(address);
        self.of(rank).wrapping_add(offset)
    }

    /// Returns the address of the host of an access to `.shared::cluster`. A block has `len_bytes`
    /// bytes.
    pub(crate) fn resolve(
        self,
        address: u64,
        bytes: u64,
        access: Access,
        len_bytes: u64,
    ) -> Result<u64, FaultKind> {
        let (rank, offset) = self.parts(address);
        if rank < self.blocks && offset.saturating_add(bytes) > len_bytes {
            let block = (rank != self.rank).then_some(rank);
            return Err(FaultKind::OutOfShared { offset, bytes, access, len_bytes, variable: None, block });
        }
        match self.refusal(rank, offset, bytes, access) {
            Some(kind) => Err(kind),
            None => Ok(self.of(rank) + offset),
        }
    }

    /// Describes an access to a generic address in no memory as one that misses the shared memory
    /// of a block, if no other memory is nearer. The nearest other one is `others` bytes away.
    pub(crate) fn missed(
        self,
        address: u64,
        bytes: u64,
        access: Access,
        len_bytes: u64,
        others: Option<u64>,
    ) -> Option<FaultKind> {
        let apart = |rank: &u32| {
            let offset = address.wrapping_sub(self.of(*rank));
            match (wrapped(offset), signed(offset)) {
                (Some(meant), _) => meant.unsigned_abs(),
                (None, signed @ ..0) => signed.unsigned_abs(),
                (None, _) => offset.saturating_sub(len_bytes),
            }
        };
        let rank = (0..self.blocks).min_by_key(apart)?;
        let most = NEAR.min(others.unwrap_or(NEAR));
        (len_bytes > 0 && apart(&rank) <= most).then(|| {
            let (offset, block) = (address.wrapping_sub(self.of(rank)), (rank != self.rank).then_some(rank));
            FaultKind::OutOfShared { offset, bytes, access, len_bytes, variable: None, block }
        })
    }

    /// Returns why the shared memory of a block may not be accessed.
    pub(crate) fn refusal(self, rank: u32, offset: u64, bytes: u64, access: Access) -> Option<FaultKind> {
        let blocks = self.blocks;
        if rank >= blocks {
            return Some(FaultKind::NoSuchRank { rank, blocks });
        }
        (self.exited >> rank & 1 == 1).then_some(FaultKind::BlockExited {
            rank,
            offset,
            bytes,
            access,
            variable: None,
        })
    }
}

/// Returns the upper part of an address in `.shared::cluster`: 0 for one of the own block. An
/// offset may be negative.
pub(crate) fn upper_part(address: u64) -> u64 {
    address.wrapping_add(MOST_SHARED_BYTES.into()) >> OFFSET_BITS
}

/// `mapa`: `d` from the address `a`, in the block `b` of the cluster. The address is generic, or
/// with `extra` 1 one in `.shared::cluster`.
pub(crate) fn map_address<A: Cell>(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    let memory = context.cluster;
    let (addresses, ranks) = (lanes.registers.get::<A>(op.a), lanes.registers.get::<u32>(op.b));
    let row = A::row_mut(&mut lanes.registers, op.d);
    for_each_lane(mask, |lane| {
        let (address, rank) = (addresses[lane].to_u64(), ranks[lane]);
        row[lane] = A::of_u64(match op.extra {
            1 => memory.address(rank, memory.parts(address).1),
            _ => memory.mapped(address, rank),
        });
    });
    Flow::Next
}

/// `getctarank`: `d` is the number in the cluster of the block that has the address `a`, which is
/// as for `mapa`.
pub(crate) fn rank_of_address<A: Cell>(
    lanes: &mut Lanes,
    op: &Op,
    mask: Mask,
    context: &Context<'_>,
) -> Flow {
    let memory = context.cluster;
    let addresses = lanes.registers.get::<A>(op.a).map(A::to_u64);
    lanes.registers.set::<u32>(op.d, mask, |lane| match op.extra {
        1 => memory.parts(addresses[lane]).0,
        _ => memory.rank_of(addresses[lane]),
    });
    Flow::Next
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 256;

    /// Returns the block and the offset of an access from block 0 of two that misses them.
    fn missed(address: u64, others: Option<u64>) -> Option<(Option<u32>, u64)> {
        let memory = ClusterMemory { rank: 0, blocks: 2, start: 1 << 40, stride: LEN + GAP, exited: 0 };
        let kind = memory.missed(address, 4, Access::Read, LEN, others)?;
        let FaultKind::OutOfShared { offset, block, .. } = kind else { panic!("{kind:?}") };
        Some((block, offset))
    }

    #[test]
    fn an_address_misses_the_nearest_block_if_no_other_memory_is_nearer() {
        let (first, second) = (1 << 40, (1 << 40) + LEN + GAP);
        for (address, block, offset) in [
            (first - 4, None, -4),
            (first + LEN + 8, None, 264),
            (second - 8, Some(1), -8),
            (second + LEN, Some(1), 256),
            (second + LEN + NEAR, Some(1), (LEN + NEAR) as i64),
            (first - NEAR, None, -(NEAR as i64)),
            // An index of 32 bits that wrapped: of a word, and of a word of a row of 64 bytes.
            (second + (4 << 32) - 4, Some(1), (4 << 32) - 4),
            (second + (64 << 32) - 60, Some(1), (64 << 32) - 60),
            // Of a word of a variable behind another one.
            (second + (4 << 32) + 124, Some(1), (4 << 32) + 124),
        ] {
            assert_eq!(missed(address, None), Some((block, offset as u64)), "{address:#x}");
            assert_eq!(missed(address, Some(1 << 30)), Some((block, offset as u64)), "{address:#x}");
        }
        assert_eq!(missed(second + LEN + NEAR + 1, None), None);
        assert_eq!(missed(first - NEAR - 1, None), None);
        assert_eq!(missed(second + LEN + 64, Some(63)), None, "other memory is nearer");
        assert_eq!(missed(second + (1 << 52), None), None, "no index wraps like this");
    }
}
