//! References of kernels with locks, flags and barriers of their own.

use super::super::manifest::Case;
use super::{Expected, any_order, exact};

pub(crate) fn spin_lock(case: &Case) -> Vec<Expected> {
    let mut totals = case.array::<u32>("totals").to_vec();
    let count = totals.len();
    for (i, &x) in case.array::<u32>("x").iter().enumerate() {
        totals[i % count] = totals[i % count].wrapping_add(x);
    }
    vec![exact("totals", totals), exact("locks", vec![0_u32; count])]
}

pub(crate) fn ticket_lock(case: &Case) -> Vec<Expected> {
    let blocks = case.blocks() as u32;
    vec![
        exact("next", vec![blocks]),
        exact("serving", vec![blocks]),
        exact("length", vec![blocks]),
        any_order("list", (0..blocks).collect()),
    ]
}

pub(crate) fn producer_consumer(case: &Case) -> Vec<Expected> {
    let tiles = case.array::<u32>("x").chunks(case.threads_per_block());
    let consumed = |tile: &[u32]| {
        (0..).zip(tile.iter().rev()).map(|(t, &x)| x.wrapping_mul(x).wrapping_add(t)).collect::<Vec<u32>>()
    };
    vec![exact("y", tiles.flat_map(consumed).collect()), exact("flags", vec![1_u32; case.blocks() / 2])]
}

pub(crate) fn release_acquire(case: &Case) -> Vec<Expected> {
    let messages: Vec<u32> = case.array::<u32>("x").iter().map(|x| x ^ 0x5a5a_5a5a).collect();
    let count = messages.len();
    vec![
        exact("y", messages.clone()),
        exact("messages", messages),
        exact("flags", vec![2_u32; count]),
        exact("handed", vec![count as u32; 2]),
    ]
}

pub(crate) fn grid_barrier(case: &Case) -> Vec<Expected> {
    let arrived = case.scalar::<u32>("rounds") * case.blocks() as u32;
    grid_groups(case).into_iter().chain([exact("arrived", vec![arrived])]).collect()
}

pub(crate) fn grid_groups(case: &Case) -> Vec<Expected> {
    let rounds: u32 = case.scalar("rounds");
    let (mut a, mut b) = (case.array::<u32>("a").to_vec(), case.array::<u32>("b").to_vec());
    for round in 0..rounds {
        let (from, to) = if round % 2 == 0 { (&a, &mut b) } else { (&b, &mut a) };
        for i in 0..from.len() {
            to[i] = from[i].wrapping_add(from[(i + 1) % from.len()]);
        }
    }
    vec![exact("a", a), exact("b", b)]
}

pub(crate) fn ping_pong(case: &Case) -> Vec<Expected> {
    let mut values = case.array::<u32>("data").to_vec();
    // A round of the kernel is a turn of either warp.
    for turn in 0..2 * case.scalar::<u32>("rounds") {
        values = (0..32)
            .map(|lane| values[31 - lane as usize].wrapping_mul(3).wrapping_add(lane + turn % 2))
            .collect();
    }
    vec![exact("data", values)]
}

pub(crate) fn named_barriers(case: &Case) -> Vec<Expected> {
    let halves = case.array::<u32>("x").chunks(64);
    vec![exact("out", halves.map(|half| half.iter().fold(0_u32, |sum, &x| sum.wrapping_add(x))).collect())]
}

pub(crate) fn double_buffer(case: &Case) -> Vec<Expected> {
    let mut y = vec![0_u32; 32];
    for (number, tile) in (1..).zip(case.array::<u32>("x").chunks(32)) {
        for lane in 0..32 {
            y[lane] = y[lane].wrapping_add(tile[31 - lane].wrapping_mul(number));
        }
    }
    vec![exact("y", y)]
}

pub(crate) fn queue(case: &Case) -> Vec<Expected> {
    let steps = |&item: &u32| {
        let (mut value, mut count) = (u64::from(item), 0_u32);
        while value > 1 {
            value = if value % 2 == 0 { value / 2 } else { 3 * value + 1 };
            count += 1;
        }
        count
    };
    let items = case.array::<u32>("items");
    // Each thread takes one place past the end before it returns.
    let head = items.len() + case.threads();
    vec![exact("steps", items.iter().map(steps).collect()), exact("head", vec![head as u32])]
}
