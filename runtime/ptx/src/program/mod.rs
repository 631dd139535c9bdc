//! From the statements of a module to kernels that are ready to run.
//!
//! `lower` turns functions into ops, a statement at a time, and `emit` adds them. `instruction`
//! knows all instructions, and `operands` and `names` what stands in them. `form` is the shape of
//! an instruction that computes each lane alone; `integers`, `packed`, `floats`, `conversions` and
//! `comparisons` list these. `effects` is what checks watch, `labels` finds the targets of jumps,
//! `early` the ops that run once for many warps or blocks, `sharing` the registers that share a
//! row, and `variables` holds a module's memory.

mod comparisons;
mod conversions;
mod early;
mod effects;
mod emit;
mod error;
mod floats;
mod form;
mod inlining;
mod instruction;
mod integers;
mod labels;
mod lower;
mod names;
mod operands;
mod packed;
mod sharing;
mod variables;

pub use error::LowerError;
pub(crate) use lower::{address_of, lower};
pub(crate) use variables::Variables;
