//! Turns one instruction into ops.

use super::effects::scope;
use super::error::LowerError;
use super::form::{Form, Opcode};
use super::lower::Lowering;
use super::{floats, integers, packed};
use crate::exec::control;
use crate::exec::dependence::{Fields, Way};
use crate::exec::effect::Effect;
use crate::exec::op::{Op, Row, Run};
use crate::exec::registers::{Kind, Literal};
use crate::exec::vote;
use crate::text::{Instruction, Operand};

mod bits;
pub(super) mod clusters;
mod copies;
mod flow;
mod lanes;
mod matrices;
mod memory;
mod moves;
mod predicates;

impl<'m> Lowering<'m> {
    pub(super) fn instruction(&mut self, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
        self.known_instruction(instruction).map_err(|error| {
            let (opcode, problem) = (instruction.opcode, &error.problem);
            let problem =
                if problem.contains(opcode) { problem.clone() } else { format!("{opcode}: {problem}") };
            LowerError { problem, ..error }
        })
    }

    fn known_instruction(&mut self, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
        let op = Opcode::of(instruction.opcode);
        let operands = &instruction.operands;
        match op.name {
            "st" | "red" if op.has("async") => Err(self.refused(instruction)),
            "ld" | "ldu" => self.load(&op, operands),
            "st" => self.store(&op, operands),
            "atom" | "red" => self.atomic(&op, operands),
            "bra" => self.jump(instruction),
            "brx" => self.jump_by_index(instruction),
            "call" => self.call(instruction),
            "ret" => self.plain(control::ret),
            "exit" => self.plain(control::exit),
            "trap" | "brkpt" => self.plain(control::trap),
            "membar" | "fence" => {
                self.this.line.effect = Effect::Fence(scope(&op));
                self.plain(control::fence)
            }
            "nanosleep" | "pmevent" | "prefetch" | "prefetchu" | "discard" | "applypriority" => {
                self.plain(control::nothing)
            }
            "griddepcontrol" | "setmaxnreg" => self.plain(control::nothing),
            "createpolicy" => self.policy(operands),
            "bar" | "barrier" => self.barrier(&op, instruction),
            "cp" if op.parts.first() == Some(&"async") => self.copy_async(&op, instruction),
            "mma" | "wmma" | "ldmatrix" | "stmatrix" => self.matrix(&op, instruction),
            "mov" => self.mov(&op, instruction),
            "cvt" => self.convert(&op, instruction),
            "cvta" => self.convert_address(&op, operands),
            "mapa" => self.map_address(&op, operands),
            "getctarank" => self.rank_of_address(&op, operands),
            "isspacep" => self.is_in_space(&op, operands),
            "setp" => self.compare(&op, instruction),
            "set" => self.set(&op, instruction),
            "testp" => self.test_property(&op, instruction),
            "selp" => self.select(&op, instruction),
            "slct" => self.select_by_sign(&op, instruction),
            "and" | "or" | "xor" | "not" if op.last() == "pred" => self.logic(&op, instruction),
            "bfi" => self.insert(&op, instruction),
            "lop3" => self.lookup(&op, instruction),
            "shfl" => self.shuffle(&op, instruction),
            "vote" => self.vote(&op, instruction),
            "match" => self.match_lanes(&op, instruction),
            "redux" => self.reduce(&op, instruction),
            "elect" => self.elect(instruction),
            "activemask" => {
                let d = self.result(self.operand(operands, 0)?, Kind::Narrow)?;
                let fields = Fields::of(Some(Kind::Narrow), [None; 4]);
                self.emit(Op { d, ..Op::new(vote::active_mask) }, Way::Whole, fields);
                Ok(())
            }
            "addc" | "subc" | "madc" => self.carry(&op, instruction),
            "add" | "sub" | "mad" if op.has("cc") => self.carry(&op, instruction),
            "min" | "max" if operands.len() == 4 => self.extremum_of_three(&op, instruction),
            _ => {
                let form = integers::form(&op).or_else(|| packed::form(&op)).or_else(|| floats::form(&op));
                let form = form.ok_or_else(|| self.refused(instruction))?;
                self.lanewise(&form, instruction)
            }
        }
    }

