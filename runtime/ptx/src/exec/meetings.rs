//! Lanes of a warp that run one exchange at several places of the program.
//!
//! # Why
//! A lane at `shfl.sync` waits until each member of its mask has executed `shfl.sync` "with the
//! same qualifiers and same membermask value" (PTX ISA 9.7.9.6, and likewise for the others). It
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
use super::dependence::Dependence;
use super::effect::Effect;
use super::fragment::Wait;
use super::op::{Flow, Op, Row};
use super::registers::{Kind, Mask, Registers, for_each_lane};
use super::vote::{Form, is_negated, with_second_result, without_negation};
use super::warp::Warp;
use std::ops::Range;

/// The registers of an exchange of each kind: one for each field of an op, and the second result
/// of a shuffle or a match.
const REGISTERS: usize = 6;
const SECOND: Row = 5;

/// An op at which lanes wait for others.
struct Exchange<'a> {
    form: Form,
    op: &'a Op,
    dependence: &'a Dependence,
    place: u32,
}

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
        let exchange = self.exchange_at(at, context).filter(|exchange| exchange.form != Form::Matrix);
        let Some(Exchange { form, op, .. }) = exchange else { return (Vec::new(), left) };
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
            if let Some(other) = self.exchange_at(fragment, context)
                && other.form == form
            {
                let mask = naming(other.op, self.fragments[fragment].mask & members);
                missing &= !mask;
                if mask != 0 {
                    parts.push(Part { fragment, mask });
                }
            }
        }
        (if missing == 0 { parts } else { Vec::new() }, group)
    }

    /// Returns the exchange at which a fragment waits for other lanes.
    fn exchange_at<'a>(&self, at: usize, context: &Context<'a>) -> Option<Exchange<'a>> {
        let (code, place) = (context.launch.code, self.fragments[at].place);
        let line = &code.lines[place as usize];
        match (self.fragments[at].wait, line.effect) {
            (Wait::For(_), Effect::Meet(form)) => {
                Some(Exchange { form, op: &code.ops[place as usize], dependence: &line.dependence, place })
            }
            _ => None,
        }
    }

    /// Runs an exchange. Returns the place of an op that failed.
    fn exchange_of(&mut self, parts: Vec<Part>, context: &Context<'_>) -> Option<u32> {
        let first = self.exchange_at(parts[0].fragment, context)?;
        let op = first.in_own_registers();
        let mut own = Registers::new(REGISTERS, REGISTERS, REGISTERS);
        own.dead = self.lanes.registers.dead;
        let mut all = 0;
        for Part { fragment, mask } in &parts {
            self.exchange_at(*fragment, context)?.bring(&mut own, &op, &self.lanes.registers, *mask);
            all |= mask;
        }
        std::mem::swap(&mut self.lanes.registers, &mut own);
        // The lanes have used their operands when they started to wait.
        let suspects = std::mem::take(&mut self.lanes.suspects);
        let flow = self.run_op::<true>(&op, all, first.place, context);
        self.lanes.suspects = suspects;
        std::mem::swap(&mut self.lanes.registers, &mut own);
        if flow == Flow::Fault {
            return Some(first.place);
        }
        for Part { fragment, mask } in parts {
            let exchange = self.exchange_at(fragment, context)?;
            exchange.take(&mut self.lanes.registers, &own, &op, mask);
            self.lanes.suspects.end_results(exchange.op, exchange.dependence, mask);
            let part = self.split(fragment, mask);
            // Lanes that stay behind find out again which lanes they need.
            self.fragments[fragment].wait = Wait::Nothing;
            self.fragments[part].wait = Wait::Nothing;
            self.fragments[part].place = exchange.place + 1;
        }
        None
    }
}

impl Exchange<'_> {
    /// Returns the op with the registers of the exchange, which has a second result if any has.
    fn in_own_registers(&self) -> Op {
        let extra = match self.form {
            Form::Shuffle(_) | Form::Match { .. } => with_second_result(self.op.extra, Some(SECOND)),
            Form::Vote(_) => without_negation(self.op.extra),
            _ => self.op.extra,
        };
        Op { d: 0, a: 1, b: 2, c: 3, e: 4, extra, ..*self.op }
    }

    /// Copies the sources of some lanes to the registers of the exchange, whose op is `own_op`.
    fn bring(&self, own: &mut Registers, own_op: &Op, from: &Registers, mask: Mask) {
        let sources = self.dependence.sources(self.op).zip(self.dependence.sources(own_op));
        for ((kind, row), (_, own_row)) in sources {
            copy(own, own_row, from, row, kind, mask);
        }
        if matches!(self.form, Form::Vote(_)) && is_negated(self.op.extra) {
            own.predicates[own_op.a as usize] ^= mask;
        }
    }

    /// Copies the results of some lanes from the registers of the exchange.
    fn take(&self, to: &mut Registers, own: &Registers, own_op: &Op, mask: Mask) {
        let of_exchange = Dependence { second: Some(SECOND), ..*self.dependence };
        let results = self.dependence.results(self.op).zip(of_exchange.results(own_op));
        for ((kind, row), (_, own_row)) in results {
            copy(to, row, own, own_row, kind, mask);
        }
    }
}

fn copy(to: &mut Registers, row: Row, from: &Registers, source: Row, kind: Kind, mask: Mask) {
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
