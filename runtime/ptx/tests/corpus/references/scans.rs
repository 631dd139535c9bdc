//! References of prefix sums.

use super::super::manifest::Case;
use super::{Expected, any_order, exact};

/// Sums from the left that include each element itself.
fn inclusive(values: &[u32]) -> Vec<u32> {
    let mut sum = 0_u32;
    let mut add = |&x: &u32| {
        sum = sum.wrapping_add(x);
        sum
    };
    values.iter().map(&mut add).collect()
}

pub(crate) fn scan_hillis_steele(case: &Case) -> Vec<Expected> {
    let blocks = case.array("x").chunks(case.threads_per_block());
    vec![exact("y", blocks.flat_map(inclusive).collect())]
}

pub(crate) fn scan_blelloch(case: &Case) -> Vec<Expected> {
    let blocks = case.array::<u32>("x").chunks(2 * case.threads_per_block());
    let exclusive = |block: &[u32]| {
        let mut sums = inclusive(block);
        sums.rotate_right(1);
        sums[0] = 0;
        sums
    };
    vec![exact("y", blocks.flat_map(exclusive).collect())]
}

pub(crate) fn segmented_scan(case: &Case) -> Vec<Expected> {
    let (x, links) = (case.array::<u32>("x"), case.array::<u32>("links"));
    let mut y: Vec<u32> = Vec::new();
    for (i, (&x, &link)) in x.iter().zip(links).enumerate() {
        let before = if link == 0 || i % 32 == 0 { 0 } else { y[i - 1] };
        y.push(before.wrapping_add(x));
    }
    vec![exact("y", y)]
}

pub(crate) fn scan_look_back(case: &Case) -> Vec<Expected> {
    let tile = case.threads_per_block();
    let y = inclusive(case.array("x"));
    let prefixes: Vec<u32> = y.iter().skip(tile - 1).step_by(tile).copied().collect();
    vec![
        exact("y", y),
        exact("next", vec![case.blocks() as u32]),
        exact("flags", vec![2_u32; case.blocks()]),
        exact("prefixes", prefixes),
    ]
}

pub(crate) fn compaction(case: &Case) -> Vec<Expected> {
    let x = case.array::<u32>("x");
    let mut out: Vec<u32> = x.iter().copied().filter(|x| x % 2 == 1).collect();
    let count = out.len() as u32;
    out.resize(x.len(), 0);
    vec![any_order("out", out), exact("count", vec![count])]
}
