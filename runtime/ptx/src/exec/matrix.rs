//! Matrices that the lanes of a warp hold together: `mma`, `ldmatrix`, `stmatrix` and `wmma`.
//! PTX ISA 9.7.14.
//!
//! # Fragments
//! Each lane holds some elements of a matrix in a list of registers, which is its fragment. For
//! `mma` the ISA states which ones; see [`Spread`]. For `wmma` it leaves that open, and here
//! element `i` of register `r` in a lane is the element with number `(r * 32 + lane) * n + i` of
//! the matrix by rows, where a register holds `n`. A fragment with more room than elements repeats
//! them.
//!
//! # Rounding
//! Products and sums are computed with `f64`, and rounded once to the type of the result. The ISA
//! asks for "at least single precision" and leaves the order of sums open. `f64` matrices are
//! summed by `fma` in the order of k.

use super::access::{Base, addresses};
use super::checks::Checker;
use super::context::Context;
use super::effect::Effect;
use super::memory::{Access, Element as Memory};
use super::op::{Flow, Op, Row};
use super::registers::{Kind, LANES, Mask, for_each_lane};
use super::vote::for_each_group;
use super::warp::Lanes;
use crate::number::Rounding;
use crate::number::half::{Bf16, F16, Half};
use std::cell::RefCell;

/// The type of a matrix' elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F16,
    Bf16,
    Tf32,
    F32,
    F64,
    S8,
    U8,
    S32,
}

impl Element {
    pub(crate) fn of(name: &str) -> Option<Self> {
        Some(match name {
            "f16" => Element::F16,
            "bf16" => Element::Bf16,
            "tf32" => Element::Tf32,
            "f32" => Element::F32,
            "f64" => Element::F64,
            "s8" => Element::S8,
            "u8" => Element::U8,
            "s32" => Element::S32,
            _ => return None,
        })
    }

    pub(crate) fn bits(self) -> u32 {
        match self {
            Element::S8 | Element::U8 => 8,
            Element::F16 | Element::Bf16 => 16,
            Element::Tf32 | Element::F32 | Element::S32 => 32,
            Element::F64 => 64,
        }
    }

    /// Returns how many elements a register holds.
    pub(crate) fn in_register(self) -> usize {
        if self == Element::F64 { 1 } else { 32 / self.bits() as usize }
    }

    /// Returns the value of the bits of an element.
    fn value(self, bits: u64) -> f64 {
        match self {
            Element::F16 => F16::widen(bits as u16).into(),
            Element::Bf16 => Bf16::widen(bits as u16).into(),
            // The lower bits are ignored. PTX ISA 5.2.3, .tf32: 10 bits of fraction.
            Element::Tf32 => f32::from_bits(bits as u32 & 0xffff_e000).into(),
            Element::F32 => f32::from_bits(bits as u32).into(),
            Element::F64 => f64::from_bits(bits),
            Element::S8 => (bits as i8).into(),
            Element::U8 => (bits as u8).into(),
            Element::S32 => (bits as i32).into(),
        }
    }

    /// Returns the bits of an element that holds a sum.
    fn bits_of(self, value: f64, is_saturated: bool) -> u64 {
        match self {
            Element::F16 => F16::narrow_f64(value, Rounding::Nearest).into(),
            Element::F64 => value.to_bits(),
            // Sums of products of bytes are exact.
            Element::S32 if is_saturated => u64::from(value as i32 as u32),
            Element::S32 => u64::from(value as i64 as u32),
            _ => u64::from((value as f32).to_bits()),
        }
    }
}

/// A matrix in the registers of a warp.
#[derive(Clone, Debug)]
pub(crate) struct Fragment {
    pub(crate) element: Element,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) place: Spread,
    /// The registers of a lane: wide ones for `f64`.
    pub(crate) registers: Vec<Row>,
}

