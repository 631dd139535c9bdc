//! One rank's side of the protocol: its calls, their fingerprints, and what it reports.

use crate::wire::shortened;
use crate::{Call, Failure, Fingerprint, Kind, Made, Rank, Report, Sequence, Time, ToHub, ToMember};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// The calls of each sequence that are compared before the engine gets them, in both modes: most
/// mistakes in order show in the first step of a program.
pub const FIRST: u64 = 100;

/// The calls after the agreed one that [`Check::After`] gives to the engine. The member keeps
/// them, in 64 bytes each, to tell the hub which of them differs.
pub const AHEAD: u64 = 4096;

/// The calls after the limit that a member reports one by one. It reports the following ones when
/// the limit has moved, so a program that enqueues many calls fills no memory of rank 0.
pub const WINDOW: u64 = 256;

/// The positions that each rank reports as soon as it reaches them are the multiples of this
/// number. A report has about 250 bytes, so a call costs about four bytes of a connection.
pub const STRIDE: u64 = 64;

/// The time between two ticks of a member or of the hub.
pub const TICK: Time = Duration::from_millis(100);

/// The age at which the next tick reports a call. A difference is known about five ticks after the
/// call: two and one until its report, one until the hub asks, and the time of a bisection, which
/// takes up to twelve questions. That is less than the second that [`Check::After`] promises, if
/// an answer takes up to 40 ms.
pub const DELAY: Time = Duration::from_millis(200);

/// The time without a message after which a member says that it is alive.
pub(crate) const ALIVE: Time = Duration::from_secs(1);

/// The ticks after which a member no longer expects an answer of the hub: five seconds. A process
/// that was stopped for a while has had no ticks meanwhile.
const ANSWER: u32 = 50;

/// The moment at which calls are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Check {
    /// Before the engine gets the call. It costs a round trip to the hub for each call.
    Before,
    /// Within a second, beside the work. Until then an op may have finished with wrong bytes. The
    /// first [`FIRST`] calls of each sequence are compared before.
    After,
}

/// The number of a call: its sequence, and its position there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Number {
    /// The sequence.
    pub sequence: Sequence,
    /// The position, from 1.
    pub position: u64,
}

/// The reason why a call was not noted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The group has failed.
    Failed(Arc<Failure>),
    /// The group has no such call. It still works.
    Invalid(String),
}

/// One rank's side of the protocol.
///
/// Its owner passes it each call, each message of the hub and, every [`TICK`], the time. After
/// each of these it sends the messages that [`next_message`](Member::next_message) returns. Before
/// a tick it passes all messages that have arrived, else a process that was stopped for a while
/// would miss answers. See the rules of the crate for what the engine may get.
#[derive(Debug)]
pub struct Member {
    rank: Rank,
    size: Rank,
    check: Check,
    histories: BTreeMap<Sequence, History>,
    outbox: VecDeque<ToHub>,
    /// The time of the last message to the hub.
    sent: Time,
    question: Option<Question>,
    /// The time until which a late call is excused by another rank's pause.
    patient_until: Time,
    failure: Option<Arc<Failure>>,
}

/// A question about a late call that the hub has not answered.
#[derive(Debug)]
struct Question {
    ticks: u32,
    deadline: Time,
}

/// The calls of one sequence.
#[derive(Debug, Default)]
struct History {
    agreed: u64,
    fingerprint: Fingerprint,
    /// The calls after the agreed one.
    kept: VecDeque<Kept>,
    /// The newest reported position.
    reported: u64,
    /// The time of the first call after it.
    unreported: Option<Time>,
}

#[derive(Debug)]
struct Kept {
    fingerprint: Fingerprint,
    call: Call,
    site: &'static Location<'static>,
}

impl History {
    fn newest(&self) -> u64 {
        self.agreed + self.kept.len() as u64
    }

    fn limit(&self, check: Check) -> u64 {
        match check {
            Check::After if self.agreed >= FIRST => self.agreed + AHEAD,
            _ => self.agreed,
        }
    }

    fn report(&self, sequence: Sequence, position: u64) -> Option<Report> {
        let index = position.checked_sub(self.agreed + 1)?;
        let Kept { fingerprint, call, site } = self.kept.get(usize::try_from(index).ok()?)?;
        let site = shortened(format!("{}:{}", site.file(), site.line()));
        Some(Report { sequence, position, fingerprint: *fingerprint, made: Made { call: *call, site } })
    }
}

