//! Values of loads that are reported when they are used.
//!
//! A compiler may load in front of a branch what the source loads behind it, and drop the value in
//! the lanes that do not take the branch. Such a load may race, or read undefined bytes, although
//! the source does not. Where a load may be one of these (`text::speculation`), what is wrong with
//! it is a **suspicion**. It is kept with the registers that hold the value, for each lane alone,
//! and becomes a report when the lane uses the value.
//!
//! # Rules
//! 1. A load puts its suspicion on the registers of the elements that it is about.
//! 2. An op passes a suspicion on from a source to its results if the results depend on the source
//!    in this lane. If several sources have one, the first is passed on. A load passes on that of
//!    its address.
//! 3. A `selp` passes on the suspicion of its predicate, and else that of the source that it
//!    chooses. A `slct` does it by its number.
//! 4. An `and` or a product with 0, an `and.pred` with false and an `or.pred` with true drop the
//!    suspicion of the other source. Compilers turn branches into these.
//! 5. A shuffle passes on the suspicion of the lane from which the value is taken.
//! 6. Any other value that a lane writes to a register ends a suspicion on it.
//! 7. A lane uses a value that it stores, hands to an atomic operation or to a copy, offers to
//!    other lanes in a vote or the like, that guards its next op, or that is the target of a jump
//!    or a call. An argument of a function is stored.
//!
//! # Doubt
//! If it is not known whether a value is used, the suspicion ends. These uses are not reported:
//! * A register may hold several values, of which an op takes one, such as a half of a pair. If
//!   only a part of an element is suspected, or it was joined with another value (`or`, `and`,
//!   `mov` of a vector, `bfi`, `prmt`), the suspicion ends at an op that may take a part, such as
//!   a comparison.
//! * The results of `lop3`, and of a comparison that is combined with a predicate, may depend on
//!   one source alone.
//! * A return from a function that may call itself ends all suspicions of its lanes.
//! * The carry of a sum is not followed, and neither are the registers of `ldmatrix`.
//! * A shuffle whose lanes are at several places ends suspicions (`meetings`).
//! * If a write races with a load before it, the value may be used already, or its register
//!   overwritten. Then the pair is reported only if each path uses the value.
//!
//! Some reports are false. A compiler may test a value in front of a loop in which only some lanes
//! use it, and branch in all of them. It may hand a function an argument that this does not use.

use super::super::code::Code;
use super::super::dependence::{Dependence, Way};
use super::super::op::{Guard, Op, Row};
use super::super::registers::{Kind, LANES, Mask, Registers, for_each_lane};
use super::super::select::takes_first;
use super::super::vote::{shuffle_waits, taken_from};
use super::compare::Problem;
use std::collections::BTreeMap;

/// A load of a lane with something wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finding {
    pub(super) lane: usize,
    /// The index of the load in `Code::ops`.
    pub(super) place: u32,
    pub(super) address: u64,
    pub(super) problem: Problem,
}

/// A suspicion on a register in a lane.
#[derive(Clone, Copy, Debug)]
struct Mark {
    finding: Finding,
    /// True if the register may hold other values besides.
    is_joined: bool,
}

/// The suspicions on a register, one for each lane.
type Marks = [Option<Mark>; LANES];

/// The suspicions on the registers of a warp.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    /// Each register with a suspicion in some lane.
    registers: BTreeMap<(Kind, Row), Box<Marks>>,
}

