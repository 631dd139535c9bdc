//! The reasons that end a group, the same on all ranks.

use crate::{Made, Rank, Sequence, Time};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The reason that ended a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// Two ranks made different calls.
    Mismatch {
        /// The sequence of the calls.
        sequence: Sequence,
        /// The position up to which both made the same calls. The first difference is at the next
        /// one, unless a rank did not answer.
        equal: u64,
        /// The position of the two calls.
        position: u64,
        /// A rank, and its call.
        one: (Rank, Made),
        /// The other rank, and its call.
        other: (Rank, Made),
    },
    /// A call took longer than the group's deadline.
    Late {
        /// The rank whose call is late, and the call.
        by: (Rank, Made),
        /// The position of the call.
        position: u64,
        /// The time that it was at the head of its stream.
        waited: Time,
        /// The rank with the fewest calls, of several the one that has made no new call for
        /// longest. If all have reported this call: the rank that does not answer, if there is
        /// one.
        behind: Option<Behind>,
    },
    /// A rank is gone: its connection ended, or it does not answer.
    Lost {
        /// The rank.
        rank: Rank,
        /// Its last reported call.
        last: Option<Made>,
        /// The sign of the loss.
        why: String,
    },
    /// A rank sent a message that the protocol does not allow. It has other code, or memory
    /// errors.
    Broken {
        /// The rank.
        rank: Rank,
        /// The message.
        why: String,
    },
    /// A rank dropped its group while others still made calls with it.
    Left {
        /// The rank that left.
        rank: Rank,
        /// Its number of calls of the sequence.
        calls: u64,
        /// Another rank, and its call after these.
        by: (Rank, Made),
        /// The position of that call.
        position: u64,
    },
    /// The program of a rank ended the group.
    Aborted {
        /// The rank.
        rank: Rank,
        /// The program's words.
        reason: String,
    },
}

/// The rank that a late call waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Behind {
    /// The rank.
    pub rank: Rank,
    /// The number of calls of the sequence that it has reported.
    pub calls: u64,
    /// Its last reported call, of any sequence.
    pub last: Option<Made>,
    /// The time since its last message.
    pub silent: Time,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Mismatch { sequence, equal, position, one, other } => {
                let ((rank, made), (other, their)) = (one, other);
                let call = sequence.name(*position);
                write!(f, "{call} differs: rank {rank} made {made}, and rank {other} made {their}")?;
                if made.call.beside != their.call.beside {
                    let (ours, theirs) = (made.call.beside, their.call.beside);
                    write!(
                        f,
                        "; before it, rank {rank} made {ours} calls of other groups, and rank {other} {theirs}"
                    )?;
                }
                if made.call.collectives != their.call.collectives {
                    let (ours, theirs) = (made.call.collectives, their.call.collectives);
                    write!(
                        f,
                        "; before it, rank {rank} made {ours} collective calls, and rank {other} {theirs}"
                    )?;
                }
                if made.call.joined != their.call.joined {
                    let (joined, alone) = if made.call.joined { (rank, other) } else { (other, rank) };
                    write!(
                        f,
                        "; rank {joined} submits it with the call before it, and rank {alone} does not"
                    )?;
                }
                if equal.saturating_add(1) < *position {
                    write!(f, "; the first difference is after call {equal}")?;
                }
                f.write_str(". All ranks have to make the same calls in the same order")
            }
            Failure::Late { by: (rank, made), position, waited, behind } => {
                write!(f, "call {position} of rank {rank} is late after {}: {made}. ", seconds(*waited))?;
                let Some(Behind { rank, calls, last, silent }) = behind else {
                    return f.write_str(
                        "All ranks have reported this call and answer; the engine has not finished it",
                    );
                };
                if calls < position {
                    write!(f, "Rank {rank} has reported {calls} of these calls")?;
                } else {
                    write!(f, "All ranks have reported this call, but rank {rank} does not answer")?;
                }
                if let Some(made) = last {
                    write!(f, ". The last call of rank {rank} is {made}")?;
                }
                write!(f, ". It was last heard of {} ago", seconds(*silent))
            }
            Failure::Lost { rank, last, why } => {
                write!(f, "rank {rank} is lost: {why}")?;
                match last {
                    Some(made) => write!(f, ". Its last reported call is {made}"),
                    None => Ok(()),
                }
            }
            Failure::Broken { rank, why } => {
                write!(
                    f,
                    "rank {rank} broke the protocol between ranks: {why}. Do all ranks run the same program?"
                )
            }
            Failure::Left { rank, calls, by: (by, made), position } => write!(
                f,
                "rank {rank} left the group after {calls} calls, but rank {by} made call {position}: {made}. \
                 A rank may leave once all have made their last call"
            ),
            Failure::Aborted { rank, reason } => write!(f, "rank {rank} ended the group: {reason}"),
        }
    }
}

fn seconds(time: Time) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

impl std::error::Error for Failure {}
