//! Convolution of images, as a matrix product.

use super::Tensor;
use super::call::{Call, Outcome};
use warpline_kernels::{self as kernels, launch};
use warpline_runtime::kernel::KernelCall;
use warpline_runtime::{Buffer, ErrorKind, Pending, Refusal};

/// The number of elements of columns that exist at a time, 64 MiB, unless one image has more.
///
/// A weight of 3 × 3 makes nine elements of columns for each element of the input.
const COLUMNS: usize = 1 << 24;

/// The checked sizes of a convolution.
struct Sizes {
    images: usize,
    channels: usize,
    height: usize,
    width: usize,
    out_channels: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    /// Height and width of the result.
    out: [usize; 2],
}

/// Computes the convolution of `x` with `weight`, plus `bias`.
#[track_caller]
pub(super) fn conv2d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    stride: [usize; 2],
    padding: [usize; 2],
) -> Outcome {
    let call = Call::new(&"conv2d", &x.device())?;
    let sizes = checked(&call, x, weight, stride, padding)?;
    let Sizes { images, channels, height, width, out_channels, kernel, out, .. } = sizes;
    if let Some(bias) = bias.filter(|bias| bias.shape[..] != [out_channels]) {
        let why = format!(
            "the weight has shape {} and the bias {}; for {out_channels} output channels pass a bias \
             of shape [{out_channels}]",
            weight.shape, bias.shape
        );
        return Err(call.refuse(ErrorKind::Shape, &why));
    }
    let (from, weights) = (call.operand(x)?, call.operand(weight)?);
    let absent = call.scratch::<f32>(0)?;
    let biases = bias.map_or(Ok(&absent), |bias| call.operand(bias))?;
    [weight].into_iter().chain(bias).try_for_each(|operand| call.here(operand))?;
    let shape = match x.shape.len() {
        3 => [out_channels, out[0], out[1]].into(),
        _ => [images, out_channels, out[0], out[1]].into(),
    };
    let to = call.alloc::<f32>(&shape)?;
    if to.is_empty() {
        return Ok(Pending::ready(Tensor::over(to, shape)));
    }

    // The result has elements, so these products do not overflow: the input has at least `channels`
    // elements, and the weight `depth`.
    let (pixels, depth) = (out[0] * out[1], channels * kernel[0] * kernel[1]);
    let at_once = images_at_once(depth.saturating_mul(pixels)).min(images);
    let columns = call.alloc::<f32>(&[depth, at_once, pixels].into())?;
    let products = call.alloc::<f32>(&[out_channels, at_once, pixels].into())?;
    let mut done = Pending::ready(());
    for first in (0..images).step_by(at_once) {
        let count = at_once.min(images - first);
        let [input, output] = [channels * height * width, out_channels * pixels];
        let part = from.slice(first * input..(first + count) * input)?;
        let result = to.slice(first * output..(first + count) * output)?;
        let columns = columns.slice(..depth * count * pixels)?;
        let products = products.slice(..out_channels * count * pixels)?;

        let [m, n, k] = [out_channels, count * pixels, depth].map(|size| size as u64);
        done.into_operand()?;
        call.launch(im2col(&sizes, count, &part, &columns), launch::elements(columns.len() as u64), ())
            .into_operand()?;
        let product = kernels::matmul(m, n, k, 0, 0, weights, &columns, &products);
        call.launch(product, launch::product(m, n), ()).into_operand()?;
        let biased = u32::from(bias.is_some());
        let ordered =
            kernels::channels_to_images(count as u64, m, pixels as u64, biased, &products, biases, &result);
        done = call.launch(ordered, launch::elements(result.len() as u64), ());
    }
    Ok(done.with(Tensor::over(to, shape)))
}

/// Returns the call of the kernel that makes the columns of `count` images.
fn im2col<'a>(sizes: &Sizes, count: usize, x: &'a Buffer<f32>, columns: &'a Buffer<f32>) -> KernelCall<'a> {
    let [images, channels, height, width] =
        [count, sizes.channels, sizes.height, sizes.width].map(|n| n as u64);
    let [kernel, stride, padding, out] =
        [sizes.kernel, sizes.stride, sizes.padding, sizes.out].map(|both| both.map(|n| n as u64));
    kernels::im2col(
        images, channels, height, width, kernel[0], kernel[1], stride[0], stride[1], padding[0], padding[1],
        out[0], out[1], x, columns,
    )
}

/// Returns the number of images whose columns are made at a time, given the elements per image.
fn images_at_once(per_image: usize) -> usize {
    (COLUMNS / per_image.max(1)).max(1)
}

fn checked(
    call: &Call<'_>,
    x: &Tensor,
    weight: &Tensor,
    stride: [usize; 2],
    padding: [usize; 2],
) -> Result<Sizes, Refusal> {
    let [images, channels, height, width] = match x.shape[..] {
        [images, channels, height, width] => [images, channels, height, width],
        [channels, height, width] => [1, channels, height, width],
        _ => {
            let why = format!(
                "the input has {} dimensions (shape {}); pass images of shape [n, c, h, w], or one of \
                 shape [c, h, w]",
                x.shape.len(),
                x.shape
            );
            return Err(call.refuse(ErrorKind::Shape, &why));
        }
    };
    let [out_channels, weighted, kernel_height, kernel_width] = weight.shape[..] else {
        let why = format!(
            "the weight has {} dimensions (shape {}); pass a weight of shape [output channels, \
             {channels}, height, width]",
            weight.shape.len(),
            weight.shape
        );
        return Err(call.refuse(ErrorKind::Shape, &why));
    };
    if weighted != channels {
        let why = format!(
            "the input has shape {} and the weight {}, with {channels} channels in the one and \
             {weighted} in the other; pass a weight of shape [output channels, {channels}, height, \
             width]",
            x.shape, weight.shape
        );
        return Err(call.refuse(ErrorKind::Shape, &why));
    }
    let (size, kernel) = ([height, width], [kernel_height, kernel_width]);
    let mut out = [0; 2];
    for axis in 0..2 {
        if stride[axis] == 0 || kernel[axis] == 0 {
            let why = format!(
                "the stride is {stride:?} and the weight has shape {}; pass a stride and a weight \
                 without zeros",
                weight.shape
            );
            return Err(call.refuse(ErrorKind::Shape, &why));
        }
        let padded = padding[axis].checked_mul(2).and_then(|padding| padding.checked_add(size[axis]));
        let Some(padded) = padded else {
            let why = format!(
                "the padding is {padding:?}, and the padded input has more rows or columns than a usize \
                 can count; pass less padding"
            );
            return Err(call.refuse(ErrorKind::Shape, &why));
        };
        let Some(room) = padded.checked_sub(kernel[axis]) else {
            let why = format!(
                "the weight of shape {} has size {} in dimension {}, where the padded input has \
                 {padded}; pass a smaller weight or more padding",
                weight.shape,
                kernel[axis],
                axis + 2
            );
            return Err(call.refuse(ErrorKind::Shape, &why));
        };
        out[axis] = room / stride[axis] + 1;
    }
    Ok(Sizes { images, channels, height, width, out_channels, kernel, stride, padding, out })
}

#[cfg(test)]
mod tests {
    use super::{COLUMNS, images_at_once};

    #[test]
    fn at_least_one_image_and_no_more_than_fit_are_taken_at_once() {
        for (per_image, images) in
            [(1, COLUMNS), (COLUMNS / 3, 3), (COLUMNS, 1), (usize::MAX, 1), (0, COLUMNS)]
        {
            assert_eq!(images_at_once(per_image), images);
        }
    }
}
