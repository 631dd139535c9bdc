//! The record of a capture so far: its member streams, the plan, and what the plan's launches need.

use super::captured;
use crate::order::{self, Clock, Conflict, Findings, Site, StreamId, Use};
use crate::shared::{Effect, Request, StreamCore};
use std::sync::Arc;
use warpline_driver::internal::append_plan;
use warpline_driver::timeline::{Keep, Ticket};
use warpline_driver::{Claim, Error, Plan, Result, Step, Work};

#[derive(Default)]
pub(crate) struct Recording {
    pub(super) members: Vec<Member>,
    pub(crate) plan: Plan,
    /// Values that ops need for as long as they run again.
    pub(crate) keeps: Vec<Keep>,
    /// The claims of graphs that are part of it, besides what they touch.
    pub(crate) claims: Vec<Claim>,
    /// The refusals of calls by its thread, which are not in the graph.
    pub(crate) refusals: Vec<Error>,
}

/// A stream that is captured.
pub(crate) struct Member {
    pub(crate) core: Arc<StreamCore>,
    /// The index of its stream in the plan.
    pub(crate) stream: usize,
    /// Its identity in the capture.
    pub(crate) id: StreamId,
    /// The number of its newest step.
    pub(crate) number: Ticket,
    /// The number and site of its newest op.
    pub(super) newest_op: Option<(Ticket, Site)>,
    /// The clock before its next step.
    pub(crate) clock: Clock,
    /// The plan's streams for branches of graphs that were launched on it, and the newest step of
    /// each. They are joined to it, so that the next graph can use them.
    pub(super) sides: Vec<(usize, Ticket)>,
}

impl Recording {
    pub(crate) fn find(&self, core: &StreamCore) -> Option<usize> {
        self.members.iter().position(|member| std::ptr::eq(&*member.core, core))
    }

    pub(crate) fn of(&mut self, core: &StreamCore) -> &mut Member {
        let at = self.find(core).expect("a captured stream is a member of its capture");
        &mut self.members[at]
    }

    /// Checks that the first stream is after everything that was captured on the others.
    pub(super) fn check_joined(&self, site: Site) -> Result<()> {
        let Some((first, others)) = self.members.split_first() else { return Ok(()) };
        for side in others {
            if let Some((ticket, op)) = side.newest_op
                && !first.clock.covers(Use { stream: side.id, ticket })
            {
                let why = format!(
                    "stream \"{}\" joined the capture and was not joined back, and its last op is \
                     {op}; {} after that",
                    side.core.label,
                    order::wait_call(&first.core.name(), &side.core.name())
                );
                return Err(captured(site, &first.core, &why));
            }
        }
        Ok(())
    }

    /// Adds an op of a member to the plan: `work`, or the steps of a graph. `number` is that of its
    /// last step.
    pub(super) fn add(
        &mut self,
        core: &StreamCore,
        number: Ticket,
        request: &mut Request<'_>,
        work: Option<Work>,
    ) {
        let at = self.find(core).expect("a captured stream is a member of its capture");
        let member = &mut self.members[at];
        let (stream, before) = (member.stream, member.number);
        if let Some(work) = work {
            self.plan.steps.push(Step { stream, number, site: request.site, work });
        } else if let Effect::Graph { plan, .. } = request.effect {
            append_plan(&mut self.plan, plan, (stream, before), &mut member.sides);
        }
        (member.number, member.newest_op) = (number, Some((number, request.site)));
        self.keeps.extend(request.payload.keep.take());
        for claim in request.effect.claims() {
            if !self.claims.contains(claim) {
                self.claims.push(*claim);
            }
        }
    }

    pub(crate) fn conflicts(
        &self,
        core: &StreamCore,
        request: &Request<'_>,
        findings: &Findings,
    ) -> Vec<Conflict> {
        let conflict = |finding: &order::Finding| {
            let used = finding.earlier.used;
            let earlier = self.members.iter().find(|member| member.id == used.stream);
            let earlier = &earlier.expect("what is found was done by a member").core;
            let writes = request.operands[finding.access].access.writes();
            Conflict::new(core.name(), request.site, writes, earlier.name(), &finding.earlier).in_capture()
        };
        findings.iter().map(conflict).collect()
    }
}
