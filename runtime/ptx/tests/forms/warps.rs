//! Instructions between lanes and threads: PTX ISA 9.7.9.6, 9.7.13, and special registers of 10.

use crate::driver;
use crate::program::Program;
use warpline_ptx::Config;

/// Programs whose output is, for each thread, what the function returns.
pub(crate) type Case = (Program, Box<dyn Fn(u64) -> u64>);

pub(crate) fn case(body: &str, of: impl Fn(u64) -> u64 + 'static) -> Case {
    let body = format!("add.s64 %at, %at, %out;\nadd.s64 %rd60, %at, 0;\n{body}\nret;");
    (Program::new(body), Box::new(of))
}

/// A value for each lane in %r2.
const VALUE: &str = "mad.lo.u32 %r2, %i, 2654435761, 12345;\n";

fn value(lane: u64) -> u64 {
    (lane * 2_654_435_761 + 12345) & 0xffff_ffff
}

/// 9.7.9.6: the text of the ISA in numbers.
fn shuffled(mode: &str, lane: u64, b: u64, c: u64) -> (u64, bool) {
    let (b, clamp, segment) = (b & 31, c & 31, c >> 8 & 31);
    let last = (lane & segment | clamp & !segment) as i64;
    let first = lane & segment;
    let (from, is_in) = match mode {
        "up" => (lane as i64 - b as i64, lane as i64 - b as i64 >= last),
        "down" => ((lane + b) as i64, (lane + b) as i64 <= last),
        "bfly" => ((lane ^ b) as i64, (lane ^ b) as i64 <= last),
        _ => ((first | b & !segment) as i64, (first | b & !segment) as i64 <= last),
    };
    (if is_in { from as u64 } else { lane }, is_in)
}

pub(crate) fn shuffles() -> Vec<Case> {
    let mut cases = Vec::new();
    for mode in ["up", "down", "bfly", "idx"] {
        let clamps =
            if mode == "up" { [0, 0x1800, 0x1000, 0x1c00, 5] } else { [0x1f, 0x181f, 0x101f, 0x1c03, 0x11] };
        for c in clamps {
            for b in [0, 1, 2, 5, 16, 31, 33] {
                let body = format!(
                    "{VALUE}shfl.sync.{mode}.b32 %r3|%p1, %r2, {b}, {c}, -1;\n\
                     selp.u32 %r4, 1, 0, %p1;\nst.global.v2.u32 [%at], {{%r3, %r4}};"
                );
                cases.push(case(&body, move |lane| {
                    let (from, is_in) = shuffled(mode, lane, b, c);
                    value(from) | u64::from(is_in) << 32
                }));
            }
        }
        // The distance of each lane is its own, and the result may be the source.
        let c = if mode == "up" { 0 } else { 0x1f };
        let body = format!(
            "{VALUE}xor.b32 %r5, %i, 3;\nshfl.sync.{mode}.b32 %r2, %r2, %r5, {c}, 0xffffffff;\nst.global.u32 [%at], %r2;"
        );
        cases.push(case(&body, move |lane| value(shuffled(mode, lane, lane ^ 3, c).0)));
    }
    cases
}

#[test]
fn shuffles_take_the_lane_of_the_isa() {
    shuffles().into_iter().for_each(|(program, of)| program.gives(of));
}

