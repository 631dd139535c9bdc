//! Arithmetic with PTX's rounding, NaN and saturation, as functions of one value.
//!
//! The executor calls one of these functions for each lane of a warp. All of them are inlined and
//! nearly free of branches, so that a loop over 32 lanes becomes vector instructions. Rounding
//! modes and the like are arguments, which are constants in such a loop.
//!
//! # Rules
//! 1. No function panics.
//! 2. Results are the same on every host, also the bits of a NaN.
//! 3. A value of `.f16` or `.bf16` is a `u16` with its bits. Packed forms call a function twice.
//! 4. `.ftz`, `.sat` and `.relu` are functions of their own. `add.rn.ftz.sat.f32` is
//!    `saturate_f32(flush_f32(add_f32(flush_f32(a), flush_f32(b), Rounding::Nearest)))`.
//!
//! # Sources
//! Sections are those of the PTX ISA 9.0. Where it leaves something open, the docs of the function
//! state the choice made here, if possible the one of NVIDIA's GPUs.
#![cfg_attr(not(test), expect(dead_code, reason = "the executor uses them"))]

pub(crate) mod approx;
pub(crate) mod convert;
#[cfg(test)]
mod exact;
pub(crate) mod float;
pub(crate) mod half;
pub(crate) mod integer;
mod rounding;

pub(crate) use rounding::Rounding;
