//! References of kernels that try functions of numbers and bits.

use half::{bf16, f16};

use super::super::manifest::Case;
use super::{Expected, exact, within};

pub(crate) fn math(case: &Case) -> Vec<Expected> {
    let x = case.array::<f32>("x");
    let row = |function: &dyn Fn(f32) -> f64| x.iter().map(|&a| function(a) as f32).collect::<Vec<f32>>();
    let positive = |a: f32| f64::from(a.abs() + 0.25);
    let precise = [
        row(&|a| f64::from(4.0 * a).exp()),
        row(&|a| positive(a).ln()),
        row(&|a| f64::from(4.0 * a).sin()),
        row(&|a| f64::from(1e6 * a).sin()),
        row(&|a| positive(a).powf(f64::from(a))),
        row(&|a| positive(a).sqrt().recip()),
        row(&|a| f64::from(a).tanh()),
        row(&|a| f64::from(positive(a).sqrt() as f32) / f64::from(2.0 + a)),
    ];
    let fast = [
        row(&|a| f64::from(4.0 * a).exp()),
        row(&|a| positive(a).ln()),
        row(&|a| f64::from(a).sin()),
        row(&|a| f64::from(a).cos()),
        row(&|a| f64::from(a) / positive(a)),
    ];
    let exponential = x.iter().map(|&a| (10.0 * f64::from(a)).exp()).collect();
    // CUDA promises at most 4 units in the last place for the precise functions, which is 5e-7. The
    // fast ones have an absolute error of up to 2^-21.4.
    vec![
        within(5e-7, 1e-12, "precise", precise.concat()),
        within(2e-6, 5e-7, "fast", fast.concat()),
        within(1e-15, 0.0, "exponential", exponential),
    ]
}

pub(crate) fn conversions(case: &Case) -> Vec<Expected> {
    let (x, wide) = (case.array::<f32>("x"), case.array::<f64>("wide"));
    let rounded =
        |function: &dyn Fn(f32) -> f32| x.iter().map(|&x| function(100.0 * x) as i32).collect::<Vec<i32>>();
    let integers = [
        rounded(&f32::round_ties_even),
        rounded(&f32::trunc),
        rounded(&f32::ceil),
        rounded(&f32::floor),
        rounded(&|a| 1e8 * a),
        rounded(&|a| a.round_ties_even() + a.trunc() + a.ceil() + a.floor()),
    ];
    let toward_zero = |wide: f64| {
        let nearest = wide as f32;
        if f64::from(nearest).abs() > wide.abs() { f32::from_bits(nearest.to_bits() - 1) } else { nearest }
    };
    let narrow = [
        wide.iter().map(|&wide| wide as f32).collect::<Vec<f32>>(),
        wide.iter().map(|&wide| toward_zero(wide)).collect(),
        x.iter().map(|x| (100.0 * x).clamp(0.0, 1.0)).collect(),
        wide.iter().map(|wide| (1e15 * wide) as i64 as f32).collect(),
    ];
    vec![exact("rounded", integers.concat()), exact("narrow", narrow.concat())]
}

pub(crate) fn bits(case: &Case) -> Vec<Expected> {
    let (x, y) = (case.array::<u32>("x"), case.array::<u32>("y"));
    let n = x.len();
    let mut out = vec![0; 12 * n];
    for (i, (&a, &b)) in x.iter().zip(y).enumerate() {
        let both = u64::from(a) << 32 | u64::from(b);
        let field = a >> 5 & 0x1ff;
        let inserted = b & !(0xfff << 7) | (a & 0xfff) << 7;
        let logic = a & b | !a & a.wrapping_add(b);
        let (signed_a, signed_b) = (a as i32, b as i32);
        let unsigned_dots = (0..4).map(|k| byte(a, k) * byte(b, k)).sum::<u32>() + 1000;
        let signed_dots = (0..4).map(|k| i32::from(byte(a, k) as i8) * byte(b, k) as i32).sum::<i32>() - 1000;
        let values = [
            a.count_ones() + both.count_ones(),
            (a >> (b & 31)).leading_zeros() + (both >> (a & 31)).leading_zeros(),
            first_set(u64::from(a << (b & 31))) + first_set(both << (b & 31)),
            a.reverse_bits() ^ (both.reverse_bits() >> 16) as u32,
            ((u64::from(b) << 32 | u64::from(a)) << (a & 31) >> 32) as u32,
            ((u64::from(b) << 32 | u64::from(a)) >> (b & 63).min(32)) as u32,
            // `__byte_perm` uses three bits of each selector.
            permuted(a, b, (0x5207 + (a & 0x88)) & 0x7777),
            unsigned_dots,
            signed_dots as u32,
            high(u64::from(a) * u64::from(b))
                .wrapping_add(high((i64::from(signed_a) * i64::from(signed_b)) as u64)),
            field.wrapping_add(inserted).wrapping_add(logic),
            (signed_a.max(-1000).min(signed_b) as u32)
                .wrapping_add(signed_a.abs_diff(signed_b))
                .wrapping_add(i as u32),
        ];
        for (row, value) in values.into_iter().enumerate() {
            out[row * n + i] = value;
        }
    }
    vec![exact("out", out)]
}

