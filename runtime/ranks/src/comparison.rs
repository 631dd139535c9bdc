//! The comparison of one sequence: which rank has reported what, and what is agreed.

use crate::{Fingerprint, Made, Rank, Report, Sequence};
use std::collections::BTreeMap;

/// The reports of one sequence after the agreed position.
#[derive(Debug)]
pub(crate) struct Comparison {
    ranks: Vec<Rank>,
    /// The newest position that each of these ranks has reported.
    newest: Vec<u64>,
    agreed: u64,
    /// The positions after the agreed one that some ranks have reported.
    reported: BTreeMap<u64, Reported>,
    /// The newest position of all, its rank, and the call there.
    furthest: Option<(u64, Rank, Made)>,
}

/// The reports of one position. They are equal: the first different one ends the group.
#[derive(Debug)]
struct Reported {
    fingerprint: Fingerprint,
    /// The rank that reported it first, and its call.
    first: (Rank, Made),
    /// By the ranks of the sequence.
    by: Vec<State>,
    /// The number of ranks that have yet to report it.
    missing: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Missing,
    Asked,
    Reported,
}

/// The effect of a report.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    /// Other ranks have to report the position too.
    Waits,
    /// All ranks have reported the same.
    Agreed,
    /// The rank `first` has reported something else at this position.
    Differs { first: (Rank, Made) },
}

impl Comparison {
    pub(crate) fn new(sequence: Sequence, size: Rank) -> Comparison {
        let ranks = sequence.ranks(size);
        Comparison {
            newest: vec![0; ranks.len()],
            ranks,
            agreed: 0,
            reported: BTreeMap::new(),
            furthest: None,
        }
    }

    pub(crate) fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    pub(crate) fn agreed(&self) -> u64 {
        self.agreed
    }

    /// Returns whether all that was reported is agreed.
    pub(crate) fn is_settled(&self) -> bool {
        self.reported.is_empty()
    }

    /// Returns each rank with the newest position that it has reported.
    pub(crate) fn newest(&self) -> impl Iterator<Item = (Rank, u64)> {
        self.ranks.iter().copied().zip(self.newest.iter().copied())
    }

    /// Returns the newest position that a rank has reported.
    pub(crate) fn newest_of(&self, rank: Rank) -> u64 {
        self.newest[self.index(rank)]
    }

    /// Returns the newest position of all, its rank, and the call there.
    pub(crate) fn furthest(&self) -> Option<&(u64, Rank, Made)> {
        self.furthest.as_ref()
    }

    /// Notes a report of a rank, which is one of the sequence.
    pub(crate) fn report(&mut self, rank: Rank, report: &Report) -> Outcome {
        let index = self.index(rank);
        let Report { position, fingerprint, .. } = *report;
        self.newest[index] = self.newest[index].max(position);
        if self.furthest.as_ref().is_none_or(|(furthest, ..)| position > *furthest) {
            self.furthest = Some((position, rank, report.made.clone()));
        }
        if position <= self.agreed {
            return Outcome::Waits;
        }
        let ranks = self.ranks.len();
        let reported = self.reported.entry(position).or_insert_with(|| Reported {
            fingerprint,
            first: (rank, report.made.clone()),
            by: vec![State::Missing; ranks],
            missing: ranks,
        });
        if reported.fingerprint != fingerprint {
            let first = reported.first.clone();
            return Outcome::Differs { first };
        }
        if std::mem::replace(&mut reported.by[index], State::Reported) != State::Reported {
            reported.missing -= 1;
        }
        if reported.missing > 0 {
            return Outcome::Waits;
        }
        self.agreed = position;
        self.reported = self.reported.split_off(&(position + 1));
        Outcome::Agreed
    }

    /// Returns what the ranks have to be asked, each question once: positions that other ranks
    /// have reported, and they have passed.
    ///
    /// Each rank is asked for the newest position of the rank that is next behind it. So all that
    /// is reported gets compared, even if one rank makes no calls. Once all ranks have passed the
    /// agreed position, they are also asked for the newest one of the rank that is last, which is
    /// then agreed.
    pub(crate) fn questions(&mut self) -> Vec<(u64, Rank)> {
        let beyond = self.newest.iter().enumerate().filter(|(_, newest)| **newest > self.agreed);
        let mut beyond: Vec<_> = beyond.map(|(index, newest)| (*newest, index)).collect();
        beyond.sort_unstable();
        let mut pairs: Vec<_> = beyond.windows(2).map(|pair| (pair[0].0, pair[1])).collect();
        if beyond.len() == self.ranks.len() {
            let last = beyond[0].0;
            pairs.extend(beyond.iter().map(|ahead| (last, *ahead)));
        }
        let mut questions = Vec::new();
        for (position, (newest, index)) in pairs {
            let Some(reported) = self.reported.get_mut(&position).filter(|_| position < newest) else {
                continue;
            };
            if reported.by[index] == State::Missing {
                reported.by[index] = State::Asked;
                questions.push((position, self.ranks[index]));
            }
        }
        questions
    }

    fn index(&self, rank: Rank) -> usize {
        if self.ranks.get(rank as usize) == Some(&rank) {
            return rank as usize;
        }
        self.ranks.iter().position(|other| *other == rank).expect("the rank is one of the sequence")
    }
}
