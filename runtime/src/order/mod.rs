//! The order check: which op may touch which bytes after which. Pure: it knows no driver and no stream, only numbers.
//!
//! * [`clock`](self): what is before a stream, as a vector clock;
//! * `observed`: what is before everything, because the host has seen it;
//! * `range`: which bytes; `ledger`: what was done to an allocation; `check`: one op against all of that;
//! * `marks`: which bytes a refused write did not write, and whose work is not to read them;
//! * `conflict`: the refusal as text.
#![forbid(unsafe_code)]

mod check;
mod clock;
mod conflict;
mod ledger;
mod marks;
mod mode;
mod observed;
mod range;

pub(crate) use check::{
    Access, Asker, Disjoint, Entered, Entry, Finding, Findings, MAX_ACCESSES, Refused, Strictness,
    check_and_enter, disjoint, mark, overlap_within, overwrites, overwritten, overwritten_of, undo,
};
pub use clock::StreamId;
pub(crate) use clock::{Clock, Use};
pub use conflict::Conflict;
pub(crate) use conflict::{Named, describe, wait_call};
pub(crate) use ledger::Ledger;
pub(crate) use marks::{Mark, Marks, leaves_a_mark};
pub use mode::OrderMode;
pub(crate) use observed::{MAX_TICKET, Observed};
pub use range::ByteRange;
