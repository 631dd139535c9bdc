//! A capture in progress, which records the calls on its streams instead of running them.
//!
//! # Rules
//! 1. A capture belongs to one thread, for the time of one closure. A captured stream belongs to
//!    the capture: what other threads put on that stream is refused. Nothing of the stream itself
//!    changes: not its tickets, its clocks, nor the driver's stream. Work that was put on it before
//!    continues.
//! 2. The stream that the capture began on is its first member. Another stream joins by waiting for
//!    a member, on the capture's thread, and is released at the end. By then the first member has
//!    to be ordered after the last op of each other member.
//! 3. Members have numbers, clocks and identities of the capture's own, and memory has histories of
//!    its own (`histories.rs`). Ops are checked against each other, and against nothing that
//!    happened outside. A launch of the graph is checked against that, as one op.
//! 4. Every wait between members is kept. The waits make the branches, and the progress of the
//!    device that replays them is not known.
//! 5. Calls that cannot be repeated are refused: host functions, copies to the host, foreign work,
//!    timed events, waits for streams outside, and queries of progress.
//! 6. A refused call is not in the graph and leaves no mark on memory, because nothing of a capture
//!    has run. If its refusal is not looked at before the end, the capture fails with it.
//! 7. A graph that is launched in a capture is recorded as its steps, on the stream of the launch
//!    and on further streams of the plan.
//!
//! # Lock order
//! `recording` → `GraphPool::histories` → ledgers, the allocator's pool → nothing. Neither
//! allocations nor user values are dropped under them.
// Decision: docs/decisions/0046-graphs-are-captured-above-the-driver.md

mod histories;
mod pool;
mod recording;
mod token;

pub(crate) use pool::GraphPool;
pub(crate) use token::CaptureToken;

use crate::memory::{Grant, MemoryCall, ReuseOrder};
use crate::order::{
    self, Asker, Clock, Ensured, Entered, Entry, Ledger, MAX_ACCESSES, Marks, Named, Observed, Refused, Site,
    StreamId, Use, check_and_enter,
};
use crate::shared::{
    Allocation, Effect, Operand, OwnedOperand, Place, Request, RuntimeShared, Short, Snapshot, StreamCore,
    unserved, wait_for_memory,
};
use histories::Histories;
use parking_lot::Mutex;
use recording::{Member, Recording};
use std::cell::RefCell;
use std::sync::{Arc, Weak};
use warpline_driver::internal::{ErrorParts, work_of};
use warpline_driver::kernel::Workspace;
use warpline_driver::timeline::{Keep, Ticket};
use warpline_driver::{Claim, Command, Error, ErrorKind, Plan, PlanStream, Result, Step, Work};

pub(crate) struct Capture {
    token: Arc<CaptureToken>,
    pool: Arc<GraphPool>,
    /// The identities of the members. Nothing is ever observed in it.
    observed: Observed,
    recording: Mutex<Recording>,
}

/// The result of a capture.
pub(crate) struct Recorded {
    pub(crate) plan: Plan,
    pub(crate) touched: Vec<OwnedOperand<Arc<Allocation>>>,
    pub(crate) keeps: Vec<Keep>,
    pub(crate) claims: Vec<Claim>,
    pub(crate) pool: Arc<GraphPool>,
}

thread_local! {
    /// The captures of this thread, innermost last.
    static CAPTURES: RefCell<Vec<Arc<Capture>>> = const { RefCell::new(Vec::new()) };
}

/// A guard that ends its capture when it is dropped, even if the closure panicked.
pub(crate) struct Capturing(Arc<Capture>);

impl Drop for Capturing {
    fn drop(&mut self) {
        if warpline_driver::process::is_forked() {
            return;
        }
        self.0.end();
    }
}

