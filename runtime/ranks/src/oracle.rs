//! Random programs of a few ranks, right and wrong ones, against the lists of their calls.
//!
//! The ranks, the hub and their connections are simulated, with random delays and a clock of their
//! own. The engine takes the calls of each rank in order, and finishes a call once all its ranks
//! are there. It compares nothing. Failures are checked against the programs: a failure has to be
//! true, and a program that is right and whose ranks live has none.

use crate::*;
use programs::{Dice, Step, draw_programs, fit, same_calls, steps_of};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use warpline_test_counts::count;

mod programs;

/// The mishap of one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Lives,
    /// Its process ends before this step.
    Dies(Rank, usize),
    /// Its process stops before this step, and its connection stays.
    Stops(Rank, usize),
    /// Its process stops before this step, and continues later.
    Sleeps(Rank, usize),
    /// It announces a pause before this step, and is away for nearly as long.
    Pauses(Rank, usize),
    /// It ends the group before this step.
    Aborts(Rank, usize),
}

const DEADLINE: Time = Duration::from_secs(5);
const PAUSE: Time = Duration::from_secs(30);
const SLEEP: Time = Duration::from_secs(20);
/// The longest time from two different calls to the failure. Messages take about 30 ms here.
const DETECTION: Time = Duration::from_secs(3);

/// One rank: its program, its side of the protocol, its place in the engine, its connection.
struct Process {
    program: Vec<Step>,
    member: Member,
    next: usize,
    /// The calls that were made, with the numbers they got, and how many of them the engine has.
    made: Vec<Number>,
    given: usize,
    finished: usize,
    /// Since when the first unfinished call is the first.
    head_since: Time,
    away_until: Time,
    wakes_at: Option<Time>,
    is_stopped: bool,
    is_dead: bool,
    has_left: bool,
    to_hub: VecDeque<ToHub>,
    from_hub: VecDeque<ToMember>,
}

struct World {
    dice: Dice,
    check: Check,
    now: Time,
    hub: Hub,
    processes: Vec<Process>,
    /// The mishap that has yet to happen, and the one that was drawn.
    fate: Fate,
    drawn: Fate,
    /// The time at which two ranks had made different calls.
    differs_since: Option<Time>,
    /// By sequence: the number of calls up to which all ranks make the same.
    same: BTreeMap<Sequence, u64>,
    /// By sequence, then rank: the calls that its program has.
    calls: BTreeMap<Sequence, BTreeMap<Rank, Vec<Step>>>,
}

impl World {
    fn new(seed: u64, check: Check, steps: usize) -> World {
        let mut dice = Dice::new(seed);
        let ranks = 1 + dice.below(6);
        let steps = 1 + dice.below(steps);
        let programs = draw_programs(&mut dice, ranks, steps);
        let (rank, at) = (dice.below(ranks) as Rank, dice.below(steps + 1));
        let fate = match dice.below(12) {
            0 => Fate::Dies(rank, at),
            1 => Fate::Stops(rank, at),
            4 => Fate::Sleeps(rank, at),
            2 => Fate::Pauses(rank, at),
            3 => Fate::Aborts(rank, at),
            _ => Fate::Lives,
        };
        let mut calls = BTreeMap::<_, BTreeMap<_, _>>::new();
        for (rank, program) in programs.iter().enumerate() {
            for step in program {
                let sequence = step.call.kind.sequence(rank as Rank);
                for rank in sequence.ranks(ranks as Rank) {
                    let steps = || steps_of(&programs[rank as usize], rank, sequence);
                    calls.entry(sequence).or_default().entry(rank).or_insert_with(steps);
                }
            }
        }
        let process = |(rank, program): (usize, Vec<Step>)| Process {
            program,
            member: Member::new(rank as Rank, ranks as Rank, check, Time::ZERO),
            next: 0,
            made: Vec::new(),
            given: 0,
            finished: 0,
            head_since: Time::ZERO,
            away_until: Time::ZERO,
            wakes_at: None,
            is_stopped: false,
            is_dead: false,
            has_left: false,
            to_hub: VecDeque::new(),
            from_hub: VecDeque::new(),
        };
        let processes = programs.into_iter().enumerate().map(process).collect();
        let hub = Hub::new(ranks as Rank, Time::ZERO);
        let same = calls.iter().map(|(sequence, calls)| (*sequence, same_calls(calls))).collect();
        World {
            dice,
            check,
            now: Time::ZERO,
            hub,
            processes,
            fate,
            drawn: fate,
            differs_since: None,
            same,
            calls,
        }
    }

    fn is_right(&self) -> bool {
        let mut sequences = self.calls.iter();
        let fits = |steps: &Vec<Step>, sequence: &Sequence| steps.len() as u64 == self.same[sequence];
        sequences.all(|(sequence, calls)| calls.values().all(|steps| fits(steps, sequence)))
            && !self.has_circle()
    }

