//! The registers of a warp. A register is a row of 32 lanes.
//!
//! Registers of up to 32 bits are in narrow rows, those of 64 bits in wide rows, and a predicate is
//! one word with a bit for each lane. A lane never touches another lane's column, so lanes may be
//! at different places of the program.

use super::op::Row;
use std::ops::{Deref, DerefMut};

/// The number of lanes of a warp.
pub(crate) const LANES: usize = 32;

/// A set of lanes: bit i stands for lane i.
pub(crate) type Mask = u32;

/// Calls `each` with the number of each lane of a mask, in order.
#[inline(always)]
pub(crate) fn for_each_lane(mask: Mask, mut each: impl FnMut(usize)) {
    let mut left = mask;
    while left != 0 {
        each(left.trailing_zeros() as usize);
        left &= left - 1;
    }
}

/// The contents of a register in all lanes. It starts at a cache line, so that no vector of it
/// spans two lines.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Cells<C>(pub(crate) [C; LANES]);

impl<C> Deref for Cells<C> {
    type Target = [C; LANES];

    #[inline(always)]
    fn deref(&self) -> &[C; LANES] {
        &self.0
    }
}

impl<C> DerefMut for Cells<C> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [C; LANES] {
        &mut self.0
    }
}

/// The registers of a warp.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registers {
    pub(crate) narrow: Box<[Cells<u32>]>,
    pub(crate) wide: Box<[Cells<u64>]>,
    pub(crate) predicates: Box<[Mask]>,
    /// The lanes that do not exist, or have exited. Their columns may have any contents.
    pub(crate) dead: Mask,
}

impl Registers {
    pub(crate) fn new(narrow: usize, wide: usize, predicates: usize) -> Self {
        Registers {
            narrow: vec![Cells([0; LANES]); narrow].into(),
            wide: vec![Cells([0; LANES]); wide].into(),
            predicates: vec![0; predicates].into(),
            dead: 0,
        }
    }

    /// Copies registers of another warp.
    pub(crate) fn copy(&mut self, rows: &[(Kind, Row)], from: &Registers) {
        for &(kind, row) in rows {
            let at = row as usize;
            match kind {
                Kind::Narrow => self.narrow[at] = from.narrow[at],
                Kind::Wide => self.wide[at] = from.wide[at],
                Kind::Predicate => self.predicates[at] = from.predicates[at],
            }
        }
    }

    /// Returns whether a write to all lanes is as good as one to the lanes of `mask`.
    #[inline(always)]
    pub(crate) fn is_whole(&self, mask: Mask) -> bool {
        mask | self.dead == Mask::MAX
    }

    /// Sets a predicate in the lanes of `mask`.
    #[inline(always)]
    pub(crate) fn set_predicate(&mut self, at: Row, mask: Mask, bits: Mask) {
        let word = &mut self.predicates[at as usize];
        *word = *word & !mask | bits & mask;
    }

    /// Sets a register in the lanes of `mask` to what `value` returns for each lane.
    #[inline(always)]
    pub(crate) fn set<V: Value>(&mut self, at: Row, mask: Mask, value: impl Fn(usize) -> V) {
        let whole = self.is_whole(mask);
        let row = V::Cell::row_mut(self, at);
        if whole {
            for (lane, cell) in row.iter_mut().enumerate() {
                *cell = value(lane).cell();
            }
        } else {
            for (lane, cell) in row.iter_mut().enumerate() {
                let new = value(lane).cell();
                *cell = if mask >> lane & 1 == 1 { new } else { *cell };
            }
        }
    }

    /// Returns a register, to be read a part at a time.
    #[inline(always)]
    pub(crate) fn source<C: Cell>(&self, at: Row) -> Source<C> {
        Source(C::row(self, at))
    }

    /// Sets a register in the lanes of `mask`, a part at a time. `value` returns a part from the
    /// number of its first lane.
    ///
    /// The parts are small enough for the registers of the processor, so nothing is copied,
    /// although the register may be a source too.
    ///
    /// # Safety
    /// The sources that `value` reads are registers of `self`.
    #[inline(always)]
    pub(crate) unsafe fn set_parts<V: Value>(
        &mut self,
        at: Row,
        mask: Mask,
        value: impl Fn(usize) -> [V::Cell; PART],
    ) {
        let whole = self.is_whole(mask);
        let row: *mut [V::Cell; LANES] = V::Cell::row_mut(self, at);
        let part = |first: usize| {
            // SAFETY: add needs to stay within the row: `first` is less than LANES.
            let part = unsafe { row.cast::<V::Cell>().add(first) };
            part.cast::<[V::Cell; PART]>()
        };
        for first in (0..LANES).step_by(PART) {
            let new = value(first);
            // SAFETY: a reference needs valid memory that nothing else refers to: PART divides
            // LANES, so the part lies within the row, and `value` has returned.
            let part = unsafe { &mut *part(first) };
            *part = if whole { new } else { V::Cell::choose(mask >> first, new, *part) };
        }
    }

    /// Returns a register in all lanes. The copy lets a register be read and written by one
    /// instruction.
    #[inline(always)]
    pub(crate) fn get<C: Cell>(&self, at: Row) -> [C; LANES] {
        *C::row(self, at)
    }
}