impl Capturing {
    /// Begins a capture on `core`.
    pub(crate) fn begin(core: &Arc<StreamCore>, site: Site) -> Result<Self> {
        core.ensure_open(site)?;
        if core.capture(site)?.is_some() {
            return Err(captured(site, core, "the stream is already being captured; end that capture first"));
        }
        let runtime = &core.device.runtime;
        let nobody = runtime.observed.admit().ok_or_else(|| {
            Error::new(ErrorKind::OutOfMemory, format!("{site}: 1048576 streams are live; drop some"))
        })?;
        runtime.name_capture(Named { id: nobody, ..core.name() });
        let capture = Arc::new_cyclic(|capture: &Weak<Capture>| Capture {
            token: Arc::new(CaptureToken::new({
                let capture = capture.clone();
                move |stream, number| capture.upgrade()?.site_of(stream, number)
            })),
            pool: GraphPool::new(core.device.clone(), nobody),
            observed: Observed::default(),
            recording: Mutex::default(),
        });
        let capturing = Capturing(capture.clone());
        let noted = CAPTURES.try_with(|captures| captures.borrow_mut().push(capture.clone()));
        if noted.is_err() {
            return Err(captured(site, core, "the thread is exiting; capture on another thread"));
        }
        capture.take_in(&mut capture.recording.lock(), core, site)?;
        Ok(capturing)
    }

    /// Returns what was captured, if the streams were joined and no refusal went unnoticed.
    pub(crate) fn finish(self, site: Site) -> Result<Recorded> {
        let capture = self.0.clone();
        let mut plan = {
            let mut recording = capture.recording.lock();
            if let Some(error) = recording.refusals.iter().find(|error| !error.is_seen()) {
                error.set_seen();
                return Err(error.clone());
            }
            recording.check_joined(site)?;
            std::mem::take(&mut recording.plan)
        };
        // Done before the blocks forget what the capture did to them.
        capture.provide_workspaces(&mut plan, site)?;
        let histories = capture.pool.close();
        let touched = histories.map(Histories::into_touched).unwrap_or_default();
        if touched.len() >= MAX_ACCESSES {
            let (touched, most) = (touched.len(), MAX_ACCESSES - 1);
            let why = format!(
                "it touches {touched} ranges of memory, and a graph holds at most {most}; capture \
                 it in parts"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, format!("{site}: {why}")));
        }
        let mut recording = capture.recording.lock();
        let keeps = std::mem::take(&mut recording.keeps);
        let claims = std::mem::take(&mut recording.claims);
        drop(recording);
        Ok(Recorded { plan, touched, keeps, claims, pool: capture.pool.clone() })
    }
}

/// Returns the number of steps that an op adds to its own stream: those of a graph, or one.
fn steps(request: &Request<'_>) -> Ticket {
    let Effect::Graph { plan, .. } = request.effect else { return 1 };
    let mut steps = plan.steps.iter().rev();
    steps.find(|step| step.stream == 0).map_or(0, |step| step.number)
}

/// Returns the error of a call that is refused because of a capture.
#[cold]
pub(crate) fn captured(site: Site, core: &StreamCore, why: &str) -> Error {
    Error::new(ErrorKind::Captured, format!("{}: {why}", site.on(&core.label)))
}

/// The order by which blocks are reused within a capture.
struct CaptureOrder {
    clock: Clock,
    runtime: Arc<RuntimeShared>,
}

impl ReuseOrder for CaptureOrder {
    fn after(&self, used: Use) -> bool {
        self.clock.covers(used)
    }

    fn finished(&self, _used: Use) -> bool {
        false
    }

    fn is_over(&self, used: Use) -> bool {
        self.runtime.is_finished(used)
    }

    fn can_wait(&self, _used: Use) -> bool {
        false
    }

    fn ends(&self, used: Use) -> bool {
        self.runtime.ends_by_itself(used)
    }

    fn held_up_by(&self, used: Use) -> Option<String> {
        self.runtime.host_code_before(used).map(|code| code.to_string())
    }
}

