//! Turns a kernel and the functions that it calls into ops.

use super::early::EarlyOps;
use super::error::LowerError;
use super::form::kind_of;
use super::inlining::Inlining;
use super::labels::Labels;
use super::names::{Meaning, Names, Register};
use super::sharing::share_rows;
use super::variables::{Variables, layout_of};
use crate::exec::clusters::MOST_SHARED_BYTES;
use crate::exec::code::{Code, Function, Line};
use crate::exec::control;
use crate::exec::dependence::Fields;
use crate::exec::effect::Effect;
use crate::exec::lanes::Level;
use crate::exec::op::{Guard, Op, Row};
use crate::exec::registers::Kind;
use crate::exec::source::NumberedLine;
use crate::text::{self, Init, Instruction, Module, Space, Statement, Variable};
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
    lowering.code.cluster = super::instruction::clusters::cluster_of(kernel)?;
    lowering.code.name = name.to_owned();
    lowering.code.sources.files =
        module.files.iter().map(|(number, file)| (*number, (*file).to_owned())).collect();
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
    pub(super) variables: &'m Variables,
    pub(super) level: Level,
    pub(super) code: Code,
    /// The functions in the order of their numbers.
    queue: Vec<&'m text::Function<'m>>,
    numbers: HashMap<&'m str, u32>,
    /// Which function calls which one directly.
    calls: HashSet<(u32, u32)>,
    /// Functions that call addresses, and functions whose addresses are taken.
    calls_addresses: HashSet<u32>,
    pub(super) addressed: HashSet<u32>,
    pub(super) narrow_constants: HashMap<u32, Row>,
    pub(super) wide_constants: HashMap<u64, Row>,
    pub(super) shared: HashMap<&'m str, u64>,
    /// Rows that hold the offset of dynamic shared memory, and its alignment.
    pub(super) dynamic_rows: Vec<(Kind, Row)>,
    pub(super) dynamic_align: u64,
    /// The bytes of the frame of the last function, of which nothing needs the alignment.
    last_frame_bytes: u64,
    pub(super) early: EarlyOps,
    /// The registers in the fields of each op, or `None` if any field may be one.
    pub(super) fields: Vec<Option<Fields>>,
    /// The ops whose `extra` is the place of an op.
    jumps: Vec<usize>,
    /// The function that is being lowered.
    pub(super) this: This<'m>,
}

/// The state of one function.
#[derive(Default)]
pub(super) struct This<'m> {
    pub(super) number: u32,
    pub(super) is_kernel: bool,
    pub(super) names: Names<'m>,
    pub(super) labels: Labels<'m>,
    pub(super) line: Line,
    inlining: Inlining<'m>,
    pub(super) frame_bytes: u64,
    /// Ops whose field `a` or `b` is relative to the end of the frame.
    pub(super) behind_frame: Vec<(usize, Side)>,
    pub(super) guard: Option<Guard>,
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

/// Returns the largest alignment of a variable in local memory, and at least 16. A variable whose
/// layout is not known is refused later.
fn local_align(module: &Module<'_>) -> u64 {
    let in_body = |statement: &'_ Statement<'_>| match statement {
        Statement::Variable(variable) if variable.space != Space::Shared => layout_of(variable).ok(),
        _ => None,
    };
    let aligns = module.functions.iter().flat_map(|function| {
        let in_frame = function.params.iter().chain(&function.returns).filter(|_| !function.is_kernel);
        let in_frame = in_frame.filter_map(|variable| layout_of(variable).ok());
        in_frame.chain(function.body.iter().flatten().filter_map(in_body)).map(|(_, align)| align)
    });
    aligns.fold(16, u64::max)
}

/// Returns whether a target, such as `sm_60`, is one before sm_70. On such GPUs the lanes of a
/// warp run together (CUDA C++ Programming Guide, "Independent Thread Scheduling").
fn is_lockstep(target: &str) -> bool {
    let digits = target.trim_start_matches("sm_");
    let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse::<u32>().is_ok_and(|version| version < 70)
}

