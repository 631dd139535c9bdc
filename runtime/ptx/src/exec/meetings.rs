//! Lanes of a warp that run one exchange at several places of the program.
//!
//! # Why
//! A lane at `shfl.sync` waits until each member of its mask "has executed `shfl.sync` with the
//! same qualifiers and same membermask" (PTX ISA 9.7.9.6, and likewise for the other exchanges). It
//! need not be the same instruction: a compiler unrolls a loop, or copies what follows a branch
//! into both of its sides, and lanes then meet at different copies.
//!
//! # Rules
//! 1. Lanes that wait at one instruction are joined there, as `warp` says. What follows is about
//!    those that still wait.
//! 2. When lanes start to wait, or exit, each exchange is looked for of which all members wait: at
//!    instructions of the same [`Form`], with the same mask. The members run it together.
//! 3. The lanes bring their operands from the registers of their own instruction, and find the
//!    results in its registers. In between the operands are in registers of the exchange, so no
//!    other register of a lane changes.
//! 4. The instructions of [`Form::Matrix`] are `.aligned`: all lanes have to be at one of them.

use super::context::Context;
use super::effect::Effect;
use super::fragment::Wait;
use super::op::{Flow, Op, Row};
use super::registers::{Kind, Mask, Registers, for_each_lane};
use super::vote::{Form, is_negated, second_result, with_second_result, without_negation};
use super::warp::Warp;
use std::ops::Range;

/// The registers of an exchange, one for each field of an op.
const RESULT: Row = 0;
const SOURCES: [Row; 3] = [1, 2, 3];
const MEMBERS: Row = 4;
/// The predicate that a shuffle or a match may have as its second result.
const SECOND: Row = 5;
const REGISTERS: usize = 6;

/// Lanes of a fragment that take part in an exchange.
struct Part {
    fragment: usize,
    mask: Mask,
}

impl Warp {
    /// Runs the exchanges of these fragments of which all members wait, at several places. Returns
    /// the place of an op that failed.
    pub(super) fn exchange(&mut self, fragments: Range<usize>, context: &Context<'_>) -> Option<u32> {
        for at in fragments {
            let mut left = self.fragments[at].mask;
            while left != 0 {
                let (parts, group) = self.members(at, left, context);
                left &= !group;
                // Lanes at one place find out themselves that no member is missing.
                if parts.len() > 1 {
                    if let Some(place) = self.exchange_of(parts, context) {
                        return Some(place);
                    }
                    break;
                }
            }
        }
        None
    }

    /// Returns the parts of the exchange for which the first lane of `left` waits, or none if
    /// members are missing, and the lanes of `left` in the fragment that name the same members.
    fn members(&self, at: usize, left: Mask, context: &Context<'_>) -> (Vec<Part>, Mask) {
        let none = (Vec::new(), left);
        let Some((form, op)) = self.exchange_at(at, context).filter(|(form, _)| *form != Form::Matrix) else {
            return none;
        };
        let registers = &self.lanes.registers;
        let members = registers.narrow[op.e as usize][left.trailing_zeros() as usize];
        let naming = |op: &Op, mask: Mask| {
            let named = &registers.narrow[op.e as usize];
            let mut found = 0;
            for_each_lane(mask, |lane| found |= Mask::from(named[lane] == members) << lane);
            found
        };
        let group = naming(op, left);
        let mut missing = members & !registers.dead;
        let mut parts = Vec::new();
        for fragment in 0..self.fragments.len() {
            if let Some((other, op)) = self.exchange_at(fragment, context)
                && other == form
            {
                let mask = naming(op, self.fragments[fragment].mask & members);
                missing &= !mask;
                if mask != 0 {
                    parts.push(Part { fragment, mask });
                }
            }
        }
        (if missing == 0 { parts } else { Vec::new() }, group)
    }

