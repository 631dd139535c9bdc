//! What a capture has written down so far: its member streams, the plan, and what the plan's launches need.

use super::capture::captured;
use super::histories::Traced;
use crate::order::{self, Access, Clock, Conflict, Findings, Site, StreamId, Use};
use crate::stream::StreamCore;
use std::sync::Arc;
use warpline_driver::timeline::{Keep, Ticket};
use warpline_driver::{Claim, Error, Plan, Result};

#[derive(Default)]
pub(super) struct Recording {
    pub(super) members: Vec<Member>,
    pub(super) plan: Plan,
    /// What ops have to have for as long as they run again.
    pub(super) keeps: Vec<Keep>,
    /// What graphs that are part of it claim besides what they touch.
    pub(super) claims: Vec<Claim>,
    /// The refusals of calls by its thread, which are not in the graph.
    pub(super) refusals: Vec<Error>,
    pub(super) ended: bool,
}

/// A stream that is captured.
pub(super) struct Member {
    pub(super) core: Arc<StreamCore>,
    /// Which stream of the plan it is.
    pub(super) stream: usize,
    /// Its identity in the capture.
    pub(super) id: StreamId,
    /// Its newest step.
    pub(super) number: Ticket,
    /// Its newest op.
    pub(super) newest_op: Option<(Ticket, Site)>,
    /// What is before its next step.
    pub(super) clock: Clock,
    /// The plan's streams for branches of graphs that were launched on it, and the newest step of each. They are joined to it, so that the
    /// next graph can have them.
    pub(super) sides: Vec<(usize, Ticket)>,
}

impl Recording {
    pub(super) fn find(&self, core: &StreamCore) -> Option<usize> {
        self.members.iter().position(|member| std::ptr::eq(&*member.core, core))
    }

    pub(super) fn of(&mut self, core: &StreamCore) -> &mut Member {
        let at = self.find(core).expect("a captured stream is a member of its capture");
        &mut self.members[at]
    }

    /// Whether the first stream is after all that was captured on the others.
    pub(super) fn check_joined(&self, site: Site) -> Result<()> {
        let Some((first, others)) = self.members.split_first() else { return Ok(()) };
        for side in others {
            if let Some((ticket, op)) = side.newest_op
                && !first.clock.covers(Use { stream: side.id, ticket })
            {
                let why = format!(
                    "stream \"{}\" came in and was not joined back, its last op is {op}; {} after that",
                    side.core.label,
                    order::wait_call(&first.core.name(), &side.core.name())
                );
                return Err(captured(site, &first.core, &why));
            }
        }
        Ok(())
    }

    pub(super) fn conflicts(
        &self,
        core: &StreamCore,
        op: Site,
        operands: &[Traced<'_>],
        findings: &Findings,
    ) -> Vec<Conflict> {
        let conflict = |finding: &order::Finding| {
            let used = finding.earlier.used;
            let earlier = self.members.iter().find(|member| member.id == used.stream);
            let earlier = &earlier.expect("what is found was done by a member").core;
            let writes = operands[finding.access].mode().writes();
            Conflict::new(core.name(), op, writes, earlier.name(), &finding.earlier).in_capture()
        };
        findings.iter().map(conflict).collect()
    }
}