impl<'m> Lowering<'m> {
    fn new(module: &'m Module<'m>, variables: &'m Variables) -> Self {
        Lowering {
            module,
            variables,
            level: Level::best(),
            code: Code {
                local_align: local_align(module),
                shared_align: 16,
                is_lockstep: is_lockstep(module.target),
                ..Code::default()
            },
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
            early: EarlyOps::default(),
            fields: Vec::new(),
            jumps: Vec::new(),
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
        self.this.line.effect = Effect::None;
        self.emit_bare(Op::new(control::ret));
        self.close()?;
        self.last_frame_bytes = self.this.frame_bytes;
        let frame_bytes = self.this.frame_bytes.next_multiple_of(self.code.local_align);
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
        self.this.labels.open();
    }

    fn close(&mut self) -> Result<(), LowerError> {
        self.this.names.close();
        self.this.labels.close(&mut self.code, &mut self.jumps)
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
                self.this.labels.add(label, place);
            }
            Statement::Location { at, inlined } => {
                self.this.line.source = NumberedLine { file: at.file, line: at.line };
                self.this.line.calls = self.this.inlining.pass(*at, *inlined, &mut self.code.sources);
            }
            Statement::Open => self.open(),
            Statement::Close => self.close()?,
            Statement::Targets { name, targets } => self.this.labels.add_list(name, targets),
            // A call finds its prototype by its arguments alone; see `instruction`.
            Statement::Prototype(_) => {}
            Statement::Instruction(instruction) => {
                self.this.line.ptx = instruction.line;
                self.this.line.effect = Effect::None;
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
    pub(super) fn shared_variable(&mut self, variable: &Variable<'_>) -> Result<u64, LowerError> {
        let (size, align) = layout_of(variable)?;
        let offset = u64::from(self.code.shared_bytes).next_multiple_of(align);
        let end = offset + size;
        if end > MOST_SHARED_BYTES.into() {
            return Err(self.error(format!("{} needs too much shared memory", variable.name)));
        }
        self.code.shared_bytes = end as u32;
        self.code.shared_variables.push((offset, size, variable.name.to_owned()));
        self.code.shared_align = self.code.shared_align.max(align);
        Ok(offset)
    }

    /// Returns new registers of a type, whose rows follow each other.
    fn registers(&mut self, ty: &str, count: u32) -> Result<Register, LowerError> {
        let kind = kind_of(ty).ok_or_else(|| self.error(format!("registers of .{ty} are not supported")))?;
        Ok(Register { kind, row: self.rows(kind, count)? })
    }

    /// Returns a new row for a value between two ops.
    pub(super) fn temporary(&mut self, kind: Kind) -> Result<Row, LowerError> {
        self.rows(kind, 1)
    }

    /// Returns the first of `count` new rows that follow each other.
    fn rows(&mut self, kind: Kind, count: u32) -> Result<Row, LowerError> {
        let rows = match kind {
            Kind::Narrow => &mut self.code.narrow,
            Kind::Wide => &mut self.code.wide,
            Kind::Predicate => &mut self.code.predicates,
        };
        let first = *rows as Row;
        if count > MOST_ROWS || first > MOST_ROWS {
            return Err(self.error(format!("there are more than {MOST_ROWS} registers of one kind")));
        }
        *rows += count as usize;
        Ok(first)
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
        let early = self.early.move_out(&mut self.code, &mut self.jumps, &mut self.fields);
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
        self.code.shared_align = self.code.shared_align.max(self.dynamic_align);
        let shared = u64::from(self.code.shared_bytes).next_multiple_of(self.dynamic_align);
        self.code.shared_bytes = shared as u32;
        for (kind, row) in self.dynamic_rows {
            match kind {
                Kind::Narrow => self.code.narrow_constants.push((row, shared as u32)),
                _ => self.code.wide_constants.push((row, shared)),
            }
        }
        share_rows(&mut self.code, &self.fields, &early, &self.jumps);
        self.code.count_unguarded();
        Ok(self.code)
    }

    /// Returns the error for an instruction that is not supported.
    pub(super) fn refused(&self, instruction: &Instruction<'_>) -> LowerError {
        self.error(format!("{} is not supported", instruction.opcode))
    }
}