    /// Returns the exchange at which a fragment waits for other lanes.
    fn exchange_at<'a>(&self, at: usize, context: &Context<'a>) -> Option<(Form, &'a Op)> {
        let fragment = &self.fragments[at];
        let code = context.launch.code;
        match (fragment.wait, code.lines[fragment.place as usize].effect) {
            (Wait::For(_), Effect::Meet(form)) => Some((form, &code.ops[fragment.place as usize])),
            _ => None,
        }
    }

    /// Runs an exchange. Returns the place of an op that failed.
    fn exchange_of(&mut self, parts: Vec<Part>, context: &Context<'_>) -> Option<u32> {
        let code = context.launch.code;
        let mut own = Registers::new(REGISTERS, REGISTERS, REGISTERS);
        own.dead = self.lanes.registers.dead;
        let (mut all, mut exchange) = (0, None);
        for Part { fragment, mask } in &parts {
            let (form, op) = self.exchange_at(*fragment, context)?;
            bring(&mut own, &self.lanes.registers, form, op, *mask);
            all |= mask;
            exchange = exchange.or(Some((form, op, self.fragments[*fragment].place)));
        }
        let (form, first, place) = exchange?;
        let op = in_registers_of_exchange(form, first);
        std::mem::swap(&mut self.lanes.registers, &mut own);
        let flow = self.run_op::<true>(&op, all, place, context);
        std::mem::swap(&mut self.lanes.registers, &mut own);
        if flow == Flow::Fault {
            return Some(place);
        }
        for Part { fragment, mask } in parts {
            let place = self.fragments[fragment].place;
            take(&mut self.lanes.registers, &own, form, &code.ops[place as usize], mask);
            let part = self.split(fragment, mask);
            // Those that stay behind find out again for whom they wait.
            self.fragments[fragment].wait = Wait::Nothing;
            self.fragments[part].wait = Wait::Nothing;
            self.fragments[part].place = place + 1;
        }
        None
    }
}

/// Returns the op of an exchange, whose operands are in the registers of the exchange.
fn in_registers_of_exchange(form: Form, op: &Op) -> Op {
    let [a, b, c] = SOURCES;
    let extra = match form {
        Form::Shuffle(_) | Form::Match { .. } => with_second_result(op.extra, Some(SECOND)),
        Form::Vote(_) => without_negation(op.extra),
        _ => op.extra,
    };
    Op { d: RESULT, a, b, c, e: MEMBERS, extra, ..*op }
}

/// Copies the operands of some lanes to the registers of an exchange.
fn bring(own: &mut Registers, from: &Registers, form: Form, op: &Op, mask: Mask) {
    let [a, b, c] = SOURCES;
    copy(own, (Kind::Narrow, MEMBERS), from, op.e, mask);
    match form {
        Form::Shuffle(_) => {
            for (row, source) in [(a, op.a), (b, op.b), (c, op.c)] {
                copy(own, (Kind::Narrow, row), from, source, mask);
            }
        }
        Form::Vote(_) => {
            let bits = from.predicates[op.a as usize];
            own.set_predicate(a, mask, if is_negated(op.extra) { !bits } else { bits });
        }
        Form::Match { kind, .. } => copy(own, (kind, a), from, op.a, mask),
        Form::Reduce(_) => copy(own, (Kind::Narrow, a), from, op.a, mask),
        Form::Elect | Form::Barrier | Form::Matrix => {}
    }
}

/// Copies the results of some lanes from the registers of an exchange.
fn take(to: &mut Registers, own: &Registers, form: Form, op: &Op, mask: Mask) {
    let [a, ..] = SOURCES;
    match form {
        Form::Barrier | Form::Matrix => {}
        Form::Vote(vote) => copy(to, (vote.result(), op.d), own, RESULT, mask),
        Form::Elect => {
            copy(to, (Kind::Narrow, op.d), own, RESULT, mask);
            copy(to, (Kind::Predicate, op.a), own, a, mask);
        }
        Form::Reduce(_) => copy(to, (Kind::Narrow, op.d), own, RESULT, mask),
        Form::Shuffle(_) | Form::Match { .. } => {
            copy(to, (Kind::Narrow, op.d), own, RESULT, mask);
            if let Some(second) = second_result(op.extra) {
                copy(to, (Kind::Predicate, second), own, SECOND, mask);
            }
        }
    }
}

fn copy(to: &mut Registers, (kind, row): (Kind, Row), from: &Registers, source: Row, mask: Mask) {
    match kind {
        Kind::Narrow => {
            let source = &from.narrow[source as usize];
            to.set::<u32>(row, mask, |lane| source[lane]);
        }
        Kind::Wide => {
            let source = &from.wide[source as usize];
            to.set::<u64>(row, mask, |lane| source[lane]);
        }
        Kind::Predicate => to.set_predicate(row, mask, from.predicates[source as usize]),
    }
}
