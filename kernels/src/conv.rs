//! The two kernels around the matrix product of a convolution.
//!
//! A convolution is a product of the weight, with one row per output channel, and of columns. Each
//! column has the elements of the input under the weight at one position (Chellapilla, Puri and
//! Simard, "High Performance Convolutional Neural Networks for Document Processing", 2006).
//! `im2col` makes the columns of several images. `channels_to_images` puts the result of the
//! product in order and adds the bias.
//!
//! `im2col` writes 4 bytes per element of the columns, and reads 4 bytes per element of the input
//! or, if the weight is larger than its steps, several times that from a cache.
//! `channels_to_images` reads 4 bytes and writes 4 bytes per element.

use crate::convert::size;
use crate::threads::share_out;
use std::ops::Range;

const PTX: &str = include_str!("../ptx/conv.ptx");

/// The least number of elements per thread: about 1 ms on one core.
const MANY: usize = 1 << 20;

warpline_runtime::kernel! {
    /// Computes columns\[(c, i, j), (image, down, across)\] ← x\[image, c, row, col\], with `row` =
    /// down · `stride_down` + i − `padding_down` and `col` = across · `stride_across` + j −
    /// `padding_across`, or 0 if there is no such row or column.
    ///
    /// `x` is `images` × `channels` × `height` × `width`. `columns` has `channels` ·
    /// `kernel_height` · `kernel_width` rows and `images` · `out_height` · `out_width` columns.
    /// Both are row-major.
    pub unsafe fn im2col(
        images: u64, channels: u64, height: u64, width: u64, kernel_height: u64, kernel_width: u64,
        stride_down: u64, stride_across: u64, padding_down: u64, padding_across: u64,
        out_height: u64, out_width: u64, x: &[f32], write columns: &mut [f32]
    )
    where product(&[images, channels, height, width]) == x.len() as u64
        && product(&[channels, kernel_height, kernel_width, images, out_height, out_width])
            == columns.len() as u64
        && stride_down > 0
        && stride_across > 0
    {
        descriptor: IM2COL,
        ptx_from_sm_60: PTX,
        cpu: |images, channels, height, width, kernel_height, kernel_width, stride_down, stride_across,
              padding_down, padding_across, out_height, out_width, x, columns| {
            let down = Steps {
                size: height, kernel: kernel_height, stride: stride_down, padding: padding_down, out: out_height
            };
            let across = Steps {
                size: width, kernel: kernel_width, stride: stride_across, padding: padding_across, out: out_width
            };
            gathered(size(images), size(channels), down, across, x, columns)
        },
    }

    /// Computes y\[image, c, p\] ← x\[c, image, p\] + bias\[c\]. With `biased` = 0 nothing is
    /// added.
    ///
    /// `y` is `images` × `channels` × `pixels`, row-major.
    pub unsafe fn channels_to_images(
        images: u64, channels: u64, pixels: u64, biased: u32, x: &[f32], bias: &[f32], write y: &mut [f32]
    )
    where product(&[images, channels, pixels]) == x.len() as u64
        && (biased == 0 || channels == bias.len() as u64)
        && x.len() == y.len()
    {
        descriptor: CHANNELS_TO_IMAGES,
        ptx_from_sm_60: PTX,
        cpu: |images, channels, pixels, biased, x, bias, y| {
            let [images, channels, pixels] = [images, channels, pixels].map(size);
            let bias = if biased == 0 { None } else { Some(bias) };
            if !y.is_empty() {
                reordered(images, channels, pixels, x, bias, y)
            }
        },
    }
}

/// Returns the product of the sizes, or `u64::MAX` if it is larger.
fn product(sizes: &[u64]) -> u64 {
    sizes.iter().fold(1, |product, &size| product.saturating_mul(size))
}

/// The sizes of a convolution along one dimension.
#[derive(Clone, Copy)]
struct Steps {
    size: u64,
    kernel: u64,
    stride: u64,
    padding: u64,
    out: u64,
}

impl Steps {
    /// Returns the index in the input under element `i` of the weight at position `at`, or `None`
    /// in the padding.
    fn index(&self, at: usize, i: usize) -> Option<usize> {
        // A position before the first element wraps around to a large number.
        let from = (at as u64).wrapping_mul(self.stride).wrapping_add(i as u64).wrapping_sub(self.padding);
        (from < self.size).then_some(size(from))
    }

    /// Returns the positions at which element `i` of the weight is over the input.
    fn inside(&self, i: usize) -> Range<usize> {
        let first = self.padding.saturating_sub(i as u64).div_ceil(self.stride).min(self.out);
        let end = self.size.saturating_add(self.padding).saturating_sub(i as u64).div_ceil(self.stride);
        size(first)..size(end.clamp(first, self.out))
    }
}

