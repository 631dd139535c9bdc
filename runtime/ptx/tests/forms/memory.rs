//! Loads, stores, addresses and atomic operations: PTX ISA 9.7.9 and 9.7.13.

use crate::driver;
use crate::exact::F32;
use crate::integers::{Int, S32, S64, register};
use crate::program::Program;
use warpline_ptx::Config;

const TYPES: [(&str, u32, bool); 14] = [
    ("b8", 8, false),
    ("u8", 8, false),
    ("s8", 8, true),
    ("b16", 16, false),
    ("u16", 16, false),
    ("s16", 16, true),
    ("b32", 32, false),
    ("u32", 32, false),
    ("s32", 32, true),
    ("f32", 32, false),
    ("b64", 64, false),
    ("u64", 64, false),
    ("s64", 64, true),
    ("f64", 64, false),
];
const SPACES: [&str; 5] = ["", ".global", ".shared", ".local", ".volatile.global"];

fn pattern() -> Vec<u64> {
    (0..128u64).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x80ff_7f00_8001_fe81).collect()
}

/// Each thread loads a vector of each type into registers of each width from each space, and stores
/// the registers. 9.7.9.8: "loaded into a register wider than the type: sign-extended for signed
/// types, zero-extended otherwise".
fn load(space: &str, ty: &str, n: u32, width: u32) -> Program {
    let (reg, name) = match width {
        64 => ("b64", "%rd1"),
        32 => ("b32", "%r1"),
        _ => ("b16", "%h1"),
    };
    let names: Vec<String> = (0..n).map(|at| format!("{name}{at}")).collect();
    let list = if n == 1 { names[0].clone() } else { format!("{{{}}}", names.join(", ")) };
    let vector = if n == 1 { String::new() } else { format!(".v{n}") };
    let mut body = "mad.wide.u32 %rd0, %i, 32, %in;\n".to_owned();
    let address = match space {
        ".shared" | ".local" => {
            // Copied there first. Each lane has its place.
            body += match space {
                ".shared" => "mov.u64 %rd1, area;\nmad.wide.u32 %rd1, %i, 32, %rd1;\n",
                _ => "mov.u64 %rd1, stack;\n",
            };
            for at in 0..4 {
                body += &format!(
                    "ld.global.u64 %rd2, [%rd0+{offset}];\nst{space}.u64 [%rd1+{offset}], %rd2;\n",
                    offset = 8 * at
                );
            }
            "%rd1"
        }
        _ => "%rd0",
    };
    body += &format!("ld{space}{vector}.{ty} {list}, [{address}];\n");
    body += &format!("mad.wide.u32 %rd40, %i, {}, %out;\n", 8 * n);
    for (at, name) in names.iter().enumerate() {
        body += &format!("st.global.{reg} [%rd40+{}], {name};\n", 8 * at);
    }
    body += "ret;";
    let before = match space {
        ".shared" => ".shared .align 32 .b8 area[1024];".to_owned(),
        _ => String::new(),
    };
    let body = if space == ".local" { format!(".local .align 32 .b8 stack[32];\n{body}") } else { body };
    Program { before, input: pattern(), len: 32 * n as usize, ..Program::new(body) }
}

