//! Writes a program as PTX.

use crate::program::{Arithmetic, Barrier, COUNTERS, Phase, Program, Statement, Together, VALUES};
use std::fmt::Write;

/// The text of the function that `Statement::Call` calls.
const MIX: &str = "\
.func (.param .b32 result) mix(.param .b32 x, .param .b32 y)
{
.reg .b32 %a, %b;
.reg .pred %less;
ld.param.u32 %a, [x];
ld.param.u32 %b, [y];
setp.lt.u32 %less, %a, %b;
@%less bra LESS;
sub.u32 %a, %a, %b;
bra.uni DONE;
LESS:
mul.lo.u32 %a, %a, 5;
xor.b32 %a, %a, %b;
DONE:
st.param.b32 [result], %a;
ret;
}";

impl Arithmetic {
    fn opcode(self) -> &'static str {
        match self {
            Arithmetic::Add => "add.u32",
            Arithmetic::Sub => "sub.u32",
            Arithmetic::Mul => "mul.lo.u32",
            Arithmetic::And => "and.b32",
            Arithmetic::Or => "or.b32",
            Arithmetic::Xor => "xor.b32",
            Arithmetic::Min => "min.u32",
            Arithmetic::Max => "max.u32",
            Arithmetic::ShiftLeft => "shl.b32",
            Arithmetic::ShiftRight => "shr.u32",
        }
    }

    /// Returns the operation and the type of the atomic instruction.
    fn atomic(self) -> &'static str {
        match self {
            Arithmetic::Add => "add.u32",
            Arithmetic::Xor => "xor.b32",
            Arithmetic::Max => "max.u32",
            _ => "or.b32",
        }
    }
}

/// The text so far, and the number of labels.
struct Text {
    text: String,
    labels: u32,
}

impl Text {
    fn line(&mut self, line: impl AsRef<str>) {
        writeln!(self.text, "{}", line.as_ref()).expect("a string takes any text");
    }

    fn label(&mut self) -> String {
        self.labels += 1;
        format!("L{}", self.labels)
    }

    /// Sets `%less` to whether `a < b`.
    fn less(&mut self, a: usize, b: usize) {
        self.line(format!("setp.lt.u32 %less, %v{a}, %v{b};"));
    }

    fn statements(&mut self, statements: &[Statement], phase: usize) {
        for statement in statements {
            self.statement(statement, phase);
        }
    }

    fn statement(&mut self, statement: &Statement, phase: usize) {
        match statement {
            Statement::Compute { operation, d, a, b } => {
                self.line(format!("{} %v{d}, %v{a}, %v{b};", operation.opcode()));
            }
            Statement::Call { d, a, b } => {
                self.line("{\n.param .b32 x;\n.param .b32 y;\n.param .b32 back;");
                self.line(format!("st.param.b32 [x], %v{a};\nst.param.b32 [y], %v{b};"));
                self.line(format!("call (back), mix, (x, y);\nld.param.b32 %v{d}, [back];\n}}"));
            }
            Statement::If { a, b, then, otherwise } => {
                let (other, end) = (self.label(), self.label());
                self.less(*a, *b);
                self.line(format!("@!%less bra {other};"));
                self.statements(then, phase);
                self.line(format!("bra {end};\n{other}:"));
                self.statements(otherwise, phase);
                self.line(format!("{end}:"));
            }
            Statement::Repeat { count, body } => {
                let (start, end) = (self.label(), self.label());
                // A register of this scope, so that loops within loops count on their own.
                self.line(format!("{{\n.reg .b32 %left;\nand.b32 %left, %v{count}, 3;\n{start}:"));
                self.line(format!("setp.eq.u32 %less, %left, 0;\n@%less bra {end};"));
                self.statements(body, phase);
                self.line(format!("sub.u32 %left, %left, 1;\nbra {start};\n{end}:\n}}"));
            }
            Statement::Read { d, index } => {
                self.line(format!("rem.u32 %at, %v{index}, %threads;\nshl.b32 %at, %at, 2;"));
                self.line(format!("add.u32 %at, %at, %array{};", phase % 2));
                self.line(format!("ld.shared.u32 %v{d}, [%at];"));
            }
            Statement::ReadCounter { d, .. } if phase == 0 => self.line(format!("mov.u32 %v{d}, 0;")),
            Statement::ReadCounter { d, counter } => {
                let at = 4 * ((phase - 1) * COUNTERS.len() + counter);
                self.line(format!("ld.shared.u32 %v{d}, [counted+{at}];"));
            }
            Statement::Count { counter, value, is_global } => {
                let operation = COUNTERS[*counter].atomic();
                match is_global {
                    true => {
                        self.line(format!("red.global.{operation} [%counters+{}], %v{value};", 4 * counter))
                    }
                    false => {
                        let at = 4 * (phase * COUNTERS.len() + counter);
                        self.line(format!("atom.shared.{operation} %at, [counted+{at}], %v{value};"));
                    }
                }
            }
        }
    }

