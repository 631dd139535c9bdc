//! A fragment: lanes of a warp at the same place of the program, in the same calls.
//!
//! The rules by which fragments split, join and run are in `warp`.

use super::code::{Code, Function};
use super::registers::{Mask, Registers, for_each_lane};
use std::cmp::Reverse;

/// A barrier at which threads wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Barrier {
    /// The number of the barrier.
    pub(crate) id: u32,
    /// The number of threads that have to arrive. `None` means all threads of the block.
    pub(crate) threads: Option<u32>,
}

/// The condition that a fragment waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    Nothing,
    At(Barrier),
    /// For these lanes, unless they have exited.
    For(Mask),
}

/// A call that has not returned.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    /// The place after the call.
    pub(super) back: u32,
    /// The offset in local memory of the caller's frame.
    pub(super) frame: u64,
    /// The number of the callee.
    pub(super) callee: u32,
    /// The registers of an earlier call of the same function, which this call overwrites.
    pub(super) saved: Option<Box<Registers>>,
}

impl Frame {
    fn is_same(&self, other: &Frame) -> bool {
        self.back == other.back && self.frame == other.frame && self.callee == other.callee
    }

    /// Takes the saved registers of the lanes of `mask` from another frame of the same call.
    fn join(&mut self, other: &Frame, mask: Mask) {
        let (Some(ours), Some(theirs)) = (&mut self.saved, &other.saved) else { return };
        for (ours, theirs) in ours.narrow.iter_mut().zip(&theirs.narrow) {
            for_each_lane(mask, |lane| ours[lane] = theirs[lane]);
        }
        for (ours, theirs) in ours.wide.iter_mut().zip(&theirs.wide) {
            for_each_lane(mask, |lane| ours[lane] = theirs[lane]);
        }
        for (ours, theirs) in ours.predicates.iter_mut().zip(&theirs.predicates) {
            *ours = *ours & !mask | theirs & mask;
        }
    }
}

/// Lanes at the same place.
#[derive(Clone, Debug)]
pub(super) struct Fragment {
    pub(super) place: u32,
    pub(super) mask: Mask,
    pub(super) wait: Wait,
    pub(super) calls: Vec<Frame>,
    /// The offset in local memory of the running function's frame.
    pub(super) frame: u64,
    /// The number of ops that it has run since it last let others run.
    pub(super) ran: u32,
    /// When it last let others run.
    pub(super) turn: u64,
}

impl Fragment {
    /// Returns all lanes of a warp at the start of the kernel.
    pub(super) fn first(code: &Code, mask: Mask) -> Self {
        let place = code.functions[0].entry;
        Fragment { place, mask, wait: Wait::Nothing, calls: Vec::new(), frame: 0, ran: 0, turn: 0 }
    }

    /// Returns the order of rule 1 of `warp`: the smallest runs first.
    pub(super) fn order(&self) -> (Reverse<usize>, u32) {
        (Reverse(self.calls.len()), self.place)
    }

    pub(super) fn meets(&self, other: &Fragment) -> bool {
        self.place == other.place
            && self.calls.len() == other.calls.len()
            && self.calls.iter().zip(&other.calls).all(|(a, b)| a.is_same(b))
    }

    /// Takes over the lanes of a fragment at the same place.
    pub(super) fn join(&mut self, other: Fragment) {
        for (ours, theirs) in self.calls.iter_mut().zip(&other.calls) {
            ours.join(theirs, other.mask);
        }
        self.mask |= other.mask;
        self.wait = Wait::Nothing;
    }
}

/// Returns a copy of the registers of a function.
pub(super) fn saved(registers: &Registers, function: &Function) -> Registers {
    fn part<T: Copy>(rows: &[T], (first, len): (u32, u32)) -> Box<[T]> {
        rows[first as usize..(first + len) as usize].into()
    }
    Registers {
        narrow: part(&registers.narrow, function.narrow),
        wide: part(&registers.wide, function.wide),
        predicates: part(&registers.predicates, function.predicates),
        dead: 0,
    }
}

/// Copies saved registers of a function back, in the lanes of `mask`.
pub(super) fn restore(registers: &mut Registers, function: &Function, saved: &Registers, mask: Mask) {
    let rows = registers.narrow[function.narrow.0 as usize..].iter_mut();
    for (row, saved) in rows.zip(&saved.narrow) {
        for_each_lane(mask, |lane| row[lane] = saved[lane]);
    }
    let rows = registers.wide[function.wide.0 as usize..].iter_mut();
    for (row, saved) in rows.zip(&saved.wide) {
        for_each_lane(mask, |lane| row[lane] = saved[lane]);
    }
    let words = registers.predicates[function.predicates.0 as usize..].iter_mut();
    for (word, saved) in words.zip(&saved.predicates) {
        *word = *word & !mask | saved & mask;
    }
}
