//! The side of rank 0: compares the reports of all ranks, and decides why a group ends.

use crate::comparison::{Comparison, Outcome};
use crate::failure::Behind;
use crate::member::ALIVE;
use crate::wire::shortened;
use crate::{
    AHEAD, Failure, Fingerprint, Made, Number, Rank, Report, Sequence, Time, ToHub, ToMember, WINDOW,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The ticks between the question about a late call and the judgement. Others may have made calls
/// that they report meanwhile.
const JUDGEMENT: u32 = 5;

/// The ticks after which a search for a difference ends with what it has. A member waits longer
/// for the answer about a late call.
const SEARCH: u32 = 30;

/// The side of rank 0, which compares the reports of all ranks, its own too.
///
/// Its owner passes it each message of a member, each end of a connection and, every
/// [`TICK`](crate::TICK), the time. After each of these it sends the messages that
/// [`next_message`](Hub::next_message) returns. Before a tick it passes all messages that have
/// arrived. The process of rank 0 ends [last](Hub::is_over).
///
/// The hub keeps about 200 bytes for each pair of ranks that have exchanged messages.
#[derive(Debug)]
pub struct Hub {
    peers: Vec<Peer>,
    comparisons: BTreeMap<Sequence, Comparison>,
    /// The sequences with reports that are not agreed.
    open: BTreeSet<Sequence>,
    bisection: Option<Bisection>,
    late: Vec<LateCall>,
    outbox: VecDeque<(Rank, ToMember)>,
    has_any_left: bool,
    failure: Option<Failure>,
}

/// The state of one rank.
#[derive(Debug)]
struct Peer {
    /// The time of its last message.
    heard: Time,
    /// The time and the call of its last report of a new call.
    called: Time,
    last: Option<Made>,
    /// The end of its last pause.
    paused_until: Option<Time>,
    has_left: bool,
    is_connected: bool,
}

/// A call whose rank has asked why it is late.
#[derive(Debug)]
struct LateCall {
    rank: Rank,
    number: Number,
    made: Made,
    waited: Time,
    deadline: Time,
    /// The ticks since the question.
    ticks: u32,
}

/// The search for the first difference between two ranks. While there is one, nothing else ends
/// the group.
#[derive(Debug)]
struct Bisection {
    sequence: Sequence,
    /// The newest position known to be equal.
    equal: u64,
    /// The oldest position known to differ.
    position: u64,
    /// The two ranks, with their calls at that position.
    calls: [(Rank, Made); 2],
    /// The position that both have been asked for.
    middle: u64,
    /// Their answers.
    answers: [Option<(Fingerprint, Made)>; 2],
    /// The ticks since its start.
    ticks: u32,
}

impl Hub {
    /// Returns the hub of a group of `size` ranks, all of which are connected.
    pub fn new(size: Rank, now: Time) -> Hub {
        let peer = |_| Peer {
            heard: now,
            called: now,
            last: None,
            paused_until: None,
            has_left: false,
            is_connected: true,
        };
        Hub {
            peers: (0..size).map(peer).collect(),
            comparisons: BTreeMap::new(),
            open: BTreeSet::new(),
            bisection: None,
            late: Vec::new(),
            outbox: VecDeque::new(),
            has_any_left: false,
            failure: None,
        }
    }

    /// Takes a message of a rank.
    ///
    /// # Panics
    /// If the group has no such rank.
    pub fn receive(&mut self, now: Time, rank: Rank, message: ToHub) {
        let peer = &mut self.peers[rank as usize];
        peer.heard = now;
        if self.failure.is_some() {
            return;
        }
        match message {
            ToHub::Alive => {}
            ToHub::Report(report) => {
                let site = shortened(report.made.site);
                self.report(now, rank, Report { made: Made { site, ..report.made }, ..report });
            }
            ToHub::Late { sequence, position, made, waited, deadline } => {
                let made = Made { site: shortened(made.site), ..made };
                let number = Number { sequence, position };
                self.late.retain(|other| other.rank != rank);
                self.late.push(LateCall { rank, number, made, waited, deadline, ticks: 0 });
            }
            ToHub::Pause(time) => peer.paused_until = Some(now.saturating_add(time)),
            ToHub::Abort { reason } => self.fail(Failure::Aborted { rank, reason: shortened(reason) }),
            ToHub::Leave => self.leave(rank),
        }
    }

    /// Asks for what ranks have not reported, and judges late calls. Ends a search that gets no
    /// answer.
    pub fn tick(&mut self, now: Time) {
        if self.failure.is_some() {
            return;
        }
        if let Some(bisection) = &mut self.bisection {
            bisection.ticks += 1;
            if bisection.ticks > SEARCH {
                let failure = bisection.failure();
                self.fail(failure);
            }
            return;
        }
        for sequence in &self.open {
            let Some(comparison) = self.comparisons.get_mut(sequence) else { continue };
            let questions = comparison.questions().into_iter();
            self.outbox.extend(
                questions.map(|(position, rank)| (rank, ToMember::Ask { sequence: *sequence, position })),
            );
        }
        self.late.iter_mut().for_each(|late| late.ticks += 1);
        let (due, early) =
            std::mem::take(&mut self.late).into_iter().partition(|late| late.ticks >= JUDGEMENT);
        self.late = early;
        for late in due {
            self.judge(now, late);
        }
    }

    /// Notes that the connection to a rank has ended. The group fails, unless the rank had left.
    pub fn lost(&mut self, rank: Rank, why: String) {
        let peer = &mut self.peers[rank as usize];
        peer.is_connected = false;
        if self.failure.is_some() || peer.has_left {
            return;
        }
        let failure = match &self.bisection {
            Some(bisection) if bisection.concerns(rank) => bisection.failure(),
            Some(_) => return,
            None => Failure::Lost { rank, last: peer.last.clone(), why: shortened(why) },
        };
        self.fail(failure);
    }

    /// Returns the failure that ended the group.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Returns whether the process of rank 0 may end, when all messages are sent: all ranks have
    /// left, or the group has failed. If it ends before, the other ranks lose their hub.
    pub fn is_over(&self) -> bool {
        self.failure.is_some() || self.peers.iter().all(|peer| peer.has_left)
    }

    /// Returns whether all that was reported is agreed.
    #[cfg(test)]
    pub(crate) fn is_settled(&self) -> bool {
        self.open.is_empty() && self.comparisons.values().all(Comparison::is_settled)
    }

    /// Returns the next message and the rank that it is for.
    pub fn next_message(&mut self) -> Option<(Rank, ToMember)> {
        self.outbox.pop_front()
    }

    fn report(&mut self, now: Time, rank: Rank, report: Report) {
        let Report { sequence, position, .. } = report;
        let size = self.peers.len() as Rank;
        let is_valid = match sequence {
            Sequence::Collectives => true,
            Sequence::Messages { from, to } => {
                from != to && from.max(to) < size && (rank == from || rank == to)
            }
        };
        if !is_valid || position == 0 {
            return self.broken(
                rank,
                format!("it reported {}, which is none of its calls", sequence.name(position)),
            );
        }
        let comparison = self.comparisons.entry(sequence).or_insert_with(|| Comparison::new(sequence, size));
        let furthest = comparison.agreed() + AHEAD + WINDOW;
        if position > furthest {
            let name = sequence.name(position);
            return self.broken(
                rank,
                format!("it reported {name}, and it may report {furthest} before others follow"),
            );
        }
        if position > comparison.newest_of(rank) {
            let peer = &mut self.peers[rank as usize];
            (peer.called, peer.last) = (now, Some(report.made.clone()));
            peer.paused_until = peer.paused_until.map(|until| until.min(now));
        }
        let outcome = comparison.report(rank, &report);
        if comparison.is_settled() {
            self.open.remove(&sequence)
        } else {
            self.open.insert(sequence)
        };
        if let Some(bisection) = &mut self.bisection {
            bisection.answer(rank, &report);
            return self.bisect();
        }
        match outcome {
            Outcome::Waits => {}
            Outcome::Agreed => {
                let connected = |rank: &&Rank| self.peers[**rank as usize].is_connected;
                let ranks = comparison.ranks().iter().filter(connected);
                self.outbox.extend(ranks.map(|rank| (*rank, ToMember::Agreed { sequence, position })));
            }
            Outcome::Differs { first } => {
                let equal = comparison.agreed();
                let calls = [first, (rank, report.made)];
                let (middle, answers, ticks) = (position, [None, None], 0);
                self.bisection = Some(Bisection { sequence, equal, position, calls, middle, answers, ticks });
                return self.bisect();
            }
        }
        self.check_left(sequence);
    }

    /// Continues the search: asks for the middle, or ends the group.
    fn bisect(&mut self) {
        let Some(bisection) = &mut self.bisection else { return };
        if bisection.middle < bisection.position && !bisection.narrow() {
            return;
        }
        if bisection.equal + 1 == bisection.position {
            let failure = bisection.failure();
            return self.fail(failure);
        }
        bisection.middle = bisection.equal.midpoint(bisection.position);
        let ask = ToMember::Ask { sequence: bisection.sequence, position: bisection.middle };
        self.outbox.extend(bisection.calls.iter().map(|(rank, _)| (*rank, ask.clone())));
    }

    /// Excuses a late call, or ends the group for it.
    fn judge(&mut self, now: Time, late: LateCall) {
        let LateCall { rank, number: Number { sequence, position }, made, waited, deadline, .. } = late;
        if let Some((paused, rest)) = self.excuse(now, deadline) {
            return self.outbox.push_back((rank, ToMember::Paused { rank: paused, rest }));
        }
        let Some(comparison) = self.comparisons.get(&sequence) else {
            let name = sequence.name(position);
            return self.broken(rank, format!("it waits for {name}, which it has not reported"));
        };
        let behind = comparison.newest().filter(|(_, calls)| *calls < position);
        let behind = behind.min_by_key(|(rank, calls)| (*calls, self.peers[*rank as usize].called));
        let silence = |rank: Rank| now.saturating_sub(self.peers[rank as usize].heard);
        let silent = comparison.newest().filter(|(rank, _)| silence(*rank) > 2 * ALIVE);
        let behind = behind.or_else(|| silent.max_by_key(|(rank, _)| silence(*rank)));
        let behind = behind.map(|(rank, calls)| Behind {
            rank,
            calls,
            last: self.peers[rank as usize].last.clone(),
            silent: silence(rank),
        });
        self.fail(Failure::Late { by: (rank, made), position, waited, behind });
    }

    /// Returns a rank whose pause is not over, or is over for less than the deadline, and the rest
    /// of that time. It excuses all ranks: a rank may wait for one that waits for the paused one.
    fn excuse(&self, now: Time, deadline: Time) -> Option<(Rank, Time)> {
        let until = (0..).zip(&self.peers).filter_map(|(rank, peer)| Some((rank, peer.paused_until?)));
        let rest = until.map(|(rank, until)| (rank, until.saturating_add(deadline).saturating_sub(now)));
        rest.filter(|(_, rest)| !rest.is_zero()).max_by_key(|(_, rest)| *rest)
    }

    fn leave(&mut self, rank: Rank) {
        self.peers[rank as usize].has_left = true;
        self.has_any_left = true;
        let sequences: Vec<_> = self.open.iter().copied().collect();
        for sequence in sequences {
            self.check_left(sequence);
        }
    }

    /// Ends the group if a rank has left while another one made more calls of this sequence.
    fn check_left(&mut self, sequence: Sequence) {
        if !self.has_any_left || self.bisection.is_some() {
            return;
        }
        let Some(comparison) = self.comparisons.get(&sequence) else { return };
        let left = comparison.newest().filter(|(rank, _)| self.peers[*rank as usize].has_left);
        let Some((rank, calls)) = left.min_by_key(|(_, calls)| *calls) else { return };
        let Some((position, by, made)) = comparison.furthest() else { return };
        if *position > calls {
            let (position, by) = (*position, (*by, made.clone()));
            self.fail(Failure::Left { rank, calls, by, position });
        }
    }

    fn broken(&mut self, rank: Rank, why: String) {
        self.fail(Failure::Broken { rank, why });
    }

    fn fail(&mut self, failure: Failure) {
        if self.failure.is_some() {
            return;
        }
        for (rank, peer) in self.peers.iter().enumerate() {
            if peer.is_connected {
                self.outbox.push_back((rank as Rank, ToMember::Failed(failure.clone())));
            }
        }
        self.failure = Some(failure);
        self.bisection = None;
        self.comparisons.clear();
        self.open.clear();
        self.late.clear();
    }
}

impl Bisection {
    fn concerns(&self, rank: Rank) -> bool {
        self.calls.iter().any(|(other, _)| *other == rank)
    }

    /// Notes a report, if it answers the question.
    fn answer(&mut self, rank: Rank, report: &Report) {
        if report.sequence == self.sequence && report.position == self.middle {
            for ((other, _), answer) in self.calls.iter().zip(&mut self.answers) {
                if *other == rank {
                    *answer = Some((report.fingerprint, report.made.clone()));
                }
            }
        }
    }

    /// Halves the range if both ranks have answered. Returns whether they have.
    fn narrow(&mut self) -> bool {
        let [Some(one), Some(other)] = &self.answers else { return false };
        if one.0 == other.0 {
            self.equal = self.middle;
        } else {
            self.position = self.middle;
            self.calls[0].1 = one.1.clone();
            self.calls[1].1 = other.1.clone();
        }
        self.answers = [None, None];
        true
    }

    fn failure(&self) -> Failure {
        let Bisection { sequence, equal, position, .. } = *self;
        let [one, other] = self.calls.clone();
        Failure::Mismatch { sequence, equal, position, one, other }
    }
}