fn byte(word: u32, k: u32) -> u32 {
    word >> (8 * k) & 0xff
}

fn high(product: u64) -> u32 {
    (product >> 32) as u32
}

/// The place of the lowest set bit, counted from one; zero if there is none.
fn first_set(bits: u64) -> u32 {
    if bits == 0 { 0 } else { bits.trailing_zeros() + 1 }
}

/// Bytes of two words, by a selector of four bits each. The selector's high bit replaces a byte by
/// copies of its sign.
fn permuted(a: u32, b: u32, selectors: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    let selected = |k: u32| {
        let selector = selectors >> (4 * k) & 15;
        let byte = (bytes >> (8 * (selector & 7))) as u8;
        if selector & 8 == 0 { byte } else { (byte as i8 >> 7) as u8 }
    };
    u32::from_le_bytes([selected(0), selected(1), selected(2), selected(3)])
}

pub(crate) fn carry(case: &Case) -> Vec<Expected> {
    let (a, b, c) = (case.array::<u64>("a"), case.array::<u64>("b"), case.array::<u64>("c"));
    let sums: Vec<u128> =
        (0..a.len()).map(|i| u128::from(a[i]) * u128::from(b[i]) + u128::from(c[i])).collect();
    let words = sums.iter().flat_map(|sum| (0..4).map(move |k| (sum >> (32 * k)) as u32)).collect();
    vec![
        exact("high", sums.iter().map(|sum| (sum >> 64) as u64).collect()),
        exact("low", sums.iter().map(|&sum| sum as u64).collect()),
        exact::<u32>("by_words", words),
    ]
}

pub(crate) fn half_bfloat(case: &Case) -> Vec<Expected> {
    let (x, y) = (case.array::<f32>("x"), case.array::<f32>("y"));
    let (mut alone, mut pairs, mut back) = (Vec::new(), Vec::new(), Vec::new());
    for (&x, &y) in x.iter().zip(y) {
        let (a, b) = (f16::from_f32(x), f16::from_f32(y));
        let sum = fused(a, b, a);
        alone.push(sum.to_bits());
        pairs.push(u32::from(fused(b, sum, b).to_bits()) << 16 | u32::from(sum.to_bits()));
        back.push(a.to_f32());
    }
    let bfloat = x.iter().map(|&x| bf16::from_f32(x).to_bits()).collect();
    vec![exact("alone", alone), exact("pairs", pairs), exact("back", back), exact("bfloat", bfloat)]
}

/// `a * b + c`, rounded once. A double holds the product exactly, and the sum unless it has halves
/// of very different sizes.
fn fused(a: f16, b: f16, c: f16) -> f16 {
    let sum = a.to_f64() * b.to_f64() + c.to_f64();
    let near = f16::from_f64(sum).to_bits();
    let distance = |bits: &u16| (f16::from_bits(*bits).to_f64() - sum).abs();
    let candidates = [near.saturating_sub(1), near, near + 1];
    let best = candidates.into_iter().min_by(|a, b| {
        let ties_to_even = (a & 1).cmp(&(b & 1));
        distance(a).total_cmp(&distance(b)).then(ties_to_even)
    });
    f16::from_bits(best.unwrap())
}
