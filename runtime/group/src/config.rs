//! The properties of a rank and its group.

use crate::MeetError;
use std::time::Duration;
use warpline_ranks::{Check, Rank, Token};

/// The properties of a rank and its group.
#[derive(Clone, Debug)]
pub struct Config {
    /// The number of this rank.
    pub rank: Rank,
    /// The number of ranks.
    pub size: Rank,
    /// The address of rank 0, as `host:port`.
    pub address: String,
    /// The secret that all ranks have. It is sent as it is, so the network has to be private.
    pub token: Token,
    /// The moment at which calls are compared. All ranks need the same.
    pub check: Check,
    /// The time within which all ranks have to arrive. On rank 0 it counts from the start of the
    /// meeting, on the others until they reach rank 0, and then once more.
    pub arrival: Duration,
}

/// The most ranks of a group. Each has a connection to rank 0.
const MOST_RANKS: Rank = 1 << 16;

/// The longest token in bytes, so that it fits a message.
const LONGEST_TOKEN: usize = 1024;

impl Config {
    /// Returns an error that says what cannot be right.
    pub(crate) fn ensure_usable(&self) -> Result<(), MeetError> {
        let &Config { rank, size, .. } = self;
        let length = self.token.0.len();
        let problem = if rank >= size {
            format!("there is no rank {rank} in a group of {size} ranks; they are numbered from 0")
        } else if size > MOST_RANKS {
            format!("a group of {size} ranks is too large; the limit is {MOST_RANKS}")
        } else if length == 0 {
            "the token of the group is empty, so any process could join it".into()
        } else if length > LONGEST_TOKEN {
            format!("the token of the group has {length} bytes, and the limit is {LONGEST_TOKEN}")
        } else {
            return Ok(());
        };
        Err(MeetError::Unusable(problem))
    }
}
