//! References of kernels in which a thread computes one element.

use super::super::manifest::Case;
use super::{Expected, exact};

pub(crate) fn vector_add(case: &Case) -> Vec<Expected> {
    let (x, y) = (case.array::<f32>("x"), case.array::<f32>("y"));
    vec![exact("z", x.iter().zip(y).map(|(x, y)| x + y).collect())]
}

pub(crate) fn saxpy(case: &Case) -> Vec<Expected> {
    let a: f32 = case.scalar("a");
    let (x, y) = (case.array::<f32>("x"), case.array::<f32>("y"));
    vec![exact("y", x.iter().zip(y).map(|(x, y)| a.mul_add(*x, *y)).collect())]
}

pub(crate) fn grid_stride(case: &Case) -> Vec<Expected> {
    let polynomial = |x: &f32| 0.5_f32.mul_add(*x, -2.0).mul_add(*x, 3.0).mul_add(*x, 1.0);
    vec![exact("y", case.array("x").iter().map(polynomial).collect())]
}

pub(crate) fn volume(case: &Case) -> Vec<Expected> {
    let (width, height, depth) =
        (case.scalar::<i32>("width"), case.scalar::<i32>("height"), case.scalar::<i32>("depth"));
    let mut cells = Vec::new();
    for z in 0..depth {
        for y in 0..height {
            cells.extend((0..width).map(|x| x - 10 * y + 100 * z));
        }
    }
    vec![exact("cells", cells)]
}

pub(crate) fn vector_loads(case: &Case) -> Vec<Expected> {
    let factor: f32 = case.scalar("factor");
    let sums = case.array::<f64>("pairs").chunks(2).map(|pair| pair[0] + pair[1]).collect();
    vec![exact("y", case.array("x").iter().map(|x: &f32| factor * x).collect()), exact("sums", sums)]
}

pub(crate) fn bytes_shorts(case: &Case) -> Vec<Expected> {
    let (a, b, weight) = (case.array::<u8>("a"), case.array::<u8>("b"), case.array::<i8>("weight"));
    let pairs = || a.iter().zip(b).map(|(&a, &b)| (i16::from(a), i16::from(b)));
    let mean = pairs().map(|(a, b)| ((a + b + 1) / 2) as u8).collect();
    let product = pairs().zip(weight).map(|((a, b), &weight)| (a - b) * i16::from(weight)).collect();
    vec![exact("mean", mean), exact::<i16>("product", product)]
}

pub(crate) fn constant_convolution(case: &Case) -> Vec<Expected> {
    let weights = [0.5_f32, -0.25, 0.125, 1.0, -1.0, 0.75, 2.0, -0.5];
    let sum = |window: &[f32]| weights.iter().zip(window).fold(0.0, |sum, (w, x)| w.mul_add(*x, sum));
    vec![exact("y", case.array("x").windows(8).map(sum).collect())]
}
