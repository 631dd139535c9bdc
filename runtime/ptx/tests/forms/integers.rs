//! Integer arithmetic: PTX ISA 9.7.1 and 9.7.2.

use crate::program::Program;
use crate::table::{Form, Want, check};

/// A type of integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Int {
    pub(crate) name: &'static str,
    pub(crate) bits: u32,
    pub(crate) signed: bool,
}

const fn int(name: &'static str, bits: u32, signed: bool) -> Int {
    Int { name, bits, signed }
}

pub(crate) const U8: Int = int("u8", 8, false);
pub(crate) const S8: Int = int("s8", 8, true);
pub(crate) const U16: Int = int("u16", 16, false);
pub(crate) const S16: Int = int("s16", 16, true);
pub(crate) const U32: Int = int("u32", 32, false);
pub(crate) const S32: Int = int("s32", 32, true);
pub(crate) const U64: Int = int("u64", 64, false);
pub(crate) const S64: Int = int("s64", 64, true);
pub(crate) const ALL: [Int; 6] = [U16, S16, U32, S32, U64, S64];

impl Int {
    /// The integer with these bits.
    pub(crate) fn read(self, bits: u64) -> i128 {
        let unused = 128 - self.bits;
        let shifted = u128::from(bits) << unused;
        if self.signed { shifted as i128 >> unused } else { (shifted >> unused) as i128 }
    }

    /// The lowest bits of an integer.
    pub(crate) fn write(self, x: i128) -> u64 {
        (x as u128 & (u128::MAX >> (128 - self.bits))) as u64
    }

    pub(crate) fn min(self) -> i128 {
        if self.signed { -(1 << (self.bits - 1)) } else { 0 }
    }

    pub(crate) fn max(self) -> i128 {
        (1 << (self.bits - u32::from(self.signed))) - 1
    }

    pub(crate) fn register(self) -> &'static str {
        register(self.bits)
    }

    pub(crate) fn edges(self) -> Vec<u64> {
        let (min, max) = (self.min(), self.max());
        let middle = 1i128 << (self.bits - 1);
        let all = [
            0,
            1,
            2,
            3,
            -1,
            -2,
            -3,
            7,
            -7,
            10,
            min,
            min + 1,
            max,
            max - 1,
            middle,
            middle - 1,
            middle / 2,
            0x5a,
            0xa5a5_5a5a_a5a5_5a5a_i128,
            1_234_567_891,
            0xff,
            0x100,
            0xffff,
            0x7fff,
            0xff_ffff,
        ];
        let mut edges: Vec<u64> = all.iter().map(|x| self.write(*x)).collect();
        edges.sort_unstable();
        edges.dedup();
        edges
    }

    /// Fewer edges, for three sources.
    pub(crate) fn few(self) -> Vec<u64> {
        let (min, max) = (self.min(), self.max());
        let all =
            [0, 1, 2, -1, -7, min, max, 1i128 << (self.bits - 1), 0xa5a5_5a5a_a5a5_5a5a_i128, 0x1234_5678];
        let mut edges: Vec<u64> = all.iter().map(|x| self.write(*x)).collect();
        edges.sort_unstable();
        edges.dedup();
        edges
    }
}

pub(crate) fn register(bits: u32) -> &'static str {
    match bits {
        64 => "b64",
        32 => "b32",
        _ => "b16",
    }
}

/// A form whose result and sources have one type.
fn same(opcode: &str, ty: Int, n: usize, of: impl Fn(&[i128]) -> i128 + 'static) -> Form {
    let edges = if n == 3 { ty.few() } else { ty.edges() };
    let sources = vec![(ty.register(), &edges[..]); n];
    Form::new(format!("{opcode}.{}", ty.name), ty.register(), &sources, move |input| {
        let input: Vec<i128> = input.iter().map(|x| ty.read(*x)).collect();
        Want::Bits(ty.write(of(&input)))
    })
}

fn wide(ty: Int) -> Int {
    ALL.into_iter().find(|wide| wide.bits == 2 * ty.bits && wide.signed == ty.signed).expect("it has one")
}

fn saturated(x: i128) -> i128 {
    x.clamp(S32.min(), S32.max())
}

