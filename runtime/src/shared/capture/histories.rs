//! The uses of memory by the ops of a capture, apart from the ledgers of that memory.
//!
//! A capture runs nothing. So the ledgers of the memory itself say nothing about the capture, and
//! the capture adds nothing to them.
//!
//! Memory is identified by the address of its `Allocation`. Memory from outside is kept alive here.
//! Memory that was allocated in the capture leaves when it is dropped, and its block is free for
//! what is captured next.

use crate::order::{Access, AccessMode, ByteRange, Ledger, Use};
use crate::shared::{Allocation, Operand, OwnedOperand};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// The histories of all memory that a capture has touched.
#[derive(Default)]
pub(super) struct Histories {
    by_address: HashMap<usize, History>,
    met: usize,
}

struct History {
    /// The number of the memory, in the order in which the capture first met it.
    met: usize,
    memory: Memory,
    ledger: Ledger,
    /// The accesses of a launch to the memory.
    accesses: Vec<(ByteRange, AccessMode)>,
}

enum Memory {
    Outside(Arc<Allocation>),
    Inside(Weak<Allocation>),
}

/// An operand of a captured op, with its memory's history in the capture.
pub(crate) struct Traced<'a> {
    ledger: &'a Ledger,
    range: ByteRange,
    mode: AccessMode,
}

impl Access for Traced<'_> {
    fn ledger(&self) -> &Ledger {
        self.ledger
    }

    fn range(&self) -> &ByteRange {
        &self.range
    }

    fn mode(&self) -> AccessMode {
        self.mode
    }
}

fn address(allocation: &Allocation) -> usize {
    std::ptr::from_ref(allocation).addr()
}

impl Histories {
    fn enter(&mut self, allocation: &Allocation, memory: impl FnOnce() -> Memory, ledger: Ledger) {
        self.met += 1;
        let history = History { met: self.met, memory: memory(), ledger, accesses: Vec::new() };
        self.by_address.insert(address(allocation), history);
    }

    /// Adds memory that was allocated in the capture.
    pub(super) fn born(&mut self, allocation: &Arc<Allocation>, ledger: Ledger) {
        self.enter(allocation, || Memory::Inside(Arc::downgrade(allocation)), ledger);
    }

    /// Removes memory that was allocated in the capture and is dropped. Returns its uses there.
    pub(crate) fn dropped(&mut self, allocation: &Allocation) -> Option<Ledger> {
        self.by_address.remove(&address(allocation)).map(|history| history.ledger)
    }

