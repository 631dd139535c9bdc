//! Philox4x32-10, a stateless generator that makes random numbers from a key and a counter.
//!
//! Source: Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11.
//! Key, counter and order of the words are those of cuRAND's device API (`curand_init` and
//! `curand4` of `curandStatePhilox4_32_10_t`):
//! - key: the seed, low word first;
//! - counter: words 0 and 1 are the block's index, low word first; words 2 and 3 are the
//!   subsequence, low word first;
//! - a block is four words; word w of a subsequence is word w mod 4 of block w div 4. `offset`
//!   counts words.
//!
//! Element i of a fill depends on its position in the stream, offset + i, and not on threads. Two
//! fills of halves give the same elements as one fill of the whole.

use crate::convert::size;
use crate::threads::share_out;

/// Words per block.
pub(crate) const BLOCK: usize = 4;

/// The multipliers of each round and, in `WEYL`, the increments of the key between rounds.
///
/// Both are the paper's constants.
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Returns the four random words for a counter and a key: Philox4x32-10, for the host's own draws.
#[inline]
pub fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let products = [0, 1].map(|i| u64::from(MULTIPLIERS[i]) * u64::from(counter[2 * i]));
        let [[low_0, high_0], [low_1, high_1]] = products.map(words);
        counter = [high_1 ^ counter[1] ^ key[0], low_1, high_0 ^ counter[3] ^ key[1], low_0];
    }
    counter
}

/// Returns the low and the high word.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the other half is the other word")]
const fn words(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// The least number of blocks per thread: about 2 ms of uniform numbers, 4 ms of normal ones.
///
/// Two threads halve that time.
const MANY: usize = 1 << 17;

/// Fills `y`: element i is made from word `offset` + i.
///
/// `map` converts the block that contains the word. Element i is the converted value at the word's
/// place in the block.
#[inline]
pub(crate) fn fill(
    seed: u64,
    subsequence: u64,
    offset: u64,
    y: &mut [f32],
    map: impl Fn([u32; BLOCK]) -> [f32; BLOCK] + Sync,
) {
    // `offset` + i has up to 65 bits and its quarter 63, so it never carries into the subsequence.
    let (block, skipped) = (offset / BLOCK as u64, size(offset % BLOCK as u64));
    share_out(y, BLOCK, MANY, |start, y| {
        fill_part(seed, subsequence, block + (start / BLOCK) as u64, skipped, y, &map);
    });
}

/// Fills `y` with elements that start `skipped` words into `block`.
#[inline]
fn fill_part(
    seed: u64,
    subsequence: u64,
    mut block: u64,
    skipped: usize,
    y: &mut [f32],
    map: impl Fn([u32; BLOCK]) -> [f32; BLOCK],
) {
    let [sub_low, sub_high] = words(subsequence);
    let key = words(seed);
    let mut next = || {
        let [low, high] = words(block);
        block += 1;
        map(philox4x32_10([low, high, sub_low, sub_high], key))
    };
    let (head, rest) = y.split_at_mut(if skipped == 0 { 0 } else { (BLOCK - skipped).min(y.len()) });
    if !head.is_empty() {
        head.copy_from_slice(&next()[skipped..skipped + head.len()]);
    }
    let mut blocks = rest.chunks_exact_mut(BLOCK);
    for y in &mut blocks {
        y.copy_from_slice(&next());
    }
    let tail = blocks.into_remainder();
    if !tail.is_empty() {
        tail.copy_from_slice(&next()[..tail.len()]);
    }
}

/// Converts a word to a number in (0, 1]: x·2⁻³² + 2⁻³³ in f32, like cuRAND's `curand_uniform`.
#[inline]
pub(crate) fn unit(x: u32) -> f32 {
    const STEP: f32 = 1.0 / 4_294_967_296.0;
    x as f32 * STEP + STEP / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with the known answers that Random123 publishes (`kat_vectors`, philox 4x32 10).
    #[test]
    fn gives_the_published_answers() {
        assert_eq!(philox4x32_10([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox4x32_10([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32_10([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn each_element_depends_on_its_place_in_the_stream_alone() {
        let map = |words: [u32; 4]| words.map(|x| (x >> 8) as f32);
        let (seed, subsequence) = (0xdead_beef_0123_4567, 0x89ab_cdef_0000_0001);
        let mut whole = [0.0; 41];
        fill(seed, subsequence, 0, &mut whole, map);
        for (i, y) in whole.iter().enumerate() {
            let counter = [i as u32 / 4, 0, 1, 0x89ab_cdef];
            assert_eq!(*y, map(philox4x32_10(counter, [0x0123_4567, 0xdead_beef]))[i % 4]);
        }
        for from in 0..whole.len() {
            for to in from..whole.len() {
                let mut part = vec![0.0; to - from];
                fill(seed, subsequence, from as u64, &mut part, map);
                assert_eq!(part, whole[from..to]);
            }
        }
    }

    #[test]
    fn a_fill_by_several_threads_is_that_of_one() {
        let map = |words: [u32; 4]| words.map(|x| (x >> 8) as f32);
        let (mut one, mut several) = (vec![0.0; 2 * MANY * BLOCK + 5], vec![0.0; 2 * MANY * BLOCK + 5]);
        fill_part(5, 6, 1, 3, &mut one, map);
        fill(5, 6, 7, &mut several, map);
        assert!(one == several);
    }

    #[test]
    fn the_block_index_runs_into_the_second_word_and_no_further() {
        let map = |words: [u32; 4]| words.map(|x| (x >> 8) as f32);
        let mut y = [0.0; 8];
        fill(0, 7, (u64::from(u32::MAX)) * 4, &mut y, map);
        assert_eq!(y[..4], map(philox4x32_10([u32::MAX, 0, 7, 0], [0, 0])));
        assert_eq!(y[4..], map(philox4x32_10([0, 1, 7, 0], [0, 0])));
        fill(0, 7, u64::MAX - 3, &mut y, map);
        assert_eq!(y[4..], map(philox4x32_10([0, 1 << 30, 7, 0], [0, 0])));
    }

    #[test]
    fn unit_numbers_are_above_zero_and_at_most_one() {
        assert_eq!(unit(0), 2.0f32.powi(-33));
        assert_eq!(unit(1 << 31), 0.5);
        assert_eq!(unit(u32::MAX), 1.0);
    }
}
