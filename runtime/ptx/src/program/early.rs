//! The ops of a kernel that run once for many warps or blocks.
//!
//! # Uniform values
//! An op is **pure** if its result depends on its sources alone and it cannot fail. The sources of
//! such an op decide for how many threads its result is the same: see [`Uniform`]. This needs that
//! the result is a result of no other op.
//!
//! # What runs when
//! * A warp serves many blocks, one after the other. Ops whose results are the same in each block
//!   run once for a warp, in [`Code::early`].
//! * Ops that depend on the block alone run once for a block, in [`Code::of_block`]. Its first warp
//!   runs them and hands the results that other ops read to the other warps.
//!
//! Both run before the ops of the kernel, in their order there, so sources come before results.

use super::sharing::may_read;
use crate::exec::code::Code;
use crate::exec::dependence::Fields;
use crate::exec::op::{Op, Row};
use crate::exec::registers::Kind;
use crate::exec::special::Uniform;
use std::collections::HashMap;

/// The ops that may run early, as far as a kernel is lowered.
#[derive(Default)]
pub(super) struct EarlyOps {
    /// The number of ops with each register as their result.
    results: HashMap<(Kind, Row), u32>,
    pure: Vec<Pure>,
}

struct Pure {
    at: usize,
    result: (Kind, Row),
    sources: Vec<(Kind, Row)>,
    /// Describes what it reads besides its sources.
    uniform: Uniform,
}

impl EarlyOps {
    /// Notes that an op has this register of the text as its result.
    pub(super) fn note_result(&mut self, kind: Kind, row: Row) {
        *self.results.entry((kind, row)).or_default() += 1;
    }

    /// Notes that the op at a place is pure. `uniform` describes what it reads besides its sources.
    pub(super) fn note_pure(
        &mut self,
        at: usize,
        result: (Kind, Row),
        sources: &[(Kind, Row)],
        uniform: Uniform,
    ) {
        self.pure.push(Pure { at, result, sources: sources.to_vec(), uniform });
    }

    /// Moves these ops out of the kernel, and returns them. `jumps` are the ops whose `extra` is
    /// the place of an op, and `fields` describes the ops: both are of the ops that stay,
    /// afterwards.
    pub(super) fn move_out(
        &self,
        code: &mut Code,
        jumps: &mut [usize],
        fields: &mut Vec<Option<Fields>>,
    ) -> Vec<(Op, Option<Fields>)> {
        let (uniforms, of_block) = self.find(code);
        // The new place of each op, and of the end.
        let mut places = Vec::with_capacity(uniforms.len() + 1);
        let mut next = 0;
        for uniform in &uniforms {
            places.push(next);
            next += u32::from(uniform.is_none());
        }
        places.push(next);
        let moved = |place: u32| places[place as usize];
        for at in jumps {
            let op = &mut code.ops[*at];
            op.extra = u64::from(moved(op.extra as u32));
            *at = moved(*at as u32) as usize;
        }
        code.targets.iter_mut().flatten().for_each(|place| *place = moved(*place));
        code.functions.iter_mut().for_each(|function| function.entry = moved(function.entry));
        let mut early = Vec::new();
        for (at, uniform) in uniforms.iter().enumerate() {
            let op = code.ops[at];
            match uniform {
                Some(Uniform::Block) => code.of_block.push(op),
                Some(Uniform::Launch | Uniform::Thread) => code.early.push(op),
                None => continue,
            }
            early.push((op, fields[at]));
        }
        let stays = || uniforms.iter().map(Option::is_none);
        let (mut ops, mut lines, mut described) = (stays(), stays(), stays());
        code.ops.retain(|_| ops.next() == Some(true));
        code.lines.retain(|_| lines.next() == Some(true));
        fields.retain(|_| described.next() == Some(true));
        for result in of_block {
            if code.ops.iter().zip(&*fields).any(|(op, fields)| may_read(op, *fields, result)) {
                code.handed_on.push(result);
            }
        }
        early
    }

    /// Returns for each op that runs early how uniform its result is. Also returns the results of
    /// those that run once for a block.
    fn find(&self, code: &Code) -> (Vec<Option<Uniform>>, Vec<(Kind, Row)>) {
        let narrow = code.narrow_constants.iter().map(|(row, _)| (Kind::Narrow, *row));
        let wide = code.wide_constants.iter().map(|(row, _)| (Kind::Wide, *row));
        let mut known: HashMap<(Kind, Row), Uniform> =
            narrow.chain(wide).map(|register| (register, Uniform::Launch)).collect();
        let (mut uniforms, mut of_block) = (vec![None; code.ops.len()], Vec::new());
        for Pure { at, result, sources, uniform } in &self.pure {
            let uniform = sources
                .iter()
                .try_fold(*uniform, |uniform, source| uniform.and(*known.get(source)?))
                .filter(|_| self.results.get(result).is_none_or(|count| *count == 1));
            if let Some(uniform) = uniform {
                known.insert(*result, uniform);
                uniforms[*at] = Some(uniform);
            }
            if uniform == Some(Uniform::Block) {
                of_block.push(*result);
            }
        }
        (uniforms, of_block)
    }
}