impl Member {
    /// Returns the member of a rank, in a group of `size` ranks, that has made no call yet.
    pub fn new(rank: Rank, size: Rank, check: Check, now: Time) -> Member {
        Member {
            rank,
            size,
            check,
            histories: BTreeMap::new(),
            outbox: VecDeque::new(),
            sent: now,
            question: None,
            patient_until: now,
            failure: None,
        }
    }

    /// Notes a call of this rank, and returns its number.
    ///
    /// # Errors
    /// If the group has failed, or has no such rank as the call names. The call is not noted then.
    pub fn call(
        &mut self,
        now: Time,
        call: Call,
        site: &'static Location<'static>,
    ) -> Result<Number, Refusal> {
        if let Some(failure) = &self.failure {
            return Err(Refusal::Failed(Arc::clone(failure)));
        }
        self.ensure_valid(&call).map_err(Refusal::Invalid)?;
        let sequence = call.kind.sequence(self.rank);
        let history = self.histories.entry(sequence).or_default();
        history.fingerprint = history.fingerprint.with(&call);
        history.kept.push_back(Kept { fingerprint: history.fingerprint, call, site });
        history.unreported.get_or_insert(now);
        let position = history.newest();
        if position > history.limit(self.check) {
            self.report_beyond_limit(now, sequence);
        } else if position.is_multiple_of(STRIDE) {
            self.report(now, sequence, position);
        }
        Ok(Number { sequence, position })
    }

    /// Returns the position up to which the engine may get the calls of a sequence. It never
    /// shrinks.
    pub fn limit(&self, sequence: Sequence) -> u64 {
        self.histories.get(&sequence).map_or(0, |history| history.limit(self.check))
    }

    /// Returns the failure that ended the group.
    pub fn failure(&self) -> Option<&Arc<Failure>> {
        self.failure.as_ref()
    }

    /// Takes a message of the hub.
    pub fn receive(&mut self, now: Time, message: ToMember) {
        if self.failure.is_some() {
            return;
        }
        match message {
            ToMember::Agreed { sequence, position } => {
                if let Some(history) = self.histories.get_mut(&sequence) {
                    let newly = position.min(history.newest()).saturating_sub(history.agreed);
                    history.kept.drain(..newly as usize);
                    history.agreed += newly;
                    self.report_beyond_limit(now, sequence);
                }
            }
            ToMember::Ask { sequence, position } => self.report(now, sequence, position),
            ToMember::Paused { rest, .. } => {
                if let Some(Question { deadline, .. }) = self.question.take() {
                    // The pause may end earlier.
                    self.patient_until = now.saturating_add(rest.min(deadline.max(ALIVE)));
                }
            }
            ToMember::Failed(failure) => self.fail(failure),
        }
    }

    /// Sends what is due at this time: reports, a sign of life. Fails the group if the hub does
    /// not answer.
    pub fn tick(&mut self, now: Time) {
        if self.failure.is_some() {
            return;
        }
        self.report_since(now, now.saturating_sub(DELAY));
        if self.sent + ALIVE <= now {
            self.send(now, ToHub::Alive);
        }
        if let Some(question) = &mut self.question {
            question.ticks += 1;
            if question.ticks > ANSWER {
                let why = format!("it has not answered for {:?}", TICK * ANSWER);
                // If it was slow, the others learn why this rank is gone.
                self.send(now, ToHub::Abort { reason: format!("rank 0 is lost: {why}") });
                self.hub_lost(why);
            }
        }
    }

    /// Asks the hub why a call takes longer than the deadline. The answer is a failure of the
    /// group, unless another rank has announced a pause. Call it in each tick while the call is
    /// late: it asks again at most once in each deadline.
    pub fn late(&mut self, now: Time, number: Number, made: Made, waited: Time, deadline: Time) {
        if self.failure.is_none() && self.question.is_none() && now >= self.patient_until {
            self.report_since(now, Time::MAX);
            self.question = Some(Question { ticks: 0, deadline });
            let Number { sequence, position } = number;
            let made = Made { site: shortened(made.site), ..made };
            self.send(now, ToHub::Late { sequence, position, made, waited, deadline });
        }
    }