pub(crate) fn arithmetic() -> Vec<Form> {
    let mut forms = Vec::new();
    for ty in ALL {
        // 9.7.1.1 to 9.7.1.4
        forms.push(same("add", ty, 2, |x| x[0] + x[1]));
        forms.push(same("sub", ty, 2, |x| x[0] - x[1]));
        forms.push(same("mul.lo", ty, 2, |x| x[0].wrapping_mul(x[1])));
        forms.push(same("mul.hi", ty, 2, move |x| mul_hi(ty, x[0], x[1])));
        forms.push(same("mad.lo", ty, 3, |x| x[0].wrapping_mul(x[1]).wrapping_add(x[2])));
        forms.push(same("mad.hi", ty, 3, move |x| mul_hi(ty, x[0], x[1]) + x[2]));
        if ty.bits < 64 {
            let double = wide(ty);
            let (edges, few, more) = (ty.edges(), ty.few(), double.few());
            let (narrow, register) = (ty.register(), double.register());
            forms.push(Form::new(
                format!("mul.wide.{}", ty.name),
                register,
                &[(narrow, &edges), (narrow, &edges)],
                move |x| Want::Bits(double.write(ty.read(x[0]) * ty.read(x[1]))),
            ));
            forms.push(Form::new(
                format!("mad.wide.{}", ty.name),
                register,
                &[(narrow, &few), (narrow, &few), (register, &more)],
                move |x| Want::Bits(double.write(ty.read(x[0]) * ty.read(x[1]) + double.read(x[2]))),
            ));
        }
        // 9.7.1.7
        forms.push(same("sad", ty, 3, |x| x[2] + (x[0] - x[1]).abs()));
        // 9.7.1.8 and 9.7.1.9: division by zero yields an unspecified value. That of min by -1
        // overflows.
        let divided = |name: &str, of: fn(i128, i128) -> i128| {
            let edges = ty.edges();
            let sources = [(ty.register(), &edges[..]); 2];
            Form::new(format!("{name}.{}", ty.name), ty.register(), &sources, move |x| match ty.read(x[1]) {
                0 => Want::Any,
                b => Want::Bits(ty.write(of(ty.read(x[0]), b))),
            })
        };
        forms.push(divided("div", |a, b| a / b));
        forms.push(divided("rem", |a, b| a % b));
        // 9.7.1.10 to 9.7.1.13
        if ty.signed {
            forms.push(same("abs", ty, 1, |x| x[0].abs()));
            forms.push(same("neg", ty, 1, |x| -x[0]));
        }
        forms.push(same("min", ty, 2, |x| x[0].min(x[1])));
        forms.push(same("max", ty, 2, |x| x[0].max(x[1])));
    }
    forms.push(same("add.sat", S32, 2, |x| saturated(x[0] + x[1])));
    forms.push(same("sub.sat", S32, 2, |x| saturated(x[0] - x[1])));
    forms.push(same("mad.hi.sat", S32, 3, |x| saturated(((x[0] * x[1]) >> 32) + x[2])));
    forms.push(same("min.relu", S32, 2, |x| x[0].min(x[1]).max(0)));
    forms.push(same("max.relu", S32, 2, |x| x[0].max(x[1]).max(0)));
    // NVRTC writes them in this form.
    let opcode = |opcode: &str, form| Form { opcode: opcode.to_owned(), ..form };
    forms.push(opcode("min.s32.relu", same("min.relu", S32, 2, |x| x[0].min(x[1]).max(0))));
    forms.push(opcode("max.s32.relu", same("max.relu", S32, 2, |x| x[0].max(x[1]).max(0))));
    forms
}

fn mul_hi(ty: Int, a: i128, b: i128) -> i128 {
    if ty == U64 { ((a as u128 * b as u128) >> 64) as i128 } else { (a * b) >> ty.bits }
}

/// 9.7.1.5 and 9.7.1.6. Operands of more than 24 bits are undefined.
pub(crate) fn of_24_bits() -> Vec<Form> {
    let mut forms = Vec::new();
    for ty in [U32, S32] {
        let all: &[i128] = if ty.signed {
            &[0, 1, -1, 2, -2, 0x7f_ffff, -0x80_0000, -0x7f_ffff, 0x12_3456, -0x65_4321]
        } else {
            &[0, 1, 2, 0xff_ffff, 0xff_fffe, 0x80_0000, 0x7f_ffff, 0x12_3456]
        };
        let edges: Vec<u64> = all.iter().map(|x| ty.write(*x)).collect();
        for (part, shift) in [("lo", 0), ("hi", 16)] {
            let (two, three) =
                ([("b32", &edges[..]); 2], [("b32", &edges[..]), ("b32", &edges), ("b32", &ty.few())]);
            let product = move |x: &[u64]| {
                let bits = (ty.read(x[0]) * ty.read(x[1])) >> shift;
                ty.read(ty.write(bits))
            };
            forms.push(Form::new(format!("mul24.{part}.{}", ty.name), "b32", &two, move |x| {
                Want::Bits(ty.write(product(x)))
            }));
            forms.push(Form::new(format!("mad24.{part}.{}", ty.name), "b32", &three, move |x| {
                Want::Bits(ty.write(product(x) + ty.read(x[2])))
            }));
            if ty.signed && shift == 16 {
                forms.push(Form::new("mad24.hi.sat.s32", "b32", &three, move |x| {
                    Want::Bits(ty.write(saturated(product(x) + ty.read(x[2]))))
                }));
            }
        }
    }
    forms
}

