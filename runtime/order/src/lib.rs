//! The order check of Warpline: which op may touch which bytes after which. Pure: it knows no driver and no stream, only numbers.
//!
//! A part of the [`warpline`](https://docs.rs/warpline) crate, which is what programs use.
//!
//! * `clock`: what is before a stream, as a vector clock;
//! * `observed`: what is before everything, because the host has seen it;
//! * `range`: which bytes; `ledger` and `book`: what was done to an allocation; `check`: one op against all of that;
//! * `marks`: which bytes a refused write did not write, and whose work is not to read them;
//! * `conflict`: the refusal as text.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod access;
mod book;
mod check;
mod clock;
mod conflict;
mod ledger;
mod marks;
mod observed;
mod range;
mod site;

pub use access::AccessMode;
pub use book::{Did, Record};
pub use check::{
    Access, Asker, Disjoint, Entered, Entry, Finding, Findings, MAX_ACCESSES, Refused, Strictness,
    check_and_enter, disjoint, mark, overlap_within, overwrites, overwritten, overwritten_of, undo,
};
pub use clock::{Clock, StreamId, Ticket, Use};
pub use conflict::{Conflict, Named, describe, wait_call};
pub use ledger::Ledger;
pub use marks::{Cause, Mark, Marks};
pub use observed::{MAX_TICKET, Observed};
pub use range::ByteRange;
pub use site::Site;
