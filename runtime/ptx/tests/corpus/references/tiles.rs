//! References of kernels that share tiles of their operands.

use super::super::manifest::Case;
use super::{Expected, exact, within};
use half::f16;

/// The blocks of a cluster are beside each other in x, then in y.
pub(crate) fn cluster_stencil(case: &Case) -> Vec<Expected> {
    let x = case.array::<u32>("x");
    let [width, ..] = case.grid.map(|blocks| blocks as usize);
    let mut y = vec![0; x.len()];
    for cluster in 0..width / 2 {
        let place = |i: usize| {
            let (block, thread) = (i / 64, i % 64);
            (block / 2 * width + 2 * cluster + block % 2) * 64 + thread
        };
        for i in 0..256_usize {
            let near = [i.checked_sub(1), Some(i), Some(i + 1).filter(|i| *i < 256)];
            y[place(i)] = near.into_iter().flatten().fold(0, |sum: u32, i| sum.wrapping_add(x[place(i)]));
        }
    }
    vec![exact("y", y)]
}

pub(crate) fn transpose(case: &Case) -> Vec<Expected> {
    let (rows, columns) = (case.scalar::<u32>("rows") as usize, case.scalar::<u32>("columns") as usize);
    let x = case.array::<f32>("x");
    vec![exact("y", (0..rows * columns).map(|i| x[i % rows * columns + i / rows]).collect())]
}

pub(crate) fn stencil_1d(case: &Case) -> Vec<Expected> {
    let sum = |window: &[i32]| window.iter().fold(0, |sum: i32, &x| sum.wrapping_add(x));
    vec![exact("y", case.array("x").windows(7).map(sum).collect())]
}

pub(crate) fn stencil_2d(case: &Case) -> Vec<Expected> {
    let (width, height) = (case.scalar::<i32>("width"), case.scalar::<i32>("height"));
    let x = case.array::<i32>("x");
    let cell = |row: i32, column: i32| {
        let inside = (0..height).contains(&row) && (0..width).contains(&column);
        if inside { x[(row * width + column) as usize] } else { 0 }
    };
    let mut y = Vec::new();
    let mut changed = vec![0_u32; case.blocks()];
    for row in 0..height {
        for column in 0..width {
            let neighbours =
                [cell(row - 1, column), cell(row + 1, column), cell(row, column - 1), cell(row, column + 1)];
            let sum =
                neighbours.iter().fold(cell(row, column).wrapping_mul(-3), |sum, &x| sum.wrapping_add(x));
            y.push(sum);
            let block = row / 8 * case.grid[0] as i32 + column / 16;
            changed[block as usize] += u32::from(sum != cell(row, column));
        }
    }
    vec![exact("y", y), exact("changed", changed)]
}

pub(crate) fn matmul_tiled(case: &Case) -> Vec<Expected> {
    let size = |name| case.scalar::<u32>(name) as usize;
    let (rows, inner, columns) = (size("rows"), size("inner"), size("columns"));
    let (a, b) = (case.array::<f32>("a"), case.array::<f32>("b"));
    let product = |i: usize| {
        let (row, column) = (i / columns, i % columns);
        (0..inner).fold(0.0_f32, |sum, k| a[row * inner + k].mul_add(b[k * columns + column], sum))
    };
    vec![exact("c", (0..rows * columns).map(product).collect())]
}

pub(crate) fn matrix_vector(case: &Case) -> Vec<Expected> {
    let x = case.array::<f32>("x");
    let product =
        |row: &[f32]| row.iter().zip(x).map(|(&a, &x)| f64::from(a) * f64::from(x)).sum::<f64>() as f32;
    vec![within(0.0, 1e-5, "y", case.array("a").chunks(x.len()).map(product).collect())]
}

pub(crate) fn nbody_tile(case: &Case) -> Vec<Expected> {
    let bodies: Vec<[f64; 4]> =
        case.array::<f32>("bodies").chunks(4).map(|body| [0, 1, 2, 3].map(|k| f64::from(body[k]))).collect();
    let mut forces = Vec::new();
    for me in &bodies {
        let mut force = [0.0; 4];
        for other in &bodies {
            let distance = [0, 1, 2].map(|k| other[k] - me[k]);
            let square = distance.iter().map(|d| d * d).sum::<f64>() + f64::from(0.01_f32);
            let strength = (1.0 + other[3]) / (square * square.sqrt());
            (0..3).for_each(|k| force[k] += strength * distance[k]);
        }
        forces.extend(force.map(|f| f as f32));
    }
    vec![within(1e-4, 1e-2, "forces", forces)]
}

pub(crate) fn two_arrays(case: &Case) -> Vec<Expected> {
    let blocks = case.array::<f32>("x").chunks(case.threads_per_block());
    let mixed = |x: &f32| f64::from(*x) * f64::from(*x) + f64::from(*x);
    vec![exact("y", blocks.flat_map(|block| block.iter().rev().map(mixed)).collect())]
}

pub(crate) fn async_tiles(case: &Case) -> Vec<Expected> {
    let sums = |tile: &[u32]| -> Vec<u32> {
        (0..tile.len()).map(|i| tile[i].wrapping_add(tile[(i + 1) % tile.len()])).collect()
    };
    vec![exact("y", case.array::<u32>("x").chunks(128).flat_map(sums).collect())]
}

pub(crate) fn tensor_product(case: &Case) -> Vec<Expected> {
    let half = |x: &f32| f16::from_f32(*x).to_f64();
    let (a, b): (Vec<f64>, Vec<f64>) =
        (case.array("a").iter().map(half).collect(), case.array("b").iter().map(half).collect());
    let product = |i: usize| (0..16).map(|k| a[i / 16 * 16 + k] * b[i % 16 * 16 + k]).sum::<f64>() as f32;
    vec![within(1e-6, 1e-6, "c", (0..256).map(product).collect())]
}