pub(crate) fn votes() -> Vec<Case> {
    let mut cases = Vec::new();
    // The predicate, and the lanes in which it is true.
    let predicates: [(&str, u32); 4] = [
        ("setp.lt.u32 %p1, %i, 99;", u32::MAX),
        ("setp.gt.u32 %p1, %i, 99;", 0),
        ("setp.eq.u32 %p1, %i, 7;", 1 << 7),
        ("setp.lt.u32 %p1, %i, 16;", 0xffff),
    ];
    for (set, true_in) in predicates {
        for not in ["", "!"] {
            let bits = if not.is_empty() { true_in } else { !true_in };
            for (mode, result) in [
                ("all", u64::from(bits == u32::MAX)),
                ("any", u64::from(bits != 0)),
                ("uni", u64::from(bits == 0 || bits == u32::MAX)),
            ] {
                let body = format!(
                    "{set}\nvote.sync.{mode}.pred %p2, {not}%p1, -1;\nselp.u32 %r2, 1, 0, %p2;\nst.global.u32 [%at], %r2;"
                );
                cases.push(case(&body, move |_| result));
            }
            let body = format!("{set}\nvote.sync.ballot.b32 %r2, {not}%p1, -1;\nst.global.u32 [%at], %r2;");
            cases.push(case(&body, move |_| bits.into()));
        }
    }
    // Each half of the warp, each quarter, and lanes of odd and even numbers name themselves.
    for (masks, of) in [
        ("and.b32 %r3, %i, 16;\nshl.b32 %r3, 0xffff, %r3;", (|lane| 0xffff << (lane & 16)) as fn(u64) -> u64),
        ("and.b32 %r3, %i, 24;\nshl.b32 %r3, 0xff, %r3;", |lane| 0xff << (lane & 24)),
        ("and.b32 %r3, %i, 1;\nshl.b32 %r3, 0x55555555, %r3;", |lane| 0x5555_5555 << (lane & 1)),
    ] {
        let set = format!("{masks}\nand.b32 %r4, %i, 3;\nsetp.eq.u32 %p1, %r4, 1;\n");
        let is_set = |lane: u64| lane & 3 == 1;
        let bits = move |lane: u64| {
            (0..32).filter(|other| is_set(*other)).fold(0u64, |sum, other| sum | 1 << other) & of(lane)
        };
        cases.push(case(
            &format!("{set}vote.sync.ballot.b32 %r2, %p1, %r3;\nst.global.u32 [%at], %r2;"),
            bits,
        ));
        cases.push(case(
            &format!(
                "{set}vote.sync.any.pred %p2, %p1, %r3;\nselp.u32 %r2, 1, 0, %p2;\nst.global.u32 [%at], %r2;"
            ),
            move |lane| u64::from(bits(lane) != 0),
        ));
        cases.push(case(
            &format!("{set}match.any.sync.b32 %r2, %r4, %r3;\nst.global.u32 [%at], %r2;"),
            move |lane| {
                (0..32).filter(|other| other & 3 == lane & 3).fold(0u64, |sum, other| sum | 1 << other)
                    & of(lane)
            },
        ));
        cases.push(case(
            &format!("{set}redux.sync.add.u32 %r2, %i, %r3;\nst.global.u32 [%at], %r2;"),
            move |lane| (0..32).filter(|other| of(lane) >> other & 1 == 1).sum(),
        ));
        cases.push(case(
            &format!("{set}elect.sync %r2|%p2, %r3;\nselp.u32 %r5, 1, 0, %p2;\nst.global.v2.u32 [%at], {{%r2, %r5}};"),
            move |lane| {
                let leader = u64::from(of(lane).trailing_zeros());
                leader | u64::from(leader == lane) << 32
            },
        ));
        cases.push(case(
            &format!("{set}bar.warp.sync %r3;\nshfl.sync.bfly.b32 %r2, %i, 2, 0x1f, %r3;\nst.global.u32 [%at], %r2;"),
            |lane| lane ^ 2,
        ));
    }
    // 9.7.13.10 to 9.7.13.14
    for (mode, signed, of) in [
        ("add.u32", false, (|a, b| a + b) as fn(i64, i64) -> i64),
        ("add.s32", true, |a, b| a + b),
        ("min.u32", false, i64::min),
        ("max.u32", false, i64::max),
        ("min.s32", true, i64::min),
        ("max.s32", true, i64::max),
        ("and.b32", false, |a, b| a & b),
        ("or.b32", false, |a, b| a | b),
        ("xor.b32", false, |a, b| a ^ b),
    ] {
        let body = format!("{VALUE}redux.sync.{mode} %r3, %r2, -1;\nst.global.u32 [%at], %r3;");
        cases.push(case(&body, move |_| {
            let values = (0..32)
                .map(|lane| if signed { i64::from(value(lane) as u32 as i32) } else { value(lane) as i64 });
            values.reduce(of).expect("there are lanes") as u64 & 0xffff_ffff
        }));
    }
    for (ty, r) in [("b32", "%r2"), ("b64", "%rd2")] {
        let set = "and.b32 %r2, %i, 3;\ncvt.u64.u32 %rd2, %r2;\nshl.b64 %rd2, %rd2, 40;\nmov.u64 %rd3, 0;\nmov.u32 %r9, 0;\n";
        cases.push(case(
            &format!("{set}match.any.sync.{ty} %r3, {r}, -1;\nst.global.u32 [%at], %r3;"),
            |lane| 0x1111_1111 << (lane & 3),
        ));
        cases.push(case(
            &format!("{set}match.all.sync.{ty} %r3|%p1, {r}, -1;\nselp.u32 %r4, 1, 0, %p1;\nst.global.v2.u32 [%at], {{%r3, %r4}};"),
            |_| 0,
        ));
        let same = if ty == "b32" { "%r9" } else { "%rd3" };
        cases.push(case(
            &format!("{set}match.all.sync.{ty} %r3|%p1, {same}, -1;\nselp.u32 %r4, 1, 0, %p1;\nst.global.v2.u32 [%at], {{%r3, %r4}};"),
            |_| 0x1_ffff_ffff,
        ));
    }
    cases.push(case(
        "activemask.b32 %r2;\nsetp.gt.u32 %p1, %i, 20;\n@%p1 activemask.b32 %r2;\nst.global.u32 [%at], %r2;",
        |lane| {
            if lane > 20 { 0xffe0_0000 } else { 0xffff_ffff }
        },
    ));
    // Lanes 8 to 15 arrive later, from behind. Only the lower half waits for them.
    cases.push(case(
        "and.b32 %r3, %i, 16;\nshl.b32 %r3, 0xffff, %r3;\nand.b32 %r4, %i, 24;\nsetp.eq.u32 %p1, %r4, 8;\nmov.u32 %r5, 0;\n\
         @%p1 bra LATER;\nHERE:\nredux.sync.add.u32 %r2, %r5, %r3;\nst.global.u32 [%at], %r2;\nret;\n\
         LATER:\nmov.u32 %r5, 3;\nbra HERE;",
        |lane| if lane < 16 { 24 } else { 0 },
    ));
    // Half of the lanes have exited, and are not waited for.
    cases.push(case(
        "st.global.u64 [%at], 1;\nsetp.ge.u32 %p1, %i, 16;\n@%p1 exit;\nvote.sync.ballot.b32 %r2, 1, 0xffffffff;\nst.global.u32 [%at], %r2;",
        |lane| if lane < 16 { 0xffff } else { 1 },
    ));
    cases
}

