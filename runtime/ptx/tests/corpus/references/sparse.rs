//! References of kernels on graphs and matrices stored by rows (CSR).

use super::super::manifest::Case;
use super::{Expected, any_order, exact};

pub(crate) fn bfs_step(case: &Case) -> Vec<Expected> {
    let (offsets, columns) = (case.array::<u32>("offsets"), case.array::<u32>("columns"));
    let level: u32 = case.scalar("level");
    let mut levels = case.array::<u32>("levels").to_vec();
    let mut next = Vec::new();
    for &vertex in case.array::<u32>("frontier") {
        let row = offsets[vertex as usize] as usize..offsets[vertex as usize + 1] as usize;
        for &neighbour in &columns[row] {
            if levels[neighbour as usize] == u32::MAX {
                levels[neighbour as usize] = level;
                next.push(neighbour);
            }
        }
    }
    let size = next.len() as u32;
    next.resize(case.array::<u32>("next").len(), 0);
    vec![exact("levels", levels), any_order("next", next), exact("next_size", vec![size])]
}

pub(crate) fn spmv(case: &Case) -> Vec<Expected> {
    let (offsets, columns) = (case.array::<u32>("offsets"), case.array::<u32>("columns"));
    let (values, x) = (case.array::<f32>("values"), case.array::<f32>("x"));
    let product = |row: &[u32]| {
        let entries = row[0] as usize..row[1] as usize;
        entries.fold(0.0_f32, |sum, k| values[k].mul_add(x[columns[k] as usize], sum))
    };
    vec![exact("y", offsets.windows(2).map(product).collect())]
}
