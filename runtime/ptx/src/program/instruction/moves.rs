//! `mov` and `cvt`, also of vectors and of registers with another size.

use crate::exec::dependence::{Fields, Way};
use crate::exec::op::{Op, Row, Run};
use crate::exec::registers::{Kind, Literal};
use crate::exec::select;
use crate::exec::select::Logic;
use crate::exec::special::Special;
use crate::program::error::LowerError;
use crate::program::form::{Opcode, kind_of};
use crate::program::lower::Lowering;
use crate::program::names::{Meaning, Register};
use crate::program::{conversions, floats, integers};
use crate::text::{Instruction, Operand};

impl<'m> Lowering<'m> {
    pub(super) fn mov(
        &mut self,
        op: &Opcode<'_>,
        instruction: &'m Instruction<'m>,
    ) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        let (to, from) = (self.operand(operands, 0)?, self.operand(operands, 1)?);
        match (to, from) {
            _ if op.last() == "pred" => {
                let (a, is_negated) = self.predicate(from)?;
                let d = self.result(to, Kind::Predicate)?;
                let logic = if is_negated { Logic::Not } else { Logic::Move };
                let fields = Fields::of(Some(Kind::Predicate), [Some(Kind::Predicate), None, None, None]);
                let op = Op { d, a, b: a, extra: logic as u64, ..Op::new(select::predicates) };
                self.emit(op, Way::Whole, fields);
                Ok(())
            }
            (Operand::Vector(parts), _) => self.unpack(op, parts, from),
            (_, Operand::Vector(parts)) => self.pack(op, to, parts),
            _ => {
                let form = integers::form(op).or_else(|| floats::form(op));
                let form = form.ok_or_else(|| self.refused(instruction))?;
                self.lanewise(&form, instruction)
            }
        }
    }

    pub(super) fn unpack(
        &mut self,
        op: &Opcode<'_>,
        parts: &'m [Operand<'m>],
        from: &'m Operand<'m>,
    ) -> Result<(), LowerError> {
        let kind = kind_of(op.last()).ok_or_else(|| self.error("mov cannot unpack this type"))?;
        let bits = match (kind, op.last()) {
            (Kind::Wide, _) => 64,
            (_, "b16" | "u16" | "s16") => 16,
            _ => 32,
        };
        let a = self.source(from, kind, Literal::Integer)?;
        let (len, run): (u32, Run) = match kind {
            Kind::Wide => (bits / parts.len() as u32, select::part_of_wide),
            _ => (bits / parts.len() as u32, select::part_of_narrow),
        };
        // The source may be one of the results.
        let mut results = Vec::new();
        for at in 0..parts.len() as u32 {
            let d = self.temporary(Kind::Narrow)?;
            let op = Op { d, a, b: len, c: at * len, ..Op::new(run) };
            self.emit(op, Way::Cut, Fields::of(Some(Kind::Narrow), [Some(kind), None, None, None]));
            results.push(d);
        }
        for (part, a) in parts.iter().zip(results) {
            if !matches!(part, Operand::Nothing) {
                let d = self.result(part, Kind::Narrow)?;
                self.copy(d, a)?;
            }
        }
        Ok(())
    }

    /// `createpolicy`: a policy of the cache, which changes no result. PTX ISA, "createpolicy".
    pub(super) fn policy(&mut self, operands: &'m [Operand<'m>]) -> Result<(), LowerError> {
        let form = integers::form(&Opcode::of("mov.b64")).ok_or_else(|| self.error("mov is missing"))?;
        let a = self.constant(Kind::Wide, 0)?;
        let d = self.result(self.operand(operands, 0)?, Kind::Wide)?;
        let fields = Fields::of(Some(Kind::Wide), [Some(Kind::Wide), None, None, None]);
        self.emit(Op { d, a, ..Op::new(form.loops.at(self.level)) }, Way::Whole, fields);
        Ok(())
    }

    /// Copies a narrow row.
    pub(super) fn copy(&mut self, d: Row, a: Row) -> Result<(), LowerError> {
        let form = integers::form(&Opcode::of("mov.b32")).ok_or_else(|| self.error("mov is missing"))?;
        let fields = Fields::of(Some(Kind::Narrow), [Some(Kind::Narrow), None, None, None]);
        self.emit(Op { d, a, ..Op::new(form.loops.at(self.level)) }, Way::Whole, fields);
        Ok(())
    }

    pub(super) fn pack(
        &mut self,
        op: &Opcode<'_>,
        to: &'m Operand<'m>,
        parts: &'m [Operand<'m>],
    ) -> Result<(), LowerError> {
        let kind = kind_of(op.last()).ok_or_else(|| self.error("mov cannot pack this type"))?;
        let mut rows = [0; 4];
        for (row, part) in rows.iter_mut().zip(parts) {
            *row = self.source(part, Kind::Narrow, Literal::Integer)?;
        }
        let [a, b, c, e] = rows;
        let run: Run = match (kind, parts.len()) {
            (Kind::Wide, 2) => select::pack_64,
            (Kind::Wide, 4) => select::pack_4_of_16,
            (Kind::Narrow, 2) if op.last() == "b16" => select::pack_2_of_8,
            (Kind::Narrow, 2) => select::pack_32,
            (Kind::Narrow, 4) => select::pack_4_of_8,
            _ => return Err(self.error(format!("{} cannot pack {} parts", op.whole, parts.len()))),
        };
        let d = self.result(to, kind)?;
        let sources = std::array::from_fn(|at| (at < parts.len()).then_some(Kind::Narrow));
        self.emit(Op { d, a, b, c, e, ..Op::new(run) }, Way::Join, Fields::of(Some(kind), sources));
        Ok(())
    }

    /// `cvt` allows registers that are wider than its types.
    pub(super) fn convert(
        &mut self,
        op: &Opcode<'_>,
        instruction: &'m Instruction<'m>,
    ) -> Result<(), LowerError> {
        let form = conversions::form(op).ok_or_else(|| self.refused(instruction))?;
        let operands = &instruction.operands;
        let mut rows = [0; 3];
        for (at, (row, source)) in rows.iter_mut().zip(&form.sources).enumerate() {
            let operand = self.operand(operands, at + 1)?;
            *row = match self.register_of(operand)? {
                Some(Register { kind: Kind::Wide, row, .. }) if source.kind == Kind::Narrow => {
                    let d = self.temporary(Kind::Narrow)?;
                    let fields = Fields::of(Some(Kind::Narrow), [Some(Kind::Wide), None, None, None]);
                    let op = Op { d, a: row, b: 32, c: 0, ..Op::new(select::part_of_wide) };
                    self.emit(op, Way::Cut, fields);
                    d
                }
                _ => self.source(operand, source.kind, source.literal)?,
            };
        }
        let to = self.operand(operands, 0)?;
        let run = form.loops.at(self.level);
        // A conversion of two numbers packs them.
        let way = if form.sources.len() > 1 { Way::CutJoin } else { Way::Cut };
        let [a, b, c] = rows;
        match self.register_of(to)? {
            Some(Register { kind: Kind::Wide, row, .. }) if form.result == Kind::Narrow => {
                let narrow = self.temporary(Kind::Narrow)?;
                let sources = std::array::from_fn(|at| form.sources.get(at).map(|source| source.kind));
                let fields = Fields::of(Some(Kind::Narrow), sources);
                self.emit(Op { d: narrow, a, b, c, ..Op::new(run) }, way, fields);
                let is_signed = op.parts[op.parts.len() - 2].starts_with('s');
                let extra = u64::from(is_signed);
                let fields = Fields::of(Some(Kind::Wide), [Some(Kind::Narrow), None, None, None]);
                let op = Op { d: row, a: narrow, b: 32, extra, ..Op::new(select::extend) };
                self.emit(op, Way::Whole, fields);
            }
            _ => {
                let d = self.result(to, form.result)?;
                self.emit_form(&form, way, d, rows);
            }
        }
        Ok(())
    }

    /// Returns the register that an operand names, if it does.
    pub(super) fn register_of(&mut self, operand: &Operand<'_>) -> Result<Option<Register>, LowerError> {
        let Operand::Name(name) = operand else { return Ok(None) };
        if Special::of(name).is_some() {
            return Ok(None);
        }
        Ok(match self.meaning(name)? {
            Meaning::Register(register) => Some(register),
            _ => None,
        })
    }
}