#[test]
fn votes_matches_and_reductions_are_those_of_the_members() {
    votes().into_iter().for_each(|(program, of)| program.gives(of));
}

/// `bar.red` of two warps and a half. 9.7.13.1
fn barriers() -> Vec<Case> {
    let mut cases = Vec::new();
    let threads = 80u64;
    for (set, count) in [
        ("setp.lt.u32 %p1, %i, 1000;", threads),
        ("setp.gt.u32 %p1, %i, 1000;", 0),
        ("setp.eq.u32 %p1, %i, 70;", 1),
        ("setp.ge.u32 %p1, %i, 40;", 40),
    ] {
        for not in ["", "!"] {
            let count = if not.is_empty() { count } else { threads - count };
            for bar in ["bar.red", "barrier.cta.red"] {
                // A barrier counts whole warps.
                let lanes = threads.next_multiple_of(32);
                let body = format!(
                    "{set}\n{bar}.and.pred %p2, 1, {not}%p1;\n{bar}.or.pred %p3, 2, {lanes}, {not}%p1;\n\
                     {bar}.popc.u32 %r2, 0, {not}%p1;\nselp.u32 %r3, 1000, 0, %p2;\nselp.u32 %r4, 10000, 0, %p3;\n\
                     add.u32 %r2, %r2, %r3;\nadd.u32 %r2, %r2, %r4;\nst.global.u32 [%at], %r2;"
                );
                let (program, of) = case(&body, move |_| {
                    count + if count == threads { 1000 } else { 0 } + if count > 0 { 10000 } else { 0 }
                });
                let config = Config::linear(1, threads as u32);
                cases.push((Program { len: threads as usize, config, ..program }, of));
            }
        }
    }
    // One warp produces, and one waits for it.
    for wait in ["bar.sync", "barrier.sync"] {
        let (program, of) = case(
            &format!(
                "setp.lt.u32 %p1, %i, 32;\nmov.u64 %rd1, area;\nand.b32 %r2, %i, 31;\nmad.wide.u32 %rd1, %r2, 4, %rd1;\n@!%p1 bra WAIT;\n\
         add.u32 %r3, %i, 100;\nst.shared.u32 [%rd1], %r3;\nbar.arrive 3, 64;\nst.global.u64 [%at], 1;\nret;\nWAIT:\n{wait} 3, 64;\n\
         ld.shared.u32 %r4, [%rd1];\nst.global.u32 [%at], %r4;"
            ),
            |i| if i < 32 { 1 } else { i + 68 },
        );
        let before = ".shared .align 4 .b8 area[128];".to_owned();
        cases.push((Program { before, len: 64, config: Config::linear(1, 64), ..program }, of));
    }
    cases
}

