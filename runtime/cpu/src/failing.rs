//! The errors of a stream whose work cannot continue, and the dropping of that work.

use super::stream::CpuStream;
use super::timelines::Fate;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use warpline_driver::timeline::Ticket;
use warpline_driver::{Command, Error, ErrorKind, Point, Site, Submission};

impl CpuStream {
    /// Returns the error of an op whose failure fails its device.
    #[cold]
    pub(super) fn failure(&self, kind: ErrorKind, ticket: Ticket, site: &Site, why: &str) -> Error {
        let (file, line) = (site.location.file(), site.location.line());
        let (op, label, device) = (site.op(), &self.label, self.device.id);
        Error::new(
            kind,
            format!(
                "{op} failed on stream \"{label}\" at ticket {ticket} ({file}:{line}): {why}; {device} accepts no \
                 more work"
            ),
        )
    }

    /// Returns the error of a panic that happened while this stream ran, but outside every op.
    #[cold]
    pub(super) fn broken(&self) -> Error {
        Error::new(
            ErrorKind::Fault,
            format!(
                "stream \"{}\" failed after ticket {}: code outside its ops panicked, perhaps a \
                 tracing subscriber; {} accepts no more work",
                self.label,
                self.timeline.completed(),
                self.device.id
            ),
        )
    }

    /// Returns the error if the point awaited by `wait` will never be reached, because its device
    /// has failed.
    pub(super) fn wait_is_in_vain(&self, wait: &Submission, point: &Point) -> Option<Error> {
        let cause = self.device.backend.timelines.cause_of_death(&point.timeline)?;
        if point.timeline.reached(point.ticket) {
            return None;
        }
        let why = format!("it waits for work that will not run: {cause}");
        Some(self.failure(cause.kind(), wait.ticket, &wait.site, &why))
    }

    /// Returns the error for work that a shutdown cannot finish: the head waits for something that
    /// nothing in this backend will bring about.
    pub(super) fn stuck(&self) -> Option<Error> {
        if self.device.health.fault().is_some() {
            return None;
        }
        let is_wait = |work: &&Submission| {
            matches!(work.command, Command::Wait(_) | Command::Edge(_) | Command::Elided)
        };
        let (point, oldest, count) = self.strand.peek(|queued| {
            let head = queued.clone().next()?;
            let point = head.command.holds_until()?;
            let ops = queued.filter(|work| !is_wait(work));
            let oldest = ops.clone().next().unwrap_or(head).site;
            Some((point.clone(), oldest, ops.count().max(1)))
        })?;
        let foreign = matches!(self.device.backend.timelines.fate(&point.timeline), Fate::Foreign);
        if !foreign || point.timeline.reached(point.ticket) {
            return None;
        }
        let ops = if count == 1 { "op" } else { "ops" };
        Some(Error::new(
            ErrorKind::ShutDown,
            format!(
                "the runtime was shut down with {count} {ops} in flight on stream \"{}\", the oldest {oldest}, held at \
                 a wait that nothing will release",
                self.label
            ),
        ))
    }
}
impl CpuStream {
    /// Returns the wait at which the stream is held, if nothing in this backend can end it: the
    /// wait for a gate.
    pub(super) fn held_at(&self) -> Option<Site> {
        let (point, site) = self.strand.peek(|mut queued| match queued.next() {
            Some(Submission { command: Command::Wait(point), site, .. }) => Some((point.clone(), *site)),
            _ => None,
        })?;
        let foreign = matches!(self.device.backend.timelines.fate(&point.timeline), Fate::Foreign);
        (foreign && !point.timeline.reached(point.ticket)).then_some(site)
    }
}

/// Drops work that will not run. Host functions own user values, whose drop may panic.
#[cold]
pub(super) fn drop_quietly(work: VecDeque<Submission>) {
    if catch_unwind(AssertUnwindSafe(|| drop(work))).is_err() {
        warpline_driver::report::drop_panicked();
    }
}
