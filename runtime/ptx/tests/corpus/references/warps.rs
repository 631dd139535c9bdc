//! References of kernels whose lanes vote, shuffle and form groups.

use super::super::manifest::Case;
use super::{Expected, any_order, exact};

pub(crate) fn warp_aggregated(case: &Case) -> Vec<Expected> {
    let (x, threshold) = (case.array::<u32>("x"), case.scalar::<u32>("threshold"));
    let mut out: Vec<u32> = (0..).zip(x).filter(|(_, x)| **x > threshold).map(|(i, _)| i).collect();
    let count = out.len() as u32;
    out.resize(x.len(), 0);
    vec![any_order("out", out), exact("count", vec![count])]
}

pub(crate) fn warp_groups(case: &Case) -> Vec<Expected> {
    let (mut peers, mut sums, mut uniform) = (Vec::new(), Vec::new(), Vec::new());
    for (keys, x) in case.array::<u32>("keys").chunks(32).zip(case.array::<u32>("x").chunks(32)) {
        for key in keys {
            let members = || (0..32).filter(|&lane| keys[lane] / 8 == key / 8);
            peers.push(members().fold(0_u32, |group, lane| group | 1 << lane));
            sums.push(members().fold(0_u32, |sum, lane| sum.wrapping_add(x[lane])));
            uniform.push(u32::from(keys.iter().all(|other| other / 64 == keys[0] / 64)));
        }
    }
    vec![exact("peers", peers), exact("sums", sums), exact("uniform", uniform)]
}

pub(crate) fn warp_votes(case: &Case) -> Vec<Expected> {
    let (mut votes, mut moved) = (Vec::new(), Vec::new());
    for warp in case.array::<i32>("x").chunks(32) {
        let ballot = (0..32).filter(|&lane| warp[lane] > 0).fold(0_u32, |ballot, lane| ballot | 1 << lane);
        let any = u32::from(warp.iter().any(|&x| x > 2_000_000_000));
        let all = u32::from(warp.iter().all(|&x| x > -2_000_000_000));
        for lane in 0..32 {
            votes.push(ballot ^ any << 1 ^ all);
            let (first, place) = (lane / 8 * 8, lane % 8);
            let up = if place >= 3 { lane - 3 } else { lane };
            let down = if place + 2 < 8 { lane + 2 } else { lane };
            let terms = [(first, 1), (up, 2), (down, 3), (first + (place ^ 5), 5)];
            moved.push(
                terms.iter().fold(0_i32, |sum, &(lane, k)| sum.wrapping_add(warp[lane].wrapping_mul(k))),
            );
        }
    }
    vec![exact("votes", votes), exact("moved", moved)]
}

pub(crate) fn warp_exchange(case: &Case) -> Vec<Expected> {
    let x = case.array::<u32>("x");
    let block = case.threads_per_block();
    let mixed = |i: usize| x[i ^ 31].wrapping_mul(5).wrapping_add((i % block) as u32);
    vec![exact("y", (0..x.len()).map(|i| mixed(i ^ 16)).collect())]
}

pub(crate) fn warp_two_sides(case: &Case) -> Vec<Expected> {
    let x = case.array::<u32>("x");
    let mut y = Vec::new();
    for warp in x.chunks_exact(32) {
        let value = |x: u32| if x % 2 == 1 { x.wrapping_mul(3) } else { x.wrapping_add(7) };
        let sum = warp.iter().fold(0_u32, |sum, &x| sum.wrapping_add(value(x)));
        y.extend(warp.iter().map(|&x| if x % 2 == 1 { sum.wrapping_mul(5) } else { sum }));
    }
    vec![exact("y", y)]
}
