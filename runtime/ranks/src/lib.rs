//! The protocol between the *ranks* of a group, the processes or threads that compute together.
//! The crate is pure: it has no socket, reads no clock and calls no engine.
//!
//! A part of the [`warpline`](https://docs.rs/warpline) crate, which is what programs use.
//!
//! # Rules
//! All ranks of a group make the same collective calls in the same order. An *engine*, such as
//! NCCL, does not check this: if one rank calls `all_reduce` and another one `broadcast`, both
//! wait forever, or read wrong bytes. So the ranks compare their calls:
//! 1. The calls of a group form [`Sequence`]s: the collective calls of all ranks, and for each
//!    pair of ranks the messages from one to the other. Calls of a sequence are numbered from 1.
//! 2. Each rank has a [`Member`]. For each sequence it keeps a [`Fingerprint`], a hash of all
//!    calls so far. If two ranks have the same fingerprint at a position, they have made the same
//!    calls up to there.
//! 3. Rank 0 also has the [`Hub`], which alone compares. A member sends it *reports*: a position,
//!    its fingerprint, and its call. Messages between a member and the hub keep their order.
//! 4. A position is *agreed* once all ranks of the sequence have reported the same fingerprint
//!    there. The engine gets only calls up to the member's [limit](Member::limit). With
//!    [`Check::Before`] the limit is the agreed position. With [`Check::After`] it is [`AHEAD`]
//!    beyond that, once the first [`FIRST`] calls of the sequence are agreed.
//! 5. The engine gets the calls of a rank in the order of the program: those of all sequences and
//!    all groups of a device wait in one queue. Calls of one submission go together, when all of
//!    them are within their limits.
//! 6. A member reports each call beyond the limit at once, but at most [`WINDOW`] of them. Within
//!    the limit it reports the multiples of [`STRIDE`], so busy ranks report the same positions,
//!    and the rest when it is older than [`DELAY`].
//! 7. In each [`Hub::tick`], ranks that have passed a position without a report of it are asked
//!    for it, as far as that is needed to compare all that was reported.
//! 8. If two ranks differ at a position, the hub bisects between it and the agreed one, until it
//!    has the first call in which they differ. Until then nothing else ends the group.
//! 9. A group fails once: the first [`Failure`] that the hub finds goes to all ranks and ends the
//!    group on each. A rank that aborts, or loses the hub, does not wait for that, and has its own
//!    failure. Groups of the same ranks fail together, since their calls count each other.
//!
//! # What it does not find
//! * A circle of messages (rank 0 sends to 1 before it receives, and rank 1 sends to 0 before it
//!   receives) has the same calls on both sides. Whether it blocks depends on the engine's
//!   buffers. The deadline finds it.
//! * The order of two groups is compared if they have the same ranks. If they share only some, the
//!   deadline finds that they wait for each other.
//! * A rank that does not answer is no failure by itself. A late call names it.
//
// Decision: docs/decisions/0070-ranks-compare-fingerprints-of-calls.md
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod call;
mod comparison;
mod failure;
mod hub;
mod meeting;
mod member;
mod message;
#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tests;
mod wire;

pub use call::{Call, Element, Fingerprint, Kind, Made, Reduce, Sequence};
pub use failure::{Behind, Failure};
pub use hub::Hub;
pub use meeting::{Arrival, Hello, LISTED, Meeting, Missing, Token, VERSION, Welcome};
pub use member::{AHEAD, Check, DELAY, FIRST, Member, Number, Refusal, STRIDE, TICK, WINDOW};
pub use message::{Report, ToHub, ToMember};
pub use wire::{LONGEST, Lines, decode, encode};

/// The number of a rank in its group, from 0.
pub type Rank = u32;

/// The time since any moment that the caller has chosen. Only differences matter.
pub type Time = std::time::Duration;