    fn together(&mut self, together: &Together) {
        match together {
            Together::Shuffle { d, a, lane } => {
                self.line(format!("rem.u32 %at, %v{lane}, %lanes;"));
                self.line(format!("shfl.sync.idx.b32 %v{d}, %v{a}, %at, 31, %members;"));
            }
            Together::ShuffleUp { d, a, distance } => {
                self.line(format!("shfl.sync.up.b32 %v{d}, %v{a}, {distance}, 0, %members;"));
            }
            Together::Ballot { d, a, b } => {
                self.less(*a, *b);
                self.line(format!("vote.sync.ballot.b32 %v{d}, %less, %members;"));
            }
            Together::Count { d, a, b } => {
                self.less(*a, *b);
                self.line(format!("bar.red.popc.u32 %v{d}, 3, %less;"));
            }
        }
    }

    fn barrier(&mut self, barrier: Barrier, threads: u32) {
        self.line(match barrier {
            Barrier::All => "bar.sync 0;".to_owned(),
            Barrier::Other => "barrier.sync 1;".to_owned(),
            // PTX ISA 9.7.13.1, bar: the number is a multiple of the warp size.
            Barrier::Counted => format!("bar.sync 2, {};", threads.next_multiple_of(32)),
        });
    }
}

/// Returns the text of a program.
pub(crate) fn of(program: &Program) -> String {
    let Program { threads, phases, .. } = program;
    let mut text = Text { text: String::new(), labels: 0 };
    text.line(format!(
        "\
.version 8.5
.target sm_90
.address_size 64
{MIX}
.visible .entry main(.param .u64 main_in, .param .u64 main_out, .param .u64 main_counters)
{{
.shared .align 4 .b8 arrays[{bytes}];
.shared .align 4 .b8 counted[{counted}];
.reg .pred %less, %first;
.reg .b32 %v<{VALUES}>;
.reg .b32 %at, %threads, %lanes, %members, %array<2>;
.reg .b64 %in, %out, %counters, %offset;
ld.param.u64 %in, [main_in];
ld.param.u64 %out, [main_out];
ld.param.u64 %counters, [main_counters];
mov.u32 %threads, %ntid.x;
mov.u32 %v1, %tid.x;
mov.u32 %v2, %ctaid.x;
mad.lo.u32 %v0, %v2, %threads, %v1;
not.b32 %v4, %v0;
mov.u32 %v5, 0;
mul.wide.u32 %offset, %v0, 4;
add.u64 %in, %in, %offset;
ld.global.u32 %v3, [%in];
// The lanes of this warp, and their mask.
and.b32 %at, %v1, 0xffffffe0;
sub.u32 %lanes, %threads, %at;
min.u32 %lanes, %lanes, 32;
sub.u32 %at, 32, %lanes;
shr.u32 %members, 0xffffffff, %at;
// The own word of the array that the first phase reads. Thread 0 clears the counters.
mov.u32 %array0, arrays;
add.u32 %array1, %array0, {half};
shl.b32 %at, %v1, 2;
add.u32 %at, %at, %array0;
st.shared.u32 [%at], %v3;
setp.eq.u32 %first, %v1, 0;",
        bytes = 8 * threads,
        half = 4 * threads,
        counted = (4 * COUNTERS.len() * phases.len()).max(4),
    ));
    let counters = COUNTERS.len() * phases.len();
    for counter in 0..counters {
        text.line(format!("@%first st.shared.u32 [counted+{}], 0;", 4 * counter));
    }
    text.barrier(Barrier::All, *threads);
    for (number, Phase { together, body, value, shift, barrier }) in phases.iter().enumerate() {
        together.iter().for_each(|together| text.together(together));
        text.statements(body, number);
        text.line(format!(
            "mov.u32 %at, %tid.x;\nadd.u32 %at, %at, {shift};\nrem.u32 %at, %at, %threads;\nshl.b32 %at, %at, 2;"
        ));
        text.line(format!("add.u32 %at, %at, %array{};\nst.shared.u32 [%at], %v{value};", (number + 1) % 2));
        text.barrier(*barrier, *threads);
    }
    text.line(format!("add.u64 %in, %out, {};", 4 * VALUES as u32 * program.all_threads()));
    text.line(format!("mov.u32 %at, %ctaid.x;\nmul.wide.u32 %offset, %at, {};", 4 * counters));
    text.line("add.u64 %in, %in, %offset;");
    for counter in 0..counters {
        text.line(format!("@%first ld.shared.u32 %at, [counted+{}];", 4 * counter));
        text.line(format!("@%first st.global.u32 [%in+{}], %at;", 4 * counter));
    }
    text.line("mov.u32 %at, %ctaid.x;\nmov.u32 %lanes, %tid.x;\nmad.lo.u32 %at, %at, %threads, %lanes;");
    text.line(format!("mul.wide.u32 %offset, %at, {};\nadd.u64 %out, %out, %offset;", 4 * VALUES));
    for value in 0..VALUES {
        text.line(format!("st.global.u32 [%out+{}], %v{value};", 4 * value));
    }
    text.line("ret;\n}");
    text.text
}