impl Capture {
    /// Makes a stream a member, and returns its index.
    fn take_in(
        self: &Arc<Self>,
        recording: &mut Recording,
        core: &Arc<StreamCore>,
        site: Site,
    ) -> Result<usize> {
        let device = &self.pool.device;
        if !Arc::ptr_eq(&core.device, device) {
            let of = if core.device.id == device.id { " of another runtime" } else { "" };
            let why = format!(
                "the wait would add a stream on {}{of} to a capture on {}; a graph runs on one device",
                core.device.id, device.id
            );
            return Err(captured(site, core, &why));
        }
        core.ensure_open(site)?;
        let id = self.observed.admit().expect("a capture has fewer streams than a runtime");
        core.begin_capture(site, self.token.clone())?;
        let (core, stream) = (core.clone(), recording.plan.streams.len());
        recording.plan.streams.push(PlanStream { priority: core.priority, workspace: None });
        let (clock, sides) = (Clock::default(), Vec::new());
        let member = Member { core, stream, id, number: 0, newest_op: None, clock, sides };
        recording.members.push(member);
        Ok(recording.members.len() - 1)
    }

    /// Returns the capture with this identity, if this thread captures it.
    pub(crate) fn of(token: &Arc<CaptureToken>) -> Option<Arc<Self>> {
        captures().into_iter().find(|capture| Arc::ptr_eq(&capture.token, token))
    }

    /// Releases the streams. Nothing is captured any more.
    fn end(&self) {
        let mut recording = std::mem::take(&mut *self.recording.lock());
        let members = std::mem::take(&mut recording.members);
        self.token.end();
        members.iter().for_each(|member| member.core.end_capture());
        // Reported here if the capture has failed for another reason.
        if let (Some(first), Some(refusal)) =
            (members.first(), recording.refusals.iter().find(|refusal| !refusal.is_seen()))
        {
            // Without the value that it hands back: a caller may still hold the call's `Pending`.
            first.core.note_unseen(&refusal.without_own());
        }
        let histories = self.pool.close();
        drop((recording, members, histories));
        let device = &self.pool.device;
        device.runtime.observed.retire(self.pool.nobody);
        device.runtime.forget_capture(self.pool.nobody);
        let _ = CAPTURES.try_with(|captures| {
            captures.borrow_mut().retain(|capture| !std::ptr::eq(&**capture, self));
        });
    }

    /// Checks that a graph can hold the op. Returns its work, or `None` if the op is a graph
    /// itself.
    pub(crate) fn admit(
        &self,
        core: &StreamCore,
        request: &Request<'_>,
        command: impl FnOnce() -> Command,
    ) -> Result<Option<Work>> {
        let elsewhere = |operand: &Operand<'_>| !Arc::ptr_eq(&operand.allocation.device, &core.device);
        if request.operands.iter().any(elsewhere) {
            return Err(captured(request.site, core, warpline_driver::OF_ONE_DEVICE));
        }
        if let Effect::Graph { .. } = request.effect {
            return Ok(None);
        }
        work_of(command()).map(Some).map_err(|why| captured(request.site, core, why))
    }

    /// Checks an op that was admitted against the others of the capture, and enters it.
    pub(crate) fn check(
        &self,
        core: &StreamCore,
        request: &Request<'_>,
        entered: &mut Entered,
    ) -> Result<()> {
        if steps(request) == 0 {
            return Ok(());
        }
        let mut recording = self.recording.lock();
        let Member { id, number, ref clock, .. } = *recording.of(core);
        let (observed, marks, ensured) = (&self.observed, &Marks::default(), &Ensured::new());
        let asker = Asker { stream: id, stated: clock, observed, marks, ensured };
        let (ticket, strictness) = (number + steps(request), core.device.runtime.mode.strictness());
        let entry = Entry { asker, ticket, site: &request.site, strictness };
        let checked = self.with_histories(|histories| {
            check_and_enter(&histories.traced(request.operands), None, &entry, entered)
        });
        match checked {
            Ok(()) => Ok(()),
            Err(Refused::Unordered(findings)) => {
                let conflicts = recording.conflicts(core, request, &findings);
                let text = order::describe(&conflicts);
                Err(Error::with_conflicts(ErrorKind::Unordered, text, conflicts))
            }
            Err(Refused::Marked(_) | Refused::Needs(_)) => {
                unreachable!("captured ops leave no marks, and a member stays open")
            }
        }
    }