    /// Announces that this rank will make no calls for a time.
    pub fn pause(&mut self, now: Time, time: Time) {
        if self.failure.is_none() {
            // The hub takes a call that comes after the announcement for the end of the pause.
            self.report_since(now, Time::MAX);
            self.send(now, ToHub::Pause(time));
        }
    }

    /// Ends the group, here immediately and on the other ranks when they learn of it.
    pub fn abort(&mut self, now: Time, reason: String) {
        if self.failure.is_none() {
            let reason = shortened(reason);
            self.send(now, ToHub::Abort { reason: reason.clone() });
            self.fail(Failure::Aborted { rank: self.rank, reason });
        }
    }

    /// Announces that this rank makes no more calls. Leave once no call is
    /// [unsettled](Member::unsettled): then the hub has no more questions.
    pub fn leave(&mut self, now: Time) {
        if self.failure.is_none() {
            self.report_since(now, Time::MAX);
            self.send(now, ToHub::Leave);
        }
    }

    /// Returns a call that is not agreed yet. If its rank left, the call could no longer be
    /// compared.
    pub fn unsettled(&self) -> Option<Number> {
        let mut open = self.histories.iter().filter(|(_, history)| !history.kept.is_empty());
        open.next().map(|(sequence, history)| Number { sequence: *sequence, position: history.agreed + 1 })
    }

    /// Notes that the connection to the hub has ended.
    pub fn hub_lost(&mut self, why: String) {
        if self.failure.is_none() {
            self.fail(Failure::Lost { rank: 0, last: None, why });
        }
    }

    /// Returns the next message for the hub.
    pub fn next_message(&mut self) -> Option<ToHub> {
        self.outbox.pop_front()
    }

    /// Returns whether there is no message for the hub.
    pub fn is_quiet(&self) -> bool {
        self.outbox.is_empty()
    }

    fn ensure_valid(&self, call: &Call) -> Result<(), String> {
        let (named, role) = match call.kind {
            Kind::Reduce(_, root) | Kind::Broadcast(root) => (root, "root"),
            Kind::Send(peer) | Kind::Receive(peer) => (peer, "peer"),
            Kind::AllReduce(_) | Kind::AllGather | Kind::ReduceScatter(_) | Kind::Barrier => return Ok(()),
        };
        let size = self.size;
        if named >= size {
            return Err(format!(
                "the {role} is rank {named}, and the group has {size} ranks, numbered from 0"
            ));
        }
        if role == "peer" && named == self.rank {
            return Err(format!(
                "rank {named} cannot exchange messages with itself; copy the values instead"
            ));
        }
        Ok(())
    }

    /// Reports each call after the limit, up to a window.
    fn report_beyond_limit(&mut self, now: Time, sequence: Sequence) {
        let Some(history) = self.histories.get(&sequence) else { return };
        let limit = history.limit(self.check);
        let (first, last) = (history.reported.max(limit) + 1, history.newest().min(limit + WINDOW));
        for position in first..=last {
            self.report(now, sequence, position);
        }
    }

    /// Reports the newest call of each sequence that has an unreported one made by this time.
    fn report_since(&mut self, now: Time, time: Time) {
        let check = self.check;
        let is_due = |history: &History| {
            // The calls beyond a window follow when the limit has moved.
            history.unreported.is_some_and(|since| since <= time)
                && history.newest() <= history.limit(check) + WINDOW
        };
        let due = self.histories.iter().filter(|(_, history)| is_due(history));
        let due: Vec<_> = due.map(|(sequence, history)| (*sequence, history.newest())).collect();
        for (sequence, position) in due {
            self.report(now, sequence, position);
        }
    }

    fn report(&mut self, now: Time, sequence: Sequence, position: u64) {
        let Some(history) = self.histories.get_mut(&sequence) else { return };
        let Some(report) = history.report(sequence, position) else { return };
        history.reported = history.reported.max(position);
        if position == history.newest() {
            history.unreported = None;
        }
        self.send(now, ToHub::Report(report));
    }

    fn send(&mut self, now: Time, message: ToHub) {
        self.sent = now;
        self.outbox.push_back(message);
    }

    fn fail(&mut self, failure: Failure) {
        self.failure = Some(Arc::new(failure));
        // They are compared no more. The limits stay.
        self.histories.values_mut().for_each(|history| history.kept.clear());
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Failed(failure) => failure.fmt(f),
            Refusal::Invalid(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for Refusal {}
