//! Finds loads whose value may stay unused.
//!
//! A compiler may move a load from shared memory in front of a branch, and drop the value in the
//! threads that did not load it in the source: by a later `selp`, or by no use at all. Such a load
//! may race in the PTX although the source does not. So the checks report a load at once only if
//! each path from it uses the value, and otherwise follow the value (`exec::checks::suspects`).
//! Arithmetic is a use here, unless a `selp` takes its result: compilers move a few cheap
//! instructions along with the load. Comparisons and logic are none: they may stand for `&&`.

use super::{Function, Instruction, Operand, Statement, parse};
use std::collections::{HashMap, HashSet};

/// The number of instructions after which a search gives up.
const MOST_STEPS: usize = 20_000;

/// Returns whether a thread may run the load at a line of a text without a use of the value.
/// Compilers do not move what other instructions read, such as `wmma.load` and `cp.async`, in front
/// of a branch: it counts as used.
pub(crate) fn may_be_unused(text: &str, line: u32) -> bool {
    let Ok(module) = parse(text) else { return true };
    let is_load = |statement: &Statement<'_>| matches!(statement, Statement::Instruction(it) if it.line == line && it.opcode.starts_with("ld"));
    module.functions.iter().any(|function| {
        let body = function.body.iter().flatten().enumerate();
        body.filter(|(_, statement)| is_load(statement)).any(|(at, _)| !is_used_on_each_path(function, at))
    })
}

fn is_used_on_each_path(function: &Function<'_>, load: usize) -> bool {
    let body = function.body.as_deref().unwrap_or_default();
    let mut labels = HashMap::new();
    for (at, statement) in body.iter().enumerate() {
        if let Statement::Label(label) = statement
            && labels.insert(*label, at).is_some()
        {
            // The label of an inner scope hides another one.
            return false;
        }
    }
    let Some(Statement::Instruction(instruction)) = body.get(load) else { return false };
    let mut holders = Vec::new();
    instruction.operands.iter().take(1).for_each(|result| names(result, &mut holders));
    let holders = Holders { of_value: holders.into_iter().collect(), in_doubt: HashSet::new() };
    let mut open = vec![(load + 1, holders, Computed::default())];
    let mut seen: HashMap<(usize, bool), Vec<Holders<'_>>> = HashMap::new();
    let mut steps = 0;
    while let Some((mut at, mut holders, mut computed)) = open.pop() {
        loop {
            steps += 1;
            if steps > MOST_STEPS {
                return false;
            }
            if holders.of_value.is_empty() {
                match computed.is_use() {
                    true => break,
                    false => return false,
                }
            }
            match body.get(at) {
                None if computed.is_use() => break,
                None => return false,
                Some(Statement::Label(_)) => {
                    let sets = seen.entry((at, computed.is_use())).or_default();
                    // Each path from here uses one of fewer holders, or another search finds out.
                    if sets.iter().any(|set| set.is_subset(&holders)) {
                        break;
                    }
                    sets.push(holders.clone());
                }
                Some(Statement::Instruction(instruction)) => {
                    match step(instruction, &mut holders, &mut computed) {
                        Step::Use => break,
                        Step::End if computed.is_use() => break,
                        Step::End => return false,
                        Step::Next => {}
                        Step::Jump(label) => {
                            let Some(target) = labels.get(label) else { return false };
                            if instruction.guard.is_some() {
                                open.push((*target, holders.clone(), computed));
                            } else {
                                at = *target;
                                continue;
                            }
                        }
                    }
                }
                Some(_) => {}
            }
            at += 1;
        }
    }
    true
}

/// The registers at a place.
#[derive(Clone)]
struct Holders<'a> {
    /// They hold the value, or a result that was computed from it.
    of_value: HashSet<&'a str>,
    /// They hold the result of an instruction that may have dropped it.
    in_doubt: HashSet<&'a str>,
}

impl Holders<'_> {
    fn is_subset(&self, other: &Self) -> bool {
        self.of_value.is_subset(&other.of_value) && self.in_doubt.is_subset(&other.in_doubt)
    }
}

