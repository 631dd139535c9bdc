//! `cp.async`. PTX ISA 9.7.9.25.

use crate::exec::access::Window;
use crate::exec::copies;
use crate::exec::dependence::{Fields, Way};
use crate::exec::effect::Effect;
use crate::exec::lanes::selects;
use crate::exec::op::Op;
use crate::exec::registers::{Kind, Literal};
use crate::program::error::LowerError;
use crate::program::form::Opcode;
use crate::program::lower::Lowering;
use crate::text::{Instruction, Number, Operand};

impl<'m> Lowering<'m> {
    /// `cp.async…` without `.bulk` and `.mbarrier`, which are refused.
    pub(super) fn copy_async(
        &mut self,
        op: &Opcode<'_>,
        instruction: &'m Instruction<'m>,
    ) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        self.this.line.effect = Effect::Parts;
        match op.parts.get(1).copied() {
            Some("commit_group") => self.plain(copies::commit),
            Some("wait_all") => self.plain(copies::wait_all),
            Some("wait_group") => {
                let extra = self.number(operands, 0)?;
                self.emit_bare(Op { extra, ..Op::new(copies::wait_group) });
                Ok(())
            }
            Some("ca" | "cg") => self.issue_copy(op, instruction),
            _ => Err(self.refused(instruction)),
        }
    }

    /// `cp.async.ca.shared.global [to], [from], bytes, read;`, where `read` may be missing, or a
    /// predicate that stands for 0. A cache policy behind it changes no result.
    fn issue_copy(&mut self, op: &Opcode<'_>, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        let bytes = self.number(operands, 2)?;
        if !matches!(bytes, 4 | 8 | 16) {
            return Err(self.error(format!("it copies {bytes} bytes; expected 4, 8 or 16")));
        }
        let all = self.constant(Kind::Narrow, bytes)?;
        let rest = operands.get(3..).unwrap_or_default();
        let rest = if op.has("cache_hint") { rest.split_last().map_or(rest, |(_, rest)| rest) } else { rest };
        let c = match rest.first() {
            None => all,
            Some(read) => match self.predicate(read) {
                Ok((predicate, is_negated)) if !matches!(read, Operand::Number(_)) => {
                    let (a, d) = (self.constant(Kind::Narrow, 0)?, self.temporary(Kind::Narrow)?);
                    let extra = if is_negated { u64::from(u32::MAX) } else { 0 };
                    let run = selects::loops::<u32>().at(self.level);
                    let narrow = Some(Kind::Narrow);
                    let fields = Fields::of(narrow, [narrow, narrow, Some(Kind::Predicate), None]);
                    let op = Op { d, a, b: all, c: predicate, extra, ..Op::new(run) };
                    self.emit(op, Way::Select, fields);
                    d
                }
                _ => self.source(read, Kind::Narrow, Literal::Integer)?,
            },
        };
        let (a, _) = self.address_row(self.operand(operands, 0)?, Some(Window::Shared))?;
        let (b, _) = self.address_row(self.operand(operands, 1)?, Some(Window::Global))?;
        let e = self.temporary(Kind::Wide)?;
        let wide = Some(Kind::Wide);
        let mut fields = Fields::of(None, [wide, wide, Some(Kind::Narrow), None]);
        fields.results[4] = wide;
        self.emit(Op { a, b, c, e, extra: bytes, ..Op::new(copies::issue) }, Way::Use, fields);
        Ok(())
    }

    /// Returns the value of an operand that has to be a number.
    pub(super) fn number(&self, operands: &'m [Operand<'m>], at: usize) -> Result<u64, LowerError> {
        match self.operand(operands, at)? {
            Operand::Number(Number::Integer(number)) => Ok(*number as u64),
            _ => Err(self.error(format!("operand {} is not a whole number", at + 1))),
        }
    }
}