    /// Adds an op that was checked to the plan.
    pub(crate) fn put(
        &self,
        core: &StreamCore,
        request: &mut Request<'_>,
        work: Option<Work>,
        entered: &Entered,
    ) -> Place {
        let mut recording = self.recording.lock();
        let (steps, before) = (steps(request), recording.of(core).number);
        if steps > 0 {
            self.with_histories(|histories| histories.add_all(request.operands));
            recording.add(core, before + steps, request, work);
        }
        let warnings = recording.conflicts(core, request, &entered.findings);
        drop(recording);
        core.device.runtime.warn_of(request.site, &warnings);
        Place::captured(before + steps)
    }

    fn with_histories<R>(&self, f: impl FnOnce(&mut Histories) -> R) -> R {
        f(self.pool.histories.lock().as_mut().expect("the capture has not ended"))
    }

    /// Allocates memory that belongs to the graph.
    pub(crate) fn alloc(
        &self,
        core: &Arc<StreamCore>,
        site: Site,
        len_bytes: usize,
    ) -> Result<Arc<Allocation>> {
        let (id, number, clock) = {
            let mut recording = self.recording.lock();
            let member = recording.of(core);
            (member.id, member.number, member.clock.clone())
        };
        let grant = self.grant(core, len_bytes, (id, clock), site);
        let grant = grant.map_err(|error| unserved(&site.on(&core.label), error))?;
        let outside = Use { stream: self.pool.nobody, ticket: 1 };
        let allocation = Arc::new(Allocation::of_graph(
            self.pool.clone(),
            core.device.clone(),
            &grant,
            len_bytes,
            outside,
            site,
        ));
        let ledger = Ledger::new(Use { stream: id, ticket: number }, len_bytes as u64, site);
        if let Some(histories) = self.pool.histories.lock().as_mut() {
            histories.born(&allocation, ledger);
        }
        Ok(allocation)
    }

    /// Allocates from the graph's pool, for a stream of the capture with this clock.
    fn grant(
        &self,
        core: &Arc<StreamCore>,
        len_bytes: usize,
        (stream, clock): (StreamId, Clock),
        site: Site,
    ) -> Result<Grant> {
        let (pool, memory) = (self.pool.id, &core.device.memory);
        let order = Arc::new(CaptureOrder { clock, runtime: core.device.runtime.clone() });
        // A graph outlives the scope that it is captured in.
        let call = MemoryCall { len_bytes, pool, budget: None, stream, site };
        memory
            .alloc_in(pool, len_bytes, stream, &order, site)
            .or_else(|refusal| wait_for_memory(core, Short { call, order, refusal }))
    }

    /// Allocates the workspaces that libraries want on the plan's streams. No op of the capture
    /// ever gets this memory, because a launch may use it at any time.
    fn provide_workspaces(&self, plan: &mut Plan, site: Site) -> Result<()> {
        let driver = &self.pool.device.driver;
        let core = self.recording.lock().members[0].core.clone();
        let wanted = driver.workspace_bytes(plan).map_err(|error| core.refused(site, &error))?;
        let nobody = self.observed.admit().expect("a capture has fewer streams than a runtime");
        for (stream, len_bytes) in plan.streams.iter_mut().zip(wanted).filter(|(_, wanted)| *wanted > 0) {
            let grant = self.grant(&core, len_bytes, (nobody, Clock::default()), site);
            let grant = grant.map_err(|error| unserved(&site.on(&core.label), error))?;
            self.pool.keep(grant.block);
            stream.workspace = Some(Workspace { ptr: grant.ptr, len_bytes });
        }
        Ok(())
    }

    /// Returns where a member stands.
    pub(crate) fn snapshot(&self, core: &StreamCore) -> Snapshot {
        let mut recording = self.recording.lock();
        self.snapshot_of(recording.of(core))
    }