/// The use that a path has made of the value.
#[derive(Clone, Copy, Default)]
struct Computed {
    has_result: bool,
    /// An instruction that may drop it has taken the value or a result.
    is_selected: bool,
}

impl Computed {
    fn is_use(self) -> bool {
        self.has_result && !self.is_selected
    }
}

enum Step<'a> {
    /// The value is used.
    Use,
    Next,
    /// It goes on at a label, or also there if the instruction has a guard.
    Jump(&'a str),
    /// The thread ends or returns.
    End,
}

/// Follows the value through one instruction.
fn step<'a>(instruction: &Instruction<'a>, holders: &mut Holders<'a>, computed: &mut Computed) -> Step<'a> {
    let name = instruction.parts().next().unwrap_or_default();
    let holds = |operands: &[Operand<'a>]| {
        let mut found = Vec::new();
        operands.iter().for_each(|operand| names(operand, &mut found));
        found.iter().any(|name| holders.of_value.contains(name))
    };
    let is_in_doubt = |operand: Option<&Operand<'a>>| matches!(operand, Some(Operand::Name(name)) if holders.in_doubt.contains(name));
    let operands = &instruction.operands[..];
    let is_guarded = instruction.guard.is_some();
    if instruction.guard.is_some_and(|(guard, _)| holders.of_value.contains(guard)) {
        return Step::Use;
    }
    let has_result = !matches!(
        name,
        "st" | "red"
            | "bra"
            | "brx"
            | "bar"
            | "barrier"
            | "call"
            | "ret"
            | "exit"
            | "trap"
            | "stmatrix"
            | "cp"
    );
    let (results, sources) = operands.split_at(usize::from(has_result).min(operands.len()));
    match name {
        "bra" => {
            let Some(Operand::Name(label)) = operands.first() else { return Step::End };
            return Step::Jump(label);
        }
        "brx" if holds(operands) => return Step::Use,
        "brx" | "ret" | "exit" => return Step::End,
        "trap" if !is_guarded => return Step::Use,
        _ => {}
    }
    // These may drop the value: a compiler turns `&&` into `and`, and a lane need not take what
    // another one offers in a shuffle. A `selp` of the value by what was computed from it, as of a
    // maximum, has a result that depends on it.
    let drops = match name {
        "selp" | "slct" => {
            let last = operands.last();
            let selects_by_value = holds(last.map_or(&[], std::slice::from_ref));
            let computed_from_it = holds(operands) && is_in_doubt(last);
            !(selects_by_value || computed_from_it)
        }
        "and" | "or" | "lop3" | "shfl" => true,
        "setp" | "set" => operands.len() > 3,
        _ => false,
    };
    let computes = !matches!(
        name,
        "ld" | "atom"
            | "shfl"
            | "vote"
            | "match"
            | "redux"
            | "mma"
            | "wmma"
            | "ldmatrix"
            | "activemask"
            | "elect"
    );
    let uses = holds(sources);
    let goes_on = drops || (has_result && computes);
    if uses && !goes_on && !is_guarded {
        return Step::Use;
    }
    if uses && !is_guarded {
        computed.is_selected |= drops;
        computed.has_result |=
            !matches!(name, "mov" | "setp" | "set" | "selp" | "slct" | "and" | "or" | "xor" | "not");
    }
    let mut changed = Vec::new();
    results.iter().for_each(|result| names(result, &mut changed));
    for name in changed {
        holders.of_value.remove(name);
        holders.in_doubt.remove(name);
        if uses && computes && !is_guarded {
            let set = if drops { &mut holders.in_doubt } else { &mut holders.of_value };
            set.insert(name);
        }
    }
    Step::Next
}

/// Adds the names in an operand.
fn names<'a>(operand: &Operand<'a>, found: &mut Vec<&'a str>) {
    match operand {
        Operand::Name(name) | Operand::Not(name) | Operand::Offset(name, _) => found.push(name),
        Operand::Memory { base: Some(name), .. } => found.push(name),
        Operand::Vector(operands) | Operand::List(operands) => {
            operands.iter().for_each(|operand| names(operand, found));
        }
        Operand::Pair(first, second) => {
            names(first, found);
            names(second, found);
        }
        Operand::Memory { base: None, .. } | Operand::Number(_) | Operand::Nothing => {}
    }
}

