//! Jumps, calls and barriers of blocks.

use crate::exec::dependence::{Fields, Way};
use crate::exec::effect::Effect;
use crate::exec::op::{Op, Run};
use crate::exec::registers::{Kind, LANES, Literal};
use crate::exec::vote::{BarrierReduction, Form};
use crate::exec::{access, control, heap, print, vote};
use crate::program::error::LowerError;
use crate::program::form::Opcode;
use crate::program::lower::{Lowering, Side};
use crate::program::names::Meaning;
use crate::text::{Function, Instruction, Number, Operand, Statement};

impl<'m> Lowering<'m> {
    pub(super) fn jump(&mut self, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
        let Some(Operand::Name(label)) = instruction.operands.first() else {
            return Err(self.error("bra needs a label"));
        };
        let at = self.emit_bare(Op::new(control::jump));
        self.this.labels.jump(at, label, instruction.line);
        Ok(())
    }

    pub(super) fn jump_by_index(&mut self, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        let a = self.source(self.operand(operands, 0)?, Kind::Narrow, Literal::Integer)?;
        let Operand::Name(list) = self.operand(operands, 1)? else {
            return Err(self.error("brx.idx needs the name of a list of labels"));
        };
        let fields = Fields::of(None, [Some(Kind::Narrow), None, None, None]);
        let at = self.emit(Op { a, ..Op::new(control::jump_by_index) }, Way::Use, fields);
        self.this.labels.jump_to_one_of(at, list, instruction.line);
        Ok(())
    }

    /// `call (results), function, (arguments), prototype;`, of which only the function must be
    /// there.
    pub(super) fn call(&mut self, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
        let mut operands = instruction.operands.iter().peekable();
        let results: &[Operand<'_>] = match operands.peek() {
            Some(Operand::List(results)) => {
                operands.next();
                results
            }
            _ => &[],
        };
        let Some(Operand::Name(callee)) = operands.next() else {
            return Err(self.error("call needs a function"));
        };
        let arguments: &[Operand<'_>] = match operands.peek() {
            Some(Operand::List(arguments)) => {
                operands.next();
                arguments
            }
            _ => &[],
        };
        let prototype = operands.next();
        let module = self.module;
        let declared = module.functions.iter().find(|function| function.name == *callee);
        if let Some(function) = declared
            && function.body.is_none()
            && !module.functions.iter().any(|other| other.name == *callee && other.body.is_some())
        {
            return self.call_outside(callee, results, arguments);
        }
        let layout = match (declared, prototype) {
            (Some(function), _) => self.layout(&function.returns, &function.params)?,
            (None, Some(Operand::Name(name))) => {
                let prototype = self.prototype(name)?;
                self.layout(&prototype.returns, &prototype.params)?
            }
            _ => return Err(self.error(format!("the call of {callee} needs a prototype"))),
        };
        // A linker does not compare the declaration in one module with the definition in another
        // one. If only the former has a result, the result of a call has any value.
        let has_no_result = layout.results.is_empty();
        let differs = |found: usize, expected: usize, what: &str| {
            let problem = format!("the call of {callee} has {found} {what}; expected {expected}");
            if found == expected { Ok(()) } else { Err(self.error(problem)) }
        };
        differs(arguments.len(), layout.params.len(), "arguments")?;
        if !has_no_result {
            differs(results.len(), layout.results.len(), "results")?;
        }
        for (argument, (to, bytes)) in arguments.iter().zip(&layout.params) {
            let from = self.param_variable(argument)?;
            self.this.line.effect = Effect::Copy;
            let at = self.emit_bare(Op {
                a: from as u32,
                b: *to as u32,
                extra: *bytes,
                ..Op::new(access::copy_in_frame)
            });
            self.is_behind_frame(at, Side::To);
        }
        self.this.line.effect = Effect::None;
        match declared {
            Some(function) => {
                let number = self.number_of(function.name);
                let number = number.ok_or_else(|| self.error(format!("there is no body of {callee}")))?;
                self.note_call(number);
                self.emit_bare(Op { extra: u64::from(number), ..Op::new(control::call) });
            }
            None => {
                let a = self.register(callee, Kind::Wide)?;
                self.note_call_of_address()?;
                let fields = Fields::of(None, [Some(Kind::Wide), None, None, None]);
                self.emit(Op { a, ..Op::new(control::call_address) }, Way::Use, fields);
            }
        }
        for (result, (from, bytes)) in results.iter().zip(&layout.results) {
            let to = self.param_variable(result)?;
            self.this.line.effect = Effect::Copy;
            let at = self.emit_bare(Op {
                a: *from as u32,
                b: to as u32,
                extra: *bytes,
                ..Op::new(access::copy_in_frame)
            });
            self.is_behind_frame(at, Side::From);
        }
        Ok(())
    }

    /// Returns a prototype of the module's functions.
    pub(super) fn prototype(&self, name: &str) -> Result<&'m Function<'m>, LowerError> {
        let statements = self.module.functions.iter().filter_map(|function| function.body.as_ref()).flatten();
        let mut prototypes = statements.filter_map(|statement| match statement {
            Statement::Prototype(prototype) if prototype.name == name => Some(prototype),
            _ => None,
        });
        prototypes.next().ok_or_else(|| self.error(format!("there is no prototype {name}")))
    }

