//! Matrices that a warp holds together: PTX ISA 9.7.14.
//!
//! The host spreads the factors over the lanes by the formulas of the ISA, which are written out
//! here for each shape, and multiplies the matrices itself. The elements are small integers, so the
//! results are exact.

use crate::program::Program;
use half::{bf16, f16};
use warpline_ptx::Config;

/// The bits of a number in a format.
type Bits = fn(i32) -> u64;

/// The place (row, column) of element `i` of a fragment, from `g = lane / 4` and `t = lane % 4`.
type Position = fn(usize, usize, usize) -> (usize, usize);

struct Case {
    opcode: &'static str,
    shape: [usize; 3],
    /// The bits of an element of A and B, and of C and D.
    bits: (usize, usize),
    places: [Position; 3],
    factor: Bits,
    sum: Bits,
}

/// 9.7.14.5.7 and 9.7.14.5.8: m16n8k8 and m16n8k16, `ci` of both.
const SUM: Position = |g, t, i| (if i < 2 { g } else { g + 8 }, t * 2 + (i & 1));

fn f16_of(x: i32) -> u64 {
    f16::from_f32(x as f32).to_bits().into()
}

fn bf16_of(x: i32) -> u64 {
    bf16::from_f32(x as f32).to_bits().into()
}

fn f32_of(x: i32) -> u64 {
    (x as f32).to_bits().into()
}

fn f64_of(x: i32) -> u64 {
    f64::from(x).to_bits()
}

fn s8_of(x: i32) -> u64 {
    (x as u8).into()
}

fn s32_of(x: i32) -> u64 {
    (x as u32).into()
}

const HALF_K8: [Position; 3] =
    [|g, t, i| (if i < 2 { g } else { g + 8 }, t * 2 + (i & 1)), |g, t, i| (t * 2 + i, g), SUM];
const HALF_K16: [Position; 3] = [
    |g, t, i| {
        let row = if i < 2 || (4..6).contains(&i) { g } else { g + 8 };
        (row, if i < 4 { t * 2 + (i & 1) } else { t * 2 + (i & 1) + 8 })
    },
    |g, t, i| (if i < 2 { t * 2 + (i & 1) } else { t * 2 + (i & 1) + 8 }, g),
    SUM,
];
/// 9.7.14.5.6: m16n8k4.
const TF32_K4: [Position; 3] = [|g, t, i| (if i == 0 { g } else { g + 8 }, t), |g, t, _| (t, g), SUM];
const TF32_K8: [Position; 3] = [
    |g, t, i| (if i == 0 || i == 2 { g } else { g + 8 }, if i < 2 { t } else { t + 4 }),
    |g, t, i| (if i == 0 { t } else { t + 4 }, g),
    SUM,
];
/// 9.7.14.5.3: m8n8k16.
const S8_M8: [Position; 3] = [|g, t, i| (g, t * 4 + i), |g, t, i| (t * 4 + i, g), |g, t, i| (g, t * 2 + i)];
const S8_K16: [Position; 3] =
    [|g, t, i| (if i < 4 { g } else { g + 8 }, t * 4 + (i & 3)), |g, t, i| (t * 4 + i, g), SUM];
/// 9.7.14.5.10: m16n8k32.
const S8_K32: [Position; 3] = [
    |g, t, i| {
        let row = if i < 4 || (8..12).contains(&i) { g } else { g + 8 };
        (row, if i < 8 { t * 4 + (i & 3) } else { t * 4 + (i & 3) + 16 })
    },
    |g, t, i| (if i < 4 { t * 4 + (i & 3) } else { t * 4 + (i & 3) + 16 }, g),
    SUM,
];
/// 9.7.14.5.2: m8n8k4 with `.f64`.
const F64: [Position; 3] = [|g, t, _| (g, t), |g, t, _| (t, g), |g, t, i| (g, t * 2 + (i & 1))];

