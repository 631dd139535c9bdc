//! A kernel with all functions that it may call, ready to run.

use super::clusters::AskedCluster;
use super::dependence::Dependence;
use super::effect::Effect;
use super::fault::{SharedVariable, signed};
use super::matrix::Matrix;
use super::op::{Guard, Op, Row};
use super::registers::Kind;
use super::source::{NumberedLine, SourceLine, Sources};

/// A lowered kernel.
#[derive(Debug, Default)]
pub(crate) struct Code {
    pub(crate) name: String,
    pub(crate) ops: Vec<Op>,
    /// Ops whose results are the same in each block. A warp runs them once.
    pub(crate) early: Vec<Op>,
    /// Ops whose results are the same in each thread of a block. Its first warp runs them once.
    pub(crate) of_block: Vec<Op>,
    /// The results of these that the other warps need.
    pub(crate) handed_on: Vec<(Kind, Row)>,
    /// For each op, the number of ops from it on that have no guard.
    pub(crate) unguarded: Vec<u32>,
    /// The line of each op.
    pub(crate) lines: Vec<Line>,
    pub(crate) sources: Sources,
    /// The kernel is the first.
    pub(crate) functions: Vec<Function>,
    /// The addresses of functions, with their numbers here.
    pub(crate) numbers: Vec<(u64, u32)>,
    /// The targets of `brx.idx`, as numbers of ops.
    pub(crate) targets: Vec<Vec<u32>>,
    /// The instructions on matrices.
    pub(crate) matrices: Vec<Matrix>,
    /// The numbers of rows of each kind.
    pub(crate) narrow: usize,
    pub(crate) wide: usize,
    pub(crate) predicates: usize,
    /// Rows that hold constants.
    pub(crate) narrow_constants: Vec<(Row, u32)>,
    pub(crate) wide_constants: Vec<(Row, u64)>,
    /// The bytes of the kernel's parameters.
    pub(crate) param_bytes: u32,
    /// The bytes of the variables in shared memory. Dynamic shared memory is behind them.
    pub(crate) shared_bytes: u32,
    /// The offset in shared memory, the size and the name of each of these variables.
    pub(crate) shared_variables: Vec<(u64, u64, String)>,
    /// The alignment of shared memory: the largest of its variables, and at least 16.
    pub(crate) shared_align: u64,
    /// True if its text is for GPUs on which the lanes of a warp run together.
    pub(crate) is_lockstep: bool,
    pub(crate) cluster: AskedCluster,
    /// True if it may call `malloc`.
    pub(crate) calls_malloc: bool,
    /// True if it reads the address of the workspace of cooperative launches.
    pub(crate) needs_workspace: bool,
    /// The bytes of local memory of each thread.
    pub(crate) local_bytes: u32,
    /// The alignment of local memory and of each frame in it, in the same way.
    pub(crate) local_align: u64,
}

impl Code {
    /// Counts the ops without a guard, when all ops are at their places.
    pub(crate) fn count_unguarded(&mut self) {
        let mut count = 0;
        self.unguarded = vec![0; self.ops.len()];
        for (at, op) in self.ops.iter().enumerate().rev() {
            count = if op.guard == Guard::ALWAYS { count + 1 } else { 0 };
            self.unguarded[at] = count;
        }
    }

    /// Returns the shared variable that a wrong offset is meant for: the last one that does not
    /// start behind it, or the first one if the offset is negative.
    pub(crate) fn shared_variable_near(&self, offset: u64) -> Option<SharedVariable> {
        let variables = &self.shared_variables;
        let nearest = match signed(offset) {
            ..0 => variables.iter().min_by_key(|(start, ..)| start),
            _ => variables.iter().filter(|(start, ..)| *start <= offset).max_by_key(|(start, ..)| start),
        };
        let (start, len_bytes, name) = nearest?;
        Some(SharedVariable { name: name.clone(), start: *start, len_bytes: *len_bytes })
    }

    /// Returns the line of an op in the PTX text, and that of the source.
    pub(crate) fn line_of(&self, place: u32) -> (u32, Option<SourceLine>) {
        let Line { ptx, source, calls, .. } = self.lines[place as usize];
        (ptx, self.sources.describe(source, calls))
    }
}

/// The lines that an op comes from, and what else the running of it does not need.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Line {
    pub(crate) ptx: u32,
    /// The line of the source, or 0.
    pub(crate) source: NumberedLine,
    /// The place in [`Sources::calls`] of the calls that lead to it.
    pub(crate) calls: u32,
    /// The effect of the op that checks watch.
    pub(crate) effect: Effect,
    /// Its registers, for checks that follow values.
    pub(crate) dependence: Dependence,
}

/// A function of a kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Function {
    /// The number of its first op.
    pub(crate) entry: u32,
    /// Its rows of each kind, as first and number.
    pub(crate) narrow: (u32, u32),
    pub(crate) wide: (u32, u32),
    pub(crate) predicates: (u32, u32),
    /// The bytes of local memory of one call: parameters, results and variables.
    pub(crate) frame_bytes: u32,
    /// True if a call of it may happen within another call of it. Then its registers are saved.
    pub(crate) may_recur: bool,
}
