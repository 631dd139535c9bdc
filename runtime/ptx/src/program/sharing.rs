//! Registers of a kernel that share a row.
//!
//! PTX has a register for each value, so a kernel may have thousands, of which few are needed at
//! once. Registers that are never needed at the same time share a row here, so that the rows in use
//! stay in the first cache of the processor.
//!
//! # Which registers share
//! * A register is **live** before an op if an op that may run after it reads the register before
//!   another one has written all of it. It shares its row with registers whose ops from the first
//!   to the last at which they are live or written lie all before or all behind its own.
//! * This holds for each lane alone, wherever the others are: a lane touches its own column, and a
//!   register is live in a lane according to the path that this lane takes.
//! * Only registers that appear in known ops share: see [`Fields`]. All others keep their rows, and
//!   so do constants and the results of ops that run early.
//! * A kernel with jumps by index or with matrices, whose rows and targets are in tables, and a
//!   kernel that is very large, shares nothing.

use crate::exec::code::Code;
use crate::exec::dependence::{Fields, registers};
use crate::exec::op::{Guard, Op, Row};
use crate::exec::registers::Kind;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// The most words of 64 registers that the analysis looks at in one pass.
const MOST_WORDS: usize = 1 << 22;

fn fields(op: &mut Op) -> [&mut Row; 5] {
    [&mut op.d, &mut op.a, &mut op.b, &mut op.c, &mut op.e]
}

/// Calls `each` with the registers that an op may touch.
fn touched(op: &Op, fields: Option<Fields>, mut each: impl FnMut((Kind, Row))) {
    match fields {
        Some(fields) => {
            registers(op, fields.results).chain(registers(op, fields.sources)).for_each(each);
        }
        None => {
            for kind in [Kind::Narrow, Kind::Wide] {
                registers(op, [Some(kind); 5]).for_each(&mut each);
            }
        }
    }
}

/// Returns false if the op certainly does not read a register.
pub(super) fn may_read(op: &Op, fields: Option<Fields>, (kind, row): (Kind, Row)) -> bool {
    // The fields of an unknown op have any kind.
    let sources = fields.map_or([Some(kind); 5], |fields| fields.sources);
    kind == Kind::Predicate && op.guard.reads(row) || registers(op, sources).any(|found| found == (kind, row))
}

/// Lets registers of the kernel share rows. `fields` describes its ops, `early` the ops that it
/// runs early, and `jumps` are the ops whose `extra` is the place of an op.
pub(super) fn share_rows(
    code: &mut Code,
    fields: &[Option<Fields>],
    early: &[(Op, Option<Fields>)],
    jumps: &[usize],
) {
    let end = code.functions.get(1).map_or(code.ops.len(), |next| next.entry as usize);
    if !code.targets.is_empty() || !code.matrices.is_empty() {
        return;
    }
    let shared = candidates(code, fields, early, end);
    if end * shared.len().div_ceil(64) > MOST_WORDS {
        return;
    }
    let spans = spans(fields, &shared, &code.ops[..end], jumps);
    let rows = assign(&shared, &spans);
    for (op, kinds) in code.ops[..end].iter_mut().zip(fields) {
        let Some(kinds) = kinds else { continue };
        for (at, row) in self::fields(op).into_iter().enumerate() {
            let register = kinds.results[at].or(kinds.sources[at]).map(|kind| (kind, *row));
            if let Some(new) = register.and_then(|register| rows.get(&register)) {
                *row = *new;
            }
        }
    }
}

/// Returns the registers that appear in known ops of the kernel alone, with their numbers here.
fn candidates(
    code: &Code,
    fields: &[Option<Fields>],
    early: &[(Op, Option<Fields>)],
    end: usize,
) -> BTreeMap<(Kind, Row), usize> {
    let narrow = code.narrow_constants.iter().map(|(row, _)| (Kind::Narrow, *row));
    let wide = code.wide_constants.iter().map(|(row, _)| (Kind::Wide, *row));
    let mut others: HashSet<(Kind, Row)> = narrow.chain(wide).collect();
    let mut found = BTreeSet::new();
    let kernel = code.ops.iter().zip(fields.iter().copied()).enumerate();
    let kernel = kernel.map(|(at, (op, fields))| (op, fields, at < end && fields.is_some()));
    let early = early.iter().map(|(op, fields)| (op, *fields, false));
    for (op, fields, may_share) in kernel.chain(early) {
        touched(op, fields, |register| {
            if may_share {
                found.insert(register);
            } else {
                others.insert(register);
            }
        });
    }
    let found = found.into_iter().filter(|register| !others.contains(register));
    found.filter(|(kind, _)| *kind != Kind::Predicate).zip(0..).collect()
}

