//! Loads and stores of a whole warp whose addresses follow each other, in part or not at all.

use crate::driver;
use crate::program::Program;
use warpline_ptx::Config;

/// The places of the lanes, in units of what a lane accesses, below [`UNITS`].
type Places = fn(u64) -> u64;

const UNITS: u64 = 72;
/// Places at which lanes may load.
const PLACES: [(&str, Places); 10] = [
    ("in order", |lane| lane),
    ("all the same", |_| 3),
    ("each half in order from the same place", |lane| lane % 16),
    ("each half the same", |lane| lane / 16 * 5),
    ("each half in order, apart", |lane| lane % 16 + lane / 16 * 50),
    ("each half in order, the second before the first", |lane| lane % 16 + (1 - lane / 16) * 20),
    ("halves that overlap", |lane| lane % 16 + lane / 16 * 8),
    ("backwards", |lane| 31 - lane),
    ("two apart", |lane| 2 * lane),
    ("one out of order", |lane| if lane == 7 { 60 } else { lane }),
];
const SHAPES: [(u64, u64); 10] =
    [(1, 1), (1, 2), (1, 4), (2, 1), (2, 4), (4, 1), (4, 2), (4, 4), (8, 1), (8, 2)];

fn bytes() -> Vec<u8> {
    (0..UNITS * 16).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 7) as u8).collect()
}

/// The address of a unit is `%rd1` in generic or global memory, and `%r3` in shared memory.
fn program(space: &str, unit: u64, places: Places, access: &str) -> Program {
    let words = UNITS * 16 / 8;
    let offsets = (0..32).map(|lane| places(lane) * unit);
    let data = bytes();
    let data = data.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    let mut body = "add.u64 %rd0, %in, %at;\nld.global.u64 %rd1, [%rd0];\n".to_owned();
    if space == ".shared" {
        body += "mov.u32 %r2, area;\nmad.lo.u32 %r4, %i, 8, %r2;\n";
        for at in (0..words).step_by(32) {
            body += &format!("ld.global.u64 %rd2, [%rd0+{}];\n", 256 + 8 * at);
            body += &format!("st.shared.u64 [%r4+{}], %rd2;\n", 8 * at);
        }
        body += "cvt.u32.u64 %r3, %rd1;\nadd.u32 %r3, %r3, %r2;\n";
    } else {
        body += "add.u64 %rd1, %rd1, %in;\nadd.u64 %rd1, %rd1, 256;\n";
    }
    body += access;
    body += "ret;";
    let before = format!(".shared .align 32 .b8 area[{}];", 8 * words.next_multiple_of(32));
    let mut input: Vec<u64> = offsets.chain(data).collect();
    input.resize(32 + words.next_multiple_of(32) as usize, 0);
    Program { before, input, ..Program::new(body) }
}

fn register(size: u64, at: u64) -> String {
    match size {
        8 => format!("%rd{}", 10 + at),
        4 => format!("%r{}", 10 + at),
        _ => format!("%h{}", 10 + at),
    }
}

fn list(size: u64, n: u64) -> String {
    let names: Vec<String> = (0..n).map(|at| register(size, at)).collect();
    if n == 1 { names[0].clone() } else { format!("{{{}}}", names.join(", ")) }
}

fn vector(n: u64) -> String {
    if n == 1 { String::new() } else { format!(".v{n}") }
}

#[test]
fn loads_find_the_elements_of_each_lane() {
    for space in [".global", "", ".shared"] {
        for (size, n) in SHAPES {
            for (name, places) in PLACES {
                for guard in ["", "@%p1 "] {
                    let (ty, address) = (8 * size, if space == ".shared" { "%r3" } else { "%rd1" });
                    let (list, n_of) = (list(size, n), vector(n));
                    let mut access = "setp.ne.u32 %p1, %i, 5;\n".to_owned();
                    for at in 0..n {
                        let register_bits = if size < 4 { 16 } else { ty };
                        access += &format!("mov.u{register_bits} {}, 77;\n", register(size, at));
                    }
                    access += &format!("{guard}ld{space}{n_of}.u{ty} {list}, [{address}];\n");
                    access += &format!("mad.wide.u32 %rd3, %i, {}, %out;\n", 8 * n);
                    for at in 0..n {
                        let cell = register(size, at);
                        let widen = match size {
                            8 => format!("mov.u64 %rd4, {cell};\n"),
                            4 => format!("cvt.u64.u32 %rd4, {cell};\n"),
                            _ => format!("cvt.u64.u16 %rd4, {cell};\n"),
                        };
                        access += &format!("{widen}st.global.u64 [%rd3+{}], %rd4;\n", 8 * at);
                    }
                    let unit = size * n;
                    let program = Program { len: 32 * n as usize, ..program(space, unit, places, &access) };
                    let data = bytes();
                    for (at, found) in program.run().into_iter().enumerate() {
                        let (lane, element) = (at as u64 / n, at as u64 % n);
                        let start = (places(lane) * unit + element * size) as usize;
                        let element = &data[start..start + size as usize];
                        let loaded = element.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
                        let expected = if guard.is_empty() || lane != 5 { loaded } else { 77 };
                        assert_eq!(found, expected, "lane {lane}, {name}: {}", program.body);
                    }
                }
            }
        }
    }
}

