//! Turns a kernel and the functions that it calls into ops.

use super::error::LowerError;
use super::names::{Meaning, Names, Register};
use super::variables::{Variables, bits_of, layout_of};
use crate::exec::access::{Base, Window};
use crate::exec::code::{Code, Function, Line};
use crate::exec::control;
use crate::exec::lanes::Level;
use crate::exec::op::{Guard, Op, Row};
use crate::exec::registers::{Kind, Literal};
use crate::text::{self, Init, Instruction, Linkage, Module, Number, Operand, Space, Statement, Variable};
use std::collections::{HashMap, HashSet};

/// The bytes of local memory of a thread whose calls may be nested without a limit.
const DEEP_STACK: u32 = 16 << 10;
/// The most registers of each kind that a kernel may have.
const MOST_ROWS: u32 = 1 << 16;

/// Lowers the kernel `name`.
pub(crate) fn lower(module: &Module<'_>, variables: &Variables, name: &str) -> Result<Code, LowerError> {
    let kernel = module.functions.iter().find(|function| function.is_kernel && function.name == name);
    let Some(kernel) = kernel.filter(|kernel| kernel.body.is_some()) else {
        let kernels = module.functions.iter().filter(|function| function.is_kernel);
        let names: Vec<&str> = kernels.map(|kernel| kernel.name).collect();
        let problem = format!("there is no kernel {name}; the module has {}", names.join(", "));
        return Err(LowerError { line: 0, problem });
    };
    let mut lowering = Lowering::new(module, variables);
    lowering.code.name = name.to_owned();
    lowering.code.files = module.files.iter().map(|(number, file)| (*number, (*file).to_owned())).collect();
    lowering.number_of(kernel.name);
    let mut next = 0;
    while next < lowering.queue.len() {
        let function = lowering.queue[next];
        lowering.function(function, next as u32)?;
        next += 1;
    }
    lowering.finish()
}

/// Returns the address of a function of a module.
pub(crate) fn address_of(module: &Module<'_>, name: &str) -> Option<u64> {
    let at = module.functions.iter().position(|function| function.name == name && !function.is_kernel)?;
    // Functions are 16 apart, so that no two addresses look alike in a report.
    Some(control::FUNCTIONS + 16 * at as u64)
}

/// A kernel that is being lowered.
pub(super) struct Lowering<'m> {
    pub(super) module: &'m Module<'m>,
    variables: &'m Variables,
    pub(super) level: Level,
    pub(super) code: Code,
    /// The functions in the order of their numbers.
    queue: Vec<&'m text::Function<'m>>,
    numbers: HashMap<&'m str, u32>,
    /// Which function calls which one directly.
    calls: HashSet<(u32, u32)>,
    /// Functions that call addresses, and functions whose addresses are taken.
    calls_addresses: HashSet<u32>,
    addressed: HashSet<u32>,
    narrow_constants: HashMap<u32, Row>,
    wide_constants: HashMap<u64, Row>,
    shared: HashMap<&'m str, u64>,
    /// Rows that hold the offset of dynamic shared memory, and its alignment.
    dynamic_rows: Vec<(Kind, Row)>,
    dynamic_align: u64,
    /// The bytes of the frame of the last function, of which nothing needs the alignment.
    last_frame_bytes: u64,
    /// How often each register is a result, and which ops may run early.
    results: HashMap<(Kind, Row), u32>,
    pure: Vec<Pure>,
    /// Ops that hold the place of another op.
    places: Vec<usize>,
    /// The function that is being lowered.
    pub(super) this: This<'m>,
}

/// An op whose result depends on its sources alone, and which cannot fail.
struct Pure {
    at: usize,
    result: (Kind, Row),
    sources: Vec<(Kind, Row)>,
}

/// The state of one function.
#[derive(Default)]
pub(super) struct This<'m> {
    pub(super) number: u32,
    pub(super) is_kernel: bool,
    names: Names<'m>,
    /// The labels of each open scope, and the jumps to labels that are not known yet.
    labels: Vec<Labels<'m>>,
    pub(super) line: Line,
    pub(super) frame_bytes: u64,
    /// Ops whose field `a` or `b` is relative to the end of the frame.
    behind_frame: Vec<(usize, Side)>,
    guard: Option<Guard>,
}

