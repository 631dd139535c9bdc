//! The text of a refusal by the order check.

use super::clock::{StreamId, Ticket};
use super::records::{Did, Record};
use super::site::{Formatted, Site};
use std::fmt;
use std::sync::Arc;

/// A stream as errors name it.
#[derive(Clone, Debug)]
pub struct Named {
    /// The label that the stream's owner gave it.
    pub label: Arc<str>,
    /// The name of the stream's device.
    pub device: Arc<str>,
    /// The stream's id, to distinguish two streams with the same label.
    pub id: StreamId,
}

impl Named {
    /// Returns whether the label is spelled like a variable, so that a message may use it as one.
    fn is_variable(&self) -> bool {
        self.label.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && self.label.chars().all(|c| c.is_alphanumeric() || c == '_')
    }

    /// Formats the label, with the device and the id if `other` has the same label.
    fn beside(&self, other: &Named) -> impl fmt::Display {
        let Named { label, device, id } = self;
        let alike = *label == other.label;
        Formatted(move |f: &mut fmt::Formatter<'_>| {
            write!(f, "stream \"{label}\"")?;
            if alike { write!(f, " ({device}, {id:?})") } else { Ok(()) }
        })
    }
}

/// Formats the call that orders later work on `waiter` after the work on `other`.
pub fn wait_call(waiter: &Named, other: &Named) -> impl fmt::Display {
    Formatted(move |f: &mut fmt::Formatter<'_>| {
        if waiter.label != other.label && waiter.is_variable() && other.is_variable() {
            return write!(f, "call {}.wait_stream(&{})", waiter.label, other.label);
        }
        write!(f, "call wait_stream on {} for {}", waiter.beside(other), other.beside(waiter))
    })
}

/// An earlier use of memory that a refused op is not ordered after.
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
    /// True if both ops belong to one capture.
    captured: bool,
}

impl Conflict {
    /// Creates the conflict of `op` on the stream `on`, which is not ordered after `earlier` on
    /// `earlier_on`.
    #[doc(hidden)]
    pub fn new(on: Named, op: Site, writes: bool, earlier_on: Named, earlier: &Record) -> Self {
        let Record { used, did, site, .. } = *earlier;
        let ticket = used.ticket;
        Conflict { op, writes, on, earlier: site, did, earlier_on, ticket, observed: None, captured: false }
    }

    /// Sets how far the host has observed the earlier op's stream.
    #[doc(hidden)]
    pub fn observed_until(self, observed: Option<Ticket>) -> Self {
        Conflict { observed, ..self }
    }

    /// Notes that both ops belong to one capture.
    #[doc(hidden)]
    pub fn in_capture(self) -> Self {
        Conflict { captured: true, ..self }
    }

    /// Returns true if `other` names the same lines, streams and uses.
    fn is_of_the_lines_of(&self, other: &Conflict) -> bool {
        let lines = |conflict: &Conflict| {
            let Conflict { op, writes, earlier, did, earlier_on, .. } = conflict;
            (*op, *writes, *earlier, *did, earlier_on.id)
        };
        lines(self) == lines(other)
    }

    /// Returns the name and source line of the refused op.
    pub fn op(&self) -> Site {
        self.op
    }

    /// Returns the name and source line of the earlier op.
    pub fn earlier(&self) -> Site {
        self.earlier
    }

    /// Returns the label of the earlier op's stream.
    pub fn earlier_stream(&self) -> &str {
        &self.earlier_on.label
    }

    /// Returns the id of the earlier op's stream.
    pub fn earlier_stream_id(&self) -> StreamId {
        self.earlier_on.id
    }

    /// Returns the earlier op's ticket or, if it was captured, its number in the capture.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Returns the newest ticket of the earlier op's stream that the host had observed, for example
    /// by awaiting.
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

/// Formats all conflicts of one op as one text: the first in full, then the others. Earlier ops of
/// one line, as of a loop, are told once.
pub fn describe(conflicts: &[Conflict]) -> String {
    let mut told: Vec<(&Conflict, usize)> = Vec::new();
    for conflict in conflicts {
        match told.iter_mut().find(|(first, _)| first.is_of_the_lines_of(conflict)) {
            Some((_, more)) => *more += 1,
            None => told.push((conflict, 0)),
        }
    }
    let mut text = String::new();
    for (at, (conflict, more)) in told.iter().enumerate() {
        match at {
            0 => {}
            1 => text.push_str(&format!("; and {} more:\n  ", told.len() - 1)),
            _ => text.push_str("\n  "),
        }
        text.push_str(&conflict.to_string());
        match more {
            0 => {}
            1 => text.push_str(" (one more op of the earlier line conflicts too)"),
            _ => text.push_str(&format!(" ({more} more ops of the earlier line conflict too)")),
        }
    }
    text.push_str(
        "; if you have no handle to a stream, stream.wait_for(&buffer) waits for every use of the \
         buffer",
    );
    text
}