    /// Returns whether ranks would wait for each other in a circle, with calls that fit together.
    fn has_circle(&self) -> bool {
        let sequence = |rank: usize, step: &Step| step.call.kind.sequence(rank as Rank);
        let programs = self.processes.iter().map(|process| &process.program).enumerate();
        let mut programs: Vec<Vec<_>> = programs
            .map(|(rank, program)| program.iter().rev().map(|step| sequence(rank, step)).collect())
            .collect();
        while programs.iter().any(|program| !program.is_empty()) {
            let heads: Vec<_> = programs.iter().map(|program| program.last().copied()).collect();
            let is_ready = |head: &&Sequence| {
                head.ranks(heads.len() as Rank).iter().all(|rank| heads[*rank as usize] == Some(**head))
            };
            let Some(ready) = heads.iter().flatten().find(is_ready) else { return true };
            for rank in ready.ranks(heads.len() as Rank) {
                programs[rank as usize].pop();
            }
        }
        false
    }

    fn run(&mut self) {
        let mut idle_since = self.now;
        while self.now < idle_since + 2 * PAUSE {
            let before = self.progress();
            self.now += Duration::from_millis(self.dice.below(40) as u64);
            for rank in 0..self.processes.len() {
                self.wake(rank);
                self.step(rank);
            }
            self.deliver();
            if let (Some(since), Fate::Lives | Fate::Pauses(..)) = (self.differs_since, self.drawn) {
                assert!(
                    self.hub.failure().is_some() || self.now < since + DETECTION,
                    "a difference was not found"
                );
            }
            if self.dice.one_in(4) {
                let now = self.now;
                let alive =
                    self.processes.iter_mut().filter(|process| !process.is_dead && !process.is_stopped);
                alive.for_each(|process| process.member.tick(now));
                if !self.processes[0].is_dead && !self.processes[0].is_stopped {
                    self.hub.tick(now);
                }
            }
            self.finish_calls();
            if self.progress() != before {
                idle_since = self.now;
            }
            if self.is_at_an_end() {
                break;
            }
        }
    }

    /// Returns a value that differs after a step that changed something.
    fn progress(&self) -> (usize, usize, usize) {
        let sum = |of: fn(&Process) -> usize| self.processes.iter().map(of).sum();
        let failed = |process: &Process| usize::from(process.member.failure().is_some());
        (sum(|process| process.made.len()), sum(|process| process.finished), sum(failed))
    }

    fn is_at_an_end(&self) -> bool {
        self.processes
            .iter()
            .all(|process| process.is_dead || process.has_left || process.member.failure().is_some())
            && self.processes.iter().all(|process| process.to_hub.is_empty() && process.from_hub.is_empty())
            && !self.processes.iter().any(|process| process.is_stopped)
    }

    /// Lets a process that was stopped continue: first it takes what has arrived meanwhile.
    fn wake(&mut self, rank: usize) {
        if self.processes[rank].wakes_at.is_none_or(|time| time > self.now) {
            return;
        }
        let process = &mut self.processes[rank];
        (process.wakes_at, process.is_stopped) = (None, false);
        for message in process.from_hub.drain(..) {
            process.member.receive(self.now, message);
        }
        for sender in 0..self.processes.len() {
            self.collect(sender);
            for message in
                std::mem::take(&mut self.processes[sender].to_hub).into_iter().filter(|_| rank == 0)
            {
                self.hub.receive(self.now, sender as Rank, message);
            }
        }
    }

    /// Notes when two ranks have made different calls.
    fn note_difference(&mut self, number: Number, call: Call) {
        let mut others = self.processes.iter().flat_map(|process| process.made.iter().zip(&process.program));
        if others.any(|(made, step)| *made == number && !fit(&call, &step.call)) {
            self.differs_since.get_or_insert(self.now);
        }
    }