    /// Returns the offset in the frame of a `.param` variable of a call.
    pub(super) fn param_variable(&mut self, operand: &Operand<'_>) -> Result<u64, LowerError> {
        if let Operand::Name(name) = operand
            && let Meaning::Frame { offset, is_param: true } = self.meaning(name)?
        {
            return Ok(offset);
        }
        Err(self.error("arguments and results of a call have to be .param variables of this function"))
    }

    /// Calls of functions that the CUDA runtime provides.
    pub(super) fn call_outside(
        &mut self,
        callee: &str,
        results: &[Operand<'_>],
        arguments: &[Operand<'_>],
    ) -> Result<(), LowerError> {
        let mut places = [0; 5];
        for (argument, place) in arguments.iter().zip(&mut places) {
            *place = self.param_variable(argument)? as u32;
        }
        let [a, b, c, e, _] = places;
        let d = match results.first() {
            Some(result) => self.param_variable(result)? as u32,
            None => u32::MAX,
        };
        match callee {
            "vprintf" => {
                self.this.line.effect = Effect::Result(4);
                self.emit_bare(Op { d, a, b, ..Op::new(print::print) });
                Ok(())
            }
            "__assertfail" => {
                self.emit_bare(Op { a, b, c, e, ..Op::new(print::assert_failed) });
                Ok(())
            }
            "malloc" => {
                self.this.line.effect = Effect::Result(8);
                self.code.calls_malloc = true;
                self.emit_bare(Op { d, a, ..Op::new(heap::allocate) });
                Ok(())
            }
            "free" => {
                self.emit_bare(Op { a, ..Op::new(heap::free) });
                Ok(())
            }
            _ => Err(self.error(format!("{callee} is defined in another module; link the modules"))),
        }
    }

    pub(super) fn barrier(
        &mut self,
        op: &Opcode<'_>,
        instruction: &'m Instruction<'m>,
    ) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        if op.has("warp") {
            let e = self.source(self.operand(operands, 0)?, Kind::Narrow, Literal::Integer)?;
            self.this.line.effect = Effect::Meet(Form::Barrier);
            let fields = Fields::of(None, [None, None, None, Some(Kind::Narrow)]);
            self.emit(Op { e, ..Op::new(vote::warp_barrier) }, Way::Use, fields);
            return Ok(());
        }
        if op.has("cluster") {
            return self.cluster_barrier(op, instruction);
        }
        let reduction = op.find(|part| match part {
            "and" => Some(BarrierReduction::And),
            "or" => Some(BarrierReduction::Or),
            "popc" => Some(BarrierReduction::Count),
            _ => None,
        });
        let mut sources = operands.iter();
        let result = if reduction.is_some() { sources.next() } else { None };
        let predicate = if reduction.is_some() { operands.last() } else { None };
        let id = sources.next().filter(|id| Some(*id) != predicate || operands.len() > 2);
        let a = match id {
            Some(id) => self.source(id, Kind::Narrow, Literal::Integer)?,
            None => self.constant(Kind::Narrow, 0)?,
        };
        let constant = |operand: Option<&Operand<'_>>, otherwise: u32| match operand {
            Some(Operand::Number(Number::Integer(number))) => Some(*number as u32),
            Some(_) => None,
            None => Some(otherwise),
        };
        let count = sources.next().filter(|_| reduction.is_none() || operands.len() > 3);
        let b = match count {
            Some(count) => self.source(count, Kind::Narrow, Literal::Integer)?,
            None => 0,
        };
        let has_count = count.is_some();
        let (id, threads) = (constant(id, 0), constant(count, LANES as u32));
        if let Some(wrong) = control::wrong_barrier(id.unwrap_or(0), threads) {
            return Err(self.error(wrong.to_string()));
        }
        let registers = if id.is_none() || threads.is_none() { control::IN_REGISTERS } else { 0 };
        let count = has_count.then_some(Kind::Narrow);
        let (Some(reduction), Some(result), Some(predicate)) = (reduction, result, predicate) else {
            let is_arrival = op.has("arrive");
            let run: Run = if is_arrival { control::arrive } else { control::barrier };
            self.this.line.effect = if is_arrival { Effect::Arrive } else { Effect::None };
            let fields = Fields::of(None, [Some(Kind::Narrow), count, None, None]);
            let extra = u64::from(has_count) | registers;
            self.emit(Op { a, b, extra, ..Op::new(run) }, Way::Use, fields);
            return Ok(());
        };
        let (c, is_negated) = self.predicate(predicate)?;
        let kind = if reduction == BarrierReduction::Count { Kind::Narrow } else { Kind::Predicate };
        let d = self.result(result, kind)?;
        let extra = vote::barrier_extra(reduction, has_count, is_negated) | registers;
        let sources = [Some(Kind::Narrow), count, Some(Kind::Predicate), None];
        let op = Op { d, a, b, c, extra, ..Op::new(control::barrier) };
        self.emit(op, Way::Use, Fields::of(Some(kind), sources));
        Ok(())
    }
}
