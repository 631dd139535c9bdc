//! References of kernels that print, assert and trap.

use super::super::manifest::Case;
use super::{Expected, exact};

pub(crate) fn print(case: &Case) -> Vec<Expected> {
    let line = |(i, x): (u32, &f32)| {
        let (thread, block) = (i % case.block[0], i / case.block[0]);
        let letter = char::from(b'a' + i as u8);
        format!(
            "thread {thread} of block {block}: {x:.3}, {:x}, {letter}bc",
            0x1234_5678_9abc_u64 + u64::from(i)
        )
    };
    vec![Expected::Lines((0..).zip(case.array("x")).map(line).collect())]
}

pub(crate) fn check(case: &Case) -> Vec<Expected> {
    vec![exact("y", case.array::<u32>("x").iter().map(|x| 2 * x).collect())]
}

pub(crate) fn trap(case: &Case) -> Vec<Expected> {
    vec![exact("y", case.array::<u32>("x").iter().map(|x| x / 2).collect())]
}