    /// Lets a rank make its next call, if it may, or what is its fate.
    fn step(&mut self, rank: usize) {
        let (now, fate) = (self.now, self.fate);
        let process = &mut self.processes[rank];
        if process.is_dead || process.is_stopped || process.away_until > now || self.dice.one_in(3) {
            return;
        }
        let number = rank as Rank;
        if !process.has_left && process.member.failure().is_none() {
            match fate {
                Fate::Dies(whose, at) if whose == number && process.next == at => {
                    process.is_dead = true;
                    return self.lose(rank);
                }
                Fate::Stops(whose, at) if whose == number && process.next == at => process.is_stopped = true,
                Fate::Sleeps(whose, at) if whose == number && process.next == at => {
                    process.is_stopped = true;
                    process.wakes_at = Some(now + SLEEP);
                    self.fate = Fate::Lives;
                }
                Fate::Pauses(whose, at) if whose == number && process.next == at => {
                    process.member.pause(now, PAUSE);
                    process.away_until = now + PAUSE - Duration::from_secs(1);
                    self.fate = Fate::Lives;
                }
                Fate::Aborts(whose, at) if whose == number && process.next == at => {
                    process.member.abort(now, "enough".into());
                }
                _ => {}
            }
        }
        let process = &mut self.processes[rank];
        if process.member.failure().is_some() || process.is_stopped || process.away_until > now {
            return;
        }
        let waits = process.next > 0
            && process.program[process.next - 1].is_awaited
            && process.finished < process.next;
        if let Some(step) = process.program.get(process.next).copied().filter(|_| !waits) {
            let made = process.member.call(now, step.call, step.site).expect("the group has not failed");
            if process.made.len() == process.finished {
                process.head_since = now;
            }
            process.made.push(made);
            process.next += 1;
            self.note_difference(made, step.call);
        }
        let process = &mut self.processes[rank];
        let unsettled = process.member.unsettled();
        if process.finished == process.program.len() && unsettled.is_none() && !process.has_left {
            process.member.leave(now);
            process.has_left = true;
        }
        let waits_for = process.made.get(process.finished).copied().or(unsettled);
        if let Some(number) = waits_for.filter(|_| now > process.head_since + DEADLINE) {
            let index = process.made.iter().position(|made| *made == number).expect("the call was made");
            let made = process.program[index].made();
            process.member.late(now, number, made, now - process.head_since, DEADLINE);
        }
    }

    /// Ends the connections of a rank. What is on its way arrives first.
    fn lose(&mut self, rank: usize) {
        if rank == 0 {
            for process in &mut self.processes[1..] {
                for message in process.from_hub.drain(..) {
                    process.member.receive(self.now, message);
                }
                process.member.hub_lost("its connection has ended".into());
            }
        } else {
            self.collect(rank);
            for message in std::mem::take(&mut self.processes[rank].to_hub) {
                self.hub.receive(self.now, rank as Rank, message);
            }
            self.hub.lost(rank as Rank, "its connection has ended".into());
        }
    }

    fn collect(&mut self, rank: usize) {
        let process = &mut self.processes[rank];
        while let Some(message) = process.member.next_message() {
            process.to_hub.push_back(message);
        }
    }

    fn deliver(&mut self) {
        for rank in 0..self.processes.len() {
            self.collect(rank);
            let hub_works = !self.processes[0].is_dead && !self.processes[0].is_stopped;
            while hub_works && !self.dice.one_in(3) {
                let Some(message) = self.processes[rank].to_hub.pop_front() else { break };
                self.hub.receive(self.now, rank as Rank, message);
            }
        }
        while let Some((rank, message)) = self.hub.next_message() {
            let process = &mut self.processes[rank as usize];
            if !process.is_dead {
                process.from_hub.push_back(message);
            }
        }
        for process in &mut self.processes {
            while !process.is_dead && !process.is_stopped && !self.dice.one_in(3) {
                let Some(message) = process.from_hub.pop_front() else { break };
                process.member.receive(self.now, message);
            }
        }
        self.give();
    }

    /// Gives the engine the calls that each rank may give it.
    fn give(&mut self) {
        for process in self.processes.iter_mut().filter(|process| !process.is_dead && !process.is_stopped) {
            while let Some(number) = process.made.get(process.given).copied() {
                if process.member.failure().is_some()
                    || number.position > process.member.limit(number.sequence)
                {
                    break;
                }
                if self.check == Check::Before || number.position <= FIRST {
                    assert!(
                        number.position <= self.same[&number.sequence],
                        "the engine got {number:?} too early"
                    );
                }
                process.given += 1;
            }
        }
    }

    /// Finishes the calls that all of their ranks have reached in the engine.
    fn finish_calls(&mut self) {
        for rank in 0..self.processes.len() {
            while let Some(number) = self.head(rank) {
                let ranks = number.sequence.ranks(self.processes.len() as Rank);
                if !ranks.iter().all(|rank| self.head(*rank as usize) == Some(number)) {
                    break;
                }
                for rank in ranks {
                    let process = &mut self.processes[rank as usize];
                    process.finished += 1;
                    process.head_since = self.now;
                }
            }
        }
    }

    /// Returns the call of a rank that the engine works on.
    fn head(&self, rank: usize) -> Option<Number> {
        let process = &self.processes[rank];
        let is_working =
            process.finished < process.given && !process.is_dead && process.member.failure().is_none();
        is_working.then(|| process.made[process.finished])
    }

