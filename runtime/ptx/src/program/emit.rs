//! Adds ops to a kernel.

use super::lower::{Lowering, Side};
use crate::exec::code::Line;
use crate::exec::dependence::{Dependence, Fields, Way};
use crate::exec::effect::Effect;
use crate::exec::op::{Guard, Op, Row};
use crate::exec::registers::Kind;
use crate::exec::special::Uniform;

impl Lowering<'_> {
    /// Adds an op under the guard of the instruction. Its registers keep their rows.
    pub(super) fn emit(&mut self, op: Op, way: Way, fields: Fields) -> usize {
        let guard = self.this.guard.unwrap_or(Guard::ALWAYS);
        let is_watched = self.this.line.effect != Effect::None;
        self.code.ops.push(Op { guard, is_watched, ..op });
        let dependence = Dependence { fields, second: None, way };
        self.code.lines.push(Line { dependence, ..self.this.line });
        self.fields.push(None);
        self.code.ops.len() - 1
    }

    /// Adds an op without registers.
    pub(super) fn emit_bare(&mut self, op: Op) -> usize {
        self.emit(op, Way::Whole, Fields::default())
    }

    /// Adds an op whose registers may share rows: all of them are in its fields.
    pub(super) fn emit_known(&mut self, op: Op, way: Way, fields: Fields) -> usize {
        let at = self.emit(op, way, fields);
        self.fields[at] = Some(fields);
        at
    }

    /// Adds an op whose result depends on its sources alone, which are in its fields `a`, `b` and
    /// so on.
    pub(super) fn emit_pure(&mut self, op: Op, way: Way, result: Kind, sources: &[(Kind, Row)]) -> usize {
        let at = self.emit_uniform(op, result, sources, Uniform::Launch);
        self.code.lines[at].dependence.way = way;
        at
    }

    /// Adds an op whose result depends on its sources and on a value that is uniform.
    pub(super) fn emit_uniform(
        &mut self,
        op: Op,
        result: Kind,
        sources: &[(Kind, Row)],
        uniform: Uniform,
    ) -> usize {
        let mut fields = Fields::of(Some(result), [None; 4]);
        for (field, (kind, _)) in fields.sources[1..].iter_mut().zip(sources) {
            *field = Some(*kind);
        }
        let at = self.emit_known(op, Way::Whole, fields);
        if self.this.is_kernel && self.this.guard.is_none() {
            self.early.note_pure(at, (result, op.d), sources, uniform);
        }
        at
    }

    /// Notes a predicate that an op writes besides its fields.
    pub(super) fn writes_also(&mut self, at: usize, second: Option<Row>) {
        self.code.lines[at].dependence.second = second;
    }

    /// Lets the field of an op that copies between frames count from the end of this frame.
    pub(super) fn is_behind_frame(&mut self, at: usize, side: Side) {
        self.this.behind_frame.push((at, side));
    }
}