const CASES: [Case; 11] = [
    Case {
        opcode: "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32",
        shape: [16, 8, 8],
        bits: (16, 32),
        places: HALF_K8,
        factor: f16_of,
        sum: f32_of,
    },
    Case {
        opcode: "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16",
        shape: [16, 8, 8],
        bits: (16, 16),
        places: HALF_K8,
        factor: f16_of,
        sum: f16_of,
    },
    Case {
        opcode: "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        shape: [16, 8, 16],
        bits: (16, 32),
        places: HALF_K16,
        factor: f16_of,
        sum: f32_of,
    },
    Case {
        opcode: "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16",
        shape: [16, 8, 16],
        bits: (16, 16),
        places: HALF_K16,
        factor: f16_of,
        sum: f16_of,
    },
    Case {
        opcode: "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
        shape: [16, 8, 16],
        bits: (16, 32),
        places: HALF_K16,
        factor: bf16_of,
        sum: f32_of,
    },
    Case {
        opcode: "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32",
        shape: [16, 8, 4],
        bits: (32, 32),
        places: TF32_K4,
        factor: f32_of,
        sum: f32_of,
    },
    Case {
        opcode: "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
        shape: [16, 8, 8],
        bits: (32, 32),
        places: TF32_K8,
        factor: f32_of,
        sum: f32_of,
    },
    Case {
        opcode: "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32",
        shape: [8, 8, 16],
        bits: (8, 32),
        places: S8_M8,
        factor: s8_of,
        sum: s32_of,
    },
    Case {
        opcode: "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32",
        shape: [16, 8, 16],
        bits: (8, 32),
        places: S8_K16,
        factor: s8_of,
        sum: s32_of,
    },
    Case {
        opcode: "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32",
        shape: [16, 8, 32],
        bits: (8, 32),
        places: S8_K32,
        factor: s8_of,
        sum: s32_of,
    },
    Case {
        opcode: "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64",
        shape: [8, 8, 4],
        bits: (64, 64),
        places: F64,
        factor: f64_of,
        sum: f64_of,
    },
];

/// A matrix of small integers, by rows.
fn matrix(rows: usize, columns: usize, seed: i32) -> Vec<i32> {
    (0..(rows * columns) as i32).map(|at| (at * 7 + at / 5 + seed) % 9 - 4).collect()
}

fn product([m, n, k]: [usize; 3], a: &[i32], b: &[i32], c: &[i32]) -> Vec<i32> {
    let at = |row: usize, column: usize| {
        c[row * n + column] + (0..k).map(|k_at| a[row * k + k_at] * b[k_at * n + column]).sum::<i32>()
    };
    (0..m * n).map(|place| at(place / n, place % n)).collect()
}

/// The registers of each lane that hold a matrix, as words.
fn spread(
    values: &[i32],
    [rows, columns]: [usize; 2],
    bits: usize,
    place: Position,
    of: Bits,
) -> Vec<Vec<u64>> {
    let in_register = (32 / bits).max(1);
    let count = rows * columns / 32;
    (0..32)
        .map(|lane| {
            let mut registers = vec![0; count.div_ceil(in_register)];
            for i in 0..count {
                let (row, column) = place(lane / 4, lane % 4, i);
                registers[i / in_register] |= of(values[row * columns + column]) << (i % in_register * bits);
            }
            registers
        })
        .collect()
}

#[test]
fn a_product_is_spread_over_the_lanes_as_the_isa_states() {
    for Case { opcode, shape, bits, places, factor, sum } in CASES {
        let [m, n, k] = shape;
        let (a, b, c) = (matrix(m, k, 1), matrix(k, n, 2), matrix(m, n, 3));
        let spread_factor = |values: &[i32], size, place| spread(values, size, bits.0, place, factor);
        let spread_sum = |values: &[i32]| spread(values, [m, n], bits.1, places[2], sum);
        let lists =
            [spread_factor(&a, [m, k], places[0]), spread_factor(&b, [k, n], places[1]), spread_sum(&c)];
        let expected = spread_sum(&product(shape, &a, &b, &c));
        let per_lane: usize = lists.iter().map(|list| list[0].len()).sum();
        let results = expected[0].len();
        let (register, ty) = if bits.0 == 64 { ("%rd", "u64") } else { ("%r", "u32") };
        let mut body = format!("mul.wide.u32 %rd50, %i, {};\nadd.u64 %rd50, %rd50, %in;\n", 8 * per_lane);
        for at in 0..per_lane {
            body += &format!("ld.global.{ty} {register}{}, [%rd50+{}];\n", 10 + at, 8 * at);
        }
        let names = |first: usize, count: usize| {
            let names: Vec<String> = (first..first + count).map(|at| format!("{register}{at}")).collect();
            format!("{{{}}}", names.join(", "))
        };
        let [a, b, c] = [0, 1, 2].map(|list| lists[list][0].len());
        body += &format!(
            "{opcode} {}, {}, {}, {};\n",
            names(40, results),
            names(10, a),
            names(10 + a, b),
            names(10 + a + b, c)
        );
        body += &format!("mul.wide.u32 %rd50, %i, {};\nadd.u64 %rd50, %rd50, %out;\n", 8 * results);
        for at in 0..results {
            body += &format!("st.global.{ty} [%rd50+{}], {register}{};\n", 8 * at, 40 + at);
        }
        let input = (0..32).flat_map(|lane| lists.iter().flat_map(move |list| list[lane].clone())).collect();
        let program = Program { input, len: 32 * results, ..Program::new(body + "ret;") };
        assert_eq!(program.run(), expected.concat(), "{opcode}");
    }
}

