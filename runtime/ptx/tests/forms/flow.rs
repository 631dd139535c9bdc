//! Branches, calls, guards and exits: PTX ISA 9.3 and 9.7.12.

use crate::program::Program;
use warpline_ptx::Config;

type Case = (Program, fn(u64) -> u64);

fn case(before: &str, body: &str, of: fn(u64) -> u64) -> Case {
    let body = format!("add.s64 %at, %at, %out;\n{body}\nst.global.u32 [%at], %r9;\nret;");
    (Program { before: before.to_owned(), ..Program::new(body) }, of)
}

const SQUARE: &str = "\
.func (.param .b32 result) square(.param .b32 x)
{
.reg .b32 %a;
ld.param.u32 %a, [x];
mul.lo.u32 %a, %a, %a;
st.param.b32 [result], %a;
ret;
}
.func (.param .b32 result) twice(.param .b32 x)
{
.reg .b32 %a;
ld.param.u32 %a, [x];
add.u32 %a, %a, %a;
st.param.b32 [result], %a;
ret;
}";

const FACTORIAL: &str = "\
.func (.param .b32 result) factorial(.param .b32 x)
{
.reg .b32 %a, %b;
.reg .pred %q;
ld.param.u32 %a, [x];
mov.u32 %b, 1;
setp.le.u32 %q, %a, 1;
@%q bra END;
sub.u32 %b, %a, 1;
{
.param .b32 argument;
.param .b32 back;
st.param.b32 [argument], %b;
call.uni (back), factorial, (argument);
ld.param.b32 %b, [back];
}
mul.lo.u32 %b, %a, %b;
END:
st.param.b32 [result], %b;
ret;
}";

/// A struct of 12 bytes by value, and one of 16 back. The address of a parameter is taken too.
const STRUCTS: &str = "\
.func (.param .align 8 .b8 result[16]) widen(.param .align 4 .b8 x[12], .param .b64 y)
{
.reg .b32 %a, %b, %c;
.reg .b64 %s, %t;
ld.param.u32 %a, [x];
ld.param.u32 %b, [x+4];
mov.b64 %t, x;
ld.param.u32 %c, [%t+8];
add.u32 %a, %a, %b;
add.u32 %a, %a, %c;
ld.param.u64 %s, [y];
ld.param.u32 %b, [%t+4];
cvt.u64.u32 %t, %b;
add.u64 %s, %s, %t;
st.param.u64 [result], %s;
st.param.v2.b32 [result+8], {%a, %c};
ret;
}";

const FACTORIALS: [u64; 8] = [1, 1, 2, 6, 24, 120, 720, 5040];