impl Suspects {
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.registers.is_empty()
    }

    /// Forgets all suspect registers.
    pub(crate) fn clear(&mut self) {
        // Each warp that starts calls this, and most have none.
        if !self.registers.is_empty() {
            self.registers.clear();
        }
    }

    /// Ends the suspicions on all registers in some lanes.
    #[cold]
    pub(crate) fn forget(&mut self, mask: Mask) {
        self.registers.retain(|_, marks| {
            for_each_lane(mask, |lane| marks[lane] = None);
            marks.iter().any(Option::is_some)
        });
    }

    /// Puts a suspicion on the result of a load, unless that has one by its address. `is_part` is
    /// true if it may be about a part of the result.
    pub(super) fn note(&mut self, register: (Kind, Row), lane: usize, is_part: bool, finding: Finding) {
        let marks = self.registers.entry(register).or_insert_with(|| Box::new([None; LANES]));
        marks[lane].get_or_insert(Mark { finding, is_joined: is_part });
    }

    /// Returns the suspicion on a guard in a lane of a mask.
    #[cold]
    pub(super) fn guarding(&self, guard: Guard, mask: Mask) -> Option<Finding> {
        let mut of_guard =
            self.registers.iter().filter(|((kind, row), _)| *kind == Kind::Predicate && guard.reads(*row));
        of_guard.find_map(|(_, marks)| first(marks, mask))
    }

    /// Follows the values through an op that lanes are about to run. Returns the suspicion on one
    /// that a lane uses.
    #[cold]
    pub(super) fn follow(
        &mut self,
        op: &Op,
        dependence: &Dependence,
        mask: Mask,
        values: &Registers,
        code: &Code,
    ) -> Option<Finding> {
        let is_suspected = dependence.sources(op).any(|source| self.registers.contains_key(&source));
        let used = || dependence.sources(op).find_map(|source| self.any(source, mask));
        let marks = match dependence.way {
            Way::Hidden => None,
            Way::Matrix { is_load } => {
                let mut found = used();
                let matrix = &code.matrices[op.extra as usize];
                matrix.for_each_register(is_load, |register, is_result| {
                    if !is_result {
                        found = found.or_else(|| self.any(register, mask));
                    }
                });
                if found.is_some() {
                    return found;
                }
                matrix.for_each_register(is_load, |register, is_result| {
                    if is_result {
                        self.end(register, mask);
                    }
                });
                None
            }
            // Lanes that wait run the op again.
            Way::Shuffle if shuffle_waits(values, op, mask) => return None,
            _ if !is_suspected => None,
            Way::Shuffle => {
                let [_, _, b, c, e] = dependence.fields.sources;
                let others = [(b, op.b), (c, op.c), (e, op.e)];
                let used = others.into_iter().find_map(|(kind, row)| self.any((kind?, row), mask));
                if used.is_some() {
                    return used;
                }
                let (from, _) = taken_from(values, op);
                let marks = self.registers.get(&(Kind::Narrow, op.a));
                Some(std::array::from_fn(|lane| marks.and_then(|marks| marks[from[lane]])))
            }
            Way::Use => match used() {
                None => None,
                found => return found,
            },
            way => {
                let mut marks = [None; LANES];
                for_each_lane(mask, |lane| marks[lane] = self.passed_on(op, dependence, way, lane, values));
                Some(marks)
            }
        };
        for result in dependence.results(op) {
            self.end(result, mask);
            // Of a shuffle, the predicate tells where the value comes from.
            let depends = dependence.way != Way::Shuffle || result.0 != Kind::Predicate;
            if let Some(marks) = marks.as_ref().filter(|_| depends) {
                self.put(result, marks, mask);
            }
        }
        None
    }

    /// Ends the suspicions on the results of an exchange at several places.
    #[cold]
    pub(crate) fn end_results(&mut self, op: &Op, dependence: &Dependence, mask: Mask) {
        dependence.results(op).for_each(|result| self.end(result, mask));
    }

    /// Returns the suspicion that an op passes on in a lane.
    fn passed_on(
        &self,
        op: &Op,
        dependence: &Dependence,
        way: Way,
        lane: usize,
        values: &Registers,
    ) -> Option<Mark> {
        let [_, a, b, c, _] = dependence.fields.sources;
        let of = |kind: Option<Kind>, row: Row| self.registers.get(&(kind?, row))?[lane];
        let value = |kind: Option<Kind>, row: Row| match kind {
            Some(Kind::Narrow) => values.narrow[row as usize][lane].into(),
            Some(Kind::Wide) => values.wide[row as usize][lane],
            Some(Kind::Predicate) => u64::from(values.predicates[row as usize] >> lane & 1),
            None => 0,
        };
        let chosen = |takes_a: bool| of(c, op.c).or_else(|| if takes_a { of(a, op.a) } else { of(b, op.b) });
        match way {
            Way::Select => chosen((value(c, op.c) ^ op.extra) & 1 == 1),
            Way::SelectBySign => chosen(takes_first(value(c, op.c) as u32, op.extra)),
            Way::Zero | Way::ZeroJoin | Way::One => {
                // The value that decides alone.
                let alone = u64::from(way == Way::One);
                let of_a = of(a, op.a).filter(|_| value(b, op.b) != alone);
                let of_b = || of(b, op.b).filter(|_| value(a, op.a) != alone);
                // `and` may take a part, and products do not meet what is joined.
                let mark = of_a.or_else(of_b).or_else(|| of(c, op.c)).filter(|mark| !mark.is_joined)?;
                Some(Mark { is_joined: way == Way::ZeroJoin, ..mark })
            }
            _ => {
                let (cuts, joins) =
                    (matches!(way, Way::Cut | Way::CutJoin), matches!(way, Way::Join | Way::CutJoin));
                let marks = dependence.sources(op).map(|(kind, row)| of(Some(kind), row));
                let mark = marks.flatten().find(|mark| !cuts || !mark.is_joined)?;
                Some(Mark { is_joined: mark.is_joined || joins, ..mark })
            }
        }
    }

    /// Returns the suspicion on a register in a lane of a mask.
    fn any(&self, register: (Kind, Row), mask: Mask) -> Option<Finding> {
        first(self.registers.get(&register)?, mask)
    }

    /// Ends the suspicions on a register in some lanes.
    fn end(&mut self, register: (Kind, Row), mask: Mask) {
        let Some(marks) = self.registers.get_mut(&register) else { return };
        for_each_lane(mask, |lane| marks[lane] = None);
        if marks.iter().all(Option::is_none) {
            self.registers.remove(&register);
        }
    }

    /// Puts suspicions on a register, in lanes of a mask that have none.
    fn put(&mut self, register: (Kind, Row), marks: &Marks, mask: Mask) {
        let mut is_any = false;
        for_each_lane(mask, |lane| is_any |= marks[lane].is_some());
        if !is_any {
            return;
        }
        let row = self.registers.entry(register).or_insert_with(|| Box::new([None; LANES]));
        for_each_lane(mask, |lane| row[lane] = row[lane].or(marks[lane]));
    }
}

/// Returns the suspicion of the first lane of a mask that has one.
fn first(marks: &Marks, mask: Mask) -> Option<Finding> {
    let mut lanes = (0..LANES).filter(|lane| mask >> lane & 1 == 1);
    lanes.find_map(|lane| marks[lane].map(|mark| mark.finding))
}
