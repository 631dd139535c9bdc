//! Conversions that would be casts, each with the reason why it loses nothing or what it rounds.

const _: () = assert!(usize::BITS == 64, "sizes of launches are u64, and memory has them");

/// Returns a size of a launch as a length in memory.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "usize has 64 bits, as asserted above")]
pub(crate) const fn size(n: u64) -> usize {
    n as usize
}

/// Returns the nearest f32, ties to even.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "rounding is its purpose")]
pub(crate) const fn rounded(x: f64) -> f32 {
    x as f32
}