/// 9.7.1.23 and 9.7.1.24
pub(crate) fn dot_products() -> Vec<Form> {
    let edges = [0, 0x0102_0304, 0x7f80_ff01, 0xffff_ffff, 0x8080_8080, 0x1234_5678, 0xdead_beef];
    let sums = [0, 1, 0xffff_ffff, 0x7fff_ffff, 0x8000_0000];
    let sources = [("b32", &edges[..]), ("b32", &edges), ("b32", &sums)];
    let part = |x: u64, at: u32, bits: u32, signed: bool| {
        let ty = int("", bits, signed);
        ty.read(x >> (at * bits) & ((1 << bits) - 1))
    };
    let mut forms = Vec::new();
    for a in [U32, S32] {
        for b in [U32, S32] {
            forms.push(Form::new(format!("dp4a.{}.{}", a.name, b.name), "b32", &sources, move |x| {
                let products = (0..4).map(|at| part(x[0], at, 8, a.signed) * part(x[1], at, 8, b.signed));
                Want::Bits(U32.write(i128::from(x[2]) + products.sum::<i128>()))
            }));
            for (half, first) in [("lo", 0), ("hi", 2)] {
                let opcode = format!("dp2a.{half}.{}.{}", a.name, b.name);
                forms.push(Form::new(opcode, "b32", &sources, move |x| {
                    let product = |at| part(x[0], at, 16, a.signed) * part(x[1], first + at, 8, b.signed);
                    Want::Bits(U32.write(i128::from(x[2]) + product(0) + product(1)))
                }));
            }
        }
    }
    forms
}

/// A chain of instructions with the carry between them, on two words. 9.7.2.
pub(crate) struct Chain {
    pub(crate) first: &'static str,
    pub(crate) second: &'static str,
    bits: u32,
    /// The result on two words of a, b and c of two words each, and its carry.
    of: fn(u128, u128, u128) -> (u128, bool),
}

pub(crate) const CHAINS: [Chain; 15] = [
    Chain { first: "add.cc.u32", second: "addc.u32", bits: 32, of: add_64 },
    Chain { first: "add.cc.u32", second: "addc.cc.u32", bits: 32, of: add_64 },
    Chain { first: "add.cc.s32", second: "addc.cc.s32", bits: 32, of: add_64 },
    Chain { first: "add.cc.u64", second: "addc.u64", bits: 64, of: |a, b, _| a.overflowing_add(b) },
    Chain { first: "add.cc.u64", second: "addc.cc.u64", bits: 64, of: |a, b, _| a.overflowing_add(b) },
    Chain { first: "add.cc.s64", second: "addc.cc.s64", bits: 64, of: |a, b, _| a.overflowing_add(b) },
    Chain { first: "sub.cc.u32", second: "subc.u32", bits: 32, of: subtract_64 },
    Chain { first: "sub.cc.s32", second: "subc.cc.s32", bits: 32, of: subtract_64 },
    Chain { first: "sub.cc.u64", second: "subc.u64", bits: 64, of: |a, b, _| a.overflowing_sub(b) },
    Chain { first: "sub.cc.s64", second: "subc.cc.s64", bits: 64, of: |a, b, _| a.overflowing_sub(b) },
    // The product of the lower halves, plus c.
    Chain { first: "mad.lo.cc.u32", second: "madc.hi.u32", bits: 32, of: multiply_32 },
    Chain { first: "mad.lo.cc.u32", second: "madc.hi.cc.u32", bits: 32, of: multiply_32 },
    Chain { first: "mad.lo.cc.u64", second: "madc.hi.u64", bits: 64, of: multiply_64 },
    Chain { first: "mad.lo.cc.u64", second: "madc.hi.cc.u64", bits: 64, of: multiply_64 },
    Chain {
        first: "mad.lo.cc.s32",
        second: "madc.hi.s32",
        bits: 32,
        of: |a, b, c| {
            let product = S32.read(a as u64 & 0xffff_ffff) * S32.read(b as u64 & 0xffff_ffff);
            ((product as u128).wrapping_add(c), false)
        },
    },
];

fn add_64(a: u128, b: u128, _: u128) -> (u128, bool) {
    (a + b, (a + b) >> 64 != 0)
}

fn subtract_64(a: u128, b: u128, _: u128) -> (u128, bool) {
    (a.wrapping_sub(b), a < b)
}

