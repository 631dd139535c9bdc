//! Maxima of all elements and along one dimension.

use super::Tensor;
use super::call::{Call, Outcome};
use super::dims::{Around, replaced};
use warpline_kernels::{self as kernels, MAX_RUN, launch};
use warpline_runtime::ErrorKind;

/// Finds the largest of all elements.
#[track_caller]
pub(super) fn max(x: &Tensor) -> Outcome {
    let call = Call::new(&"max", &x.device())?;
    if x.is_empty() {
        let why = format!(
            "the tensor has 0 elements (shape {}), so there is no largest one; pass at least 1",
            x.shape
        );
        return Err(call.refuse(ErrorKind::Shape, &why));
    }
    let (from, n) = (call.operand(x)?, x.len() as u64);
    let shape = [].into();
    let to = call.alloc(&shape)?;
    let done = if n <= launch::ONE_BLOCK {
        call.launch(kernels::maxima(n, n, from, &to), launch::one_block(), ())
    } else {
        let runs = n.div_ceil(MAX_RUN);
        let count = usize::try_from(runs).expect("there are fewer runs than elements");
        let of_runs = call.scratch::<f32>(count)?;
        call.launch(kernels::maxima(n, MAX_RUN, from, &of_runs), launch::runs(runs), ()).into_operand()?;
        call.launch(kernels::maxima(runs, runs, &of_runs, &to), launch::one_block(), ())
    };
    Ok(done.with(Tensor::over(to, shape)))
}

/// Finds the largest elements along dimension `dim`, and their indices.
#[track_caller]
pub(super) fn max_dim(x: &Tensor, dim: usize) -> Outcome<(Tensor, Tensor)> {
    let call = Call::new(&"max_dim", &x.device())?;
    let Around { outer, n, inner } = Around::of(&call, x, dim)?;
    if n == 0 {
        let why = format!(
            "dimension {dim} of shape {} is 0, so there is no largest element; pass at least 1",
            x.shape
        );
        return Err(call.refuse(ErrorKind::Shape, &why));
    }
    let from = call.operand(x)?;
    let shape = replaced(&x.shape, dim, &[]);
    let (values, indices) = (call.alloc(&shape)?, call.alloc(&shape)?);
    let [outer, n, inner] = [outer, n, inner].map(|size| size as u64);
    let kernel = kernels::max_dim(outer, n, inner, from, &values, &indices);
    let done = call.launch(kernel, launch::lines(outer, inner), ());
    Ok(done.with((Tensor::over(values, shape.clone()), Tensor::over(indices, shape))))
}
