//! Instructions that compute or use a predicate.

use crate::exec::dependence::{Fields, Way};
use crate::exec::lanes::{Bool, Combination, selects};
use crate::exec::op::{Op, Row, Run};
use crate::exec::registers::Kind;
use crate::exec::select;
use crate::exec::select::Logic;
use crate::program::comparisons;
use crate::program::error::LowerError;
use crate::program::form::{Opcode, kind_of, literal_of};
use crate::program::lower::Lowering;
use crate::text::{Instruction, Operand};

impl<'m> Lowering<'m> {
    /// Returns the combination that `setp` and `set` ask for, with the row of their predicate.
    pub(super) fn combination(
        &mut self,
        op: &Opcode<'_>,
        operand: Option<&'m Operand<'m>>,
    ) -> Result<(Combination, Row), LowerError> {
        let with = op.parts.get(1).and_then(|part| match *part {
            "and" => Some(Bool::And),
            "or" => Some(Bool::Or),
            "xor" => Some(Bool::Xor),
            _ => None,
        });
        let (Some(with), Some(operand)) = (with, operand) else { return Ok((Combination::default(), 0)) };
        let (row, is_negated) = self.predicate(operand)?;
        Ok((Combination { with: Some(with), is_negated, second: None }, row))
    }

    pub(super) fn compare(
        &mut self,
        op: &Opcode<'_>,
        instruction: &'m Instruction<'m>,
    ) -> Result<(), LowerError> {
        let form = comparisons::form(op).ok_or_else(|| self.refused(instruction))?;
        let operands = &instruction.operands;
        let [a, b, _] = self.sources(&form, operands.get(1..3).unwrap_or_default())?;
        let (mut combination, c) = self.combination(op, operands.get(3))?;
        let (first, second) = match self.operand(operands, 0)? {
            // A comparison of one half has one result. PTX ISA 9.7.7.2, setp.
            Operand::Pair(first, second) if matches!(**second, Operand::Nothing) => (&**first, None),
            Operand::Pair(..) if matches!(op.last(), "f16" | "bf16") => return Err(self.refused(instruction)),
            Operand::Pair(first, second) => (&**first, Some(&**second)),
            one => (one, None),
        };
        let d = self.result(first, Kind::Predicate)?;
        if let Some(second) = second {
            combination.second = Some(self.result(second, Kind::Predicate)?);
        }
        let op = Op { d, a, b, c, extra: combination.extra(), ..Op::new(form.loops.at(self.level)) };
        let kind = form.sources[0].kind;
        match (combination.second, combination.with) {
            (Some(_), with) => {
                let (way, c) = match with {
                    Some(_) => (Way::Hidden, Some(Kind::Predicate)),
                    None => (Way::Cut, None),
                };
                let fields = Fields::of(Some(Kind::Predicate), [Some(kind), Some(kind), c, None]);
                let at = self.emit(op, way, fields);
                self.writes_also(at, combination.second);
            }
            (None, None) => {
                self.emit_pure(op, Way::Cut, Kind::Predicate, &[(kind, a), (kind, b)]);
            }
            (None, Some(_)) => {
                let sources = [(kind, a), (kind, b), (Kind::Predicate, c)];
                self.emit_pure(op, Way::Hidden, Kind::Predicate, &sources);
            }
        }
        Ok(())
    }

    /// `set.cmp.type.type`: a comparison whose result is a number. PTX ISA 9.7.6.1, and 9.7.7.1 for
    /// halves.
    pub(super) fn set(
        &mut self,
        op: &Opcode<'_>,
        instruction: &'m Instruction<'m>,
    ) -> Result<(), LowerError> {
        // Of a pair, each half is compared alone.
        let of_halves = op.whole.strip_suffix("x2").filter(|whole| whole.ends_with("f16")).map(Opcode::of);
        let is_pair = of_halves.is_some();
        let op = of_halves.as_ref().unwrap_or(op);
        let form = comparisons::form(op).ok_or_else(|| self.refused(instruction))?;
        let operands = &instruction.operands;
        let [a, b, _] = self.sources(&form, operands.get(1..3).unwrap_or_default())?;
        let (combination, c) = self.combination(op, operands.get(3))?;
        let ty = op.parts[op.parts.len() - 2];
        let kind = kind_of(ty).ok_or_else(|| self.refused(instruction))?;
        let yes = match ty {
            "f32" => u64::from(1.0f32.to_bits()),
            "f16" | "f16x2" => 0x3c00,
            "bf16" | "bf16x2" => 0x3f80,
            _ => u64::MAX,
        };
        let (yes, no) = (self.constant(kind, yes)?, self.constant(kind, 0)?);
        let predicate = self.temporary(Kind::Predicate)?;
        let compare = |lowering: &mut Self, d: Row, a: Row, b: Row| {
            let test = Op {
                d: predicate,
                a,
                b,
                c,
                extra: combination.extra(),
                ..Op::new(form.loops.at(lowering.level))
            };
            let with = combination.with.map(|_| Kind::Predicate);
            let way = if with.is_some() { Way::Hidden } else { Way::Cut };
            let source = Some(form.sources[0].kind);
            lowering.emit(test, way, Fields::of(Some(Kind::Predicate), [source, source, with, None]));
            let select = selects::loops::<u32>().at(lowering.level);
            let fields = Fields::of(Some(kind), [Some(kind), Some(kind), Some(Kind::Predicate), None]);
            let op = Op { d, a: yes, b: no, c: predicate, ..Op::new(select) };
            lowering.emit(op, Way::Select, fields);
        };
        let d = self.result(self.operand(operands, 0)?, kind)?;
        if !is_pair {
            compare(self, d, a, b);
            return Ok(());
        }
        let mut results = [0; 2];
        for (result, shift) in results.iter_mut().zip([0, 16]) {
            let half = |lowering: &mut Self, a: Row| {
                let d = lowering.temporary(Kind::Narrow)?;
                let fields = Fields::of(Some(Kind::Narrow), [Some(Kind::Narrow), None, None, None]);
                let op = Op { d, a, b: 16, c: shift, ..Op::new(select::part_of_narrow) };
                lowering.emit(op, Way::Cut, fields);
                Ok(d)
            };
            let (a, b) = (half(self, a)?, half(self, b)?);
            *result = self.temporary(Kind::Narrow)?;
            compare(self, *result, a, b);
        }
        // Of an integer result, each half is all ones or 0.
        let narrow = Some(Kind::Narrow);
        let op = Op { d, a: results[0], b: results[1], ..Op::new(select::pack_32) };
        self.emit(op, Way::Join, Fields::of(narrow, [narrow, narrow, None, None]));
        Ok(())
    }

