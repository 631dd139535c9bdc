//! References of sorts and of a merge.

use super::super::manifest::Case;
use super::{Expected, exact};

/// Sorts blocks of the array `data` by itself.
pub(crate) fn sort_by_block(case: &Case) -> Vec<Expected> {
    let mut data = case.array::<u32>("data").to_vec();
    data.chunks_mut(2 * case.threads_per_block()).for_each(<[u32]>::sort);
    vec![exact("data", data)]
}

pub(crate) fn radix_pass(case: &Case) -> Vec<Expected> {
    let shift: u32 = case.scalar("shift");
    let mut keys = case.array::<u32>("keys").to_vec();
    keys.chunks_mut(case.threads_per_block()).for_each(|block| block.sort_by_key(|key| key >> shift & 15));
    vec![exact("out", keys)]
}

pub(crate) fn merge(case: &Case) -> Vec<Expected> {
    let mut out = [case.array::<u32>("a"), case.array("b")].concat();
    out.sort();
    vec![exact("out", out)]
}
