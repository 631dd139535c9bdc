//! From the statements of a module to kernels that are ready to run.
//!
//! `form` is the shape of an instruction that computes each lane alone. `integers`, `floats`,
//! `conversions` and `comparisons` list these instructions, `instruction` the others. `lower` turns
//! functions into ops, `names` finds what a name means, and `variables` holds a module's memory.

mod comparisons;
mod conversions;
mod error;
mod floats;
mod form;
mod instruction;
mod integers;
mod lower;
mod names;
mod variables;

pub use error::LowerError;
pub(crate) use lower::{address_of, lower};
pub(crate) use variables::Variables;
