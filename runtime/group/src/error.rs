//! The errors of ranks that did not meet.

use std::fmt;
use std::time::Duration;
use warpline_ranks::Missing;

/// The reason why the ranks did not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeetError {
    /// Some ranks did not arrive at rank 0 in time.
    Missing {
        /// The ranks.
        missing: Missing,
        /// The time that they had.
        arrival: Duration,
    },
    /// Rank 0 was not reached, or did not answer, in time.
    NoHub {
        /// The address of rank 0.
        address: String,
        /// The time that this rank has waited.
        waited: Duration,
        /// The last error of a connection.
        why: String,
    },
    /// Rank 0 has refused this rank.
    Refused(String),
    /// The configuration cannot be right, or the system gives no thread or socket.
    Unusable(String),
}

impl fmt::Display for MeetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MeetError::Missing { missing, arrival } => {
                write!(f, "{missing} at rank 0 within {:.1} s", arrival.as_secs_f64())
            }
            MeetError::NoHub { address, waited, why } => {
                let seconds = waited.as_secs_f64();
                write!(f, "rank 0 did not answer at {address} within {seconds:.1} s: {why}")
            }
            MeetError::Refused(reason) => write!(f, "rank 0 refuses this rank: {reason}"),
            MeetError::Unusable(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for MeetError {}