#[derive(Default)]
struct Labels<'m> {
    places: HashMap<&'m str, u32>,
    jumps: Vec<(usize, &'m str, u32)>,
    /// Lists of targets by their names, and the ops that use a list.
    lists: HashMap<&'m str, (Vec<&'m str>, u32)>,
    listed: Vec<(usize, &'m str, u32)>,
}

/// A field of an op that copies between frames.
#[derive(Clone, Copy)]
pub(super) enum Side {
    From,
    To,
}

/// The places of a function's parameters and results in its frame.
pub(super) struct Layout {
    pub(super) params: Vec<(u64, u64)>,
    pub(super) results: Vec<(u64, u64)>,
    pub(super) bytes: u64,
}

impl<'m> Lowering<'m> {
    fn new(module: &'m Module<'m>, variables: &'m Variables) -> Self {
        Lowering {
            module,
            variables,
            level: Level::best(),
            code: Code::default(),
            queue: Vec::new(),
            numbers: HashMap::new(),
            calls: HashSet::new(),
            calls_addresses: HashSet::new(),
            addressed: HashSet::new(),
            narrow_constants: HashMap::new(),
            wide_constants: HashMap::new(),
            shared: HashMap::new(),
            dynamic_rows: Vec::new(),
            dynamic_align: 16,
            last_frame_bytes: 0,
            results: HashMap::new(),
            pure: Vec::new(),
            places: Vec::new(),
            this: This::default(),
        }
    }

    pub(super) fn error(&self, problem: impl Into<String>) -> LowerError {
        LowerError { line: self.this.line.ptx, problem: problem.into() }
    }

    /// Returns the number of a function, and queues it if it is new. `None` means that it has no
    /// body.
    pub(super) fn number_of(&mut self, name: &str) -> Option<u32> {
        if let Some(number) = self.numbers.get(name) {
            return Some(*number);
        }
        let has_body = |function: &&text::Function<'_>| function.name == name && function.body.is_some();
        let function = self.module.functions.iter().find(has_body)?;
        let number = self.queue.len() as u32;
        self.queue.push(function);
        self.numbers.insert(function.name, number);
        Some(number)
    }

    /// Notes that the function calls another one.
    pub(super) fn note_call(&mut self, callee: u32) {
        self.calls.insert((self.this.number, callee));
    }

