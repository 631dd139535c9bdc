//! The ops of a kernel that give a thread the same result in each block.
//!
//! A warp serves many blocks, one after the other, so it runs these ops once. Such an op is pure:
//! its result depends on its sources alone, and it cannot fail. Its result is a result of no other
//! op, and all of its sources are constants or results of such ops.

use crate::exec::code::Code;
use crate::exec::op::Row;
use crate::exec::registers::Kind;
use std::collections::{HashMap, HashSet};

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
}

impl EarlyOps {
    /// Notes that an op has this register of the text as its result.
    pub(super) fn note_result(&mut self, kind: Kind, row: Row) {
        *self.results.entry((kind, row)).or_default() += 1;
    }

    /// Notes that the op at a place is pure.
    pub(super) fn note_pure(&mut self, at: usize, result: (Kind, Row), sources: &[(Kind, Row)]) {
        self.pure.push(Pure { at, result, sources: sources.to_vec() });
    }

    /// Moves these ops out of the kernel, to [`Code::early`]. `jumps` are the ops whose `extra` is
    /// the place of an op.
    pub(super) fn move_out(&self, code: &mut Code, jumps: &[usize]) {
        let early = self.find(code);
        // The new place of each op, and of the end.
        let mut places = Vec::with_capacity(early.len() + 1);
        let mut next = 0;
        for is_early in &early {
            places.push(next);
            next += u32::from(!is_early);
        }
        places.push(next);
        let moved = |place: u32| places[place as usize];
        for at in jumps {
            let op = &mut code.ops[*at];
            op.extra = u64::from(moved(op.extra as u32));
        }
        code.targets.iter_mut().flatten().for_each(|place| *place = moved(*place));
        code.functions.iter_mut().for_each(|function| function.entry = moved(function.entry));
        code.early = (0..early.len()).filter(|at| early[*at]).map(|at| code.ops[at]).collect();
        let (mut ops, mut lines) = (early.iter(), early.iter());
        code.ops.retain(|_| !ops.next().is_some_and(|early| *early));
        code.lines.retain(|_| !lines.next().is_some_and(|early| *early));
    }

    /// Returns for each op whether it may run early.
    fn find(&self, code: &Code) -> Vec<bool> {
        let narrow = code.narrow_constants.iter().map(|(row, _)| (Kind::Narrow, *row));
        let wide = code.wide_constants.iter().map(|(row, _)| (Kind::Wide, *row));
        let mut known: HashSet<(Kind, Row)> = narrow.chain(wide).collect();
        let mut early = vec![false; code.ops.len()];
        for Pure { at, result, sources } in &self.pure {
            let is_only_one = self.results.get(result).is_none_or(|count| *count == 1);
            if is_only_one && sources.iter().all(|source| known.contains(source)) {
                known.insert(*result);
                early[*at] = true;
            }
        }
        early
    }
}