#[test]
fn stores_write_the_elements_of_each_lane() {
    for (size, n) in SHAPES {
        // The lanes of the other places overwrite each other.
        for (name, places) in PLACES.into_iter().filter(|(_, places)| places(0) != places(16)) {
            // On a GPU it is open which of several lanes stores last.
            let are_apart = (0..32).all(|lane| (0..lane).all(|other| places(other) != places(lane)));
            if driver::is_asked() && !are_apart {
                continue;
            }
            for guard in ["", "@%p1 "] {
                let (ty, list, n_of) = (8 * size, list(size, n), vector(n));
                let mut access = "setp.ne.u32 %p1, %i, 5;\n".to_owned();
                for at in 0..n {
                    let cell = register(size, at);
                    access += &format!("mad.lo.u32 %r4, %i, 7, {};\n", 3 + 50 * at);
                    access += &match size {
                        8 => format!("cvt.u64.u32 {cell}, %r4;\n"),
                        4 => format!("mov.u32 {cell}, %r4;\n"),
                        _ => format!("cvt.u16.u32 {cell}, %r4;\n"),
                    };
                }
                access += "sub.u64 %rd1, %rd1, %in;\nsub.u64 %rd1, %rd1, 256;\nadd.u64 %rd1, %rd1, %out;\n";
                access += &format!("{guard}st.global{n_of}.u{ty} [%rd1], {list};\n");
                let unit = size * n;
                let len = (UNITS * unit).div_ceil(8) as usize;
                let program = Program { len, ..program("", unit, places, &access) };
                let mut expected = vec![0; 8 * len];
                for lane in (0..32).filter(|lane| guard.is_empty() || *lane != 5) {
                    for element in 0..n {
                        let start = (places(lane) * unit + element * size) as usize;
                        let value = (lane * 7 + 3 + 50 * element).to_le_bytes();
                        expected[start..start + size as usize].copy_from_slice(&value[..size as usize]);
                    }
                }
                let found: Vec<u8> = program.run().into_iter().flat_map(u64::to_le_bytes).collect();
                assert_eq!(found, expected, "{name}: {}", program.body);
            }
        }
    }
}

#[test]
fn an_access_behind_the_end_fails_whatever_the_places_of_the_lanes() {
    for (name, places) in PLACES {
        for (size, n) in SHAPES {
            let unit = size * n;
            // The end of all memory is behind the output, of one word here.
            let access = format!(
                "add.u64 %rd1, %out, 16;\nld.global.u64 %rd2, [%rd0];\nsub.u64 %rd2, %rd2, {};\n\
                 add.u64 %rd1, %rd1, %rd2;\nld.global{}.u{} {}, [%rd1];\n",
                (0..32).map(places).max().expect("a lane") * unit,
                vector(n),
                8 * size,
                list(size, n)
            );
            let fault = Program { len: 1, ..program("", unit, places, &access) }.try_run();
            let fault = fault.expect_err(name).to_string();
            assert!(fault.contains("memory"), "{name}: {fault}");
        }
    }
}

#[test]
fn values_of_a_block_reach_each_of_its_warps() {
    let body = "\
mov.u32 %r2, %ctaid.x;
mov.u32 %r3, %ctaid.y;
mad.lo.u32 %r4, %r3, 1000, %r2;
setp.gt.u32 %p1, %r2, %r3;
selp.b32 %r5, 7, 9, %p1;
mul.wide.u32 %rd1, %r4, 100;
mov.u32 %r6, %nctaid.x;
mad.lo.u32 %r7, %r3, %r6, %r2;
mov.u32 %r8, %ntid.x;
mov.u32 %r9, %tid.x;
mad.lo.u32 %r7, %r7, %r8, %r9;
cvt.u64.u32 %rd2, %r5;
add.u64 %rd1, %rd1, %rd2;
@%p1 add.u64 %rd1, %rd1, 20;
setp.eq.u32 %p2, %r3, 2;
@%p2 bra LAST;
add.u64 %rd1, %rd1, 40;
LAST:
mad.wide.u32 %rd3, %r7, 8, %out;
st.global.u64 [%rd3], %rd1;
ret;";
    let config = Config { grid: [4, 3, 1], ..Config::linear(1, 70) };
    let program = Program { len: 4 * 3 * 70, config, ..Program::new(body) };
    program.gives(|at| {
        let (x, y) = (at / 70 % 4, at / 280);
        let sum = (y * 1000 + x) * 100 + if x > y { 7 + 20 } else { 9 };
        sum + if y == 2 { 0 } else { 40 }
    });
}
