//! The messages between a member and the hub.

use crate::{Failure, Fingerprint, Made, Rank, Sequence, Time};
use serde::{Deserialize, Serialize};

/// The fingerprint of a sequence at a position, with the call that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The sequence.
    pub sequence: Sequence,
    /// The number of the call in its sequence, from 1.
    pub position: u64,
    /// The fingerprint of all calls up to this one.
    pub fingerprint: Fingerprint,
    /// The call.
    pub made: Made,
}

/// A message of a member to the hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToHub {
    /// A call, unasked or as an answer.
    Report(Report),
    /// The rank has nothing to report.
    Alive,
    /// A call is at the head of its stream for longer than the deadline.
    Late {
        /// The sequence of the call.
        sequence: Sequence,
        /// Its position.
        position: u64,
        /// The call.
        made: Made,
        /// The time that it has been there.
        waited: Time,
        /// The deadline of the rank.
        deadline: Time,
    },
    /// The rank will make no calls for this long, for example while it writes a checkpoint.
    Pause(Time),
    /// The program of the rank has ended the group.
    Abort {
        /// The program's words.
        reason: String,
    },
    /// The rank has dropped its group and makes no more calls.
    Leave,
}

/// A message of the hub to a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToMember {
    /// All ranks of the sequence have made the same calls up to this position.
    Agreed {
        /// The sequence.
        sequence: Sequence,
        /// The position.
        position: u64,
    },
    /// The hub needs a report of this position.
    Ask {
        /// The sequence.
        sequence: Sequence,
        /// The position, after the agreed one.
        position: u64,
    },
    /// A late call is excused, since a rank pauses or has paused.
    Paused {
        /// The rank that pauses.
        rank: Rank,
        /// The rest of its pause, and then once more the deadline of the late call.
        rest: Time,
    },
    /// The group has failed.
    Failed(Failure),
}
