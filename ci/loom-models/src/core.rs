//! Stands in for the core of a stream. Its methods take the steps of those in `core.rs` and
//! `hand_over.rs` of the runtime.

use crate::backlog::{After, Backlog, Item, Outcome};
use crate::coming::{Follower, Recorded, Watched};
use crate::delegation::DelegationLock;
use crate::driver::{Calls, Command, DriverStream, Submission};
use crate::progress::Progress;
use crate::sync::Arc;
use crate::timeline::{Ticket, Timeline};
use crate::unwritten::Unwritten;
use std::sync::Weak;

pub(crate) struct Tip {
    pub(crate) issued: Ticket,
}

pub(crate) struct State {
    pub(crate) backlog: Option<Box<Backlog>>,
    pub(crate) marker_at: Ticket,
    pub(crate) foreign: Option<()>,
    pub(crate) tip: Tip,
    pub(crate) driver: Arc<dyn DriverStream>,
    pub(crate) core: Weak<StreamCore>,
}

pub(crate) struct StreamCore {
    pub(crate) progress: Progress,
    pub(crate) state: DelegationLock<State>,
    /// The driver's stream.
    pub(crate) calls: Arc<Calls>,
}

impl StreamCore {
    pub(crate) fn new() -> Arc<Self> {
        let calls = Arc::new(Calls::default());
        Arc::new_cyclic(|core: &Weak<StreamCore>| {
            let (tip, driver, core) = (Tip { issued: 0 }, calls.clone(), core.clone());
            let state = State { backlog: None, marker_at: 0, foreign: None, tip, driver, core };
            let progress = Progress::new(calls.clone(), Arc::new(Timeline::new()), true);
            StreamCore { progress, state: DelegationLock::new(state, true), calls }
        })
    }

    pub(crate) fn as_watched(&self) -> Watched {
        let timeline = self.progress.timeline.clone();
        Watched { timeline, device: "cuda:0", health: Arc::default() }
    }

    pub(crate) fn want_marker(&self, ticket: Ticket) {
        self.state.delegate(ticket);
    }

    /// Enqueues an op without operands, whose `Pending` is made. Returns its ticket.
    pub(crate) fn enqueue(&self) -> Ticket {
        let mut state = self.state.lock();
        let ticket = self.submit(&mut state, Command::Elided);
        self.progress.note_awaited(ticket);
        ticket
    }

    pub(crate) fn submit(&self, state: &mut State, command: Command) -> Ticket {
        state.before_submit(&self.progress);
        let ticket = state.tip.issued + 1;
        let submission = Submission { ticket, command };
        match &mut state.backlog {
            None => self.calls.submit(submission),
            Some(backlog) => backlog.submit(submission).expect("no stream is abandoned"),
        }
        state.tip.issued = ticket;
        self.progress.note_issued(ticket);
        ticket
    }

    /// Makes the next submission wait for `after`. The model has the backlog handed over.
    pub(crate) fn hold_back(&self, state: &mut State, after: After) {
        if state.backlog.is_none() {
            state.write_newest_marker();
        }
        let new = || Box::new(Backlog::new(self.as_watched(), state.marker_at));
        state.backlog.get_or_insert_with(new).hold_back(after, || None);
    }

    /// Closes the stream. No model enqueues anything afterwards, so nothing is noted.
    pub(crate) fn close(&self) {
        let last = self.state.lock().tip.issued;
        self.want_marker(last);
    }

    /// Hands over what is ready, and then the followers of the events.
    pub(crate) fn hand_over(&self) {
        let mut state = self.state.lock();
        let Some(mut backlog) = state.backlog.take() else { return };
        let mut followers: Vec<Arc<dyn Follower>> = Vec::new();
        while let Some(item) = backlog.next() {
            match item {
                Item::Marker(ticket) => {
                    state.driver.signal(ticket);
                    backlog.marker_at = ticket;
                }
                Item::Event(coming) => {
                    let (event, unwritten) = (state.driver.record(), Unwritten::default());
                    followers.extend(coming.fill(Recorded { event, unwritten }));
                }
                Item::Work(work) => {
                    let mut submission = work.submission;
                    let resolved = work.after.map(|after| after.resolve(&mut submission.command));
                    let is_ready = resolved.is_none_or(|it| matches!(it.outcome, Outcome::Ready));
                    assert!(is_ready, "no model refuses anything");
                    state.driver.submit(submission);
                }
            }
        }
        if !backlog.is_empty() {
            state.backlog = Some(backlog);
        }
        drop(state);
        followers.iter().for_each(|follower| drop(follower.hand_over_what_is_ready()));
    }
}
