//! The order check of Warpline, which compares each op with the earlier uses of the same memory.
//! The crate is pure: it calls no driver and holds no stream, only numbers.
//!
//! A part of the [`warpline`](https://docs.rs/warpline) crate, which is what programs use.
//!
//! # Words
//! A stream is a queue of **ops**, and each op that was enqueued has a **ticket**: 1, 2, 3 and so
//! on. One stream **waits** for a point of another one. Work up to that point is then ordered
//! before all later work of the first stream: there is an **edge**. The program **states** edges,
//! and the runtime adds some. So a stream has a *stated* clock, which alone decides what is
//! refused, and a *known* clock, which has the edges of the runtime too. The host **observes** an
//! op when it learns that the op has finished, in a way that the program can see, such as an
//! `.await`. A stream that is **closed** takes no more ops; it is **gone** once all of its work has
//! finished.
//!
//! # Modules
//! In this order they explain each other:
//! * `access`, `site`: the ways of using memory, and source lines;
//! * `range`: the bytes of an operand, and whether two ranges share a byte;
//! * `clock`: the work ordered before a stream, as a vector clock;
//! * `observed`: the work that the host has observed, which is before everything;
//! * `records`: which op used which bytes, in a list or in trees, and which records must stay;
//! * `uses`: the newest use by each stream, for whoever frees the memory or waits for all uses;
//! * `book` and `ledger`: the history of an allocation, and who may open it when;
//! * `check`: whether an op is ordered after all earlier uses that concern it;
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
mod sync;
#[cfg(test)]
mod tests;
mod uses;

pub use access::AccessMode;
pub use check::{
    Access, Asker, Disjoint, Ensured, Entered, Entry, Finding, Findings, MAX_ACCESSES, Refused, Strictness,
    check_and_enter, disjoint, mark, overlap_within, overwrites, overwritten, overwritten_of, undo,
};
pub use clock::{Clock, StreamId, Ticket, Use};
pub use conflict::{Conflict, Named, describe, wait_call};
pub use ledger::Ledger;
pub use marks::{Cause, FoundMark, Mark, Marks};
pub use observed::{MAX_TICKET, Observed};
pub use range::ByteRange;
pub use records::{Did, Record};
pub use site::Site;
