//! Views of a tensor's memory with another shape.
//!
//! No op is enqueued.

use super::{Shape, Tensor};
use std::panic::Location;
use warpline_runtime::{Error, ErrorKind, Result, Site};

#[cold]
fn refusal(site: Site, why: &str) -> Error {
    Error::new(ErrorKind::Shape, format!("{site}: {why}"))
}

/// Returns `x` with rows and columns exchanged.
///
/// A tensor of fewer than two dimensions is its own transpose.
pub(super) fn t(location: &'static Location<'static>, x: &Tensor) -> Result<Tensor> {
    match x.shape[..] {
        [] | [_] => Ok(x.clone()),
        [rows, cols] => {
            Ok(Tensor { storage: x.storage.clone(), shape: [cols, rows].into(), transposed: !x.transposed })
        }
        _ => {
            let why = format!(
                "the tensor has {} dimensions (shape {}), and t takes at most 2",
                x.shape.len(),
                x.shape
            );
            Err(refusal(Site::at(&"t", location), &format!("{why}; reshape it to a matrix")))
        }
    }
}

/// Returns the elements of `x` in the same order, with another shape.
pub(super) fn reshape(location: &'static Location<'static>, x: &Tensor, shape: Shape) -> Result<Tensor> {
    let site = Site::at(&"reshape", location);
    if x.transposed {
        return Err(refusal(site, &x.not_contiguous()));
    }
    if shape.elements() != Some(x.len()) {
        let why = format!(
            "{} elements (shape {}) do not fill the shape {shape}; pass a shape with that many \
             elements",
            x.len(),
            x.shape
        );
        return Err(refusal(site, &why));
    }
    Ok(Tensor { storage: x.storage.clone(), shape, transposed: false })
}

/// Returns `len` rows of `x` from `start` on.
pub(super) fn narrow(
    location: &'static Location<'static>,
    x: &Tensor,
    dim: usize,
    start: usize,
    len: usize,
) -> Result<Tensor> {
    let site = Site::at(&"narrow", location);
    if x.transposed {
        return Err(refusal(site, &x.not_contiguous()));
    }
    let Some(&rows) = x.shape.first().filter(|_| dim == 0) else {
        let why = format!(
            "dimension {dim} of shape {} cannot be narrowed, because only parts along dimension 0 \
             are contiguous; narrow dimension 0",
            x.shape
        );
        return Err(refusal(site, &why));
    };
    let Some(end) = start.checked_add(len).filter(|&end| end <= rows) else {
        let why = format!(
            "{len} rows from row {start} are not within 0..{rows}; pass a range inside shape {}",
            x.shape
        );
        return Err(refusal(site, &why));
    };
    // Not a product of sizes: if one of them is 0, the others may be any numbers.
    let width = x.len().checked_div(rows).unwrap_or(0);
    let storage = x.storage.slice(start * width, end * width)?;
    Ok(Tensor { storage, shape: x.shape.with_first(len), transposed: false })
}
