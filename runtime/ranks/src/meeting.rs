//! The meeting of a group's ranks: each one connects to rank 0 and says its number.

use crate::{Check, Rank};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The version of the messages. Ranks with different ones do not meet.
pub const VERSION: u32 = 1;

/// The first message on each connection to rank 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// A secret that all ranks have, and no other program. Connections without it get no answer.
    pub token: Token,
    /// The number of the rank.
    pub rank: Rank,
    /// The number of ranks.
    pub size: Rank,
    /// The moment at which calls are compared.
    pub check: Check,
}

/// A secret, which is not printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(pub String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The answer to a [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Welcome {
    /// All ranks have arrived.
    Complete,
    /// This rank cannot be part of the group.
    Refused(String),
    /// Not all ranks have arrived in time.
    Missing(Missing),
}

/// The error of a meeting that did not become complete in time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// The ranks that did not arrive, at most [`LISTED`].
    pub ranks: Vec<Rank>,
    /// The number of further ranks that did not arrive.
    pub more: Rank,
    /// The number of ranks of the group.
    pub size: Rank,
    /// The reasons for which ranks were refused: perhaps these are the missing ones.
    pub refused: Vec<String>,
}

/// The fate of a connection after its [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Its rank has arrived, and waits until the meeting is complete.
    Arrived,
    /// It gets this answer, and is closed.
    Refused(Welcome),
    /// It does not know the token. It gets no answer, and is closed.
    Stranger,
}

/// The ranks that have arrived at rank 0. Its owner numbers the connections.
#[derive(Debug)]
pub struct Meeting {
    own: Hello,
    arrived: BTreeMap<Rank, u64>,
    refused: Vec<String>,
}

/// The missing ranks that an error lists. So it fits a message, whatever the size of the group.
pub const LISTED: usize = 16;

/// The refusals that a meeting remembers.
const REMEMBERED: usize = 8;

impl Meeting {
    /// Returns a meeting at which rank 0 has arrived, with its own hello.
    ///
    /// # Errors
    /// If the token is empty, or the group has no ranks.
    pub fn new(own: Hello) -> Result<Meeting, String> {
        if own.token.0.is_empty() {
            return Err("the token of the group is empty, so any process could join it".into());
        }
        if own.rank != 0 || own.size == 0 {
            let (rank, size) = (own.rank, own.size);
            return Err(format!("rank {rank} of {size} ranks cannot be rank 0, where the ranks meet"));
        }
        Ok(Meeting { own, arrived: BTreeMap::new(), refused: Vec::new() })
    }

    /// Takes the hello of a connection.
    pub fn arrive(&mut self, connection: u64, hello: &Hello) -> Arrival {
        if !is_same(&self.own.token.0, &hello.token.0) {
            return Arrival::Stranger;
        }
        if let Some(reason) = self.reason_against(connection, hello) {
            if self.refused.len() < REMEMBERED {
                self.refused.push(reason.clone());
            }
            return Arrival::Refused(Welcome::Refused(reason));
        }
        self.arrived.insert(hello.rank, connection);
        Arrival::Arrived
    }

    /// Notes that a connection has ended. Its rank may arrive again.
    pub fn leave(&mut self, connection: u64) {
        self.arrived.retain(|_, other| *other != connection);
    }

    /// Returns whether all ranks have arrived.
    pub fn is_complete(&self) -> bool {
        self.arrived.len() as u64 + 1 == u64::from(self.own.size)
    }

    /// Returns the ranks that have not arrived, as an error.
    pub fn missing(&self) -> Missing {
        let mut missing = (1..self.own.size).filter(|rank| !self.arrived.contains_key(rank));
        let ranks = missing.by_ref().take(LISTED).collect();
        Missing { ranks, more: missing.count() as Rank, size: self.own.size, refused: self.refused.clone() }
    }

    fn reason_against(&self, connection: u64, hello: &Hello) -> Option<String> {
        let Hello { version, rank, size, check, .. } = *hello;
        let own = &self.own;
        if version != own.version {
            let ours = own.version;
            return Some(format!(
                "rank {rank} has version {version} of the protocol between ranks, and rank 0 version {ours}; \
                 build all ranks with the same version of warpline"
            ));
        }
        if size != own.size {
            return Some(format!("rank {rank} expects {size} ranks, and rank 0 expects {}", own.size));
        }
        if rank >= size {
            return Some(format!(
                "there is no rank {rank} in a group of {size} ranks; they are numbered from 0"
            ));
        }
        if let Some((other, _)) = self.arrived.iter().find(|(_, known)| **known == connection) {
            return Some(format!("a connection said that it is rank {other}, and then rank {rank}"));
        }
        if rank == 0 || self.arrived.contains_key(&rank) {
            return Some(format!("rank {rank} has arrived already; two processes have the same rank"));
        }
        (check != own.check).then(|| {
            format!(
                "rank {rank} has Check::{check:?}, and rank 0 Check::{:?}; all ranks need the same",
                own.check
            )
        })
    }
}

/// Compares secrets in a time that depends on their lengths alone, so that a stranger cannot guess
/// a token letter by letter.
fn is_same(one: &str, other: &str) -> bool {
    let difference =
        one.bytes().zip(other.bytes()).fold(0, |difference, (one, other)| difference | (one ^ other));
    std::hint::black_box(difference) == 0 && one.len() == other.len()
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Missing { ranks, more, size, refused } = self;
        match (ranks.as_slice(), more) {
            ([], _) => write!(f, "no rank of {size} is missing")?,
            ([rank], 0) => write!(f, "rank {rank} of {size} has not arrived")?,
            ([most @ .., last], 0) => {
                write!(f, "ranks {} and {last} of {size} have not arrived", list(most))?
            }
            (ranks, more) => write!(f, "ranks {} and {more} more of {size} have not arrived", list(ranks))?,
        }
        refused.iter().try_for_each(|reason| write!(f, "; refused: {reason}"))
    }
}

fn list(ranks: &[Rank]) -> String {
    ranks.iter().map(Rank::to_string).collect::<Vec<_>>().join(", ")
}

impl std::error::Error for Missing {}
