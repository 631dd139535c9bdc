//! The order check of Warpline, which compares each op with the earlier uses of the same memory.
//! The crate is pure: it calls no driver and holds no stream, only numbers.
//!
//! A part of the [`warpline`](https://docs.rs/warpline) crate, which is what programs use.
//!
//! * `clock`: the work ordered before a stream, as a vector clock;
//! * `observed`: the work that the host has observed, which is before everything;
//! * `range`: the bytes of an operand;
//! * `ledger` and `book`: the history of an allocation;
//! * `records`: which op used which bytes, in a list or in trees;
//! * `uses`: the newest use by each stream;
//! * `check`: the check of one op against these histories;
//! * `marks`: the bytes that a refused write did not write, and the streams that must not read
//!   them;
//! * `conflict`: the text of a refusal.
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
mod records;
mod site;
mod uses;

pub use access::AccessMode;
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
pub use records::{Did, Record};
pub use site::Site;