/// Matrices in memory, multiplied by `wmma`. Rows of the first are 20 elements apart.
#[test]
fn wmma_multiplies_matrices_in_memory() {
    // The opcodes' type and shape, and the registers of A, B and the sum.
    let cases = [
        ("f16", [16, 16, 16], 8, 8, 8),
        ("f16", [8, 32, 16], 8, 8, 8),
        ("f16", [32, 8, 16], 8, 8, 8),
        ("bf16", [16, 16, 16], 4, 4, 8),
        ("bf16", [8, 32, 16], 2, 8, 8),
        ("s8", [16, 16, 16], 2, 2, 8),
        ("s8", [32, 8, 16], 4, 1, 8),
    ];
    for (ty, shape, a_len, b_len, sum_len) in cases {
        let [m, n, k] = shape;
        let (a, b, c) = (matrix(m, k, 1), matrix(k, n, 2), matrix(m, n, 3));
        let (bytes, of, sum, sum_of): (usize, Bits, _, Bits) = match ty {
            "f16" => (2, f16_of, "f32", f32_of),
            "bf16" => (2, bf16_of, "f32", f32_of),
            _ => (1, s8_of, "s32", s32_of),
        };
        let mut memory = Vec::new();
        let mut put = |values: &mut dyn Iterator<Item = u64>, bytes: usize| {
            let start = memory.len();
            values.for_each(|value| memory.extend(&value.to_le_bytes()[..bytes]));
            memory.resize(memory.len().next_multiple_of(32), 0);
            start
        };
        // A by rows of 20 elements, B by columns, C by rows.
        let padded = |at: usize| if at % 20 < k { a[at / 20 * k + at % 20] } else { 0 };
        let a_at = put(&mut (0..20 * m).map(|at| of(padded(at))), bytes);
        let b_at = put(&mut (0..n * k).map(|at| of(b[at % k * n + at / k])), bytes);
        let c_at = put(&mut c.iter().map(|value| sum_of(*value)), 4);
        let input =
            memory.chunks(8).map(|chunk| u64::from_le_bytes(chunk.try_into().expect("8 bytes"))).collect();
        let shape_name = format!("m{m}n{n}k{k}");
        let names = |first: usize, count: usize| {
            let names: Vec<String> = (first..first + count).map(|at| format!("%r{at}")).collect();
            format!("{{{}}}", names.join(", "))
        };
        let (a_names, b_names, d_names) = (names(10, a_len), names(20, b_len), names(30, sum_len));
        let types = if ty == "f16" { "f32.f32".to_owned() } else { format!("{sum}.{ty}.{ty}.{sum}") };
        let body = format!(
            "\
wmma.load.a.sync.aligned.row.{shape_name}.global.{ty} {a_names}, [%in+{a_at}], 20;
wmma.load.b.sync.aligned.col.{shape_name}.global.{ty} {b_names}, [%in+{b_at}];
wmma.load.c.sync.aligned.row.{shape_name}.global.{sum} {d_names}, [%in+{c_at}], {n};
wmma.mma.sync.aligned.row.col.{shape_name}.{types} {d_names}, {a_names}, {b_names}, {d_names};
wmma.store.d.sync.aligned.row.{shape_name}.global.{sum} [%out], {d_names}, {n};
ret;"
        );
        let program = Program { input, len: m * n / 2, ..Program::new(body) };
        let expected: Vec<u64> = product(shape, &a, &b, &c)
            .chunks(2)
            .map(|pair| sum_of(pair[0]) | sum_of(pair[1]) << 32)
            .collect();
        assert_eq!(program.run(), expected, "{ty} {shape_name}");
    }
}