/// The way in which a matrix is spread over lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    /// The factor `A` of `mma`. With `g = lane / 4` and `t = lane % 4`, a register holds
    /// neighbours in a row: element `i` of register `r` is in row `g + 8 * (r % (rows / 8))` and
    /// column `t * n + i + r / (rows / 8) * 4 * n`, where a register holds `n` elements.
    A,
    /// The factor `B` of `mma`: row `t * n + i + r * 4 * n`, column `g`.
    B,
    /// The sum of `mma`: elements `2 * j` and `2 * j + 1` of a lane are in row `g + 8 * j` and
    /// columns `2 * t` and `2 * t + 1`.
    Sum,
    /// Any matrix of `wmma`.
    Repeated,
}

impl Fragment {
    /// Returns the row and the column of element `i` of register `r` in a lane.
    fn place(&self, lane: usize, r: usize, i: usize) -> (usize, usize) {
        let (g, t, n) = (lane / 4, lane % 4, self.element.in_register());
        match self.place {
            Spread::A => {
                let down = (self.rows / 8).max(1);
                (g + 8 * (r % down), t * n + i + r / down * 4 * n)
            }
            Spread::B => (t * n + i + r * 4 * n, g),
            Spread::Sum => {
                let number = r * n + i;
                (g + 8 * (number / 2), 2 * t + number % 2)
            }
            Spread::Repeated => {
                let number = ((r * LANES + lane) * n + i) % (self.rows * self.columns);
                (number / self.columns, number % self.columns)
            }
        }
    }

    /// Returns how many registers of a lane the matrix needs at least.
    pub(crate) fn needed(&self) -> usize {
        (self.rows * self.columns).div_ceil(LANES * self.element.in_register())
    }

    /// Returns the bits of a lane's register.
    fn register(&self, lanes: &Lanes, r: usize, lane: usize) -> u64 {
        let row = self.registers[r] as usize;
        match self.element {
            Element::F64 => lanes.registers.wide[row][lane],
            _ => lanes.registers.narrow[row][lane].into(),
        }
    }

    /// Calls `each` with the place of each element, its register, lane and number there.
    fn for_each(&self, mut each: impl FnMut((usize, usize), usize, usize, usize)) {
        for r in 0..self.registers.len() {
            for lane in 0..LANES {
                for i in 0..self.element.in_register() {
                    each(self.place(lane, r, i), r, lane, i);
                }
            }
        }
    }

    /// Returns the values of the matrix, by rows.
    fn read(&self, lanes: &Lanes) -> Vec<f64> {
        let mut values = vec![0.0; self.rows * self.columns];
        self.for_each(|(row, column), r, lane, i| {
            let bits = self.register(lanes, r, lane) >> (i as u32 * self.element.bits());
            values[row * self.columns + column] = self.element.value(bits);
        });
        values
    }

    /// Sets the matrix in the lanes of `mask` to the bits of its elements, by rows.
    fn write(&self, lanes: &mut Lanes, mask: Mask, bits: &[u64]) {
        let mut words = vec![[0u64; LANES]; self.registers.len()];
        self.for_each(|(row, column), r, lane, i| {
            words[r][lane] |= bits[row * self.columns + column] << (i as u32 * self.element.bits());
        });
        for (r, words) in words.iter().enumerate() {
            self.set_register(lanes, r, mask, words);
        }
    }

    fn set_register(&self, lanes: &mut Lanes, r: usize, mask: Mask, words: &[u64; LANES]) {
        let row = self.registers[r];
        match self.element {
            Element::F64 => lanes.registers.set::<u64>(row, mask, |lane| words[lane]),
            _ => lanes.registers.set::<u32>(row, mask, |lane| words[lane] as u32),
        }
    }
}

/// An instruction on matrices.
#[derive(Clone, Debug)]
pub(crate) enum Matrix {
    /// `mma`, `wmma.mma`: `d = a * b + c`.
    Multiply { d: Fragment, a: Fragment, b: Fragment, c: Fragment, is_saturated: bool },
    /// `wmma.load`, `wmma.store`: a matrix in memory, whose rows or columns are `stride` elements
    /// apart. All lanes give the same address. `address` is a wide row for those of elements.
    Memory { fragment: Fragment, is_by_columns: bool, stride: Row, address: Row },
    /// `ldmatrix`, `stmatrix`: matrices of 8 × 8 elements of 16 bits, one in each register. Lane
    /// `8 * r + i` gives the address of row `i` of the matrix in register `r`.
    Rows { registers: Vec<Row>, is_transposed: bool, address: Row },
}