fn cases() -> Vec<Case> {
    vec![
        // Guards, 9.3
        case("", "setp.lt.u32 %p1, %i, 10;\nmov.u32 %r9, 1;\n@%p1 mov.u32 %r9, 2;\n@!%p1 add.u32 %r9, %r9, 5;", |i| {
            if i < 10 { 2 } else { 6 }
        }),
        case("", "setp.eq.u32 %p1|%p2, %i, 3;\nmov.u32 %r9, 0;\n@%p1 mov.u32 %r9, 1;\n@%p2 mov.u32 %r9, 2;", |i| {
            if i == 3 { 1 } else { 2 }
        }),
        // A guarded store changes nothing else.
        case("", "mov.u32 %r9, 7;\nst.global.u32 [%at], 0;\nsetp.ne.u32 %p1, %i, 4;\n@!%p1 st.global.u32 [%at+4], 1;", |i| {
            if i == 4 { 1 << 32 | 7 } else { 7 }
        }),
        // Nested branches, and a loop of another length in each lane
        case("", "\
and.b32 %r2, %i, 1;\nsetp.eq.u32 %p1, %r2, 0;\n@%p1 bra EVEN;\nsetp.gt.u32 %p2, %i, 16;\n@%p2 bra BIG;\nmov.u32 %r9, 1;\nbra.uni DONE;
BIG:\nmov.u32 %r9, 2;\nbra DONE;
EVEN:\nmov.u32 %r9, 0;\nmov.u32 %r3, 0;
LOOP:\nsetp.ge.u32 %p3, %r3, %i;\n@%p3 bra DONE;\nadd.u32 %r9, %r9, %r3;\nadd.u32 %r3, %r3, 1;\nbra LOOP;
DONE:", |i| match i {
            i if i % 2 == 0 => (0..i).sum(),
            i => 1 + u64::from(i > 16),
        }),
        // brx.idx, 9.7.12.4
        case("", "\
and.b32 %r2, %i, 3;\nmov.u32 %r9, 0;\nlist: .branchtargets A, B, C, A;\nbrx.idx %r2, list;
A:\nadd.u32 %r9, %r9, 1;\nB:\nadd.u32 %r9, %r9, 10;\nC:\nadd.u32 %r9, %r9, 100;", |i| match i % 4 {
            1 => 110,
            2 => 100,
            _ => 111,
        }),
        // Calls, 9.7.12.5: direct, in divergence, and recursive
        case(SQUARE, "\
{\n.param .b32 x;\n.param .b32 y;\nst.param.b32 [x], %i;\ncall (y), square, (x);\nld.param.b32 %r9, [y];\n}", |i| i * i),
        case(SQUARE, "\
setp.lt.u32 %p1, %i, 9;\nmov.u32 %r9, 77;\n@!%p1 bra SKIP;
{\n.param .b32 x;\n.param .b32 y;\nst.param.b32 [x], %i;\ncall.uni (y), square, (x);\nld.param.b32 %r9, [y];\n}
SKIP:", |i| if i < 9 { i * i } else { 77 }),
        case(FACTORIAL, "\
and.b32 %r2, %i, 7;
{\n.param .b32 x;\n.param .b32 y;\nst.param.b32 [x], %r2;\ncall.uni (y), factorial, (x);\nld.param.b32 %r9, [y];\n}", |i| {
            FACTORIALS[i as usize % 8]
        }),
        // Indirect, where lanes call different functions
        case(SQUARE, "\
and.b32 %r2, %i, 1;\nsetp.eq.u32 %p1, %r2, 1;\nmov.u64 %rd1, square;\nmov.u64 %rd2, twice;\nselp.b64 %rd3, %rd1, %rd2, %p1;
proto: .callprototype (.param .b32 _) _ (.param .b32 _);
{\n.param .b32 x;\n.param .b32 y;\nst.param.b32 [x], %i;\ncall (y), %rd3, (x), proto;\nld.param.b32 %r9, [y];\n}", |i| {
            if i % 2 == 1 { i * i } else { 2 * i }
        }),
        case(&format!("{SQUARE}\n.global .align 8 .u64 table[2] = {{square, twice}};"), "\
and.b32 %r2, %i, 1;\nmov.u64 %rd1, table;\nmad.wide.u32 %rd1, %r2, 8, %rd1;\nld.global.u64 %rd3, [%rd1];
proto: .callprototype (.param .b32 _) _ (.param .b32 _);
{\n.param .b32 x;\n.param .b32 y;\nst.param.b32 [x], %i;\ncall (y), %rd3, (x), proto;\nld.param.b32 %r9, [y];\n}", |i| {
            if i % 2 == 0 { i * i } else { 2 * i }
        }),
        // Structs by value
        case(STRUCTS, "\
mul.wide.u32 %rd1, %i, 1000;
{\n.param .align 4 .b8 x[12];\n.param .b64 y;\n.param .align 8 .b8 z[16];
st.param.b32 [x], %i;\nst.param.b32 [x+4], 20;\nst.param.b32 [x+8], 3;\nst.param.b64 [y], %rd1;
call.uni (z), widen, (x, y);\nld.param.u64 %rd2, [z];\nld.param.v2.b32 {%r2, %r3}, [z+8];\n}
cvt.u32.u64 %r4, %rd2;\nadd.u32 %r9, %r2, %r3;\nmad.lo.u32 %r9, %r9, 100000, %r4;", |i| (i + 23 + 3) * 100_000 + 1000 * i + 20),
        // Exits in divergence, 9.7.12.7
        case("", "\
st.global.u32 [%at], 5;\nsetp.lt.u32 %p1, %i, 8;\n@%p1 exit;\nsetp.gt.u32 %p2, %i, 20;\n@!%p2 bra MORE;\nst.global.u32 [%at], 6;\nexit;
MORE:\nbar.warp.sync 0x1fff00;\nactivemask.b32 %r9;", |i| match i {
            0..8 => 5,
            8..21 => 0x1f_ff00,
            _ => 6,
        }),
        // Instructions without an effect here
        case("", "nanosleep.u32 20;\npmevent 1;\nmov.u32 %r9, %i;", |i| i),
    ]
}

#[test]
fn branches_calls_and_exits_go_where_the_isa_says() {
    for (program, of) in cases() {
        program.gives(of);
    }
}

#[test]
fn any_order_of_warps_gives_the_same() {
    for (program, of) in cases() {
        for seed in 0..3 {
            let config = Config { seed: Some(seed), ..Config::linear(3, 32) };
            Program { len: 96, config, input: vec![0; 96], ..program.clone() }.run();
            Program { config: Config { seed: Some(seed), ..program.config }, ..program.clone() }.gives(of);
        }
    }
}

#[test]
fn trap_names_its_line() {
    let program = trapped();
    let fault = program.try_run().expect_err("trap fails");
    let line =
        program.text().lines().position(|line| line.contains("trap;")).expect("it is there") as u32 + 1;
    assert_eq!((fault.ptx_line, fault.thread), (line, [9, 0, 0]), "{fault}");
}

fn trapped() -> Program {
    Program::new("setp.eq.u32 %p1, %i, 9;\n@%p1 trap;\nret;")
}

/// The texts of this file.
pub(crate) fn texts() -> Vec<String> {
    let cases = cases().into_iter().flat_map(|case| [case.0.before, case.0.body]);
    cases.chain([trapped().body]).collect()
}

#[test]
fn lanes_that_left_a_loop_keep_their_values_while_others_run_it() {
    let body = "\
add.u64 %rd1, %in, %at;
ld.global.u64 %rd2, [%rd1];
cvt.u32.u64 %r2, %rd2;
add.u32 %r3, %r2, 5;
mov.u32 %r4, 0;
mov.u32 %r8, 0;
LOOP:
setp.ge.u32 %p1, %r4, %r2;
@%p1 bra DONE;
mul.lo.u32 %r5, %r4, 3;
add.u32 %r6, %r5, 7;
xor.b32 %r7, %r6, %r5;
add.u32 %r8, %r8, %r7;
add.u32 %r4, %r4, 1;
bra LOOP;
DONE:
add.u32 %r9, %r8, %r3;
cvt.u64.u32 %rd3, %r9;
add.u64 %rd4, %out, %at;
st.global.u64 [%rd4], %rd3;
ret;";
    let input = (0..32).map(|lane| lane * 7 % 32).collect();
    Program { input, ..Program::new(body) }.gives(|lane| {
        let rounds = lane * 7 % 32;
        (0..rounds).map(|round| (3 * round + 7) ^ (3 * round)).sum::<u64>() + rounds + 5
    });
}
