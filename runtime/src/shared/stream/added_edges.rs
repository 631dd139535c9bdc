//! The edges that the runtime adds before an op: behind closed streams, behind earlier uses of
//! reused memory and, in `wait` mode, where the program states none. Where it adds none, a missing
//! edge is an error or a warning.

use super::core::{State, StreamCore};
use super::host_waits::wait_on_the_host;
use super::place::Snapshot;
use crate::order::{self, Access, Conflict, Ensured, Finding, Findings, Named, Site, Use};
use crate::shared::Operand;
use smallvec::SmallVec;
use warpline_driver::internal::ErrorParts;
use warpline_driver::{DriverError, Error, ErrorKind, Point, Result};

/// The edges that the runtime adds before one op.
#[derive(Default)]
pub(super) struct Edges {
    pub(super) from: SmallVec<[Snapshot; 1]>,
    /// Uses that are before the op, by these edges or already.
    pub(super) ensured: Ensured,
}

#[cold]
fn conflicts(core: &StreamCore, op: Site, accesses: &[Operand<'_>], findings: &Findings) -> Vec<Conflict> {
    let runtime = &core.device.runtime;
    let conflict = |finding: &Finding| {
        let id = finding.earlier.used.stream;
        let gone = || Named { label: "closed".into(), device: core.device.id.to_string().into(), id };
        let (writes, there) =
            (accesses[finding.access].access.writes(), runtime.name(id).unwrap_or_else(gone));
        Conflict::new(core.name(), op, writes, there, &finding.earlier)
            .observed_until(runtime.observed.newest(id))
    };
    findings.iter().map(conflict).collect()
}

#[cold]
pub(super) fn unordered(core: &StreamCore, op: Site, accesses: &[Operand<'_>], findings: &Findings) -> Error {
    let conflicts = conflicts(core, op, accesses, findings);
    Error::with_conflicts(ErrorKind::Unordered, order::describe(&conflicts), conflicts)
}

#[cold]
pub(super) fn warn_of(core: &StreamCore, op: Site, accesses: &[Operand<'_>], findings: &Findings) {
    core.device.runtime.warn_of(op, &conflicts(core, op, accesses, findings));
}

/// Returns the uses that need edges, in `wait` mode, if there can be edges from all of them.
#[cold]
pub(super) fn edges_for(
    core: &StreamCore,
    site: Site,
    accesses: &[Operand<'_>],
    findings: Findings,
) -> Result<Vec<Use>> {
    let runtime = &core.device.runtime;
    let possible = |used: Use| match runtime.stream(used.stream) {
        // A device that waits for a failed one fails with it.
        Some(other) => core.can_wait_for(&other) && other.fault().is_none(),
        // The stream is gone by now, so it is before everything.
        None => runtime.observed.is_gone(used.stream),
    };
    if findings.iter().all(|finding| possible(finding.earlier.used)) {
        return Ok(findings.iter().map(|finding| finding.earlier.used).collect());
    }
    Err(unordered(core, site, accesses, &findings))
}

/// Notes which of `needs` hold already, by the known clock or because they have finished.
/// Returns whether any are left.
#[cold]
pub(super) fn ensure(core: &StreamCore, accesses: &[Operand<'_>], needs: &[Use], edges: &mut Edges) -> bool {
    let runtime = &core.device.runtime;
    let known = core.line.known();
    let mut some_are_left = false;
    for used in needs {
        let over = runtime.is_finished(*used);
        if over {
            let behind = |access: &&Operand<'_>| access.ledger().open().behind() == Some(*used);
            accesses.iter().filter(behind).for_each(|access| access.ledger().open().clear_behind());
        }
        if over || known.covers(*used) {
            edges.ensured.add(*used);
        } else {
            some_are_left = true;
        }
    }
    some_are_left
}

/// Notes where the streams of `needs` stand, for the op to wait for. Called while no stream's
/// lock is held.
#[cold]
pub(super) fn insert_edges(
    core: &StreamCore,
    site: Site,
    turn: bool,
    needs: &[Use],
    edges: &mut Edges,
) -> Result<()> {
    let runtime = &core.device.runtime;
    for used in needs {
        if edges.ensured.covers(*used) {
            continue;
        }
        let Some(other) = runtime.stream(used.stream) else {
            // The stream is gone by now, so it is before everything.
            edges.ensured.add(*used);
            continue;
        };
        if let Some(fault) = other.fault() {
            // The awaited place is never reached.
            return Err(fault.clone());
        }
        let from = Snapshot::behind_foreign_work(&other, site)?;
        if turn || core.admission.is_borrowed() {
            wait_on_the_host(core, site, &from)?;
        }
        edges.ensured.add(from.used);
        edges.from.push(from.with_recorded_event());
    }
    Ok(())
}

#[cold]
pub(super) fn submit_edges(
    core: &StreamCore,
    state: &mut State,
    site: Site,
    edges: &Edges,
    gate: Option<Point>,
    kept: bool,
) -> Result<(), DriverError> {
    let may_hold_back = !core.admission.is_borrowed() && state.foreign.is_none();
    let mut led = edges.from.iter().try_for_each(|from| {
        core.submit_edge(state, site, from)?;
        match &from.coming {
            // It was recorded after the check, and the op may read bytes that were not written. Of
            // a stream that may not hold back, the check came after that.
            Some(coming) if may_hold_back && coming.is_recorded() => {
                core.wait_for_marks(state, site, from, coming, false)
            }
            _ => Ok(()),
        }
    });
    if let (Ok(()), Some(point)) = (&led, gate) {
        led = core.submit_point(state, site, point);
    }
    led.inspect_err(|_| {
        if kept {
            state.forgotten = Some(core.progress.timeline.forget_keeps(state.tip.issued + 1));
        }
    })
}
