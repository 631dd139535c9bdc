//! References of kernels with loops, searches, jump tables and calls.

use super::super::manifest::Case;
use super::{Expected, exact};

pub(crate) fn mandelbrot(case: &Case) -> Vec<Expected> {
    let (width, height, limit) =
        (case.scalar::<u32>("width"), case.scalar::<u32>("height"), case.scalar::<u32>("limit"));
    let count = |column: u32, row: u32| {
        let (real, imaginary) = (column as f32 * 0.0625 - 2.0, row as f32 * 0.125 - 1.0);
        let (mut x, mut y, mut count) = (0.0_f32, 0.0_f32, 0);
        while count < limit && x * x + y * y <= 4.0 {
            (x, y) = (x * x - y * y + real, 2.0 * x * y + imaginary);
            count += 1;
        }
        count
    };
    vec![exact("counts", (0..width * height).map(|i| count(i % width, i / width)).collect())]
}

pub(crate) fn binary_search(case: &Case) -> Vec<Expected> {
    let (keys, queries) = (case.array::<u32>("keys"), case.array::<u32>("queries"));
    let place = |query: &u32| keys.partition_point(|key| key < query) as u32;
    vec![exact("places", queries.iter().map(place).collect())]
}

pub(crate) fn switch_table(case: &Case) -> Vec<Expected> {
    let apply = |operation: u32, value: u32, i: u32, _: u32| match operation {
        0 => value.wrapping_add(i),
        1 => value.wrapping_mul(0x9e37_79b1),
        2 => value ^ value >> 15,
        3 => value.reverse_bits(),
        4 => value / 7,
        _ => !value,
    };
    vec![exact("y", after_operations(case, apply))]
}

pub(crate) fn switch_tree(case: &Case) -> Vec<Expected> {
    fn apply(operation: u32, value: u32, i: u32, step: u32) -> u32 {
        match operation {
            0 => value.wrapping_add(i),
            1 => apply(2, value.wrapping_mul(2_654_435_761), i, step),
            2 => value ^ value >> 15,
            3 => value.reverse_bits(),
            4 => value / 7 + 1,
            5 => apply(6, value.wrapping_sub(step), i, step),
            6 => value.count_ones() << step,
            7 => value % 1000,
            8 => value.rotate_left(3),
            9 => value & 0x00ff_ff00,
            10 => value.min(123_456_789),
            11 => value.wrapping_mul(value).wrapping_add(1),
            _ => !value,
        }
    }
    vec![exact("y", after_operations(case, apply))]
}

/// Each element after its list of operations. `apply` gets the operation, the value, the element's
/// index and the step.
fn after_operations(case: &Case, apply: impl Fn(u32, u32, u32, u32) -> u32) -> Vec<u32> {
    let steps: u32 = case.scalar("steps");
    let lists = case.array::<u32>("operations").chunks(steps as usize);
    let elements = (0..).zip(case.array::<u32>("x").iter().zip(lists));
    let after = |(i, (&x, list)): (u32, (&u32, &[u32]))| {
        (0..).zip(list).fold(x, |value, (step, &operation)| apply(operation, value, i, step))
    };
    elements.map(after).collect()
}

pub(crate) fn recursion(case: &Case) -> Vec<Expected> {
    fn fibonacci(n: u32) -> u32 {
        if n < 2 { n } else { fibonacci(n - 1) + fibonacci(n - 2) }
    }
    vec![exact("out", (0..case.scalar("n")).map(|i| fibonacci(i % 12)).collect())]
}

pub(crate) fn function_pointers(case: &Case) -> Vec<Expected> {
    let columns: u32 = case.scalar("columns");
    let rows = case.array::<u32>("x").chunks(columns as usize).enumerate();
    let fold = |(row, values): (usize, &[u32])| {
        values.iter().fold(0_u32, |folded, &x| match row % 4 {
            0 => folded.wrapping_add(x),
            1 => folded.wrapping_mul(x).wrapping_add(1),
            2 => folded.max(x),
            _ => folded ^ x,
        })
    };
    vec![exact("out", rows.map(fold).collect())]
}

pub(crate) fn local_array(case: &Case) -> Vec<Expected> {
    let words: u32 = case.scalar("words");
    let mut out = Vec::new();
    for words in case.array::<u32>("x").chunks(words as usize) {
        let mut counts = [0_u32; 16];
        for &word in words {
            let digits = 8 - word.leading_zeros() / 4;
            (0..digits).for_each(|k| counts[(word >> (4 * k) & 15) as usize] += 1);
        }
        let most = *counts.iter().max().unwrap();
        let digit = counts.iter().position(|&count| count == most).unwrap();
        out.extend([digit as u32, most]);
    }
    vec![exact("out", out)]
}

pub(crate) fn generic_pointers(case: &Case) -> Vec<Expected> {
    let mut x = case.array::<u32>("x").to_vec();
    let mut y = Vec::new();
    for (i, words) in x.chunks_mut(8).enumerate() {
        let (global, shared, local) = (words[0], words[0].wrapping_add(1), words[0].wrapping_add(2));
        let (added, firsts) = match i % 3 {
            0 => (0, local.wrapping_add(shared)),
            1 => (1, local.wrapping_add(shared).wrapping_add(1)),
            _ => (2, local.wrapping_add(1).wrapping_add(shared)),
        };
        let weighted =
            (1..).zip(words.iter()).map(|(k, &word): (u32, _)| word.wrapping_add(added).wrapping_mul(k));
        y.push(weighted.fold(firsts, u32::wrapping_add));
        if i % 3 == 0 {
            words[0] = global.wrapping_add(1);
        }
    }
    vec![exact("x", x), exact("y", y)]
}