    /// Returns the operands of an op, each with its memory's history in this capture.
    pub(super) fn traced(&mut self, operands: &[Operand<'_>]) -> Vec<Traced<'_>> {
        for &Operand { allocation, .. } in operands {
            if !self.by_address.contains_key(&address(allocation)) {
                self.enter(allocation, || Memory::Outside(allocation.clone()), Ledger::unknown());
            }
        }
        let of = |allocation: &Arc<Allocation>| &self.by_address[&address(allocation)].ledger;
        let traced = |operand: &Operand<'_>| Traced {
            ledger: of(operand.allocation),
            range: operand.range,
            mode: operand.access,
        };
        operands.iter().map(traced).collect()
    }

    /// Adds an op's accesses to what a launch does. Reads come first: what the op reads was there
    /// before it wrote.
    pub(super) fn add_all(&mut self, operands: &[Operand<'_>]) {
        let (reads, writes): (Vec<&Operand<'_>>, Vec<_>) =
            operands.iter().partition(|operand| operand.access.reads());
        let all = reads.into_iter().chain(writes);
        all.for_each(|operand| self.add(operand.allocation, operand.range, operand.access));
    }

    fn add(&mut self, allocation: &Allocation, range: ByteRange, mode: AccessMode) {
        if let Some(history) = self.by_address.get_mut(&address(allocation))
            && !range.is_empty()
        {
            add(&mut history.accesses, range, mode);
        }
    }

    /// Returns the uses of this memory in the capture, or `None` if the capture has not met it.
    pub(super) fn uses_of(&self, allocation: &Allocation) -> Option<Vec<Use>> {
        let history = self.by_address.get(&address(allocation))?;
        Some(history.ledger.open().uses().to_vec())
    }

    /// Returns what launches touch, of the memory that still exists, in the order in which the
    /// capture met it.
    pub(super) fn into_touched(self) -> Vec<OwnedOperand<Arc<Allocation>>> {
        let mut histories: Vec<History> = self.by_address.into_values().collect();
        histories.sort_unstable_by_key(|history| history.met);
        let touched = histories.into_iter().flat_map(|mut history| {
            join_neighbours(&mut history.accesses);
            let allocation = match history.memory {
                Memory::Outside(allocation) => Some(allocation),
                // Its block may have been that of dropped memory, which a launch writes too.
                Memory::Inside(allocation) => allocation.upgrade().inspect(|allocation| {
                    let whole = ByteRange::contiguous(0, allocation.len_bytes as u64);
                    history.accesses = vec![(whole, AccessMode::Write)];
                }),
            };
            let of = |allocation: Arc<Allocation>| {
                let touched =
                    |(range, access)| OwnedOperand { allocation: allocation.clone(), range, access };
                history.accesses.into_iter().map(touched).collect::<Vec<_>>()
            };
            allocation.map(of).unwrap_or_default()
        });
        touched.collect()
    }
}

/// Adds an access to those of earlier ops, unless they imply it. A read of bytes that the capture
/// wrote before is no read of their earlier contents.
fn add(accesses: &mut Vec<(ByteRange, AccessMode)>, range: ByteRange, mode: AccessMode) {
    let implied =
        |(earlier, did): &(ByteRange, AccessMode)| (did.writes() || !mode.writes()) && earlier.covers(&range);
    if accesses.iter().any(implied) {
        return;
    }
    match accesses.iter_mut().find(|(earlier, _)| *earlier == range) {
        // Read before, and written now.
        Some((_, did)) => *did = AccessMode::ReadWrite,
        None => accesses.push((range, mode)),
    }
}

/// Joins neighbouring runs of bytes with the same access into one. A launch compares each with
/// every other of its memory.
fn join_neighbours(accesses: &mut Vec<(ByteRange, AccessMode)>) {
    let (mut runs, strided): (Vec<_>, Vec<_>) =
        accesses.drain(..).partition(|(range, _)| range.is_contiguous());
    runs.sort_by_key(|(range, mode)| (*mode as u8, range.offset()));
    for (range, mode) in runs {
        match accesses.last_mut() {
            Some((before, did)) if *did == mode && before.end() >= range.offset() => {
                let end = before.end().max(range.end());
                *before = ByteRange::contiguous(before.offset(), end - before.offset());
            }
            _ => accesses.push((range, mode)),
        }
    }
    accesses.extend(strided);
}

#[cfg(test)]
mod tests {
    use super::*;
    use AccessMode::{Read, ReadWrite, Write};

    fn union(ops: &[(u64, u64, AccessMode)]) -> Vec<(u64, u64, AccessMode)> {
        let mut accesses = Vec::new();
        for &(from, to, mode) in ops {
            add(&mut accesses, ByteRange::contiguous(from, to - from), mode);
        }
        accesses.iter().map(|(range, mode)| (range.offset(), range.end(), *mode)).collect()
    }

    #[test]
    fn neighbours_to_which_the_same_is_done_are_one() {
        let mut accesses: Vec<_> =
            [(8, 12, Read), (0, 4, Write), (4, 8, Write), (2, 6, Write), (12, 20, Read), (30, 31, Read)]
                .map(|(from, to, mode)| (ByteRange::contiguous(from, to - from), mode))
                .into();
        accesses.push((ByteRange::strided(40, 2, 4, 3), Read));
        join_neighbours(&mut accesses);
        let shown: Vec<_> =
            accesses.iter().map(|(range, mode)| (range.offset(), range.end(), *mode)).collect();
        assert_eq!(shown, [(8, 20, Read), (30, 31, Read), (0, 8, Write), (40, 50, Read)]);
    }

    #[test]
    fn what_is_written_first_is_not_read_from_outside() {
        assert_eq!(union(&[(0, 8, Write), (0, 8, Read), (2, 4, ReadWrite)]), [(0, 8, Write)]);
        assert_eq!(union(&[(0, 8, Read), (0, 8, Write)]), [(0, 8, ReadWrite)]);
        assert_eq!(union(&[(0, 8, Read), (0, 8, Read), (2, 4, Read)]), [(0, 8, Read)]);
        assert_eq!(union(&[(0, 8, Read), (2, 4, Write)]), [(0, 8, Read), (2, 4, Write)]);
        assert_eq!(union(&[(2, 4, Write), (0, 8, Read)]), [(2, 4, Write), (0, 8, Read)]);
        assert_eq!(union(&[(0, 4, ReadWrite), (0, 4, Write)]), [(0, 4, ReadWrite)]);
    }
}
