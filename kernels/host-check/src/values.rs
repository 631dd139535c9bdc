//! Numbers for operands.

const AWKWARD: [f32; 14] = [
    f32::NAN,
    0.0,
    f32::INFINITY,
    -0.0,
    1e-45,
    f32::NEG_INFINITY,
    -3e-39,
    f32::MAX,
    f32::MIN_POSITIVE,
    -f32::MAX,
    1.0,
    -1.0,
    1e-40,
    16_777_217.0,
];

/// Returns `n` numbers between -8 and 8, which are the same for the same `salt`.
pub fn plain(n: usize, salt: u32) -> Vec<f32> {
    (0..n as u32).map(|i| number(i, salt)).collect()
}

/// Returns the numbers of [`plain`], but every third one is a special value, such as NaN, an
/// infinity, a zero or a denormal.
pub fn awkward(n: usize, salt: u32) -> Vec<f32> {
    let at = |i: u32| AWKWARD[(i / 3).wrapping_mul(salt | 1) as usize % AWKWARD.len()];
    (0..n as u32).map(|i| if (i + salt).is_multiple_of(3) { at(i) } else { number(i, salt) }).collect()
}

fn number(i: u32, salt: u32) -> f32 {
    let mixed = (i ^ salt.rotate_left(16)).wrapping_mul(2_654_435_761);
    let mixed = (mixed ^ mixed >> 15).wrapping_mul(0x85eb_ca6b);
    (mixed >> 8) as f32 / (1 << 20) as f32 - 8.0
}