/// The number of lanes that one vector instruction works on.
pub(crate) const PART: usize = 16;

/// A register that is read a part at a time, perhaps while it is written.
#[derive(Clone, Copy)]
pub(crate) struct Source<C>(*const [C; LANES]);

impl<C: Cell> Source<C> {
    /// Returns the lanes from `first` on, a multiple of `PART`.
    ///
    /// # Safety
    /// The registers that the source comes from still exist, and no reference to the row does.
    #[inline(always)]
    pub(crate) unsafe fn part(self, first: usize) -> [C; PART] {
        debug_assert!(first.is_multiple_of(PART) && first < LANES);
        // SAFETY: add needs to stay within the row, in which `first` is.
        let part = unsafe { self.0.cast::<C>().add(first) };
        // SAFETY: read needs a pointer to a part of the row: the row exists, as the caller
        // promises, and PART divides LANES.
        unsafe { part.cast::<[C; PART]>().read() }
    }
}

/// The kind of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Narrow,
    Wide,
    Predicate,
}

/// How a number in the text becomes a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Literal {
    Integer,
    F32,
    F64,
}

/// The contents of a row in one lane.
pub(crate) trait Cell: Copy {
    const KIND: Kind;
    fn row(registers: &Registers, at: Row) -> &[Self; LANES];
    fn row_mut(registers: &mut Registers, at: Row) -> &mut [Self; LANES];
    /// Extends with zeros, or leaves out the upper bits.
    fn of_u64(bits: u64) -> Self;
    fn to_u64(self) -> u64;
    /// Returns `new` in the lanes of a mask and `old` in the others. The mask has the first lane of
    /// the part as its bit 0.
    fn choose(mask: Mask, new: [Self; PART], old: [Self; PART]) -> [Self; PART];
}

impl Cell for u32 {
    const KIND: Kind = Kind::Narrow;

    #[inline(always)]
    fn row(registers: &Registers, at: Row) -> &[u32; LANES] {
        &registers.narrow[at as usize].0
    }

    #[inline(always)]
    fn row_mut(registers: &mut Registers, at: Row) -> &mut [u32; LANES] {
        &mut registers.narrow[at as usize].0
    }

    #[inline(always)]
    fn of_u64(bits: u64) -> u32 {
        bits as u32
    }

    #[inline(always)]
    fn to_u64(self) -> u64 {
        self.into()
    }

    #[inline(always)]
    fn choose(mask: Mask, new: [u32; PART], old: [u32; PART]) -> [u32; PART] {
        // Without a branch for each lane, so that the compiler uses vectors.
        let mut chosen = new;
        for lane in 0..PART {
            let keep = (mask >> lane & 1).wrapping_sub(1);
            chosen[lane] = new[lane] & !keep | old[lane] & keep;
        }
        chosen
    }
}

impl Cell for u64 {
    const KIND: Kind = Kind::Wide;

    #[inline(always)]
    fn row(registers: &Registers, at: Row) -> &[u64; LANES] {
        &registers.wide[at as usize].0
    }

    #[inline(always)]
    fn row_mut(registers: &mut Registers, at: Row) -> &mut [u64; LANES] {
        &mut registers.wide[at as usize].0
    }

    #[inline(always)]
    fn of_u64(bits: u64) -> u64 {
        bits
    }

    #[inline(always)]
    fn to_u64(self) -> u64 {
        self
    }

    #[inline(always)]
    fn choose(mask: Mask, new: [u64; PART], old: [u64; PART]) -> [u64; PART] {
        // Without a branch for each lane, so that the compiler uses vectors.
        let mut chosen = new;
        for lane in 0..PART {
            let keep = (u64::from(mask >> lane) & 1).wrapping_sub(1);
            chosen[lane] = new[lane] & !keep | old[lane] & keep;
        }
        chosen
    }
}

/// A value of an instruction's type. Values of less than 32 bits are in narrow rows, and the upper
/// bits of such a cell are 0.
pub(crate) trait Value: Copy {
    type Cell: Cell;
    const LITERAL: Literal;

    fn of(cell: Self::Cell) -> Self;
    fn cell(self) -> Self::Cell;
}

macro_rules! values {
    ($($value:ty, $cell:ty, $literal:ident, |$x:ident| $of:expr, $into:expr;)*) => {$(
        impl Value for $value {
            type Cell = $cell;
            const LITERAL: Literal = Literal::$literal;

            #[inline(always)]
            fn of($x: $cell) -> Self {
                $of
            }

            #[inline(always)]
            fn cell(self) -> $cell {
                let $x = self;
                $into
            }
        }
    )*};
}

values! {
    u8, u32, Integer, |x| x as u8, x.into();
    i8, u32, Integer, |x| x as i8, x as u8 as u32;
    u16, u32, Integer, |x| x as u16, x.into();
    i16, u32, Integer, |x| x as i16, x as u16 as u32;
    u32, u32, Integer, |x| x, x;
    i32, u32, Integer, |x| x as i32, x as u32;
    f32, u32, F32, |x| f32::from_bits(x), x.to_bits();
    u64, u64, Integer, |x| x, x;
    i64, u64, Integer, |x| x as i64, x as u64;
    f64, u64, F64, |x| f64::from_bits(x), x.to_bits();
}