fn word(bytes: &[u8], at: usize, bits: u32) -> u64 {
    let len = bits as usize / 8;
    bytes[at..at + len].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn all_loads() -> Vec<(Program, &'static str, u32, bool, u32, u32)> {
    let mut loads = Vec::new();
    for (at, (ty, bits, signed)) in TYPES.into_iter().enumerate() {
        for n in [1, 2, 4] {
            if n * bits > 128 {
                continue;
            }
            for width in [16, 32, 64] {
                if width < bits || ty.starts_with('f') && width != bits {
                    continue;
                }
                // All spaces for single elements; for vectors they alternate.
                for (number, space) in SPACES.into_iter().enumerate() {
                    if n == 1 || (at + n as usize + width as usize / 16) % SPACES.len() == number {
                        loads.push((load(space, ty, n, width), ty, bits, signed, n, width));
                    }
                }
            }
        }
    }
    loads
}

#[test]
fn loads_extend_each_element_to_its_register() {
    for (program, ty, bits, signed, n, width) in all_loads() {
        let bytes: Vec<u8> = program.input.iter().flat_map(|word| word.to_le_bytes()).collect();
        program.gives(|at| {
            let (lane, element) = (at as usize / n as usize, at as usize % n as usize);
            let value = word(&bytes, lane * 32 + element * bits as usize / 8, bits);
            let value = Int { name: ty, bits, signed }.read(value);
            Int { name: ty, bits: width, signed: false }.write(value)
        });
    }
}

fn all_stores() -> Vec<(Program, u32, u32)> {
    let mut stores = Vec::new();
    for (ty, bits, _) in TYPES {
        for n in [1u32, 2, 4] {
            for width in [16, 32, 64] {
                if n * bits > 128 || width < bits || ty.starts_with('f') && width != bits {
                    continue;
                }
                let (reg, name) = (
                    register(width),
                    match width {
                        64 => "%rd1",
                        32 => "%r1",
                        _ => "%h1",
                    },
                );
                let names: Vec<String> = (0..n).map(|at| format!("{name}{at}")).collect();
                let list = if n == 1 { names[0].clone() } else { format!("{{{}}}", names.join(", ")) };
                let vector = if n == 1 { String::new() } else { format!(".v{n}") };
                let mut body =
                    "mad.wide.u32 %rd0, %i, 32, %in;\nmad.wide.u32 %rd40, %i, 32, %out;\n".to_owned();
                for (at, name) in names.iter().enumerate() {
                    body += &format!("ld.global.{reg} {name}, [%rd0+{}];\n", 8 * at);
                }
                body += &format!("st.global{vector}.{ty} [%rd40+16], {list};\nret;");
                stores.push((Program { input: pattern(), len: 128, ..Program::new(body) }, bits, n));
            }
        }
    }
    stores
}

#[test]
fn stores_write_the_lowest_bits_of_registers_and_nothing_else() {
    for (program, bits, n) in all_stores() {
        program.gives(|at| {
            let (lane, word) = (at as usize / 4, at as usize % 4);
            let mask = u64::MAX >> (64 - bits);
            (0..n as usize).fold(0, |sum, element| {
                let place = 16 + element * bits as usize / 8;
                let value = program.input[lane * 4 + element] & mask;
                if place / 8 == word { sum | value << (place % 8 * 8) } else { sum }
            })
        });
    }
}

/// A program, and what it gives for each lane.
type Case = (Program, fn(u64) -> u64);

fn simple() -> Vec<Case> {
    let mut programs: Vec<Case> = Vec::new();
    let mut add = |before: &str, body: &str, of: fn(u64) -> u64| {
        let body = format!("add.s64 %at, %at, %out;\n{body}\nret;");
        programs.push((Program { before: before.to_owned(), ..Program::new(body) }, of));
    };
    // 9.7.9.3, mov: packs and unpacks.
    add(
        "",
        "or.b32 %r1, %i, 0xabcd1200;\nmov.b32 {%h0, %h1}, %r1;\nmov.b32 %r2, {%h1, %h0};\nst.global.u32 [%at], %r2;",
        |i| ((0xabcd_1200 | i) << 16 | 0xabcd) & 0xffff_ffff,
    );
    add(
        "",
        "cvt.u64.u32 %rd1, %i;\nor.b64 %rd1, %rd1, 0x1234567800000000;\nmov.b64 {%r1, %r2}, %rd1;\nmov.b64 %rd2, {%r2, %r1};\nst.global.u64 [%at], %rd2;",
        |i| i << 32 | 0x1234_5678,
    );
    add(
        "",
        "cvt.u64.u32 %rd1, %i;\nor.b64 %rd1, %rd1, 0x123456789abc0000;\nmov.b64 {%h1, %h2, %h3, %h4}, %rd1;\nmov.b64 %rd2, {%h4, %h3, %h2, %h1};\nst.global.u64 [%at], %rd2;",
        |i| i << 48 | 0x9abc_5678_1234,
    );
    add(
        "",
        ".reg .b8 %c<4>;\nor.b32 %r1, %i, 0xfedcba00;\nmov.b32 {%c0, %c1, %c2, %c3}, %r1;\nmov.b32 %r2, {%c3, %c2, %c1, %c0};\nst.global.u32 [%at], %r2;",
        |i| i << 24 | 0xba_dcfe,
    );
    add(
        "",
        ".reg .b8 %c<4>;\ncvt.u16.u32 %h1, %i;\nor.b16 %h1, %h1, 0x9a00;\nmov.b16 {%c0, %c1}, %h1;\nmov.b16 %h2, {%c1, %c0};\nst.global.u16 [%at], %h2;",
        |i| i << 8 | 0x9a,
    );
    add(
        "",
        "mov.b32 %r1, {%h20, 0x12};\nmov.b32 {_, %h2}, %r1;\ncvt.u32.u16 %r2, %h2;\nst.global.u32 [%at], %r2;",
        |_| 0x12,
    );
    // 9.7.9.3: the address of a variable, and a generic round trip by cvta. 9.7.9.20.
    add(
        ".shared .align 8 .b8 area[512];",
        "mov.u32 %r1, area;\nmad.lo.u32 %r1, %i, 8, %r1;\nst.shared.u32 [%r1+4], %i;\nbar.sync 0;\nmov.u64 %rd1, area;\ncvta.shared.u64 %rd2, %rd1;\nmad.wide.u32 %rd2, %i, 8, %rd2;\nld.u32 %r2, [%rd2+4];\ncvta.to.shared.u64 %rd3, %rd2;\nadd.u32 %r2, %r2, 5;\nst.shared.u32 [%rd3], %r2;\nld.shared.u32 %r3, [%r1];\nst.global.u32 [%at], %r3;",
        |i| i + 5,
    );
    add(
        "",
        ".local .align 8 .b8 stack[16];\nmov.u64 %rd1, stack;\ncvta.local.u64 %rd2, %rd1;\nst.u32 [%rd2+8], %i;\nld.local.u32 %r2, [stack+8];\ncvta.to.local.u64 %rd3, %rd2;\nsub.s64 %rd3, %rd3, %rd1;\ncvt.u32.u64 %r3, %rd3;\nadd.u32 %r2, %r2, %r3;\nst.global.u32 [%at], %r2;",
        |i| i,
    );
    add(
        ".global .align 4 .u32 table[32] = {3, 1, 4, 1, 5};\n.const .align 4 .u32 constants[4] = {10, 20, 30, 40};",
        "and.b32 %r1, %i, 3;\nmov.u64 %rd1, table;\nmad.wide.u32 %rd1, %r1, 4, %rd1;\nld.global.u32 %r2, [%rd1];\nmov.u64 %rd2, constants;\nmad.wide.u32 %rd2, %r1, 4, %rd2;\nld.const.u32 %r3, [%rd2];\ncvta.const.u64 %rd3, %rd2;\nld.u32 %r4, [%rd3];\nadd.u32 %r2, %r2, %r3;\nadd.u32 %r2, %r2, %r4;\ncvta.global.u64 %rd1, %rd1;\nld.u32 %r5, [%rd1];\nadd.u32 %r2, %r2, %r5;\nst.global.u32 [%at], %r2;",
        |i| 20 * (i % 4 + 1) + 2 * [3, 1, 4, 1][i as usize % 4],
    );
    // 9.7.9.19, isspacep
    add(
        ".shared .b8 area[16];\n.global .u32 place;",
        ".local .b8 stack[16];\nmov.u64 %rd1, area;\ncvta.shared.u64 %rd1, %rd1;\nmov.u64 %rd2, stack;\ncvta.local.u64 %rd2, %rd2;\nmov.u64 %rd3, place;\ncvta.global.u64 %rd3, %rd3;\nst.u8 [%rd1], 0;\nst.u8 [%rd2], 0;\n\
         isspacep.shared %p0, %rd1;\nisspacep.shared %p1, %rd2;\nisspacep.shared %p2, %rd3;\nisspacep.local %p3, %rd1;\nisspacep.local %p4, %rd2;\nisspacep.local %p5, %rd3;\nisspacep.global %p6, %rd1;\nisspacep.global %p7, %rd2;\nisspacep.global %p8, %rd3;\nmov.u32 %r2, 0;\n\
         @%p0 add.u32 %r2, %r2, 1;\n@%p1 add.u32 %r2, %r2, 2;\n@%p2 add.u32 %r2, %r2, 4;\n@%p3 add.u32 %r2, %r2, 8;\n@%p4 add.u32 %r2, %r2, 16;\n@%p5 add.u32 %r2, %r2, 32;\n@%p6 add.u32 %r2, %r2, 64;\n@%p7 add.u32 %r2, %r2, 128;\n@%p8 add.u32 %r2, %r2, 256;\nst.global.u32 [%at], %r2;",
        |_| 1 + 16 + 256,
    );
    // 5.1.6.1: "mov.b64 %ptr, buffer; ld.param.u32 %n, [%ptr];" The kernel's parameters are its
    // pointers, so this loads `out` through the address of the second one.
    add(
        "",
        "mov.b64 %rd1, main_in;\nld.param.u64 %rd2, [%rd1+8];\ncvta.param.u64 %rd3, %rd1;\nld.u64 %rd4, [%rd3+8];\nxor.b64 %rd2, %rd2, %out;\nxor.b64 %rd4, %rd4, %out;\nor.b64 %rd2, %rd2, %rd4;\nst.global.u64 [%at], %rd2;",
        |_| 0,
    );
    // Stores of constants and of halves of pairs
    add("", "st.global.f32 [%at], 0f40490FDB;", |_| 0x4049_0fdb);
    add("", "st.global.v2.u32 [%at], {7, %i};", |i| i << 32 | 7);
    add(
        "",
        "st.global.v2.u32 [%at], {%i, %i};\nld.global.v2.u32 {_, %r1}, [%at];\nst.global.u64 [%at], 0;\nst.global.u32 [%at], %r1;",
        |i| i,
    );
    // Policies of the cache, "createpolicy"
    add(
        "",
        "add.u64 %at, %at, 0;\ncreatepolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %rd1, 0.5;\n\
         createpolicy.range.L2::evict_last.b64 %rd2, [%at], 8, 8;\ncreatepolicy.cvt.L2.b64 %rd3, 0x10F0000000000000;\n\
         st.global.L2::cache_hint.u32 [%at], %i, %rd1;\nld.global.L2::cache_hint.u32 %r1, [%at], %rd2;\n\
         atom.global.add.L2::cache_hint.u32 %r2, [%at], %r1, %rd3;\n\
         red.global.add.L2::cache_hint.u32 [%at], %r2, %rd1;",
        |i| 3 * i,
    );
    // 4.5: constants as operands
    add(
        "",
        "cvt.u16.u32 %h1, %i;\nadd.s16 %h1, %h1, -3;\ncvt.s32.s16 %r1, %h1;\nmad.lo.s32 %r1, %r1, -2, 0x10;\n\
         shl.b32 %r2, 1, %i;\nmov.b64 %rd1, {%r1, %r2};\nst.global.u64 [%at], %rd1;",
        |i| (1 << i & 0xffff_ffff) << 32 | (22 - 2 * i as i64) as u64 & 0xffff_ffff,
    );
    add(
        "",
        "cvt.rn.f64.u32 %fd1, %i;\nfma.rn.f64 %fd1, %fd1, 0d3FE0000000000000, -1.5;\nadd.f64 %fd1, %fd1, 2.0;\n\
         setp.lt.f64 %p1, %fd1, 0d4010000000000000;\nselp.f64 %fd1, %fd1, 0dBFF0000000000000, %p1;\n\
         st.global.f64 [%at], %fd1;",
        |i| if i < 7 { (i as f64 / 2.0 + 0.5).to_bits() } else { (-1.0f64).to_bits() },
    );
    add(
        "",
        "cvt.rn.f32.s32 %f1, -5;\ncvt.rn.f32.u32 %f2, %i;\nfma.rn.f32 %f1, %f2, 0f40000000, %f1;\n\
         mul.f32 %f1, %f1, 0fBF800000;\nst.global.f32 [%at], %f1;",
        |i| (5.0 - 2.0 * i as f32).to_bits().into(),
    );
    add(
        "",
        "cvt.u64.u32 %rd1, %i;\nadd.s64 %rd1, %rd1, -8;\nsetp.lt.s64 %p1, %rd1, -1;\nselp.b64 %rd1, %rd1, 0x123456789, %p1;\n\
         st.global.u64 [%at], %rd1;",
        |i| if i < 7 { (i as i64 - 8) as u64 } else { 0x1_2345_6789 },
    );
    // Kinds of loads and stores that are plain here.
    add(
        "",
        "st.relaxed.gpu.global.u32 [%at], %i;\nld.relaxed.gpu.global.u32 %r1, [%at];\nfence.acq_rel.gpu;\nst.release.gpu.global.u32 [%at], %r1;\nmembar.gl;\nmembar.cta;\nmembar.sys;\nfence.sc.gpu;\nld.acquire.gpu.global.u32 %r2, [%at];\nadd.u32 %r2, %r2, 1;\nst.volatile.global.u32 [%at], %r2;\nprefetch.global.L2 [%at];",
        |i| i + 1,
    );
    add(
        "",
        "ld.global.nc.u64 %rd1, [%in];\nldu.global.u64 %rd2, [%in];\nadd.u64 %rd1, %rd1, %rd2;\nst.global.L1::no_allocate.u64 [%at], %rd1;\nld.global.nc.L1::no_allocate.L2::128B.v2.u64 {%rd1, %rd3}, [%in];",
        |_| 0,
    );
    programs
}

#[test]
fn addresses_and_packs_go_round() {
    for (program, of) in simple() {
        program.gives(of);
    }
}

/// The operation, the type, its bits, and the new value of old, b and c.
type Change = fn(u64, u64, u64) -> u64;
/// Generic addresses of variables are multiples of their alignment, also in the frame of a function
/// (PTX ISA 5.4.4, .align).
#[test]
fn variables_are_aligned_as_they_say() {
    let before = "
.shared .align 512 .b8 area[8];
.extern .shared .align 1024 .b8 dynamic[];
.func (.param .b64 r) inner(.param .b32 x) {
.local .align 256 .b8 own[4];
.reg .b64 %a<3>;
mov.u64 %a1, own; cvta.local.u64 %a1, %a1; and.b64 %a2, %a1, 255;
st.param.b64 [r], %a2; ret; }";
    let body = "
.local .align 128 .b8 stack[200];
.param .b32 x; .param .b64 r;
mov.u64 %rd1, area; cvta.shared.u64 %rd1, %rd1; and.b64 %rd1, %rd1, 511;
mov.u64 %rd2, dynamic; cvta.shared.u64 %rd2, %rd2; and.b64 %rd2, %rd2, 1023; or.b64 %rd1, %rd1, %rd2;
mov.u64 %rd2, stack; cvta.local.u64 %rd2, %rd2; and.b64 %rd2, %rd2, 127; or.b64 %rd1, %rd1, %rd2;
st.param.b32 [x], %i; call (r), inner, (x); ld.param.b64 %rd2, [r]; or.b64 %rd1, %rd1, %rd2;
add.u64 %at, %out, %at; st.global.u64 [%at], %rd1; ret;";
    let mut program = Program { before: before.to_owned(), ..Program::new(body) };
    program.config.shared_bytes = 16;
    program.gives(|_| 0);
}

fn atomics() -> Vec<(&'static str, &'static str, u32, Change)> {
    let mut all: Vec<(&str, &str, u32, Change)> = Vec::new();
    for (ty, bits) in [("b32", 32), ("b64", 64)] {
        all.push(("exch", ty, bits, |_, b, _| b));
        all.push(("cas", ty, bits, |old, b, c| if old == b { c } else { old }));
        all.push(("and", ty, bits, |old, b, _| old & b));
        all.push(("or", ty, bits, |old, b, _| old | b));
        all.push(("xor", ty, bits, |old, b, _| old ^ b));
    }
    all.push(("cas", "b16", 16, |old, b, c| if old == b { c } else { old }));
    for (ty, bits) in [("u32", 32), ("s32", 32), ("u64", 64)] {
        all.push(("add", ty, bits, |old, b, _| old.wrapping_add(b)));
    }
    for (ty, bits) in [("u32", 32), ("u64", 64)] {
        all.push(("min", ty, bits, |old, b, _| old.min(b)));
        all.push(("max", ty, bits, |old, b, _| old.max(b)));
    }
    all.push(("min", "s32", 32, |old, b, _| if S32.read(b) < S32.read(old) { b } else { old }));
    all.push(("max", "s32", 32, |old, b, _| if S32.read(b) > S32.read(old) { b } else { old }));
    all.push(("min", "s64", 64, |old, b, _| if S64.read(b) < S64.read(old) { b } else { old }));
    all.push(("max", "s64", 64, |old, b, _| if S64.read(b) > S64.read(old) { b } else { old }));
    all.push(("inc", "u32", 32, |old, b, _| if old >= b { 0 } else { old + 1 }));
    all.push(("dec", "u32", 32, |old, b, _| if old == 0 || old > b { b } else { old - 1 }));
    all.push(("add", "f32", 32, |old, b, _| {
        (f32::from_bits(old as u32) + f32::from_bits(b as u32)).to_bits().into()
    }));
    all.push(("add", "f64", 64, |old, b, _| (f64::from_bits(old) + f64::from_bits(b)).to_bits()));
    all.push(("add.noftz", "f16", 16, |old, b, _| half(crate::exact::F16, old, b)));
    all.push(("add.noftz", "bf16", 16, |old, b, _| half(crate::exact::BF16, old, b)));
    all.push(("add.noftz", "f16x2", 32, |old, b, _| pair(crate::exact::F16, old, b)));
    all.push(("add.noftz", "bf16x2", 32, |old, b, _| pair(crate::exact::BF16, old, b)));
    all
}

fn flushed_sum(old: u64, b: u64, _: u64) -> u64 {
    let flushed = |bits| f32::from_bits(F32.flush(bits) as u32);
    F32.flush((flushed(old) + flushed(b)).to_bits().into())
}

fn half(format: crate::exact::Format, a: u64, b: u64) -> u64 {
    let sum = format.read(a).plus(&format.read(b), crate::exact::Mode::Nearest);
    format.round(&sum, crate::exact::Mode::Nearest).unwrap_or_default()
}

fn pair(format: crate::exact::Format, a: u64, b: u64) -> u64 {
    half(format, a & 0xffff, b & 0xffff) | half(format, a >> 16, b >> 16) << 16
}

fn atomic_program(operation: &str, ty: &str, bits: u32, space: &str, has_old: bool) -> Program {
    let (r, kind) = match bits {
        64 => ("%rd1", "b64"),
        32 => ("%r1", "b32"),
        _ => ("%h1", "b16"),
    };
    let order = if has_old { ".acq_rel.gpu" } else { ".relaxed.gpu" };
    let mut body = "mad.wide.u32 %rd0, %i, 24, %in;\nmad.wide.u32 %rd2, %i, 16, %out;\n".to_owned();
    for at in 0..3 {
        body += &format!("ld.global.{kind} {r}{at}, [%rd0+{}];\n", 8 * at);
    }
    body += match space {
        ".shared" => "mov.u64 %rd3, area;\nmad.wide.u32 %rd3, %i, 8, %rd3;\n",
        _ => "mov.u64 %rd3, %rd2;\n",
    };
    body += &format!("st{space}.{kind} [%rd3], {r}0;\n");
    let c = if operation == "cas" { format!(", {r}2") } else { String::new() };
    if has_old {
        body += &format!("atom{order}{space}.{operation}.{ty} {r}4, [%rd3], {r}1{c};\n");
    } else {
        body += &format!("red{order}{space}.{operation}.{ty} [%rd3], {r}1;\nmov.{kind} {r}4, {r}0;\n");
    }
    body += &format!(
        "ld{space}.{kind} {r}5, [%rd3];\nst.global.{kind} [%rd2], {r}5;\nst.global.{kind} [%rd2+8], {r}4;\nret;"
    );
    Program { before: ".shared .align 8 .b8 area[2048];".to_owned(), ..Program::new(body) }
}

fn atomic_programs() -> Vec<(Program, u32, &'static str, Change)> {
    let mut programs = Vec::new();
    for (operation, ty, bits, of) in atomics() {
        for space in ["", ".global", ".shared"] {
            // PTX ISA 9.7.13.5, atom: on global memory, f32 is flushed on some GPUs, as on an H100.
            let is_flushed = driver::is_gpu() && (operation, ty) == ("add", "f32") && space != ".shared";
            let of = if is_flushed { flushed_sum as Change } else { of };
            programs.push((atomic_program(operation, ty, bits, space, true), bits, ty, of));
            if !["exch", "cas"].contains(&operation) {
                programs.push((atomic_program(operation, ty, bits, space, false), bits, ty, of));
            }
        }
    }
    programs
}

#[test]
fn atomic_operations_return_the_old_value_and_store_the_new_one() {
    for (program, bits, ty, of) in atomic_programs() {
        // Floats without NaN, whose bits are open.
        let edges: Vec<u64> = match ty {
            "f32" => vec![0, 0x8000_0000, 1, 0x3f80_0000, 0xbf80_0000, 0x7f7f_ffff, 0x3380_0000],
            "f64" => vec![0, 1 << 63, 1, 0x3ff0 << 48, 0xbff0 << 48, 0x7fef_ffff_ffff_ffff, 0x3ca0 << 48],
            "f16" | "f16x2" => vec![0, 0x8000, 1, 0x3c00, 0xbc00, 0x3c00_7bff, 0x1000_3c01],
            "bf16" | "bf16x2" => vec![0, 0x8000, 1, 0x3f80, 0xbf80, 0x3f80_7f7f, 0x3b80_3f81],
            _ => vec![0, 1, 5, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, u64::MAX, 1 << 63],
        };
        let mask = u64::MAX >> (64 - bits);
        let mut inputs = Vec::new();
        for &old in &edges {
            for &b in &edges {
                for c in [b, 77] {
                    inputs.push([old & mask, b & mask, c & mask]);
                }
            }
        }
        let lanes = inputs.len().next_multiple_of(64);
        inputs.resize(lanes, [0; 3]);
        let program = Program {
            input: inputs.iter().flatten().copied().collect(),
            len: 2 * lanes,
            config: Config::linear(1, lanes as u32),
            ..program
        };
        program.gives(|at| {
            let [old, b, c] = inputs[at as usize / 2];
            if at % 2 == 1 { old } else { of(old, b, c) & mask }
        });
    }
}

#[test]
fn lanes_change_one_place_one_after_the_other() {
    let program = contended();
    let found = program.run();
    let mut old: Vec<u64> = found[..128].to_vec();
    old.sort_unstable();
    assert_eq!(old, (0..128).collect::<Vec<u64>>());
}

fn contended() -> Program {
    let body = "atom.global.add.u32 %r1, [%in], 1;\nadd.s64 %at, %at, %out;\nst.global.u32 [%at], %r1;\nret;";
    Program { len: 128, config: Config { threads: 2, ..Config::linear(2, 64) }, ..Program::new(body) }
}

/// The texts of this file.
pub(crate) fn texts() -> Vec<String> {
    let loads = all_loads().into_iter().map(|load| load.0.body);
    let stores = all_stores().into_iter().map(|store| store.0.body);
    let simple = simple().into_iter().map(|program| program.0.body);
    let atomics = atomic_programs().into_iter().map(|program| program.0.body);
    loads.chain(stores).chain(simple).chain(atomics).chain([contended().text()]).collect()
}
