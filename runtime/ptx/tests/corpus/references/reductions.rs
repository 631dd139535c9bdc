//! References of sums, histograms and other combinations of many values.

use super::super::manifest::Case;
use super::{Expected, exact, within};

fn sum(values: &[u32]) -> u32 {
    values.iter().fold(0, |sum, &x| sum.wrapping_add(x))
}

pub(crate) fn reduce_by_block(case: &Case) -> Vec<Expected> {
    let blocks = case.array("x").chunks(case.threads_per_block());
    vec![exact("out", blocks.map(sum).collect())]
}

pub(crate) fn reduce_last_block(case: &Case) -> Vec<Expected> {
    vec![exact("out", vec![sum(case.array("x"))]), exact("finished", vec![0_u32])]
}

pub(crate) fn histogram(case: &Case) -> Vec<Expected> {
    let mut counts = vec![0_u32; 256];
    for &x in case.array::<u8>("x") {
        counts[usize::from(x)] += 1;
    }
    vec![exact("counts", counts)]
}

pub(crate) fn cluster_histogram(case: &Case) -> Vec<Expected> {
    histogram(case)
}

pub(crate) fn float_atomic(case: &Case) -> Vec<Expected> {
    let buckets = case.scalar::<u32>("buckets") as usize;
    let mut wide = vec![0.0_f64; buckets];
    for (i, &x) in case.array::<f32>("x").iter().enumerate() {
        wide[i % buckets] += f64::from(x);
    }
    let sums = wide.iter().map(|&sum| sum as f32).collect();
    vec![within(0.0, 1e-4, "sums", sums), within(0.0, 1e-12, "wide", wide)]
}

pub(crate) fn max_by_cas(case: &Case) -> Vec<Expected> {
    let largest = case.array::<f32>("x").iter().copied().fold(case.scalar::<f32>("largest"), f32::max);
    vec![exact("largest", vec![largest])]
}

pub(crate) fn atomic_kinds(case: &Case) -> Vec<Expected> {
    let mut words = case.array::<u32>("words").to_vec();
    let mut numbers = case.array::<i32>("numbers").to_vec();
    let mut wide = case.array::<u64>("wide").to_vec();
    for (i, &value) in (0..).zip(case.array::<u32>("x")) {
        let both = u64::from(value) << 20 | i;
        words[0] = words[0].wrapping_add(value);
        words[1] = words[1].wrapping_sub(value);
        words[2] = words[2].min(value);
        words[3] = words[3].max(value);
        words[4] &= value | 0xff;
        words[5] |= value & 0xff0;
        words[6] ^= value;
        words[7] = if words[7] >= 100 { 0 } else { words[7] + 1 };
        words[8] = if words[8] == 0 || words[8] > 100 { 100 } else { words[8] - 1 };
        numbers[0] = numbers[0].min(value as i32);
        numbers[1] = numbers[1].max(value as i32);
        wide[0] = wide[0].wrapping_add(both);
        wide[1] = wide[1].max(both);
        wide[2] ^= both;
        if i == 7 {
            wide[3] = both;
        }
    }
    wide[4] = 1;
    wide[5] = 1;
    vec![exact("words", words), exact("numbers", numbers), exact("wide", wide)]
}
