//! How a refusal reads.

use super::book::{Did, Record};
use super::clock::{StreamId, Ticket};
use super::site::Site;
use std::fmt;
use std::sync::Arc;

/// A stream as errors name it.
#[derive(Clone, Debug)]
pub struct Named {
    /// What its owner calls it.
    pub label: Arc<str>,
    /// The name of its device.
    pub device: Arc<str>,
    /// Which it is, where two have one label.
    pub id: StreamId,
}

impl Named {
    /// Says whether the label can stand for the variable.
    fn is_variable(&self) -> bool {
        self.label.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && self.label.chars().all(|c| c.is_alphanumeric() || c == '_')
    }

    /// The label, with the device and the id where `other` has the same.
    fn beside(&self, other: &Named) -> impl fmt::Display {
        let Named { label, device, id } = self;
        let alike = *label == other.label;
        fmt::from_fn(move |f| {
            write!(f, "stream \"{label}\"")?;
            if alike { write!(f, " ({device}, {id:?})") } else { Ok(()) }
        })
    }
}

/// The call that orders what comes on `waiter` after what is on `other`.
pub fn wait_call(waiter: &Named, other: &Named) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        if waiter.label != other.label && waiter.is_variable() && other.is_variable() {
            return write!(f, "call {}.wait_stream(&{})", waiter.label, other.label);
        }
        write!(f, "call wait_stream on {} for {}", waiter.beside(other), other.beside(waiter))
    })
}

/// One earlier use of memory that a refused op is not ordered after.
#[derive(Clone, Debug)]
pub struct Conflict {
    op: Site,
    writes: bool,
    on: Named,
    earlier: Site,
    did: Did,
    earlier_on: Named,
    ticket: Ticket,
    observed: Option<Ticket>,
    /// Whether both ops are of one capture.
    captured: bool,
}

impl Conflict {
    /// `op`, on the stream `on`, is not ordered after `earlier`, on `earlier_on`.
    #[doc(hidden)]
    pub fn new(on: Named, op: Site, writes: bool, earlier_on: Named, earlier: &Record) -> Self {
        let Record { used, did, site, .. } = *earlier;
        let ticket = used.ticket;
        Conflict { op, writes, on, earlier: site, did, earlier_on, ticket, observed: None, captured: false }
    }

    /// How far the host has observed the earlier op's stream.
    #[doc(hidden)]
    pub fn observed_until(self, observed: Option<Ticket>) -> Self {
        Conflict { observed, ..self }
    }

    /// Both ops are of one capture.
    #[doc(hidden)]
    pub fn in_capture(self) -> Self {
        Conflict { captured: true, ..self }
    }

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
        &self.earlier_on.label
    }

    /// That stream's id.
    pub fn earlier_stream_id(&self) -> StreamId {
        self.earlier_on.id
    }

    /// The earlier op's ticket; in a capture its number there.
    pub fn ticket(&self) -> Ticket {
        self.ticket
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
            "{} {verb} memory that {} {did}, and no edge orders them; {} before it",
            op.on(&self.on.label),
            earlier.on(&self.earlier_on.label),
            wait_call(&self.on, &self.earlier_on),
        )?;
        if self.captured {
            return f.write_str(" (both are being captured)");
        }
        match self.observed {
            Some(seen) => {
                write!(f, " (the earlier op has ticket {}, the host has observed {seen})", self.ticket)
            }
            None => write!(f, " (the earlier op has ticket {}, the host has observed none)", self.ticket),
        }
    }
}

/// All conflicts of one op as one text: the first in full, then the others.
pub fn describe(conflicts: &[Conflict]) -> String {
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