/// Stores numbers in rows, moves them by `ldmatrix` and `stmatrix`, and writes the registers and a
/// row of the copy of each lane.
fn rows_text(suffix: &str) -> String {
    format!(
        "\
.shared .align 16 .b8 rows[512];
.shared .align 16 .b8 copy[512];
mul.lo.u32 %r1, %i, 16;
mov.u32 %r2, rows;
add.u32 %r2, %r2, %r1;
mul.lo.u32 %r3, %i, 8;
mov.u32 %r4, 0;
LOOP:
add.u32 %r5, %r3, %r4;
cvt.u16.u32 %h1, %r5;
st.shared.u16 [%r2], %h1;
add.u32 %r2, %r2, 2;
add.u32 %r4, %r4, 1;
setp.lt.u32 %p1, %r4, 8;
@%p1 bra LOOP;
bar.sync 0;
mov.u32 %r2, rows;
add.u32 %r2, %r2, %r1;
ldmatrix.sync.aligned.m8n8.x4{suffix}.shared.b16 {{%r10, %r11, %r12, %r13}}, [%r2];
mov.u32 %r2, copy;
add.u32 %r2, %r2, %r1;
stmatrix.sync.aligned.m8n8.x4{suffix}.shared.b16 [%r2], {{%r10, %r11, %r12, %r13}};
bar.sync 0;
ld.shared.v4.u32 {{%r20, %r21, %r22, %r23}}, [%r2];
mul.wide.u32 %rd1, %i, 32;
add.u64 %rd1, %rd1, %out;
st.global.v4.u32 [%rd1], {{%r10, %r11, %r12, %r13}};
st.global.v4.u32 [%rd1+16], {{%r20, %r21, %r22, %r23}};
ret;"
    )
}

pub(crate) fn texts() -> Vec<String> {
    let products = CASES.iter().map(|case| format!("{} ;", case.opcode));
    products.chain([rows_text(""), rows_text(".trans")]).collect()
}

/// 9.7.14.5.15 and 9.7.14.5.16. Element (row, column) of matrix `r` is `64 * r + 8 * row + column`.
#[test]
fn ldmatrix_and_stmatrix_move_rows_of_8() {
    for (suffix, is_transposed) in [("", false), (".trans", true)] {
        let body = rows_text(suffix);
        let program = Program { len: 128, ..Program::new(body) };
        let element = |r: usize, lane: usize, i: usize| {
            let (row, column) = (lane / 4, lane % 4 * 2 + i);
            let (row, column) = if is_transposed { (column, row) } else { (row, column) };
            (64 * r + 8 * row + column) as u64
        };
        let register = |r: usize, lane: usize| element(r, lane, 0) | element(r, lane, 1) << 16;
        // A lane's row of the copy holds eight numbers in order, as it did at first.
        let kept = |lane: usize, at: usize| {
            let first = (8 * lane + 4 * at) as u64;
            (0..4).map(|i| (first + i) << (16 * i)).sum::<u64>()
        };
        let expected: Vec<u64> = (0..32)
            .flat_map(|lane| {
                let pair = |r| register(r, lane) | register(r + 1, lane) << 32;
                [pair(0), pair(2), kept(lane, 0), kept(lane, 1)]
            })
            .collect();
        assert_eq!(program.run(), expected, "{suffix}");
    }
}

#[test]
fn wmma_checks_each_element_that_it_loads() {
    let names: Vec<String> = (10..18).map(|at| format!("%r{at}")).collect();
    let body = format!(
        "wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {{{}}}, [%in], 16;\nret;",
        names.join(", ")
    );
    // 64 words have 256 halves, and 63 have fewer.
    Program { input: vec![0; 64], len: 0, ..Program::new(body.clone()) }.run();
    let short = Program { input: vec![0; 62], len: 0, config: Config::linear(1, 32), ..Program::new(body) };
    let fault = short.try_run().expect_err("it reads behind the memory").to_string();
    assert!(fault.contains("element 62 of memory, and it has 62 elements"), "{fault}");
}
