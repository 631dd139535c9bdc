//! Conversions between element types. `warpline_kernels::cast` has the rules.

use super::call::Call;
use super::element::Storage;
use super::{DType, Tensor};
use std::borrow::Cow;
use warpline_kernels::{self as kernels, launch::elements};
use warpline_runtime::{Pending, Refusal};

/// Returns `x` with elements of type `dtype`: `x` itself, if it has them. The layout stays.
pub(super) fn converted<'t>(
    call: &Call<'_>,
    x: &'t Tensor,
    dtype: DType,
) -> Result<Cow<'t, Tensor>, Refusal> {
    if x.dtype() == dtype {
        return Ok(Cow::Borrowed(x));
    }
    let storage = Storage::alloc(call, dtype, x.len())?;
    call.through(convert(call, &x.storage, &storage))?;
    Ok(Cow::Owned(Tensor { storage, shape: x.shape.clone(), transposed: x.transposed }))
}

/// Enqueues the conversion of all elements of `from` to the type of `to`, which has as many.
pub(super) fn convert(call: &Call<'_>, from: &Storage, to: &Storage) -> Pending<()> {
    let n = from.len() as u64;
    let codes = (from.dtype().code() as u32, to.dtype().code() as u32);
    call.launch(kernels::cast(n, codes.0, codes.1, &from.words(), &to.words()), elements(n), ())
}
