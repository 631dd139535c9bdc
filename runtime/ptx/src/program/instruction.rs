//! Turns one instruction into ops.

use super::error::LowerError;
use super::form::{Form, Opcode};
use super::lower::{Lowering, Side};
use super::names::{Meaning, Register};
use super::{comparisons, conversions, floats, integers};
use crate::exec::access::{self, Base, Window};
use crate::exec::atomics;
use crate::exec::control;
use crate::exec::lanes::{Bool, Combination};
use crate::exec::op::{Op, Row, Run};
use crate::exec::registers::{Kind, Literal};
use crate::exec::select::{self, Logic, Sum};
use crate::exec::vote::{self, BarrierReduction, Reduction, Shuffle, Vote};
use crate::text::{Instruction, Operand, Statement};

/// Returns the kind of a register for a type.
fn kind_of(ty: &str) -> Option<Kind> {
    Some(match ty {
        "pred" => Kind::Predicate,
        "b8" | "u8" | "s8" | "b16" | "u16" | "s16" | "f16" | "bf16" => Kind::Narrow,
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" | "tf32" => Kind::Narrow,
        "b64" | "u64" | "s64" | "f64" => Kind::Wide,
        _ => return None,
    })
}

fn literal_of(ty: &str) -> Literal {
    match ty {
        "f32" => Literal::F32,
        "f64" => Literal::F64,
        _ => Literal::Integer,
    }
}

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
            "membar" | "fence" => self.plain(control::fence),
            "nanosleep" | "pmevent" | "prefetch" | "prefetchu" | "discard" | "applypriority" => {
                self.plain(control::nothing)
            }
            "griddepcontrol" | "setmaxnreg" => self.plain(control::nothing),
            "bar" | "barrier" => self.barrier(&op, instruction),
            "mov" => self.mov(&op, instruction),
            "cvt" => self.convert(&op, instruction),
            "cvta" => self.convert_address(&op, operands),
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
                self.emit(Op { d, ..Op::new(vote::active_mask) });
                Ok(())
            }
            "addc" | "subc" | "madc" => self.carry(&op, instruction),
            "add" | "sub" | "mad" if op.has("cc") => self.carry(&op, instruction),
            "min" | "max" if operands.len() == 4 => self.extremum_of_three(&op, instruction),
            _ => {
                let form = integers::form(&op).or_else(|| floats::form(&op));
                let form = form.ok_or_else(|| self.refused(instruction))?;
                self.lanewise(&form, instruction)
            }
        }
    }

    fn operand(&self, operands: &'m [Operand<'m>], at: usize) -> Result<&'m Operand<'m>, LowerError> {
        operands.get(at).ok_or_else(|| self.error("an operand is missing"))
    }

    fn plain(&mut self, run: Run) -> Result<(), LowerError> {
        self.emit(Op::new(run));
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
        self.emit_form(form, d, rows);
        Ok(())
    }

    /// Adds the op of a form.
    fn emit_form(&mut self, form: &Form, d: Row, rows: [Row; 3]) {
        let sources: Vec<_> = form.sources.iter().zip(rows).map(|(source, row)| (source.kind, row)).collect();
        let op = Op { d, a: rows[0], b: rows[1], c: rows[2], ..Op::new(form.loops.at(self.level)) };
        self.emit_pure(op, form.result, &sources);
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
        self.emit(Op { d: first, a, b, ..Op::new(run) });
        let d = self.result(&operands[0], form.result)?;
        self.emit(Op { d, a: first, b: c, ..Op::new(run) });
        Ok(())
    }

    /// Returns the window of the state space that an opcode names.
    fn window_of(&self, op: &Opcode<'_>) -> Option<Window> {
        op.find(|part| {
            Some(match part.split("::").next().unwrap_or_default() {
                "global" | "const" => Window::Global,
                "shared" => Window::Shared,
                "local" => Window::Local,
                "param" if self.this.is_kernel => Window::Param,
                "param" => Window::Frame,
                _ => return None,
            })
        })
    }

    /// Returns an op with the address of a memory operand.
    fn address(&mut self, operand: &'m Operand<'m>, window: Option<Window>) -> Result<Op, LowerError> {
        let Operand::Memory { base, offset } = operand else {
            return Err(self.error("an operand is not an address in brackets"));
        };
        let mut op = Op::new(control::nothing);
        op.window = window.unwrap_or(Window::Generic);
        op.extra = *offset as u64;
        let Some(name) = base else { return Ok(op) };
        let meaning = self.meaning(name)?;
        // A register holds the address that `mov` gave it: see `Lowering::named`.
        if let Meaning::Register(_) = meaning {
            op.window = match op.window {
                Window::Param => Window::Generic,
                Window::Frame => Window::Local,
                other => other,
            };
        }
        match meaning {
            Meaning::Register(Register { kind: Kind::Narrow, row, .. }) => {
                (op.base, op.a) = (Base::Narrow, row);
            }
            Meaning::Register(Register { kind: Kind::Wide, row, .. }) => {
                (op.base, op.a) = (Base::Wide, row);
                // A pointer to a parameter is generic; see `Lowering::named`.
                if op.window == Window::Param {
                    op.window = Window::Generic;
                }
            }
            Meaning::Register(_) => return Err(self.error(format!("{name} is not an address"))),
            Meaning::Global(address) | Meaning::Function(address) => {
                op.extra = address.wrapping_add_signed(*offset);
            }
            Meaning::Shared(at) => {
                op.extra = at.wrapping_add_signed(*offset);
                op.window = Window::Shared;
            }
            Meaning::DynamicShared => {
                (op.base, op.a) = (Base::Wide, self.dynamic_shared(Kind::Wide)?);
                op.window = Window::Shared;
            }
            Meaning::Frame { offset: at, .. } => {
                op.extra = at.wrapping_add_signed(*offset);
                op.window = Window::Frame;
            }
            Meaning::Param(at) => {
                op.extra = at.wrapping_add_signed(*offset);
                op.window = Window::Param;
            }
        }
        Ok(op)
    }

    /// Returns the registers of an operand that may be a vector.
    fn elements(&self, operand: &'m Operand<'m>) -> Vec<&'m Operand<'m>> {
        match operand {
            Operand::Vector(elements) => elements.iter().collect(),
            one => vec![one],
        }
    }

    /// Returns whether the first named element is a wide register.
    fn is_wide(&mut self, elements: &[&'m Operand<'m>], ty: &str) -> Result<bool, LowerError> {
        for element in elements {
            if let Operand::Name(name) = element
                && let Ok(Meaning::Register(register)) = self.meaning(name)
            {
                return Ok(register.kind == Kind::Wide);
            }
        }
        Ok(kind_of(ty) == Some(Kind::Wide))
    }

    fn load(&mut self, op: &Opcode<'_>, operands: &'m [Operand<'m>]) -> Result<(), LowerError> {
        let elements = self.elements(self.operand(operands, 0)?);
        let address = self.address(self.operand(operands, 1)?, self.window_of(op))?;
        let is_wide = self.is_wide(&elements, op.last())?;
        let loops = access::load_of(op.last(), elements.len(), is_wide)
            .ok_or_else(|| self.error(format!("{} is not supported", op.whole)))?;
        let kind = if is_wide { Kind::Wide } else { Kind::Narrow };
        let mut rows = [0; 4];
        for (row, element) in rows.iter_mut().zip(&elements) {
            *row = self.result(element, kind)?;
        }
        let run = loops.at(self.level);
        let op = Op { run, d: rows[0], b: rows[1], c: rows[2], e: rows[3], ..address };
        let end = address.extra.saturating_add(8 * elements.len() as u64);
        // A kernel's parameters do not change.
        if address.window == Window::Param
            && address.base == Base::None
            && elements.len() == 1
            && end <= u64::from(self.code.param_bytes)
        {
            self.emit_pure(op, kind, &[]);
        } else {
            self.emit(op);
        }
        Ok(())
    }

    fn store(&mut self, op: &Opcode<'_>, operands: &'m [Operand<'m>]) -> Result<(), LowerError> {
        let address = self.address(self.operand(operands, 0)?, self.window_of(op))?;
        let elements = self.elements(self.operand(operands, 1)?);
        let is_wide = self.is_wide(&elements, op.last())?;
        let loops = access::store_of(op.last(), elements.len(), is_wide)
            .ok_or_else(|| self.error(format!("{} is not supported", op.whole)))?;
        let kind = if is_wide { Kind::Wide } else { Kind::Narrow };
        let mut rows = [0; 4];
        for (row, element) in rows.iter_mut().zip(&elements) {
            *row = self.source(element, kind, literal_of(op.last()))?;
        }
        if matches!(address.window, Window::Param) {
            return Err(self.error("a kernel cannot store to its parameters"));
        }
        let run = loops.at(self.level);
        self.emit(Op { run, d: rows[0], b: rows[1], c: rows[2], e: rows[3], ..address });
        Ok(())
    }

    fn atomic(&mut self, op: &Opcode<'_>, operands: &'m [Operand<'m>]) -> Result<(), LowerError> {
        const OPERATIONS: [&str; 11] =
            ["exch", "cas", "and", "or", "xor", "add", "inc", "dec", "min", "max", "popc"];
        let operation = op.parts.iter().find(|part| OPERATIONS.contains(part)).copied().unwrap_or_default();
        let (run, is_wide) = atomics::atomic_of(operation, op.last())
            .ok_or_else(|| self.error(format!("{} is not supported", op.whole)))?;
        let gives_old = op.name == "atom";
        let first = usize::from(gives_old);
        let address = self.address(self.operand(operands, first)?, self.window_of(op))?;
        let kind = if is_wide { Kind::Wide } else { Kind::Narrow };
        let literal = literal_of(op.last());
        let b = self.source(self.operand(operands, first + 1)?, kind, literal)?;
        let c = match operation {
            "cas" => self.source(self.operand(operands, first + 2)?, kind, literal)?,
            _ => b,
        };
        let d = if gives_old { self.result(self.operand(operands, 0)?, kind)? } else { 0 };
        self.emit(Op { run, d, b, c, e: u32::from(gives_old), ..address });
        Ok(())
    }

    fn jump(&mut self, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
        let Some(Operand::Name(label)) = instruction.operands.first() else {
            return Err(self.error("bra needs a label"));
        };
        let at = self.emit(Op::new(control::jump));
        self.jumps_to(at, label);
        Ok(())
    }

    fn jump_by_index(&mut self, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        let a = self.source(self.operand(operands, 0)?, Kind::Narrow, Literal::Integer)?;
        let Operand::Name(list) = self.operand(operands, 1)? else {
            return Err(self.error("brx.idx needs the name of a list of labels"));
        };
        let at = self.emit(Op { a, ..Op::new(control::jump_by_index) });
        self.jumps_to_one_of(at, list);
        Ok(())
    }

    /// `call (results), function, (arguments), prototype;`, of which only the function must be
    /// there.
    fn call(&mut self, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
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
        if layout.params.len() != arguments.len() || layout.results.len() != results.len() {
            let (found, expected) = (arguments.len(), layout.params.len());
            return Err(
                self.error(format!("the call of {callee} has {found} arguments; expected {expected}"))
            );
        }
        for (argument, (to, bytes)) in arguments.iter().zip(&layout.params) {
            let from = self.param_variable(argument)?;
            let at = self.emit(Op {
                a: from as u32,
                b: *to as u32,
                extra: *bytes,
                ..Op::new(access::copy_in_frame)
            });
            self.is_behind_frame(at, Side::To);
        }
        match declared {
            Some(function) => {
                let number = self.number_of(function.name);
                let number = number.ok_or_else(|| self.error(format!("there is no body of {callee}")))?;
                self.note_call(number);
                self.emit(Op { extra: u64::from(number), ..Op::new(control::call) });
            }
            None => {
                let a = self.register(callee, Kind::Wide)?;
                self.note_call_of_address()?;
                self.emit(Op { a, ..Op::new(control::call_address) });
            }
        }
        for (result, (from, bytes)) in results.iter().zip(&layout.results) {
            let to = self.param_variable(result)?;
            let at = self.emit(Op {
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
    fn prototype(&self, name: &str) -> Result<&'m crate::text::Function<'m>, LowerError> {
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
    fn call_outside(
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
        match callee {
            "vprintf" => {
                let d = match results.first() {
                    Some(result) => self.param_variable(result)? as u32,
                    None => u32::MAX,
                };
                self.emit(Op { d, a, b, ..Op::new(crate::exec::print::print) });
                Ok(())
            }
            "__assertfail" => {
                self.emit(Op { a, b, c, e, ..Op::new(crate::exec::print::assert_failed) });
                Ok(())
            }
            _ => Err(self.error(format!("{callee} is defined in another module; link the modules"))),
        }
    }

    fn barrier(&mut self, op: &Opcode<'_>, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        if op.has("warp") {
            let e = self.source(self.operand(operands, 0)?, Kind::Narrow, Literal::Integer)?;
            self.emit(Op { e, ..Op::new(vote::warp_barrier) });
            return Ok(());
        }
        if op.has("cluster") {
            return Err(self.refused(instruction));
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
        let count = sources.next().filter(|_| reduction.is_none() || operands.len() > 3);
        let b = match count {
            Some(count) => self.source(count, Kind::Narrow, Literal::Integer)?,
            None => 0,
        };
        let has_count = count.is_some();
        let (Some(reduction), Some(result), Some(predicate)) = (reduction, result, predicate) else {
            let run: Run = if op.has("arrive") { control::arrive } else { control::barrier };
            self.emit(Op { a, b, extra: u64::from(has_count), ..Op::new(run) });
            return Ok(());
        };
        let (c, is_negated) = self.predicate(predicate)?;
        let kind = if reduction == BarrierReduction::Count { Kind::Narrow } else { Kind::Predicate };
        let d = self.result(result, kind)?;
        let extra = vote::barrier_extra(reduction, has_count, is_negated);
        self.emit(Op { d, a, b, c, extra, ..Op::new(vote::barrier_reduce) });
        Ok(())
    }

    /// Returns the row of a predicate, and whether it is negated.
    fn predicate(&mut self, operand: &'m Operand<'m>) -> Result<(Row, bool), LowerError> {
        match operand {
            Operand::Name(name) => Ok((self.register(name, Kind::Predicate)?, false)),
            Operand::Not(name) => Ok((self.register(name, Kind::Predicate)?, true)),
            Operand::Number(_) => Ok((self.source(operand, Kind::Predicate, Literal::Integer)?, false)),
            _ => Err(self.error("an operand is not a predicate")),
        }
    }

    fn mov(&mut self, op: &Opcode<'_>, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        let (to, from) = (self.operand(operands, 0)?, self.operand(operands, 1)?);
        match (to, from) {
            _ if op.last() == "pred" => {
                let (a, is_negated) = self.predicate(from)?;
                let d = self.result(to, Kind::Predicate)?;
                let logic = if is_negated { Logic::Not } else { Logic::Move };
                self.emit(Op { d, a, b: a, extra: logic as u64, ..Op::new(select::predicates) });
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

    fn unpack(
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
            self.emit(Op { d, a, b: len, c: at * len, ..Op::new(run) });
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

    /// Copies a narrow row.
    fn copy(&mut self, d: Row, a: Row) -> Result<(), LowerError> {
        let form = integers::form(&Opcode::of("mov.b32")).ok_or_else(|| self.error("mov is missing"))?;
        self.emit(Op { d, a, ..Op::new(form.loops.at(self.level)) });
        Ok(())
    }

    fn pack(
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
        self.emit(Op { d, a, b, c, e, ..Op::new(run) });
        Ok(())
    }

    /// `cvt` allows registers that are wider than its types.
    fn convert(&mut self, op: &Opcode<'_>, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
        let form = conversions::form(op).ok_or_else(|| self.refused(instruction))?;
        let operands = &instruction.operands;
        let mut rows = [0; 3];
        for (at, (row, source)) in rows.iter_mut().zip(&form.sources).enumerate() {
            let operand = self.operand(operands, at + 1)?;
            *row = match self.register_of(operand)? {
                Some(Register { kind: Kind::Wide, row, .. }) if source.kind == Kind::Narrow => {
                    let d = self.temporary(Kind::Narrow)?;
                    self.emit(Op { d, a: row, b: 32, c: 0, ..Op::new(select::part_of_wide) });
                    d
                }
                _ => self.source(operand, source.kind, source.literal)?,
            };
        }
        let to = self.operand(operands, 0)?;
        let run = form.loops.at(self.level);
        let [a, b, c] = rows;
        match self.register_of(to)? {
            Some(Register { kind: Kind::Wide, row, .. }) if form.result == Kind::Narrow => {
                let narrow = self.temporary(Kind::Narrow)?;
                self.emit(Op { d: narrow, a, b, c, ..Op::new(run) });
                let is_signed = op.parts[op.parts.len() - 2].starts_with('s');
                let extra = u64::from(is_signed);
                self.emit(Op { d: row, a: narrow, b: 32, extra, ..Op::new(select::extend) });
            }
            _ => {
                let d = self.result(to, form.result)?;
                self.emit_form(&form, d, rows);
            }
        }
        Ok(())
    }

    /// Returns the register that an operand names, if it does.
    fn register_of(&mut self, operand: &Operand<'_>) -> Result<Option<Register>, LowerError> {
        let Operand::Name(name) = operand else { return Ok(None) };
        if control::Special::of(name).is_some() {
            return Ok(None);
        }
        Ok(match self.meaning(name)? {
            Meaning::Register(register) => Some(register),
            _ => None,
        })
    }

    fn convert_address(&mut self, op: &Opcode<'_>, operands: &'m [Operand<'m>]) -> Result<(), LowerError> {
        let window = self.window_of(op).unwrap_or(Window::Generic);
        // A pointer to a parameter is generic already; see `Lowering::named`.
        let window = match window {
            Window::Frame => Window::Local,
            Window::Param => Window::Global,
            other => other,
        };
        let to = self.operand(operands, 0)?;
        let kind = kind_of(op.last()).ok_or_else(|| self.error("cvta needs u32 or u64"))?;
        if op.has("to") {
            let a = self.source(self.operand(operands, 1)?, Kind::Wide, Literal::Integer)?;
            let d = self.result(to, kind)?;
            let run: Run = match kind {
                Kind::Narrow => access::from_generic::<u32>,
                _ => access::from_generic::<u64>,
            };
            let op = Op { d, a, window, ..Op::new(run) };
            match window {
                Window::Global => self.emit_pure(op, kind, &[(Kind::Wide, a)]),
                _ => self.emit(op),
            };
            return Ok(());
        }
        let a = self.source(self.operand(operands, 1)?, kind, Literal::Integer)?;
        let d = self.result(to, Kind::Wide)?;
        let base = if kind == Kind::Narrow { Base::Narrow } else { Base::Wide };
        self.emit(Op { d, a, base, window, ..Op::new(access::to_generic) });
        Ok(())
    }

    fn is_in_space(&mut self, op: &Opcode<'_>, operands: &'m [Operand<'m>]) -> Result<(), LowerError> {
        let a = self.source(self.operand(operands, 1)?, Kind::Wide, Literal::Integer)?;
        let d = self.result(self.operand(operands, 0)?, Kind::Predicate)?;
        let window = match self.window_of(op) {
            Some(window) if !op.has("const") => window,
            _ => return Err(self.error(format!("{} is not supported", op.whole))),
        };
        self.emit(Op { d, a, window, ..Op::new(access::is_in_window) });
        Ok(())
    }

    /// Returns the combination that `setp` and `set` ask for, with the row of their predicate.
    fn combination(
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

    fn compare(&mut self, op: &Opcode<'_>, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
        let form = comparisons::form(op).ok_or_else(|| self.refused(instruction))?;
        let operands = &instruction.operands;
        let [a, b, _] = self.sources(&form, operands.get(1..3).unwrap_or_default())?;
        let (mut combination, c) = self.combination(op, operands.get(3))?;
        let (first, second) = match self.operand(operands, 0)? {
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
            (Some(_), _) => self.emit(op),
            (None, None) => self.emit_pure(op, Kind::Predicate, &[(kind, a), (kind, b)]),
            (None, Some(_)) => {
                self.emit_pure(op, Kind::Predicate, &[(kind, a), (kind, b), (Kind::Predicate, c)])
            }
        };
        Ok(())
    }

    /// `set.cmp.type.type`: a comparison whose result is a number. PTX ISA 9.7.6.1.
    fn set(&mut self, op: &Opcode<'_>, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
        let form = comparisons::form(op).ok_or_else(|| self.refused(instruction))?;
        let operands = &instruction.operands;
        let [a, b, _] = self.sources(&form, operands.get(1..3).unwrap_or_default())?;
        let (combination, c) = self.combination(op, operands.get(3))?;
        let predicate = self.temporary(Kind::Predicate)?;
        let run = form.loops.at(self.level);
        self.emit(Op { d: predicate, a, b, c, extra: combination.extra(), ..Op::new(run) });
        let ty = op.parts[op.parts.len() - 2];
        let kind = kind_of(ty).ok_or_else(|| self.refused(instruction))?;
        let yes = match ty {
            "f32" => u64::from(1.0f32.to_bits()),
            "f16" => 0x3c00,
            "bf16" => 0x3f80,
            _ => u64::MAX,
        };
        let (a, b) = (self.constant(kind, yes)?, self.constant(kind, 0)?);
        let d = self.result(self.operand(operands, 0)?, kind)?;
        self.emit(Op { d, a, b, c: predicate, ..Op::new(select::by_predicate::<u32>) });
        Ok(())
    }

    fn test_property(&mut self, op: &Opcode<'_>, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
        let form = comparisons::property(op).ok_or_else(|| self.refused(instruction))?;
        let operands = &instruction.operands;
        let a = self.source(self.operand(operands, 1)?, form.sources[0].kind, form.sources[0].literal)?;
        let d = self.result(self.operand(operands, 0)?, Kind::Predicate)?;
        let extra = Combination::default().extra();
        self.emit(Op { d, a, b: a, extra, ..Op::new(form.loops.at(self.level)) });
        Ok(())
    }

    fn select(&mut self, op: &Opcode<'_>, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        let kind = kind_of(op.last()).ok_or_else(|| self.refused(instruction))?;
        let literal = literal_of(op.last());
        let a = self.source(self.operand(operands, 1)?, kind, literal)?;
        let b = self.source(self.operand(operands, 2)?, kind, literal)?;
        let (c, is_negated) = self.predicate(self.operand(operands, 3)?)?;
        let d = self.result(self.operand(operands, 0)?, kind)?;
        let extra = if is_negated { u64::from(u32::MAX) } else { 0 };
        let run: Run = match kind {
            Kind::Wide => select::by_predicate::<u64>,
            _ => select::by_predicate::<u32>,
        };
        let op = Op { d, a, b, c, extra, ..Op::new(run) };
        self.emit_pure(op, kind, &[(kind, a), (kind, b), (Kind::Predicate, c)]);
        Ok(())
    }

    fn select_by_sign(
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
        self.emit(Op { d, a, b, c, extra, ..Op::new(run) });
        Ok(())
    }

    fn logic(&mut self, op: &Opcode<'_>, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
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
        let op = Op { d, a, b, extra: logic as u64, ..Op::new(select::predicates) };
        self.emit_pure(op, Kind::Predicate, &[(Kind::Predicate, a), (Kind::Predicate, b)]);
        Ok(())
    }

    fn insert(&mut self, op: &Opcode<'_>, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
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
        self.emit(Op { d, a, b, c, e, ..Op::new(run) });
        Ok(())
    }

    fn lookup(&mut self, op: &Opcode<'_>, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        if op.parts.len() != 1 {
            return Err(self.refused(instruction));
        }
        let mut rows = [0; 3];
        for (at, row) in rows.iter_mut().enumerate() {
            *row = self.source(self.operand(operands, at + 1)?, Kind::Narrow, Literal::Integer)?;
        }
        let Operand::Number(crate::text::Number::Integer(table)) = self.operand(operands, 4)? else {
            return Err(self.error("lop3 needs a number as its table"));
        };
        let d = self.result(self.operand(operands, 0)?, Kind::Narrow)?;
        let [a, b, c] = rows;
        self.emit(Op { d, a, b, c, extra: *table as u64, ..Op::new(select::lookup) });
        Ok(())
    }

    /// Returns the rows of a result that may be a pair, of which the second is a predicate.
    fn result_and_predicate(&mut self, operand: &Operand<'_>) -> Result<(Row, Option<Row>), LowerError> {
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

    fn shuffle(&mut self, op: &Opcode<'_>, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
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
        let extra = vote::shuffle_extra(mode, is_sync, predicate);
        self.emit(Op { d, a, b, c, e, extra, ..Op::new(vote::shuffle) });
        Ok(())
    }

    fn vote(&mut self, op: &Opcode<'_>, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
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
        let kind = if form == Vote::Ballot { Kind::Narrow } else { Kind::Predicate };
        let d = self.result(self.operand(operands, 0)?, kind)?;
        let extra = vote::vote_extra(form, is_sync, is_negated);
        self.emit(Op { d, a, e, extra, ..Op::new(vote::vote) });
        Ok(())
    }

    fn match_lanes(&mut self, op: &Opcode<'_>, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        let kind = kind_of(op.last()).ok_or_else(|| self.refused(instruction))?;
        let a = self.source(self.operand(operands, 1)?, kind, Literal::Integer)?;
        let e = self.source(self.operand(operands, 2)?, Kind::Narrow, Literal::Integer)?;
        let (d, predicate) = self.result_and_predicate(self.operand(operands, 0)?)?;
        let extra = vote::match_extra(op.has("all"), kind == Kind::Wide, predicate);
        self.emit(Op { d, a, e, extra, ..Op::new(vote::match_lanes) });
        Ok(())
    }

    fn reduce(&mut self, op: &Opcode<'_>, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
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
        self.emit(Op { d, a, e, extra: reduction as u64, ..Op::new(vote::reduce) });
        Ok(())
    }

    fn elect(&mut self, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        let (d, predicate) = self.result_and_predicate(self.operand(operands, 0)?)?;
        let e = self.source(self.operand(operands, 1)?, Kind::Narrow, Literal::Integer)?;
        let a = match predicate {
            Some(row) => row,
            None => self.temporary(Kind::Predicate)?,
        };
        self.emit(Op { d, a, e, ..Op::new(vote::elect) });
        Ok(())
    }

    /// `add.cc`, `addc` and the like. PTX ISA 9.7.2.
    fn carry(&mut self, op: &Opcode<'_>, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
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
        self.emit(Op { d, a, b, c, extra, ..Op::new(run) });
        Ok(())
    }
}