#[cfg(test)]
mod tests {
    use super::may_be_unused;

    /// The load is on line 4.
    fn unused(behind: &str) -> bool {
        let head = ".version 8.0 .target sm_70 .address_size 64 .visible .entry f() {";
        let registers = ".reg .pred %p<5>; .reg .b32 %r<9>; .reg .b64 %rd<9>;";
        may_be_unused(&format!("{head}\n{registers}\n\nld.shared.u32 %r1, [%r0];\n{behind}\nret;\n}}"), 4)
    }

    #[test]
    fn a_load_is_used_if_each_path_stores_or_tests_its_value() {
        assert!(!unused("st.shared.u32 [%r0], %r1;"));
        assert!(!unused("add.u32 %r2, %r1, 1; mov.u32 %r1, 0; st.shared.u32 [%r0], %r2;"));
        assert!(!unused("setp.eq.u32 %p1, %r1, 0; @%p1 bra L; L:"));
        assert!(!unused("setp.lt.u32 %p1, %r1, %r2; selp.b32 %r2, %r2, %r1, %p1; st.shared.u32 [%r0], %r2;"));
        assert!(!unused("L: setp.eq.u32 %p2, %r5, 0; @%p2 bra L; ld.shared.u32 %r3, [%r1];"));
        // A maximum that keeps NaN.
        assert!(!unused(
            "setp.gt.f32 %p1, %r2, %r1; setp.nan.f32 %p2, %r2, %r2; or.pred %p3, %p2, %p1;
             selp.f32 %r3, %r2, %r1, %p3; st.shared.f32 [%r0], %r3;"
        ));
        // Threads behind the end of an array compute with what they do not store.
        assert!(!unused("add.u32 %r2, %r1, 1; @%p1 bra A; st.shared.u32 [%r0], %r2; A:"));
        assert!(!unused("@%p1 bra A; st.shared.u32 [%r0], %r1; ret; A: red.shared.add.u32 [%r0], %r1;"));
    }

    #[test]
    fn a_load_may_be_unused_if_a_path_drops_its_value() {
        assert!(unused(""));
        assert!(unused("mov.u32 %r1, 0; st.shared.u32 [%r0], %r1;"));
        assert!(unused("@%p1 bra A; st.shared.u32 [%r0], %r1; A:"));
        assert!(unused("@%p1 st.shared.u32 [%r0], %r1;"));
        assert!(unused("selp.b32 %r2, %r1, 0, %p1; st.shared.u32 [%r0], %r2;"));
        assert!(unused("mul.lo.u32 %r2, %r1, 3; selp.b32 %r2, %r2, 0, %p1; st.shared.u32 [%r0], %r2;"));
        assert!(unused("mov.u32 %r2, %r1; @%p1 ret; st.shared.u32 [%r0], %r2;"));
        assert!(unused("L: setp.eq.u32 %p2, %r5, 0; @%p2 bra L;"));
        assert!(unused("@%p1 mov.u32 %r1, 0; st.shared.u32 [%r0], %r1;"));
        // Of `p && x > 7`, the comparison may be in front of a branch, too.
        assert!(unused("setp.gt.u32 %p1, %r1, 7; and.pred %p1, %p1, %p2; @%p3 bra A; @%p1 bra A; A:"));
        assert!(unused("@%p1 ret; st.shared.u32 [%r0], %r1;"));
        assert!(may_be_unused("no PTX", 4));
    }

    #[test]
    fn what_other_instructions_read_is_used() {
        let text = |instruction: &str| {
            format!(".version 8.0 .target sm_80 .address_size 64 .entry f() {{\n{instruction}\nret;\n}}")
        };
        assert!(!may_be_unused(&text("cp.async.wait_all;"), 2));
        assert!(!may_be_unused(&text("wmma.load.a.sync.aligned.row.m16n16k16.f16 {%r1}, [%rd1];"), 2));
        assert!(may_be_unused(&text("ld.shared.u32 %r1, [%r0]; cp.async.wait_all;"), 2));
    }
}