fn multiply_32(a: u128, b: u128, c: u128) -> (u128, bool) {
    let sum = (a & 0xffff_ffff) * (b & 0xffff_ffff) + c;
    (sum, sum >> 64 != 0)
}

fn multiply_64(a: u128, b: u128, c: u128) -> (u128, bool) {
    let low = u128::from(u64::MAX);
    ((a & low) * (b & low)).overflowing_add(c)
}

impl Chain {
    fn is_read(&self) -> bool {
        self.second.contains(".cc")
    }

    fn program(&self, inputs: &[[u64; 6]]) -> Program {
        let (r, ty) = if self.bits == 32 { ("%r", "b32") } else { ("%rd", "b64") };
        let mut body = "mad.wide.u32 %rd50, %i, 48, %in;\nmad.wide.u32 %rd51, %i, 24, %out;\n".to_owned();
        for at in 0..6 {
            body += &format!("ld.global.{ty} {r}{at}, [%rd50+{}];\n", 8 * at);
        }
        // The second mad takes the same factors: the halves of one product.
        let second = if self.first.starts_with("mad") {
            body += &format!("{} {r}10, {r}0, {r}2, {r}4;\n", self.first);
            format!("{} {r}11, {r}0, {r}2, {r}5;\n", self.second)
        } else {
            body += &format!("{} {r}10, {r}0, {r}2;\n", self.first);
            format!("{} {r}11, {r}1, {r}3;\n", self.second)
        };
        let last = if self.first.starts_with("sub") { "subc" } else { "addc" };
        body += &second;
        body += &format!("{last}.u{} {r}12, 0, 0;\n", self.bits);
        for at in 0..3 {
            body += &format!("st.global.{ty} [%rd51+{}], {r}1{at};\n", 8 * at);
        }
        body += "ret;";
        let mut input: Vec<u64> = inputs.iter().flatten().copied().collect();
        let lanes = inputs.len().next_multiple_of(32);
        input.resize(lanes * 6, 0);
        let config = warpline_ptx::Config::linear((lanes / 32) as u32, 32);
        Program { input, len: 3 * lanes, config, ..Program::new(body) }
    }
}

#[test]
fn carries_chain_over_words() {
    for chain in &CHAINS {
        let ty = if chain.bits == 32 { U32 } else { U64 };
        let edges: Vec<u64> =
            [0, 1, 2, -1, -2, 1i128 << (chain.bits - 1)].iter().map(|x| ty.write(*x)).collect();
        let mut inputs = Vec::new();
        for &a in &edges {
            for &b in &edges {
                for &c in &edges {
                    for &d in &edges {
                        inputs.push([a, c, b, d, c, d]);
                    }
                }
            }
        }
        let found = chain.program(&inputs).run();
        for (at, input) in inputs.iter().enumerate() {
            let join = |low: u64, high: u64| u128::from(low) | u128::from(high) << chain.bits;
            let [a, b, c] = [(0, 1), (2, 3), (4, 5)].map(|(low, high)| join(input[low], input[high]));
            let (words, carry) = (chain.of)(a, b, c);
            let carry = if chain.first.starts_with("sub") { -i128::from(carry) } else { carry.into() };
            let expected =
                [ty.write(words as i128), ty.write((words >> chain.bits) as i128), ty.write(carry)];
            let len = if chain.is_read() { 3 } else { 2 };
            assert_eq!(
                found[3 * at..][..len],
                expected[..len],
                "{} {} of {input:x?}",
                chain.first,
                chain.second
            );
        }
    }
}

/// NVRTC's division of 128-bit integers compares by `sub.cc` and `subc.cc`, and reads the flag by
/// `addc`.
#[test]
fn the_flag_after_a_subtraction_is_one_where_nothing_was_borrowed() {
    let body = "sub.cc.u32 %r3, %i, 7; subc.cc.u32 %r4, 0, 0; addc.u32 %r5, 0, 0;
        add.cc.u32 %r6, %i, -7; subc.u32 %r7, 0, 0; mov.b64 %rd0, {%r5, %r7};
        add.u64 %at, %at, %out; st.global.u64 [%at], %rd0; ret;";
    // Adding -7 carries where subtracting 7 borrows nothing, and the flag is 1 for both.
    Program::new(body).gives(|lane| if lane >= 7 { 1 } else { 0xffff_ffff << 32 });
}

#[test]
fn integer_arithmetic_is_that_of_the_isa() {
    check(arithmetic());
}

#[test]
fn products_of_24_bits_are_those_of_the_isa() {
    check(of_24_bits());
}

#[test]
fn dot_products_are_those_of_the_isa() {
    check(dot_products());
}
