//! Integer instructions with more operands than a [`Form`](super::super::form::Form) has.

use crate::exec::dependence::{Fields, Way};
use crate::exec::op::{Op, Run};
use crate::exec::registers::{Kind, Literal};
use crate::exec::select;
use crate::exec::select::Sum;
use crate::program::error::LowerError;
use crate::program::form::Opcode;
use crate::program::lower::Lowering;
use crate::text::{Instruction, Number, Operand};

impl<'m> Lowering<'m> {
    pub(super) fn insert(
        &mut self,
        op: &Opcode<'_>,
        instruction: &'m Instruction<'m>,
    ) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        let (kind, run): (Kind, Run) = match op.last() {
            "b32" => (Kind::Narrow, select::insert_b32),
            "b64" => (Kind::Wide, select::insert_b64),
            _ => return Err(self.refused(instruction)),
        };
        let a = self.source(self.operand(operands, 1)?, kind, Literal::Integer)?;
        let b = self.source(self.operand(operands, 2)?, kind, Literal::Integer)?;
        let c = self.source(self.operand(operands, 3)?, Kind::Narrow, Literal::Integer)?;
        let e = self.source(self.operand(operands, 4)?, Kind::Narrow, Literal::Integer)?;
        let d = self.result(self.operand(operands, 0)?, kind)?;
        let sources = [Some(kind), Some(kind), Some(Kind::Narrow), Some(Kind::Narrow)];
        self.emit(Op { d, a, b, c, e, ..Op::new(run) }, Way::CutJoin, Fields::of(Some(kind), sources));
        Ok(())
    }

    pub(super) fn lookup(
        &mut self,
        op: &Opcode<'_>,
        instruction: &'m Instruction<'m>,
    ) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        if op.parts.len() != 1 {
            return Err(self.refused(instruction));
        }
        let mut rows = [0; 3];
        for (at, row) in rows.iter_mut().enumerate() {
            *row = self.source(self.operand(operands, at + 1)?, Kind::Narrow, Literal::Integer)?;
        }
        let Operand::Number(Number::Integer(table)) = self.operand(operands, 4)? else {
            return Err(self.error("lop3 needs a number as its table"));
        };
        let d = self.result(self.operand(operands, 0)?, Kind::Narrow)?;
        let [a, b, c] = rows;
        // A table may let one source decide alone.
        let narrow = Some(Kind::Narrow);
        let op = Op { d, a, b, c, extra: *table as u64, ..Op::new(select::lookup) };
        self.emit(op, Way::Hidden, Fields::of(narrow, [narrow, narrow, narrow, None]));
        Ok(())
    }

    /// `add.cc`, `addc` and the like. PTX ISA 9.7.2.
    pub(super) fn carry(
        &mut self,
        op: &Opcode<'_>,
        instruction: &'m Instruction<'m>,
    ) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        let sum = match op.name {
            "add" | "addc" => Sum::Add,
            "sub" | "subc" => Sum::Subtract,
            _ if op.has("hi") => Sum::MultiplyHigh,
            _ => Sum::MultiplyLow,
        };
        let takes = op.name.ends_with('c');
        let (kind, run): (Kind, Run) = match (sum, op.last()) {
            // The upper half of a product depends on the sign.
            (Sum::MultiplyHigh, "s32") => (Kind::Narrow, select::with_carry::<i32>),
            (Sum::MultiplyHigh, "s64") => (Kind::Wide, select::with_carry::<i64>),
            (_, "u32" | "s32" | "b32") => (Kind::Narrow, select::with_carry::<u32>),
            (_, "u64" | "s64" | "b64") => (Kind::Wide, select::with_carry::<u64>),
            _ => return Err(self.refused(instruction)),
        };
        let a = self.source(self.operand(operands, 1)?, kind, Literal::Integer)?;
        let b = self.source(self.operand(operands, 2)?, kind, Literal::Integer)?;
        let c = match operands.get(3) {
            Some(c) => self.source(c, kind, Literal::Integer)?,
            None => a,
        };
        let d = self.result(self.operand(operands, 0)?, kind)?;
        let extra = select::carry_extra(sum, takes, op.has("cc"));
        let fields = Fields::of(Some(kind), [Some(kind), Some(kind), Some(kind), None]);
        self.emit(Op { d, a, b, c, extra, ..Op::new(run) }, Way::Whole, fields);
        Ok(())
    }
}