    fn operand(&self, operands: &'m [Operand<'m>], at: usize) -> Result<&'m Operand<'m>, LowerError> {
        operands.get(at).ok_or_else(|| self.error("an operand is missing"))
    }

    fn plain(&mut self, run: Run) -> Result<(), LowerError> {
        self.emit_bare(Op::new(run));
        Ok(())
    }

    /// An instruction whose form says everything.
    fn lanewise(&mut self, form: &Form, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        if operands.len() != form.sources.len() + 1 {
            let (found, expected) = (operands.len(), form.sources.len() + 1);
            let opcode = instruction.opcode;
            return Err(self.error(format!("{opcode} has {found} operands; expected {expected}")));
        }
        let rows = self.sources(form, &operands[1..])?;
        let d = self.result(&operands[0], form.result)?;
        let is_masked = operands[1..].iter().any(|operand| matches!(operand, Operand::Number(_)));
        let way = match way_of(&Opcode::of(instruction.opcode)) {
            Way::Zero if instruction.opcode.starts_with("and") && !is_masked => Way::ZeroJoin,
            way => way,
        };
        self.emit_form(form, way, d, rows);
        Ok(())
    }

    /// Adds the op of a form.
    fn emit_form(&mut self, form: &Form, way: Way, d: Row, rows: [Row; 3]) {
        let sources: Vec<_> = form.sources.iter().zip(rows).map(|(source, row)| (source.kind, row)).collect();
        let op = Op { d, a: rows[0], b: rows[1], c: rows[2], ..Op::new(form.loops.at(self.level)) };
        self.emit_pure(op, way, form.result, &sources);
    }

    fn sources(&mut self, form: &Form, operands: &'m [Operand<'m>]) -> Result<[Row; 3], LowerError> {
        let mut rows = [0; 3];
        for ((source, operand), row) in form.sources.iter().zip(operands).zip(&mut rows) {
            *row = self.source(operand, source.kind, source.literal)?;
        }
        Ok(rows)
    }

    fn extremum_of_three(
        &mut self,
        op: &Opcode<'_>,
        instruction: &'m Instruction<'m>,
    ) -> Result<(), LowerError> {
        let form = floats::form(op).ok_or_else(|| self.refused(instruction))?;
        let operands = &instruction.operands;
        let [a, b, _] = self.sources(&form, &operands[1..3])?;
        let c = self.source(&operands[3], form.sources[0].kind, form.sources[0].literal)?;
        let first = self.temporary(form.result)?;
        let run = form.loops.at(self.level);
        let source = Some(form.sources[0].kind);
        let fields = Fields::of(Some(form.result), [source, source, None, None]);
        self.emit(Op { d: first, a, b, ..Op::new(run) }, way_of(op), fields);
        let d = self.result(&operands[0], form.result)?;
        self.emit(Op { d, a: first, b: c, ..Op::new(run) }, way_of(op), fields);
        Ok(())
    }

    /// Returns the row of a predicate, and whether it is negated.
    fn predicate(&mut self, operand: &'m Operand<'m>) -> Result<(Row, bool), LowerError> {
        match operand {
            Operand::Name("%is_explicit_cluster") | Operand::Number(_) => {
                Ok((self.source(operand, Kind::Predicate, Literal::Integer)?, false))
            }
            Operand::Name(name) => Ok((self.register(name, Kind::Predicate)?, false)),
            Operand::Not(name) => Ok((self.register(name, Kind::Predicate)?, true)),
            _ => Err(self.error("an operand is not a predicate")),
        }
    }
}

/// Returns how the result of an instruction that computes each lane alone depends on its sources.
fn way_of(op: &Opcode<'_>) -> Way {
    let ty = op.last();
    let is_integer = ty.starts_with(['u', 's', 'b']) && !ty.starts_with("bf");
    match op.name {
        _ if ty.ends_with("x2") || ty.ends_with("x4") => Way::CutJoin,
        "prmt" | "shf" | "dp2a" | "dp4a" | "vabsdiff4" => Way::CutJoin,
        "and" => Way::Zero,
        "mul" | "mad" | "mul24" | "mad24" if is_integer && !op.has("hi") => Way::Zero,
        "or" => Way::Join,
        "shl" | "shr" | "bfe" | "szext" => Way::Cut,
        _ => Way::Whole,
    }
}