impl Matrix {
    /// Calls `each` with each register besides those in the fields of the op, and with true if it
    /// is a result. `is_load` tells an instruction that loads from one that stores.
    pub(crate) fn for_each_register(&self, is_load: bool, mut each: impl FnMut((Kind, Row), bool)) {
        let mut all = |fragment: &Fragment, is_result: bool| {
            let kind = if fragment.element == Element::F64 { Kind::Wide } else { Kind::Narrow };
            fragment.registers.iter().for_each(|row| each((kind, *row), is_result));
        };
        match self {
            Matrix::Multiply { d, a, b, c, .. } => {
                [a, b, c].into_iter().for_each(|source| all(source, false));
                all(d, true);
            }
            Matrix::Memory { fragment, stride, .. } => {
                all(fragment, is_load);
                each((Kind::Narrow, *stride), false);
            }
            Matrix::Rows { registers, .. } => {
                registers.iter().for_each(|row| each((Kind::Narrow, *row), is_load));
            }
        }
    }
}

/// Returns the instruction that an op stands for. Its number is in `extra`.
fn matrix_of<'a>(op: &Op, context: &Context<'a>) -> &'a Matrix {
    &context.launch.code.matrices[op.extra as usize]
}

/// `mma`, `wmma.mma`. All lanes take part; `e` is their mask.
pub(crate) fn multiply(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    for_each_group(lanes, op, mask, |lanes, group, _| {
        let Matrix::Multiply { d, a, b, c, is_saturated } = matrix_of(op, context) else { return };
        let (left, right, mut sum) = (a.read(lanes), b.read(lanes), c.read(lanes));
        let is_f64 = d.element == Element::F64;
        for row in 0..d.rows {
            for column in 0..d.columns {
                let sum = &mut sum[row * d.columns + column];
                for k in 0..a.columns {
                    let (x, y) = (left[row * a.columns + k], right[k * d.columns + column]);
                    *sum = if is_f64 { x.mul_add(y, *sum) } else { x * y + *sum };
                }
            }
        }
        let bits: Vec<u64> = sum.iter().map(|sum| d.element.bits_of(*sum, *is_saturated)).collect();
        d.write(lanes, group, &bits);
    })
}

/// Loads or stores an element of `bits` bits in each lane of `mask`. `row` is a wide row for the
/// addresses. Returns whether the lanes may access them.
fn access_elements(
    lanes: &mut Lanes,
    op: &Op,
    mask: Mask,
    context: &Context<'_>,
    (row, at): (Row, [u64; LANES]),
    (bits, access): (u32, Access),
    values: &mut [u64; LANES],
) -> bool {
    *lanes.registers.wide[row as usize] = at;
    let op = Op { a: row, base: Base::Wide, extra: 0, ..*op };
    let Some(found) = addresses(lanes, &op, mask, context, u64::from(bits / 8), access) else {
        return false;
    };
    let bytes = u64::from(bits / 8);
    let effect = if access == Access::Read { Effect::Load } else { Effect::Part };
    let check = |checker: &RefCell<Checker>| {
        checker.borrow_mut().part(lanes, &op, (mask, &found), bytes, effect, context)
    };
    if let Some((lane, kind)) = context.checker.and_then(check) {
        lanes.fail(lane, kind);
        return false;
    }
    for_each_lane(mask, |lane| {
        let (at, value) = (found[lane], &mut values[lane]);
        match bits {
            8 => access_element::<u8>(at, access, value),
            16 => access_element::<u16>(at, access, value),
            32 => access_element::<u32>(at, access, value),
            _ => access_element::<u64>(at, access, value),
        }
    });
    true
}