#[test]
fn barriers_reduce_over_all_threads() {
    barriers().into_iter().for_each(|(program, of)| program.gives(of));
}

/// A register's value in a thread, from the numbers of its block and of itself in that.
type OfThread = Box<dyn Fn(u64, u64) -> u64>;

/// Special registers in a grid of 2 × 3 × 2 blocks of 5 × 3 × 4 threads.
fn specials() -> Vec<Case> {
    let split = |n: u64, [x, y, _]: [u64; 3]| [n % x, n / x % y, n / x / y];
    let (grid, block) = ([2, 3, 2], [5u64, 3, 4]);
    let mut registers: Vec<(String, OfThread)> = Vec::new();
    for (axis, name) in ["x", "y", "z"].into_iter().enumerate() {
        registers.push((format!("%tid.{name}"), Box::new(move |_, thread| split(thread, block)[axis])));
        registers.push((format!("%ctaid.{name}"), Box::new(move |number, _| split(number, grid)[axis])));
        registers.push((format!("%ntid.{name}"), Box::new(move |_, _| block[axis])));
        registers.push((format!("%nctaid.{name}"), Box::new(move |_, _| grid[axis])));
    }
    registers.push(("%laneid".to_owned(), Box::new(|_, thread| thread % 32)));
    // On a GPU these are places of the multiprocessor, which change.
    if !driver::is_asked() {
        registers.push(("%warpid".to_owned(), Box::new(|_, thread| thread / 32)));
        registers.push(("%nwarpid".to_owned(), Box::new(|_, _| 2)));
    }
    registers.push(("%lanemask_eq".to_owned(), Box::new(|_, thread| 1 << (thread % 32))));
    registers.push(("%lanemask_lt".to_owned(), Box::new(|_, thread| (1 << (thread % 32)) - 1)));
    registers.push(("%lanemask_le".to_owned(), Box::new(|_, thread| (2 << (thread % 32)) - 1)));
    registers
        .push(("%lanemask_gt".to_owned(), Box::new(|_, thread| 0xffff_ffff & !((2 << (thread % 32)) - 1))));
    registers
        .push(("%lanemask_ge".to_owned(), Box::new(|_, thread| 0xffff_ffff & !((1 << (thread % 32)) - 1))));
    registers.push(("%dynamic_smem_size".to_owned(), Box::new(|_, _| 48)));
    registers.push(("WARP_SZ".to_owned(), Box::new(|_, _| 32)));
    let of = |(name, of): (String, OfThread)| {
        let number = "\
mov.u32 %r2, %ctaid.z;\nmad.lo.u32 %r2, %r2, 3, 0;\nmov.u32 %r3, %ctaid.y;\nadd.u32 %r2, %r2, %r3;\nmov.u32 %r3, %ctaid.x;
mad.lo.u32 %r2, %r2, 2, %r3;\nmov.u32 %r4, %tid.z;\nmov.u32 %r5, %tid.y;\nmad.lo.u32 %r4, %r4, 3, %r5;\nmov.u32 %r5, %tid.x;
mad.lo.u32 %r4, %r4, 5, %r5;\nmad.lo.u32 %r2, %r2, 60, %r4;\nmad.wide.u32 %rd1, %r2, 8, %out;\n";
        let body = format!("{number}mov.u32 %r6, {name};\nst.global.u32 [%rd1], %r6;\nret;");
        let config = Config { grid: [2, 3, 2], block: [5, 3, 4], shared_bytes: 48, ..Config::linear(1, 1) };
        let program = Program { len: 720, config, ..Program::new(body) };
        let of: Box<dyn Fn(u64) -> u64> = Box::new(move |at| of(at / 60, at % 60));
        (program, of)
    };
    registers.into_iter().map(of).collect()
}

#[test]
fn special_registers_number_threads_and_blocks() {
    specials().into_iter().for_each(|(program, of)| program.gives(of));
}

/// The texts of this file.
pub(crate) fn texts() -> Vec<String> {
    let cases = shuffles().into_iter().chain(votes()).chain(barriers()).chain(specials());
    cases.map(|case| case.0.body).collect()
}