/// Returns the first and the last op at which each register is live or written.
fn spans(
    fields: &[Option<Fields>],
    shared: &BTreeMap<(Kind, Row), usize>,
    ops: &[Op],
    jumps: &[usize],
) -> Vec<(usize, usize)> {
    let words = shared.len().div_ceil(64);
    let numbers = |op: &Op, kinds| {
        registers(op, kinds).filter_map(|register| shared.get(&register).copied()).collect::<Vec<_>>()
    };
    let known = |at: usize| fields[at].unwrap_or_default();
    let jumps: HashSet<usize> = jumps.iter().copied().collect();
    // The registers that are live before each op.
    let mut live = vec![0u64; (ops.len() + 1) * words];
    let mut changes = true;
    while std::mem::take(&mut changes) {
        for (at, op) in ops.iter().enumerate().rev() {
            let is_always = op.guard == Guard::ALWAYS;
            let mut now = vec![0u64; words];
            let mut join = |place: usize| {
                let behind = &live[place * words..(place + 1) * words];
                now.iter_mut().zip(behind).for_each(|(now, behind)| *now |= behind);
            };
            if jumps.contains(&at) {
                join(op.extra as usize);
            }
            if !jumps.contains(&at) || !is_always {
                join(at + 1);
            }
            if is_always {
                numbers(op, known(at).results).iter().for_each(|n| now[n / 64] &= !(1 << (n % 64)));
            }
            numbers(op, known(at).sources).iter().for_each(|n| now[n / 64] |= 1 << (n % 64));
            let before = &mut live[at * words..(at + 1) * words];
            if before != now {
                before.copy_from_slice(&now);
                changes = true;
            }
        }
    }
    let mut spans = vec![(usize::MAX, 0); shared.len()];
    let mut note = |n: usize, at: usize| spans[n] = (spans[n].0.min(at), spans[n].1.max(at));
    for (at, op) in ops.iter().enumerate() {
        for (word, bits) in live[at * words..(at + 1) * words].iter().enumerate() {
            let mut left = *bits;
            while left != 0 {
                note(64 * word + left.trailing_zeros() as usize, at);
                left &= left - 1;
            }
        }
        numbers(op, known(at).results).into_iter().for_each(|n| note(n, at));
    }
    spans
}

/// Returns the new row of each register.
fn assign(shared: &BTreeMap<(Kind, Row), usize>, spans: &[(usize, usize)]) -> BTreeMap<(Kind, Row), Row> {
    let mut rows = BTreeMap::new();
    for kind in [Kind::Narrow, Kind::Wide] {
        let mut registers: Vec<(Row, (usize, usize))> =
            shared.iter().filter(|((of, _), _)| *of == kind).map(|((_, row), n)| (*row, spans[*n])).collect();
        // The rows that are free, the one that is taken first at the end.
        let mut free: Vec<Row> = registers.iter().rev().map(|(row, _)| *row).collect();
        let mut taken: BTreeSet<(usize, Row)> = BTreeSet::new();
        registers.sort_by_key(|(_, (first, _))| *first);
        for (register, (first, last)) in registers {
            while let Some(&(end, row)) = taken.first()
                && end < first
            {
                taken.pop_first();
                free.push(row);
            }
            // There are as many rows as registers.
            let Some(row) = free.pop() else { unreachable!("a register has no row") };
            taken.insert((last, row));
            rows.insert((kind, register), row);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use crate::exec::code::Code;
    use crate::program::{Variables, address_of, lower};
    use crate::text;
    use std::collections::BTreeSet;

    fn lowered(body: &str) -> Code {
        let text = format!(
            ".version 8.0 .target sm_70 .address_size 64 .visible .entry k(.param .u64 x) {{
             .reg .pred %p<4>; .reg .b32 %r<32>; .reg .b64 %rd<8>; .reg .b32 %i;
             ld.param.u64 %rd1, [x]; mov.u32 %i, %tid.x; ld.global.u32 %r1, [%rd1]; {body} ret; }}"
        );
        let module = text::parse(&text).expect("PTX");
        let variables = Variables::new(&module, |name| address_of(&module, name), |_, _| None);
        lower(&module, &variables.expect("none"), "k").expect("it is supported")
    }

    #[test]
    fn registers_of_a_chain_share_rows() {
        let chain: String = (1..20).map(|at| format!("add.u32 %r{}, %r{at}, %r{at};\n", at + 1)).collect();
        let code = lowered(&format!("{chain} st.global.u32 [%rd1], %r20;"));
        let adds = &code.ops[1..20];
        let rows: BTreeSet<u32> = adds.iter().map(|op| op.d).collect();
        assert_eq!(rows.len(), 2, "a register may not share the row that its op reads: {rows:?}");
        assert!(adds.windows(2).all(|ops| ops[1].a == ops[0].d && ops[1].b == ops[0].d));
        assert_eq!(code.ops[20].d, adds[18].d);
    }

    #[test]
    fn a_register_that_a_later_round_of_a_loop_reads_keeps_its_row() {
        let code = lowered(
            "mov.u32 %r2, %r1;
             LOOP: add.u32 %r3, %r2, %r1; add.u32 %r4, %r3, %r3; add.u32 %r2, %r4, %r3;
             setp.lt.u32 %p1, %r2, 100; @%p1 bra LOOP; st.global.u32 [%rd1], %r2;",
        );
        let [load, mov, first, second, third, ..] = &code.ops[..] else { panic!("{code:?}") };
        assert_eq!((first.a, first.b), (mov.d, load.d));
        assert_eq!(third.d, mov.d);
        let rows: BTreeSet<u32> = [load.d, mov.d, first.d, second.d].into();
        assert_eq!(rows.len(), 4, "{code:?}");
    }

    #[test]
    fn a_register_that_only_some_lanes_write_keeps_its_value_in_the_others() {
        let code = lowered(
            "add.u32 %r2, %r1, 1; setp.eq.u32 %p1, %r1, 3; add.u32 %r3, %r1, 2;
             @%p1 add.u32 %r2, %r3, 5; st.global.u32 [%rd1], %r2;",
        );
        let [_, first, _, second, third, ..] = &code.ops[..] else { panic!("{code:?}") };
        assert_eq!(third.d, first.d);
        assert_ne!(second.d, first.d);
    }
}