fn access_element<T: Memory>(at: u64, access: Access, value: &mut u64) {
    match access {
        // SAFETY: load needs an aligned address in memory that is valid for reads, which
        // `addresses` has checked for `access_elements`.
        Access::Read => *value = unsafe { T::load(at) }.extended(),
        // SAFETY: as above, for writes.
        Access::Write => unsafe { T::of_u64(*value).store(at) },
    }
}

/// `wmma.load`. `a` is the row of the address.
pub(crate) fn load(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    in_memory(lanes, op, mask, context, Access::Read)
}

/// `wmma.store`
pub(crate) fn store(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    in_memory(lanes, op, mask, context, Access::Write)
}

fn in_memory(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>, access: Access) -> Flow {
    let mut is_allowed = true;
    let flow = for_each_group(lanes, op, mask, |lanes, group, _| {
        let Matrix::Memory { fragment, is_by_columns, stride, address } = matrix_of(op, context) else {
            return;
        };
        let bits = fragment.element.bits();
        let starts = lanes.registers.get::<u64>(op.a);
        let strides = lanes.registers.get::<u32>(*stride);
        for r in 0..fragment.registers.len() {
            let mut words = [0u64; LANES];
            for i in 0..fragment.element.in_register() {
                let shift = i as u32 * bits;
                let at = std::array::from_fn(|lane| {
                    let (row, column) = fragment.place(lane, r, i);
                    let (line, at) = if *is_by_columns { (column, row) } else { (row, column) };
                    let elements = u64::from(strides[lane]) * line as u64 + at as u64;
                    starts[lane].wrapping_add(elements * u64::from(bits / 8))
                });
                let mut values = std::array::from_fn(|lane| fragment.register(lanes, r, lane) >> shift);
                is_allowed &=
                    access_elements(lanes, op, group, context, (*address, at), (bits, access), &mut values);
                if !is_allowed {
                    return;
                }
                for (word, value) in words.iter_mut().zip(values) {
                    *word |= (value & (u64::MAX >> (64 - bits))) << shift;
                }
            }
            if access == Access::Read {
                fragment.set_register(lanes, r, group, &words);
            }
        }
    });
    if is_allowed { flow } else { Flow::Fault }
}

/// `ldmatrix`: element `i` of a lane's register is in row `lane / 4` and column `lane % 4 * 2 + i`
/// of the matrix, or of its transpose. PTX ISA 9.7.14.5.15. `a` is the row of the address.
pub(crate) fn load_rows(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    rows(lanes, op, mask, context, Access::Read)
}

/// `stmatrix`. PTX ISA 9.7.14.5.16.
pub(crate) fn store_rows(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    rows(lanes, op, mask, context, Access::Write)
}

fn rows(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>, access: Access) -> Flow {
    let mut is_allowed = true;
    let flow = for_each_group(lanes, op, mask, |lanes, group, _| {
        let Matrix::Rows { registers, is_transposed, address } = matrix_of(op, context) else { return };
        let starts = lanes.registers.get::<u64>(op.a);
        for (r, register) in registers.iter().enumerate() {
            let before = lanes.registers.get::<u32>(*register);
            let mut words = [0; LANES];
            for i in 0..2 {
                let at = std::array::from_fn(|lane| {
                    let (row, column) = (lane / 4, lane % 4 * 2 + i);
                    let (row, column) = if *is_transposed { (column, row) } else { (row, column) };
                    starts[8 * r + row].wrapping_add(2 * column as u64)
                });
                let mut values = before.map(|word| u64::from(word >> (16 * i)));
                is_allowed &=
                    access_elements(lanes, op, group, context, (*address, at), (16, access), &mut values);
                if !is_allowed {
                    return;
                }
                for (word, value) in words.iter_mut().zip(values) {
                    *word |= (value as u32 & 0xffff) << (16 * i);
                }
            }
            if access == Access::Read {
                lanes.registers.set::<u32>(*register, group, |lane| words[lane]);
            }
        }
    });
    if is_allowed { flow } else { Flow::Fault }
}
