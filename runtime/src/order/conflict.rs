//! How a refusal reads.

use super::clock::{StreamId, Use};
use super::ledger::Did;
use crate::site::Site;
use crate::timeline::Ticket;
use std::fmt;
use std::sync::Arc;

/// One earlier use of memory that a refused op is not ordered after.
#[derive(Clone, Debug)]
pub struct Conflict {
    pub(crate) op: Site,
    pub(crate) writes: bool,
    pub(crate) on: Arc<str>,
    pub(crate) earlier: Site,
    pub(crate) did: Did,
    pub(crate) earlier_on: Arc<str>,
    pub(crate) used: Use,
    pub(crate) observed: Option<Ticket>,
    /// Whether both ops are of one capture.
    pub(crate) captured: bool,
}

impl Conflict {
    /// The op that was refused.
    pub fn op(&self) -> Site {
        self.op
    }

    /// The earlier op.
    pub fn earlier(&self) -> Site {
        self.earlier
    }

    /// The label of the stream the earlier op is on.
    pub fn earlier_stream(&self) -> &str {
        &self.earlier_on
    }

    /// That stream's id.
    pub fn earlier_stream_id(&self) -> StreamId {
        self.used.stream
    }

    /// The earlier op's ticket; in a capture its number there.
    pub fn ticket(&self) -> Ticket {
        self.used.ticket
    }

    /// How far the host had observed the earlier op's stream.
    pub fn observed(&self) -> Option<Ticket> {
        self.observed
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conflict { op, earlier, .. } = self;
        let verb = if self.writes { "writes" } else { "reads" };
        let did = match self.did {
            Did::Allocate => "allocated",
            Did::Read => "read",
            Did::Write => "wrote",
        };
        write!(
            f,
            "{} {verb} memory that {} {did}, and no edge orders them; ",
            op.on(&self.on),
            earlier.on(&self.earlier_on),
        )?;
        let is_name = |label: &str| label.chars().all(|c| c.is_alphanumeric() || c == '_');
        if is_name(&self.on) && is_name(&self.earlier_on) {
            write!(f, "call {}.wait_stream(&{}) before it", self.on, self.earlier_on)?;
        } else {
            write!(
                f,
                "call wait_stream on stream \"{}\" for stream \"{}\" before it",
                self.on, self.earlier_on
            )?;
        }
        if self.captured {
            return f.write_str(" (both are being captured)");
        }
        match self.observed {
            Some(seen) => {
                write!(f, " (its ticket is {}, the host has observed {seen})", self.used.ticket)
            }
            None => write!(f, " (its ticket is {}, the host has observed none)", self.used.ticket),
        }
    }
}

/// All conflicts of one op as one text: the first in full, then the others.
pub(crate) fn describe(conflicts: &[Conflict]) -> String {
    let mut text = conflicts[0].to_string();
    if conflicts.len() > 1 {
        text.push_str(&format!("; and {} more:", conflicts.len() - 1));
        for conflict in &conflicts[1..] {
            text.push_str(&format!("\n  {conflict}"));
        }
    }
    text.push_str("; for streams that cannot be named, stream.wait_for(&buffer) waits for every use of it");
    text
}
