//! A lowered instruction.

use super::access::{Base, Window};
use super::context::Context;
use super::registers::Mask;
use super::warp::Lanes;

/// The number of a narrow row, a wide row or a predicate.
pub(crate) type Row = u32;

/// Runs an instruction for the lanes of a mask, which is not empty.
///
/// # Safety
/// The processor has the instructions that the function was compiled for
/// ([`Level`](super::lanes::Level)).
pub(crate) type Run = unsafe fn(&mut Lanes, &Op, Mask, &Context<'_>) -> Flow;

/// A lowered instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) run: Run,
    /// The predicate that decides which lanes run it.
    pub(crate) guard: Guard,
    /// The destination, or a first source if there is none.
    pub(crate) d: Row,
    pub(crate) a: Row,
    pub(crate) b: Row,
    pub(crate) c: Row,
    pub(crate) e: Row,
    /// The memory to which addresses point, and the form in which they are given.
    pub(crate) window: Window,
    pub(crate) base: Base,
    /// True if it has an [`Effect`](super::effect::Effect) that checks watch.
    pub(crate) is_watched: bool,
    /// A constant whose meaning depends on the instruction: an offset, a target, a table.
    pub(crate) extra: u64,
}

impl Op {
    /// Returns an op that runs `run`, with nothing else set.
    pub(crate) fn new(run: Run) -> Self {
        let (window, base) = (Window::Generic, Base::None);
        let (guard, is_watched) = (Guard::ALWAYS, false);
        Op { run, guard, d: 0, a: 0, b: 0, c: 0, e: 0, window, base, is_watched, extra: 0 }
    }
}

/// The predicate of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guard(u32);

impl Guard {
    /// All lanes run the instruction.
    pub(crate) const ALWAYS: Guard = Guard(u32::MAX);

    pub(crate) fn new(predicate: Row, is_negated: bool) -> Self {
        Guard(predicate << 1 | u32::from(is_negated))
    }

    /// Returns whether a predicate decides.
    pub(crate) fn reads(self, predicate: Row) -> bool {
        self != Guard::ALWAYS && self.0 >> 1 == predicate
    }

    /// Returns the lanes of `active` that run the instruction.
    #[inline(always)]
    pub(crate) fn of(self, active: Mask, predicates: &[Mask]) -> Mask {
        if self == Guard::ALWAYS {
            return active;
        }
        let bits = predicates[(self.0 >> 1) as usize];
        active & if self.0 & 1 == 1 { !bits } else { bits }
    }
}

/// The next step of a warp after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// It goes on with the next one.
    Next,
    /// The lanes that ran it go on at `extra`.
    Jump,
    /// Each lane that ran it goes on at the place that [`Lanes::targets`] holds for it.
    JumpEach,
    /// The lanes that ran it call the function with the number `extra`.
    Call,
    /// Each lane that ran it calls the function whose number [`Lanes::targets`] holds for it.
    CallEach,
    /// The lanes that ran it return from a function. From a kernel they exit.
    Return,
    /// The lanes that ran it exit.
    Exit,
    /// The lanes that ran it wait at a barrier of the block.
    WaitAtBarrier,
    /// The lanes of [`Lanes::waits`] wait for others of the warp, then run it again.
    WaitForLanes,
    /// [`Lanes::fault`] says what failed.
    Fault,
}
