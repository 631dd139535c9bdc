//! Programs of several ranks, drawn at random, and whether their calls fit together.

use crate::*;
use std::collections::BTreeMap;
use std::panic::Location;

pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(super) fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % most
    }

    pub(super) fn one_in(&mut self, most: usize) -> bool {
        self.below(most) == 0
    }
}

#[track_caller]
fn here() -> &'static Location<'static> {
    Location::caller()
}

/// Returns one of several lines, so that a report with the line of another call shows.
fn line(number: usize) -> &'static Location<'static> {
    let lines = [here(), here(), here(), here(), here()];
    lines[number % lines.len()]
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) call: Call,
    pub(super) site: &'static Location<'static>,
    /// The rank makes its next call when this one has finished.
    pub(super) is_awaited: bool,
}

impl Step {
    pub(super) fn made(&self) -> Made {
        Made { call: self.call, site: format!("{}:{}", self.site.file(), self.site.line()) }
    }
}

const ELEMENTS: [Element; 4] = [Element::U8, Element::F16, Element::F32, Element::F64];
const REDUCES: [Reduce; 3] = [Reduce::Sum, Reduce::Product, Reduce::Max];
fn draw_kind(dice: &mut Dice, ranks: usize) -> Kind {
    let reduce = REDUCES[dice.below(REDUCES.len())];
    let root = dice.below(ranks) as Rank;
    [
        Kind::AllReduce(reduce),
        Kind::Reduce(reduce, root),
        Kind::Broadcast(root),
        Kind::AllGather,
        Kind::ReduceScatter(reduce),
        Kind::Barrier,
    ][dice.below(6)]
}

/// Returns a program for each rank. They fit together, unless a mistake was drawn.
pub(super) fn draw_programs(dice: &mut Dice, ranks: usize, steps: usize) -> Vec<Vec<Step>> {
    let mut programs = vec![Vec::new(); ranks];
    let awaited = 1 + dice.below(6);
    let messages = dice.below(3);
    for number in 0..steps {
        let (length, element) = (1 + dice.below(3) as u64, ELEMENTS[dice.below(ELEMENTS.len())]);
        let call = |kind| Call { kind, element, length, joined: false, beside: 0, collectives: 0 };
        if ranks > 1 && dice.below(4) < messages {
            let from = dice.below(ranks);
            let to = (from + 1 + dice.below(ranks - 1)) % ranks;
            for (rank, kind) in [(from, Kind::Send(to as Rank)), (to, Kind::Receive(from as Rank))] {
                let call = Call { joined: dice.one_in(3), ..call(kind) };
                programs[rank].push(Step {
                    call,
                    site: line(number + rank),
                    is_awaited: dice.one_in(awaited),
                });
            }
        } else {
            let call = call(draw_kind(dice, ranks));
            let call = Call { joined: dice.one_in(3), beside: number as u64 / 7, ..call };
            for (rank, program) in programs.iter_mut().enumerate() {
                program.push(Step { call, site: line(number + rank), is_awaited: dice.one_in(awaited) });
            }
        }
    }
    if dice.one_in(2) {
        let program = &mut programs[dice.below(ranks)];
        if !program.is_empty() {
            let (at, sort) = (dice.below(program.len()), dice.below(7));
            let call = &mut program[at].call;
            match sort {
                0 => call.length += 1,
                1 => call.element = ELEMENTS[dice.below(ELEMENTS.len())],
                2 if call.kind.is_collective() => call.kind = draw_kind(dice, ranks),
                3 => call.joined = !call.joined,
                6 => drop(program.remove(at)),
                4 => program.insert(at, program[at]),
                _ if at > 0 => program.swap(at - 1, at),
                _ => call.beside += 1,
            }
        }
    }
    for program in &mut programs {
        let mut collectives = 0;
        for Step { call, .. } in program {
            match call.kind {
                Kind::Send(_) | Kind::Receive(_) => call.collectives = collectives,
                _ => collectives += 1,
            }
        }
    }
    programs
}

pub(super) fn steps_of(program: &[Step], rank: Rank, sequence: Sequence) -> Vec<Step> {
    program.iter().filter(|step| step.call.kind.sequence(rank) == sequence).copied().collect()
}

/// Returns whether the calls of two ranks fit together, by their terms alone.
pub(super) fn fit(one: &Call, other: &Call) -> bool {
    let terms = |call: &Call| (call.element, call.length, call.beside, call.collectives);
    let kinds = match (one.kind, other.kind) {
        (Kind::Send(_) | Kind::Receive(_), Kind::Send(_) | Kind::Receive(_)) => true,
        (one_kind, other_kind) => one_kind == other_kind && one.joined == other.joined,
    };
    kinds && terms(one) == terms(other)
}

/// Returns the number of calls of a sequence up to which all ranks make the same ones.
pub(super) fn same_calls(calls: &BTreeMap<Rank, Vec<Step>>) -> u64 {
    let first = calls.values().next().expect("a sequence has ranks");
    let fits = |index: usize, call: &Call| {
        calls.values().all(|steps| steps.get(index).is_some_and(|other| fit(call, &other.call)))
    };
    first.iter().enumerate().take_while(|(index, step)| fits(*index, &step.call)).count() as u64
}