fn gathered(images: usize, channels: usize, down: Steps, across: Steps, x: &[f32], columns: &mut [f32]) {
    if columns.is_empty() {
        return;
    }
    let [height, width, kernel_height, kernel_width, out_height, out_width] =
        [down.size, across.size, down.kernel, across.kernel, down.out, across.out].map(size);
    // One unit is a row of pixels of one image, for one element of the weight.
    share_out(columns, out_width, MANY.div_ceil(out_width), |start, columns| {
        for (unit, to) in columns.chunks_exact_mut(out_width).enumerate() {
            let unit = start / out_width + unit;
            let (row, image, at) =
                (unit / out_height / images, unit / out_height % images, unit % out_height);
            let (channel, i, j) =
                (row / kernel_width / kernel_height, row / kernel_width % kernel_height, row % kernel_width);
            let Some(from) = down.index(at, i) else {
                to.fill(0.0);
                continue;
            };
            let line = &x[((image * channels + channel) * height + from) * width..][..width];
            let inside = across.inside(j);
            to[..inside.start].fill(0.0);
            to[inside.end..].fill(0.0);
            let Some(col) = across.index(inside.start, j) else { continue };
            let (to, line) = (&mut to[inside], &line[col..]);
            if across.stride == 1 {
                to.copy_from_slice(&line[..to.len()]);
            } else {
                to.iter_mut().zip(line.iter().step_by(size(across.stride))).for_each(|(to, x)| *to = *x);
            }
        }
    });
}

fn reordered(images: usize, channels: usize, pixels: usize, x: &[f32], bias: Option<&[f32]>, y: &mut [f32]) {
    share_out(y, pixels, MANY.div_ceil(pixels), |start, y| {
        for (plane, y) in y.chunks_exact_mut(pixels).enumerate() {
            let plane = start / pixels + plane;
            let (image, channel) = (plane / channels, plane % channels);
            let x = &x[(channel * images + image) * pixels..][..pixels];
            match bias {
                Some(bias) => y.iter_mut().zip(x).for_each(|(y, x)| *y = x + bias[channel]),
                None => y.copy_from_slice(x),
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::{CHANNELS_TO_IMAGES, IM2COL};
    use crate::twin::{read, run, value, written};

    #[test]
    fn columns_hold_the_input_under_the_weight_and_zeros_outside() {
        for [images, channels, height, width, kernel_height, kernel_width, stride, padding] in [
            [1, 1, 1, 1, 1, 1, 1, 0],
            [2, 3, 5, 4, 3, 2, 1, 1],
            [2, 1, 6, 7, 2, 3, 2, 0],
            [1, 2, 3, 3, 5, 5, 3, 2],
            [3, 2, 4, 4, 1, 1, 2, 3],
            [0, 2, 4, 4, 3, 3, 1, 1],
            [2, 0, 4, 4, 3, 3, 1, 1],
            [40, 9, 32, 32, 3, 3, 1, 1],
        ] {
            let x: Vec<f32> = (0..images * channels * height * width).map(|i| i as f32 + 1.0).collect();
            let out = |size: usize, kernel: usize| (size + 2 * padding - kernel) / stride + 1;
            let (out_height, out_width) = (out(height, kernel_height), out(width, kernel_width));
            let across = images * out_height * out_width;
            let mut columns = vec![9.0f32; channels * kernel_height * kernel_width * across];
            let sizes = [
                images,
                channels,
                height,
                width,
                kernel_height,
                kernel_width,
                stride,
                stride,
                padding,
                padding,
                out_height,
                out_width,
            ];
            let slices = [read(&x), written(&mut columns)];
            run(&IM2COL, &sizes.map(|n| value(n as u64)).into_iter().chain(slices).collect::<Vec<_>>());
            for (e, found) in columns.iter().enumerate() {
                let (row, column) = (e / across, e % across);
                let (channel, i, j) = (
                    row / kernel_width / kernel_height,
                    row / kernel_width % kernel_height,
                    row % kernel_width,
                );
                let (image, down, right) =
                    (column / out_width / out_height, column / out_width % out_height, column % out_width);
                let (row, col) = (down * stride + i, right * stride + j);
                let inside =
                    (padding..padding + height).contains(&row) && (padding..padding + width).contains(&col);
                let expected = if inside {
                    x[((image * channels + channel) * height + row - padding) * width + col - padding]
                } else {
                    0.0
                };
                assert_eq!(*found, expected, "{sizes:?} {e}");
            }
        }
    }

    #[test]
    fn images_get_their_channels_and_the_bias() {
        for [images, channels, pixels] in
            [[1, 1, 1], [2, 3, 4], [5, 2, 1], [3, 1, 70], [0, 2, 3], [30, 20, 4096]]
        {
            let x: Vec<f32> = (0..images * channels * pixels).map(|i| i as f32).collect();
            let bias: Vec<f32> = (0..channels).map(|c| c as f32 / 4.0).collect();
            for (biased, bias) in [(1u32, &bias[..]), (0, &[])] {
                let mut y = vec![9.0f32; x.len()];
                let sizes = [images, channels, pixels].map(|n| value(n as u64));
                let rest = [value(biased), read(&x), read(bias), written(&mut y)];
                run(&CHANNELS_TO_IMAGES, &sizes.into_iter().chain(rest).collect::<Vec<_>>());
                for (e, y) in y.iter().enumerate() {
                    let (image, channel) = (e / pixels / channels, e / pixels % channels);
                    let added = bias.get(channel).unwrap_or(&0.0);
                    assert_eq!(*y, x[(channel * images + image) * pixels + e % pixels] + added);
                }
            }
        }
    }
}