    fn snapshot_of(&self, member: &Member) -> Snapshot {
        Snapshot {
            timeline: member.core.progress.timeline.clone(),
            device: member.core.device.id,
            used: Use { stream: member.id, ticket: member.number },
            version: 0,
            stated: member.clock.clone(),
            known: None,
            marks: Marks::default(),
            event: None,
            coming: None,
            capture: Some(self.token.clone()),
        }
    }

    /// Orders later work on `core` after `from`, a place in this capture. A stream that is not a
    /// member becomes one.
    pub(crate) fn wait(
        self: &Arc<Self>,
        core: &Arc<StreamCore>,
        site: Site,
        from: &Snapshot,
    ) -> Result<Place> {
        let mut recording = self.recording.lock();
        let at = match recording.find(core) {
            Some(at) => core.ensure_open(site).map(|()| at)?,
            None => self.take_in(&mut recording, core, site)?,
        };
        let of = recording.members.iter().position(|member| member.id == from.used.stream);
        let of = of.expect("a place in this capture is a member's");
        let member = &mut recording.members[at];
        if at != of {
            member.number += 1;
            let number = member.number;
            member.clock.merge(Use { stream: member.id, ticket: number }, from.used, &from.stated);
            let (stream, number_of) = (member.stream, from.used.ticket);
            let work = Work::Wait { stream: recording.members[of].stream, number: number_of };
            recording.plan.steps.push(Step { stream, number, site, work });
        }
        Ok(Place::captured(recording.members[at].number))
    }

    /// Orders later work on `core` after every use of this memory in the capture. Returns `None` if
    /// there was none.
    fn wait_for(
        self: &Arc<Self>,
        core: &Arc<StreamCore>,
        site: Site,
        allocation: &Allocation,
    ) -> Option<Result<Place>> {
        let uses = self.pool.histories.lock().as_ref()?.uses_of(allocation)?;
        let from: Vec<Snapshot> = {
            let recording = self.recording.lock();
            let used = |member: &&Member| uses.iter().any(|used| used.stream == member.id);
            recording.members.iter().filter(used).map(|member| self.snapshot_of(member)).collect()
        };
        from.iter().map(|from| self.wait(core, site, from)).reduce(|before, next| before.and(next))
    }

    /// Returns the site of the op or wait with this number on a member, for errors.
    fn site_of(&self, stream: StreamId, number: Ticket) -> Option<Site> {
        let recording = self.recording.lock();
        let mut members = recording.members.iter();
        let Member { stream, newest_op, .. } = *members.find(|member| member.core.id == stream)?;
        if let Some((_, site)) = newest_op.filter(|(newest, _)| *newest == number) {
            return Some(site);
        }
        let mut steps = recording.plan.steps.iter().rev();
        steps.find(|step| step.stream == stream && step.number == number).map(|step| step.site)
    }

    /// Notes a refusal. Unless it is looked at before the end, the capture fails with it.
    pub(crate) fn note_refusal(&self, error: &Error) {
        self.recording.lock().refusals.push(error.clone());
    }
}

/// Returns the captures of this thread, innermost last. A thread at its end captures nothing.
fn captures() -> Vec<Arc<Capture>> {
    CAPTURES.try_with(|captures| captures.borrow().clone()).unwrap_or_default()
}

/// [`Stream::wait_for`](crate::Stream::wait_for) on a thread that captures. Returns `None` if no
/// capture is involved.
pub(crate) fn wait_for(core: &Arc<StreamCore>, site: Site, allocation: &Allocation) -> Option<Result<Place>> {
    let captures = captures();
    if captures.is_empty() {
        return None;
    }
    match core.capture(site) {
        // The capture has not touched this memory: its launches are ordered after earlier uses of
        // it.
        Ok(Some(here)) => {
            Some(here.wait_for(core, site, allocation).unwrap_or_else(|| Ok(Place::captured(0))))
        }
        Ok(None) => captures.iter().rev().find_map(|capture| capture.wait_for(core, site, allocation)),
        Err(error) => Some(Err(error)),
    }
}
