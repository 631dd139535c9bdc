//! Kernels that move elements: chosen slices, and the columns and images of convolutions.
#![cfg(target_os = "linux")]

use host_check::{Agree, Check, Launch, WARPS, awkward, launches};
use warpline_kernels::launch;

fn of(name: &str, sizes: &[usize]) -> Check {
    sizes.iter().fold(Check::of(name), |check, &size| check.scalar(size as u64))
}

/// Returns the launches of small results, and others for large ones.
fn all(len: usize) -> Vec<Launch> {
    let own = Launch::new(launch::elements(len as u64));
    if len < 10_000 { [&launches()[..], &[own]].concat() } else { vec![own, WARPS] }
}

#[test]
fn chosen_slices_are_the_same_bits() {
    for [outer, n, inner, count] in [
        [0, 3, 2, 2],
        [2, 0, 3, 2],
        [2, 3, 0, 2],
        [2, 3, 4, 0],
        [1, 1, 1, 1],
        [1, 9, 1, 33],
        [3, 5, 7, 2],
        [5, 2, 1, 3],
        [1, 40, 300, 100],
    ] {
        let x = awkward(outer * n * inner, 1);
        let indices: Vec<i64> = (0..count as i64)
            .map(|j| match j % 7 {
                5 => [-1, n as i64, i64::MIN, i64::MAX][j as usize / 7 % 4],
                _ => j * 5 % (n as i64).max(1),
            })
            .collect();
        let len = outer * count * inner;
        let check = of("index_select", &[outer, n, inner, count]).slice(&x, 1).slice(&indices, 1);
        // SAFETY: `x` and the result have as many elements as their sizes say, and there are
        // `count` indices.
        unsafe { check.slice(&vec![9.0f32; len], 2).agrees(Agree::Bits, &all(len)) };
    }
}

#[test]
fn columns_are_the_same_bits() {
    // Images, channels, input, weight, stride, padding.
    for (images, channels, [height, width], kernel, stride, padding) in [
        (1, 1, [1, 1], [1, 1], [1, 1], [0, 0]),
        (2, 3, [5, 4], [3, 2], [1, 1], [1, 0]),
        (2, 1, [6, 7], [2, 3], [2, 3], [0, 2]),
        (1, 2, [3, 3], [5, 5], [3, 1], [2, 2]),
        (3, 2, [4, 4], [1, 1], [2, 2], [3, 3]),
        (0, 2, [4, 4], [3, 3], [1, 1], [1, 1]),
        (2, 0, [4, 4], [3, 3], [1, 1], [1, 1]),
        (1, 2, [0, 3], [1, 1], [1, 1], [1, 0]),
        (4, 3, [16, 16], [3, 3], [1, 1], [1, 1]),
    ] {
        let size = [height, width];
        let out: [usize; 2] =
            std::array::from_fn(|axis| (size[axis] + 2 * padding[axis] - kernel[axis]) / stride[axis] + 1);
        let x = awkward(images * channels * height * width, 1);
        let len = channels * kernel[0] * kernel[1] * images * out[0] * out[1];
        let sizes = [&[images, channels], &size[..], &kernel, &stride, &padding, &out].concat();
        let check = of("im2col", &sizes).slice(&x, 1).slice(&vec![9.0f32; len], 2);
        // SAFETY: both operands have as many elements as the sizes say.
        unsafe { check.agrees(Agree::Bits, &all(len)) };
    }
}

#[test]
fn channels_and_biases_are_the_same_bits() {
    for [images, channels, pixels] in
        [[0, 2, 3], [2, 0, 3], [2, 3, 0], [1, 1, 1], [2, 3, 33], [7, 5, 1], [30, 20, 64]]
    {
        let len = images * channels * pixels;
        for (biased, bias) in [(0u32, vec![]), (1, awkward(channels, 2))] {
            let start = of("channels_to_images", &[images, channels, pixels]).scalar(biased);
            let check = start.slice(&awkward(len, 1), 1).slice(&bias, 3).slice(&vec![9.0f32; len], 0);
            // SAFETY: both operands have as many elements as the sizes say, and the bias has one
            // per channel, if it is read.
            unsafe { check.agrees(Agree::Bits, &all(len)) };
        }
    }
}