    pub(super) fn test_property(
        &mut self,
        op: &Opcode<'_>,
        instruction: &'m Instruction<'m>,
    ) -> Result<(), LowerError> {
        let form = comparisons::property(op).ok_or_else(|| self.refused(instruction))?;
        let operands = &instruction.operands;
        let a = self.source(self.operand(operands, 1)?, form.sources[0].kind, form.sources[0].literal)?;
        let d = self.result(self.operand(operands, 0)?, Kind::Predicate)?;
        let extra = Combination::default().extra();
        let fields = Fields::of(Some(Kind::Predicate), [Some(form.sources[0].kind), None, None, None]);
        let op = Op { d, a, b: a, extra, ..Op::new(form.loops.at(self.level)) };
        self.emit(op, Way::Whole, fields);
        Ok(())
    }

    pub(super) fn select(
        &mut self,
        op: &Opcode<'_>,
        instruction: &'m Instruction<'m>,
    ) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        let kind = kind_of(op.last()).ok_or_else(|| self.refused(instruction))?;
        let literal = literal_of(op.last());
        let a = self.source(self.operand(operands, 1)?, kind, literal)?;
        let b = self.source(self.operand(operands, 2)?, kind, literal)?;
        let (c, is_negated) = self.predicate(self.operand(operands, 3)?)?;
        let d = self.result(self.operand(operands, 0)?, kind)?;
        let extra = if is_negated { u64::from(u32::MAX) } else { 0 };
        let loops = if kind == Kind::Wide { selects::loops::<u64>() } else { selects::loops::<u32>() };
        let op = Op { d, a, b, c, extra, ..Op::new(loops.at(self.level)) };
        let sources = [(kind, a), (kind, b), (Kind::Predicate, c)];
        self.emit_pure(op, Way::Select, kind, &sources);
        Ok(())
    }

    pub(super) fn select_by_sign(
        &mut self,
        op: &Opcode<'_>,
        instruction: &'m Instruction<'m>,
    ) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        let ty = op.parts[op.parts.len().saturating_sub(2)];
        let kind = kind_of(ty).ok_or_else(|| self.refused(instruction))?;
        let literal = literal_of(ty);
        let a = self.source(self.operand(operands, 1)?, kind, literal)?;
        let b = self.source(self.operand(operands, 2)?, kind, literal)?;
        let c = self.source(self.operand(operands, 3)?, Kind::Narrow, literal_of(op.last()))?;
        let d = self.result(self.operand(operands, 0)?, kind)?;
        let extra = match op.last() {
            "f32" if op.has("ftz") => 2,
            "f32" => 1,
            _ => 0,
        };
        let run: Run = match kind {
            Kind::Wide => select::by_sign::<u64>,
            _ => select::by_sign::<u32>,
        };
        let fields = Fields::of(Some(kind), [Some(kind), Some(kind), Some(Kind::Narrow), None]);
        self.emit(Op { d, a, b, c, extra, ..Op::new(run) }, Way::SelectBySign, fields);
        Ok(())
    }

    pub(super) fn logic(
        &mut self,
        op: &Opcode<'_>,
        instruction: &'m Instruction<'m>,
    ) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        let logic = match op.name {
            "not" => Logic::Not,
            "and" => Logic::And,
            "or" => Logic::Or,
            _ => Logic::Xor,
        };
        let (a, _) = self.predicate(self.operand(operands, 1)?)?;
        let b = match operands.get(2) {
            Some(b) => self.predicate(b)?.0,
            None => a,
        };
        let d = self.result(self.operand(operands, 0)?, Kind::Predicate)?;
        let way = match logic {
            Logic::And => Way::Zero,
            Logic::Or => Way::One,
            _ => Way::Whole,
        };
        let op = Op { d, a, b, extra: logic as u64, ..Op::new(select::predicates) };
        self.emit_pure(op, way, Kind::Predicate, &[(Kind::Predicate, a), (Kind::Predicate, b)]);
        Ok(())
    }
}