    /// Checks how the program ended, on all ranks.
    fn check(&self) {
        let remaining = self
            .processes
            .iter()
            .enumerate()
            .filter(|(_, process)| !process.is_dead && !process.is_stopped && !process.has_left);
        let mut failures = Vec::new();
        for (rank, process) in remaining {
            let failure = process.member.failure().unwrap_or_else(|| panic!("rank {rank} hangs"));
            self.check_true(failure);
            if !matches!(self.drawn, Fate::Aborts(whose, _) if whose as usize == rank) {
                failures.push(failure);
            }
        }
        if !matches!(self.drawn, Fate::Dies(0, _) | Fate::Stops(0, _) | Fate::Sleeps(0, _)) {
            assert!(failures.windows(2).all(|pair| pair[0] == pair[1]), "ranks differ: {failures:?}");
        }
        let lives = matches!(self.drawn, Fate::Lives | Fate::Pauses(..));
        if lives && self.is_right() {
            assert!(failures.is_empty(), "a right program failed: {}", failures[0]);
            assert!(self.hub.is_over() && self.hub.is_settled());
            assert!(self.processes.iter().all(|process| process.member.unsettled().is_none()));
        } else if lives {
            assert!(!failures.is_empty(), "a wrong program did not fail");
        }
    }

    /// Checks that what a failure says about the programs is true.
    fn check_true(&self, failure: &Failure) {
        let calls = |sequence: &Sequence, rank: &Rank| &self.calls[sequence][rank];
        let has_made = |(rank, made): &(Rank, Made), sequence: &Sequence, position: u64| {
            assert_eq!(
                *made,
                calls(sequence, rank)[position as usize - 1].made(),
                "of rank {rank}: {failure}"
            );
        };
        match failure {
            Failure::Mismatch { sequence, equal, position, one, other } => {
                has_made(one, sequence, *position);
                has_made(other, sequence, *position);
                let pairs = calls(sequence, &one.0).iter().zip(calls(sequence, &other.0));
                let fits: Vec<_> = pairs.map(|(one, other)| fit(&one.call, &other.call)).collect();
                assert!(fits[..*equal as usize].iter().all(|fits| *fits), "{failure}");
                assert!(fits[*equal as usize..*position as usize].contains(&false), "{failure}");
                if matches!(self.drawn, Fate::Lives | Fate::Pauses(..)) {
                    assert_eq!(equal + 1, *position, "{failure}");
                }
            }
            Failure::Late { by, position, waited, behind } => {
                has_made(by, &by.1.call.kind.sequence(by.0), *position);
                assert!(*waited >= DEADLINE, "{failure}");
                if let (Fate::Stops(stopped, _), true, 1) = (self.drawn, self.is_right(), self.calls.len()) {
                    assert_eq!(behind.as_ref().map(|behind| behind.rank), Some(stopped), "{failure}");
                }
                let Some(behind) = behind else { return };
                let stops =
                    matches!(self.drawn, Fate::Stops(rank, _) | Fate::Sleeps(rank, _) if rank == behind.rank);
                assert!(behind.calls < *position || stops, "{failure}");
            }
            Failure::Lost { rank, .. } => {
                let is_dead = self.processes[*rank as usize].is_dead;
                let stops = matches!(self.drawn, Fate::Stops(0, _) | Fate::Sleeps(0, _));
                assert!(is_dead || *rank == 0 && stops, "{failure}");
            }
            Failure::Broken { .. } => panic!("{failure}"),
            Failure::Left { rank, calls: number, by, position } => {
                let sequence = by.1.call.kind.sequence(by.0);
                has_made(by, &sequence, *position);
                assert!(self.processes[*rank as usize].has_left, "{failure}");
                assert_eq!(calls(&sequence, rank).len() as u64, *number, "{failure}");
                assert!(number < position, "{failure}");
            }
            Failure::Aborted { rank, reason } if reason.starts_with("rank 0 is lost") => {
                assert!(matches!(self.drawn, Fate::Sleeps(0, _)), "{failure} of rank {rank}");
            }
            Failure::Aborted { rank, reason } => {
                assert!(matches!(self.drawn, Fate::Aborts(whose, _) if whose == *rank), "{failure}");
                assert_eq!(reason, "enough");
            }
        }
    }
}

fn run_random_programs(programs: u64, check: Check, steps: usize) {
    for seed in 0..programs {
        let result = std::panic::catch_unwind(|| {
            let mut world = World::new(seed, check, steps);
            world.run();
            world.check();
        });
        if let Err(panic) = result {
            eprintln!("the program of seed {seed} with {check:?} failed");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn every_wrong_program_fails_on_every_rank_and_no_right_one() {
    run_random_programs(count(1_000, 20_000), Check::Before, 20);
}

#[test]
fn calls_compared_afterwards_fail_too() {
    run_random_programs(count(150, 3_000), Check::After, 20);
    run_random_programs(count(100, 3_000), Check::After, 900);
}