    /// Notes that the function calls an address. It may be that of any function in the initial
    /// value of a variable.
    pub(super) fn note_call_of_address(&mut self) -> Result<(), LowerError> {
        fn names<'m>(init: &Init<'m>, found: &mut Vec<&'m str>) {
            match init {
                Init::Address { name, .. } => found.push(name),
                Init::List(items) => items.iter().for_each(|item| names(item, found)),
                Init::Number(_) => {}
            }
        }
        self.calls_addresses.insert(self.this.number);
        let module = self.module;
        let mut found = Vec::new();
        module.variables.iter().filter_map(|variable| variable.init.as_ref()).for_each(|init| {
            names(init, &mut found);
        });
        for name in found {
            if address_of(module, name).is_some() {
                self.meaning(name)?;
            }
        }
        Ok(())
    }

    fn function(&mut self, function: &'m text::Function<'m>, number: u32) -> Result<(), LowerError> {
        let (narrow, wide, predicates) = (self.code.narrow, self.code.wide, self.code.predicates);
        let entry = self.code.ops.len() as u32;
        self.this = This { number, is_kernel: function.is_kernel, ..This::default() };
        self.this.line = Line { ptx: function.line, ..Line::default() };
        self.open();
        if function.is_kernel {
            let mut end = 0u64;
            for param in &function.params {
                let (size, align) = layout_of(param)?;
                end = end.next_multiple_of(align);
                self.this.names.add(param.name, Meaning::Param(end));
                end += size;
            }
            self.code.param_bytes = end.min(u64::from(u32::MAX)) as u32;
        } else {
            let layout = self.layout(&function.returns, &function.params)?;
            for (variable, place) in function.params.iter().zip(&layout.params) {
                self.this.names.add(variable.name, Meaning::Frame { offset: place.0, is_param: true });
            }
            for (variable, place) in function.returns.iter().zip(&layout.results) {
                self.this.names.add(variable.name, Meaning::Frame { offset: place.0, is_param: true });
            }
            self.this.frame_bytes = layout.bytes;
        }
        for statement in function.body.iter().flatten() {
            self.statement(statement)?;
        }
        // Text that ends without a return returns.
        self.emit(Op::new(control::ret));
        self.close()?;
        self.last_frame_bytes = self.this.frame_bytes;
        let frame_bytes = self.this.frame_bytes.next_multiple_of(16);
        for (at, side) in std::mem::take(&mut self.this.behind_frame) {
            let op = &mut self.code.ops[at];
            match side {
                Side::From => op.a += frame_bytes as u32,
                Side::To => op.b += frame_bytes as u32,
            }
        }
        let rows = |first: usize, end: usize| (first as u32, (end - first) as u32);
        self.code.functions.push(Function {
            entry,
            narrow: rows(narrow, self.code.narrow),
            wide: rows(wide, self.code.wide),
            predicates: rows(predicates, self.code.predicates),
            frame_bytes: frame_bytes as u32,
            may_recur: false,
        });
        Ok(())
    }

    /// Returns where parameters and results are in the frame of a function: results first. Any two
    /// functions with the same types agree, so a prototype is enough to call one.
    pub(super) fn layout(
        &self,
        returns: &[Variable<'_>],
        params: &[Variable<'_>],
    ) -> Result<Layout, LowerError> {
        let mut end = 0u64;
        let mut place = |variable: &Variable<'_>| {
            let (size, align) = layout_of(variable)?;
            end = end.next_multiple_of(align.max(8));
            let at = (end, size);
            end += size;
            Ok(at)
        };
        let results = returns.iter().map(&mut place).collect::<Result<_, _>>()?;
        let params = params.iter().map(&mut place).collect::<Result<_, _>>()?;
        Ok(Layout { params, results, bytes: end.next_multiple_of(16) })
    }

    fn open(&mut self) {
        self.this.names.open();
        self.this.labels.push(Labels::default());
    }

    /// Closes a scope. Jumps to labels that it does not have belong to the scope around it.
    fn close(&mut self) -> Result<(), LowerError> {
        self.this.names.close();
        let Some(Labels { places, jumps, lists, listed }) = self.this.labels.pop() else { return Ok(()) };
        for (at, label, line) in jumps {
            match (places.get(label), self.this.labels.last_mut()) {
                (Some(place), _) => {
                    self.code.ops[at].extra = u64::from(*place);
                    self.places.push(at);
                }
                (None, Some(outer)) => outer.jumps.push((at, label, line)),
                (None, None) => {
                    return Err(LowerError { line, problem: format!("there is no label {label}") });
                }
            }
        }
        for (at, list, line) in listed {
            let Some((labels, _)) = lists.get(list) else {
                match self.this.labels.last_mut() {
                    Some(outer) => outer.listed.push((at, list, line)),
                    None => {
                        return Err(LowerError { line, problem: format!("there is no list {list}") });
                    }
                }
                continue;
            };
            let targets: Option<Vec<u32>> = labels.iter().map(|label| places.get(label).copied()).collect();
            let targets = targets.ok_or_else(|| LowerError {
                line,
                problem: format!("a label of the list {list} is missing"),
            })?;
            self.code.ops[at].extra = self.code.targets.len() as u64;
            self.code.targets.push(targets);
        }
        Ok(())
    }

    fn statement(&mut self, statement: &'m Statement<'m>) -> Result<(), LowerError> {
        match statement {
            Statement::Registers { ty, vector, names } => {
                if *vector != 1 {
                    return Err(self.error("registers of vectors are not supported; use single registers"));
                }
                for (name, count) in names {
                    let first = self.registers(ty, count.unwrap_or(1))?;
                    match count {
                        Some(count) => self.this.names.add_group(name, first, *count),
                        None => self.this.names.add(name, Meaning::Register(first)),
                    }
                }
            }
            Statement::Variable(variable) => self.variable(variable)?,
            Statement::Label(label) => {
                let place = self.code.ops.len() as u32;
                if let Some(labels) = self.this.labels.last_mut() {
                    labels.places.insert(label, place);
                }
            }
            Statement::Location { file, line, .. } => {
                (self.this.line.file, self.this.line.source) = (*file, *line);
            }
            Statement::Open => self.open(),
            Statement::Close => self.close()?,
            Statement::Targets { name, targets } => {
                let line = self.this.line.ptx;
                if let Some(labels) = self.this.labels.last_mut() {
                    labels.lists.insert(name, (targets.clone(), line));
                }
            }
            // A call finds its prototype by its arguments alone; see `instruction`.
            Statement::Prototype(_) => {}
            Statement::Instruction(instruction) => {
                self.this.line.ptx = instruction.line;
                self.this.guard = None;
                if let Some((name, is_negated)) = instruction.guard {
                    let register = self.register(name, Kind::Predicate)?;
                    self.this.guard = Some(Guard::new(register, is_negated));
                }
                self.instruction(instruction)?;
                self.this.guard = None;
            }
        }
        Ok(())
    }

    fn variable(&mut self, variable: &'m Variable<'m>) -> Result<(), LowerError> {
        self.this.line.ptx = variable.line;
        match variable.space {
            Space::Local | Space::Param => {
                let (size, align) = layout_of(variable)?;
                let offset = self.this.frame_bytes.next_multiple_of(align);
                self.this.frame_bytes = offset + size;
                if self.this.frame_bytes > u64::from(u32::MAX / 4) {
                    return Err(self.error("the local variables are too large"));
                }
                let is_param = variable.space == Space::Param;
                self.this.names.add(variable.name, Meaning::Frame { offset, is_param });
            }
            Space::Shared => {
                let offset = self.shared_variable(variable)?;
                self.this.names.add(variable.name, Meaning::Shared(offset));
            }
            Space::Global | Space::Const => {
                return Err(self.error(format!("{} is declared in a function; move it out", variable.name)));
            }
        }
        Ok(())
    }

    /// Places a variable in shared memory. Dynamic shared memory is behind all others.
    fn shared_variable(&mut self, variable: &Variable<'_>) -> Result<u64, LowerError> {
        let (size, align) = layout_of(variable)?;
        let offset = u64::from(self.code.shared_bytes).next_multiple_of(align);
        let end = offset + size;
        if end > 1 << 24 {
            return Err(self.error(format!("{} needs too much shared memory", variable.name)));
        }
        self.code.shared_bytes = end as u32;
        Ok(offset)
    }

    /// Returns new registers of a type, whose rows follow each other.
    pub(super) fn registers(&mut self, ty: &str, count: u32) -> Result<Register, LowerError> {
        let kind = match ty {
            "pred" => Kind::Predicate,
            "b8" | "u8" | "s8" | "b16" | "u16" | "s16" | "f16" | "bf16" => Kind::Narrow,
            "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" => Kind::Narrow,
            "b64" | "u64" | "s64" | "f64" => Kind::Wide,
            _ => return Err(self.error(format!("registers of .{ty} are not supported"))),
        };
        let rows = match kind {
            Kind::Narrow => &mut self.code.narrow,
            Kind::Wide => &mut self.code.wide,
            Kind::Predicate => &mut self.code.predicates,
        };
        let row = *rows as Row;
        if count > MOST_ROWS || row > MOST_ROWS {
            return Err(self.error(format!("there are more than {MOST_ROWS} registers of one kind")));
        }
        *rows += count as usize;
        Ok(Register { kind, row })
    }

    /// Returns a new register for a value between two ops.
    pub(super) fn temporary(&mut self, kind: Kind) -> Result<Row, LowerError> {
        let ty = match kind {
            Kind::Narrow => "b32",
            Kind::Wide => "b64",
            Kind::Predicate => "pred",
        };
        Ok(self.registers(ty, 1)?.row)
    }

    /// Adds an op under the guard of the instruction.
    pub(super) fn emit(&mut self, op: Op) -> usize {
        let guard = self.this.guard.unwrap_or(Guard::ALWAYS);
        self.code.ops.push(Op { guard, ..op });
        self.code.lines.push(self.this.line);
        self.code.ops.len() - 1
    }

    /// Adds an op whose result depends on its sources alone.
    pub(super) fn emit_pure(&mut self, op: Op, result: Kind, sources: &[(Kind, Row)]) -> usize {
        let at = self.emit(op);
        if self.this.is_kernel && self.this.guard.is_none() {
            self.pure.push(Pure { at, result: (result, op.d), sources: sources.to_vec() });
        }
        at
    }

    /// Lets the field of an op that copies between frames count from the end of this frame.
    pub(super) fn is_behind_frame(&mut self, at: usize, side: Side) {
        self.this.behind_frame.push((at, side));
    }

    /// Lets an op jump to a label.
    pub(super) fn jumps_to(&mut self, at: usize, label: &'m str) {
        let line = self.this.line.ptx;
        if let Some(labels) = self.this.labels.last_mut() {
            labels.jumps.push((at, label, line));
        }
    }

    /// Lets an op jump to a label of a list.
    pub(super) fn jumps_to_one_of(&mut self, at: usize, list: &'m str) {
        let line = self.this.line.ptx;
        if let Some(labels) = self.this.labels.last_mut() {
            labels.listed.push((at, list, line));
        }
    }

    /// Returns what a name means.
    pub(super) fn meaning(&mut self, name: &str) -> Result<Meaning, LowerError> {
        if let Some(meaning) = self.this.names.find(name) {
            return Ok(meaning);
        }
        if let Some(offset) = self.shared.get(name) {
            return Ok(Meaning::Shared(*offset));
        }
        if let Some((address, _)) = self.variables.find(name) {
            return Ok(Meaning::Global(address));
        }
        let module = self.module;
        let shared = |variable: &&Variable<'_>| variable.name == name && variable.space == Space::Shared;
        if let Some(variable) = module.variables.iter().find(shared) {
            if variable.linkage == Linkage::Extern {
                self.dynamic_align = self.dynamic_align.max(layout_of(variable)?.1);
                return Ok(Meaning::DynamicShared);
            }
            let offset = self.shared_variable(variable)?;
            self.shared.insert(variable.name, offset);
            return Ok(Meaning::Shared(offset));
        }
        if let Some(address) = address_of(module, name) {
            let number = self.number_of(name);
            self.addressed.extend(number);
            if let Some(number) = number
                && !self.code.numbers.contains(&(address, number))
            {
                self.code.numbers.push((address, number));
            }
            return Ok(Meaning::Function(address));
        }
        let external = module.variables.iter().any(|variable| variable.name == name);
        Err(self.error(match external {
            true => format!("{name} is defined in another module; link the modules"),
            false => format!("there is no {name}"),
        }))
    }

    /// Returns a row with the offset of dynamic shared memory, which `finish` decides.
    pub(super) fn dynamic_shared(&mut self, kind: Kind) -> Result<Row, LowerError> {
        if let Some((_, row)) = self.dynamic_rows.iter().find(|(known, _)| *known == kind) {
            return Ok(*row);
        }
        let row = self.temporary(kind)?;
        self.dynamic_rows.push((kind, row));
        Ok(row)
    }

    /// Returns the row of a register of a kind.
    pub(super) fn register(&mut self, name: &str, kind: Kind) -> Result<Row, LowerError> {
        match self.meaning(name)? {
            Meaning::Register(register) if register.kind == kind => Ok(register.row),
            Meaning::Register(_) => Err(self.error(format!("{name} has the wrong size for this operand"))),
            _ => Err(self.error(format!("{name} is not a register"))),
        }
    }

    /// Returns a row that holds a constant.
    pub(super) fn constant(&mut self, kind: Kind, bits: u64) -> Result<Row, LowerError> {
        match kind {
            Kind::Narrow => {
                let bits = bits as u32;
                if let Some(row) = self.narrow_constants.get(&bits) {
                    return Ok(*row);
                }
                let row = self.temporary(kind)?;
                self.narrow_constants.insert(bits, row);
                self.code.narrow_constants.push((row, bits));
                Ok(row)
            }
            Kind::Wide => {
                if let Some(row) = self.wide_constants.get(&bits) {
                    return Ok(*row);
                }
                let row = self.temporary(kind)?;
                self.wide_constants.insert(bits, row);
                self.code.wide_constants.push((row, bits));
                Ok(row)
            }
            Kind::Predicate => {
                let row = self.temporary(kind)?;
                self.emit(Op { d: row, extra: bits, ..Op::new(crate::exec::select::set_predicate) });
                Ok(row)
            }
        }
    }

    /// Returns the row of a source, of a constant or of an address.
    pub(super) fn source(
        &mut self,
        operand: &'m Operand<'m>,
        kind: Kind,
        literal: Literal,
    ) -> Result<Row, LowerError> {
        match operand {
            Operand::Number(number) => self.constant(kind, constant_bits(*number, kind, literal)),
            Operand::Name(name) => self.named(name, 0, kind),
            Operand::Offset(name, offset) => self.named(name, *offset, kind),
            _ => Err(self.error("an operand is not a register or a number")),
        }
    }

    /// Returns a row that holds what a name means, plus an offset.
    fn named(&mut self, name: &str, offset: i64, kind: Kind) -> Result<Row, LowerError> {
        if name.starts_with('%')
            && self.this.names.find(name).is_none()
            && let Some(row) = self.special(name, kind)?
        {
            return Ok(row);
        }
        let op = match self.meaning(name)? {
            Meaning::Register(register) if register.kind == kind && offset == 0 => return Ok(register.row),
            Meaning::Register(_) => {
                return Err(self.error(format!("{name} has the wrong size for this operand")));
            }
            Meaning::Global(address) | Meaning::Function(address) => {
                return self.constant(kind, address.wrapping_add_signed(offset));
            }
            Meaning::Shared(at) => return self.constant(kind, at.wrapping_add_signed(offset)),
            Meaning::DynamicShared if offset == 0 => return self.dynamic_shared(kind),
            Meaning::DynamicShared => {
                let a = self.dynamic_shared(kind)?;
                let b = self.constant(kind, offset as u64)?;
                let d = self.temporary(kind)?;
                let form = super::integers::form(&super::form::Opcode::of(match kind {
                    Kind::Narrow => "add.u32",
                    _ => "add.u64",
                }));
                let run = form.ok_or_else(|| self.error("an address cannot be formed"))?.loops.at(self.level);
                self.emit(Op { d, a, b, ..Op::new(run) });
                return Ok(d);
            }
            Meaning::Frame { offset: at, .. } => {
                let run = match kind {
                    Kind::Narrow => crate::exec::access::frame_offset::<u32>,
                    _ => crate::exec::access::frame_offset::<u64>,
                };
                Op { extra: at.wrapping_add_signed(offset), ..Op::new(run) }
            }
            // A generic address: PTX that forms one converts it back, which changes nothing.
            Meaning::Param(at) => Op {
                extra: at.wrapping_add_signed(offset),
                window: Window::Param,
                base: Base::None,
                ..Op::new(crate::exec::access::to_generic)
            },
        };
        let d = self.temporary(kind)?;
        self.emit(Op { d, ..op });
        Ok(d)
    }

    /// Reads a special register into a new row.
    fn special(&mut self, name: &str, kind: Kind) -> Result<Option<Row>, LowerError> {
        let Some(special) = control::Special::of(name) else { return Ok(None) };
        let d = self.temporary(kind)?;
        match kind {
            Kind::Wide if special == control::Special::Clock => {
                self.emit(Op { d, ..Op::new(control::clock64) });
            }
            Kind::Wide => {
                let a = self.temporary(Kind::Narrow)?;
                let op = Op { d: a, extra: special as u64, ..Op::new(control::special) };
                match special.is_same_in_all_blocks() {
                    true => self.emit_pure(op, Kind::Narrow, &[]),
                    false => self.emit(op),
                };
                let op = Op { d, a, b: 32, ..Op::new(crate::exec::select::extend) };
                self.emit_pure(op, kind, &[(Kind::Narrow, a)]);
            }
            _ if special.is_same_in_all_blocks() => {
                self.emit_pure(Op { d, extra: special as u64, ..Op::new(control::special) }, kind, &[]);
            }
            _ => {
                self.emit(Op { d, extra: special as u64, ..Op::new(control::special) });
            }
        }
        Ok(Some(d))
    }

    /// Returns the row of a result. `_` gets a row that nothing reads.
    pub(super) fn result(&mut self, operand: &Operand<'_>, kind: Kind) -> Result<Row, LowerError> {
        match operand {
            Operand::Name(name) => {
                let row = self.register(name, kind)?;
                *self.results.entry((kind, row)).or_default() += 1;
                Ok(row)
            }
            Operand::Nothing => self.temporary(kind),
            _ => Err(self.error("a result is not a register")),
        }
    }

    /// Moves the ops out of the kernel that give a thread the same result in each block. They run
    /// once for each warp, which then serves many blocks.
    ///
    /// Such an op is pure, its result is a result of no other op, and all of its sources are
    /// constants or results of such ops.
    fn move_early_ops(&mut self) {
        let narrow = self.code.narrow_constants.iter().map(|(row, _)| (Kind::Narrow, *row));
        let wide = self.code.wide_constants.iter().map(|(row, _)| (Kind::Wide, *row));
        let mut known: HashSet<(Kind, Row)> = narrow.chain(wide).collect();
        let mut early = vec![false; self.code.ops.len()];
        for Pure { at, result, sources } in &self.pure {
            let is_only_one = self.results.get(result).is_none_or(|count| *count == 1);
            if is_only_one && sources.iter().all(|source| known.contains(source)) {
                known.insert(*result);
                early[*at] = true;
            }
        }
        // The new place of each op, and of the end.
        let mut places = Vec::with_capacity(early.len() + 1);
        let mut next = 0;
        for is_early in &early {
            places.push(next);
            next += u32::from(!is_early);
        }
        places.push(next);
        let moved = |place: u32| places[place as usize];
        for at in &self.places {
            let op = &mut self.code.ops[*at];
            op.extra = u64::from(moved(op.extra as u32));
        }
        self.code.targets.iter_mut().flatten().for_each(|place| *place = moved(*place));
        self.code.functions.iter_mut().for_each(|function| function.entry = moved(function.entry));
        let is_early = |at: &usize| early[*at];
        self.code.early = (0..early.len()).filter(is_early).map(|at| self.code.ops[at]).collect();
        let (mut ops, mut lines) = (early.iter(), early.iter());
        self.code.ops.retain(|_| !ops.next().is_some_and(|early| *early));
        self.code.lines.retain(|_| !lines.next().is_some_and(|early| *early));
    }

    fn finish(mut self) -> Result<Code, LowerError> {
        let count = self.queue.len() as u32;
        let mut edges = self.calls.clone();
        for caller in &self.calls_addresses {
            edges.extend(self.addressed.iter().map(|callee| (*caller, *callee)));
        }
        let mut reach: Vec<HashSet<u32>> = (0..count).map(|_| HashSet::new()).collect();
        for from in 0..count {
            let mut open = vec![from];
            while let Some(at) = open.pop() {
                let next = edges.iter().filter(|(caller, _)| *caller == at).map(|(_, callee)| *callee);
                for callee in next {
                    if reach[from as usize].insert(callee) {
                        open.push(callee);
                    }
                }
            }
        }
        for (at, reach) in reach.iter().enumerate() {
            self.code.functions[at].may_recur = reach.contains(&(at as u32));
        }
        self.move_early_ops();
        let is_deep = self.code.functions.iter().any(|function| function.may_recur);
        let frames: u64 = self.code.functions.iter().map(|function| u64::from(function.frame_bytes)).sum();
        // The memory of a thread without calls ends where its variables do, so that an access
        // behind them is found.
        let frames = if count == 1 { self.last_frame_bytes } else { frames };
        let local = frames + if is_deep { u64::from(DEEP_STACK) } else { 0 };
        if local > 1 << 24 {
            return Err(self.error(format!("a thread needs {local} bytes of local memory")));
        }
        self.code.local_bytes = local as u32;
        let shared = u64::from(self.code.shared_bytes).next_multiple_of(self.dynamic_align);
        self.code.shared_bytes = shared as u32;
        for (kind, row) in self.dynamic_rows {
            match kind {
                Kind::Narrow => self.code.narrow_constants.push((row, shared as u32)),
                _ => self.code.wide_constants.push((row, shared)),
            }
        }
        Ok(self.code)
    }

    /// Returns the error for an instruction that is not supported.
    pub(super) fn refused(&self, instruction: &Instruction<'_>) -> LowerError {
        self.error(format!("{} is not supported", instruction.opcode))
    }
}

/// Returns the bits of a number as a constant of a row.
fn constant_bits(number: Number, kind: Kind, literal: Literal) -> u64 {
    let ty = match (literal, kind) {
        (Literal::F32, _) => "f32",
        (Literal::F64, _) => "f64",
        (Literal::Integer, Kind::Wide) => "b64",
        (Literal::Integer, _) => "b32",
    };
    match (number, literal) {
        // An integer as an operand of a float stands for its value; `mov.f32` has floats alone.
        (Number::F64(bits), Literal::Integer) if kind == Kind::Narrow => {
            u64::from((f64::from_bits(bits) as f32).to_bits())
        }
        _ => bits_of(number, ty),
    }
}
