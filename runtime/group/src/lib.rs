//! Connections between the ranks of a group: they meet over TCP, and a thread runs the
//! [protocol between ranks](warpline_ranks).
//!
//! A part of the [`warpline`](https://docs.rs/warpline) crate, which is what programs use.
//!
//! # Rules
//! 1. Rank 0 listens ([`Session::host`]) and the others connect to it ([`Session::join`]). Both
//!    return when all ranks have arrived, or an error that names the missing ones.
//! 2. A connection that does not say a right [`Hello`](warpline_ranks::Hello) in time is closed
//!    without an answer. Of such connections only so many wait at a time, and the oldest makes
//!    room for a new one. So a stranger gets nothing, and delays no rank.
//! 3. Each session has one thread, `warpline-group`. It owns the connections and, on rank 0, the
//!    hub. The member is under a lock, which callers and the thread hold for a few steps and never
//!    while anything waits. Nothing of the owner is called with the lock held.
//! 4. Messages to a connection wait in a queue of bounded length. A rank whose queue is full is
//!    lost: it takes no messages, and the hub cannot wait for it.
//! 5. A tick that comes late is skipped: the process was stopped, and takes first what has arrived
//!    meanwhile.
//! 6. The thread ends when this rank has left or the group has failed, and the other sides have
//!    closed their connections or [`FAREWELL`] has passed. On rank 0 all ranks have left.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod config;
mod connection;
mod error;
mod meet;
mod session;

pub use config::Config;
pub use error::MeetError;
pub use session::{FAREWELL, Session};
