//! Instructions in which the lanes of a warp exchange values.

use crate::exec::dependence::{Fields, Way};
use crate::exec::effect::Effect;
use crate::exec::op::{Op, Row};
use crate::exec::registers::{Kind, Literal};
use crate::exec::vote;
use crate::exec::vote::{Form, Reduction, Shuffle, Vote};
use crate::program::error::LowerError;
use crate::program::form::{Opcode, kind_of};
use crate::program::lower::Lowering;
use crate::text::{Instruction, Operand};

impl<'m> Lowering<'m> {
    /// Returns the rows of a result that may be a pair, of which the second is a predicate.
    pub(super) fn result_and_predicate(
        &mut self,
        operand: &Operand<'_>,
    ) -> Result<(Row, Option<Row>), LowerError> {
        match operand {
            Operand::Pair(first, second) => {
                let d = self.result(first, Kind::Narrow)?;
                let predicate = match &**second {
                    Operand::Nothing => None,
                    second => Some(self.result(second, Kind::Predicate)?),
                };
                Ok((d, predicate))
            }
            one => Ok((self.result(one, Kind::Narrow)?, None)),
        }
    }

    pub(super) fn shuffle(
        &mut self,
        op: &Opcode<'_>,
        instruction: &'m Instruction<'m>,
    ) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        let mode = op.find(|part| match part {
            "up" => Some(Shuffle::Up),
            "down" => Some(Shuffle::Down),
            "bfly" => Some(Shuffle::Butterfly),
            "idx" => Some(Shuffle::Index),
            _ => None,
        });
        let mode = mode.ok_or_else(|| self.refused(instruction))?;
        let is_sync = op.has("sync");
        let mut rows = [0; 4];
        for (at, row) in rows.iter_mut().enumerate().take(if is_sync { 4 } else { 3 }) {
            *row = self.source(self.operand(operands, at + 1)?, Kind::Narrow, Literal::Integer)?;
        }
        let (d, predicate) = self.result_and_predicate(self.operand(operands, 0)?)?;
        let [a, b, c, e] = rows;
        self.this.line.effect = if is_sync { Effect::Meet(Form::Shuffle(mode)) } else { Effect::None };
        let extra = vote::shuffle_extra(mode, is_sync, predicate);
        let narrow = Some(Kind::Narrow);
        let fields = Fields::of(narrow, [narrow, narrow, narrow, narrow.filter(|_| is_sync)]);
        let at = self.emit(Op { d, a, b, c, e, extra, ..Op::new(vote::shuffle) }, Way::Shuffle, fields);
        self.writes_also(at, predicate);
        Ok(())
    }

    pub(super) fn vote(
        &mut self,
        op: &Opcode<'_>,
        instruction: &'m Instruction<'m>,
    ) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        let form = op.find(|part| match part {
            "all" => Some(Vote::All),
            "any" => Some(Vote::Any),
            "uni" => Some(Vote::Uniform),
            "ballot" => Some(Vote::Ballot),
            _ => None,
        });
        let form = form.ok_or_else(|| self.refused(instruction))?;
        let is_sync = op.has("sync");
        let (a, is_negated) = self.predicate(self.operand(operands, 1)?)?;
        let e = match is_sync {
            true => self.source(self.operand(operands, 2)?, Kind::Narrow, Literal::Integer)?,
            false => 0,
        };
        let d = self.result(self.operand(operands, 0)?, form.result())?;
        self.this.line.effect = if is_sync { Effect::Meet(Form::Vote(form)) } else { Effect::None };
        let extra = vote::vote_extra(form, is_sync, is_negated);
        let members = is_sync.then_some(Kind::Narrow);
        let fields = Fields::of(Some(form.result()), [Some(Kind::Predicate), None, None, members]);
        self.emit(Op { d, a, e, extra, ..Op::new(vote::vote) }, Way::Use, fields);
        Ok(())
    }

    pub(super) fn match_lanes(
        &mut self,
        op: &Opcode<'_>,
        instruction: &'m Instruction<'m>,
    ) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        let kind = kind_of(op.last()).ok_or_else(|| self.refused(instruction))?;
        let a = self.source(self.operand(operands, 1)?, kind, Literal::Integer)?;
        let e = self.source(self.operand(operands, 2)?, Kind::Narrow, Literal::Integer)?;
        let (d, predicate) = self.result_and_predicate(self.operand(operands, 0)?)?;
        let is_all = op.has("all");
        self.this.line.effect = Effect::Meet(Form::Match { is_all, kind });
        let extra = vote::match_extra(is_all, kind == Kind::Wide, predicate);
        let fields = Fields::of(Some(Kind::Narrow), [Some(kind), None, None, Some(Kind::Narrow)]);
        let at = self.emit(Op { d, a, e, extra, ..Op::new(vote::match_lanes) }, Way::Use, fields);
        self.writes_also(at, predicate);
        Ok(())
    }

    pub(super) fn reduce(
        &mut self,
        op: &Opcode<'_>,
        instruction: &'m Instruction<'m>,
    ) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        let is_signed = op.last() == "s32";
        let reduction = op.find(|part| {
            Some(match (part, is_signed) {
                ("add", _) => Reduction::Add,
                ("and", _) => Reduction::And,
                ("or", _) => Reduction::Or,
                ("xor", _) => Reduction::Xor,
                ("min", false) => Reduction::MinUnsigned,
                ("max", false) => Reduction::MaxUnsigned,
                ("min", true) => Reduction::MinSigned,
                ("max", true) => Reduction::MaxSigned,
                _ => return None,
            })
        });
        let known = matches!(op.last(), "b32" | "u32" | "s32");
        let reduction = reduction.filter(|_| known).ok_or_else(|| self.refused(instruction))?;
        let a = self.source(self.operand(operands, 1)?, Kind::Narrow, Literal::Integer)?;
        let e = self.source(self.operand(operands, 2)?, Kind::Narrow, Literal::Integer)?;
        let d = self.result(self.operand(operands, 0)?, Kind::Narrow)?;
        self.this.line.effect = Effect::Meet(Form::Reduce(reduction));
        let narrow = Some(Kind::Narrow);
        let op = Op { d, a, e, extra: reduction as u64, ..Op::new(vote::reduce) };
        self.emit(op, Way::Use, Fields::of(narrow, [narrow, None, None, narrow]));
        Ok(())
    }

    pub(super) fn elect(&mut self, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        let (d, predicate) = self.result_and_predicate(self.operand(operands, 0)?)?;
        let e = self.source(self.operand(operands, 1)?, Kind::Narrow, Literal::Integer)?;
        let a = match predicate {
            Some(row) => row,
            None => self.temporary(Kind::Predicate)?,
        };
        self.this.line.effect = Effect::Meet(Form::Elect);
        let mut fields = Fields::of(Some(Kind::Narrow), [None, None, None, Some(Kind::Narrow)]);
        fields.results[1] = Some(Kind::Predicate);
        self.emit(Op { d, a, e, ..Op::new(vote::elect) }, Way::Use, fields);
        Ok(())
    }
}
