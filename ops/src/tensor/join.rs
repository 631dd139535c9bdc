//! Tensors made of several tensors.

use super::call::{Call, Outcome};
use super::cast::converted;
use super::dims::{out_of_range, product, replaced};
use super::element::with_element;
use super::ops::refused;
use super::{DType, Shape, Tensor, TensorElement, TensorOperand};
use std::borrow::Borrow;
use warpline_runtime::{Buffer, Element, Error, ErrorKind, Pending, Refusal, Site};

impl Tensor {
    /// Joins tensors along dimension `dim`, in which their sizes may differ, as `torch.cat` does.
    ///
    /// The tensors are `&Tensor`, `&Pending<Tensor>` or `Pending<Tensor>`. Their types are
    /// [promoted](DType#promotion). Each is copied by an op of its own. Along the last dimensions
    /// the copies consist of short rows, and are slower.
    ///
    /// # Errors
    /// In the `Pending`: `InvalidArgument` if there are no tensors; `Shape` if there is no
    /// dimension `dim`, as in scalars, or if other sizes differ (an empty tensor of shape \[0\] is
    /// no exception here); and the errors of [`TensorOps`](super::TensorOps).
    ///
    /// # Examples
    /// ```
    /// # use warpline::prelude::*;
    /// # fn main() -> warpline::Result<()> {
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1.0, 2.0], [3.0, 4.0]], &device).queued()?;
    /// let y = Tensor::new([[8.0], [9.0]], &device).queued()?;
    /// let joined = Tensor::cat([&x, &y], 1);
    /// assert_eq!(joined.to_vec::<f32>().blocking_wait()?, [1.0, 2.0, 8.0, 3.0, 4.0, 9.0]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn cat<X: TensorOperand>(tensors: impl IntoIterator<Item = X>, dim: usize) -> Pending<Tensor> {
        joined(&"cat", tensors, |call, tensors| cat(call, tensors, dim))
    }

    /// Joins tensors of one shape along a new dimension `dim`, as `torch.stack` does.
    ///
    /// For tensors of d dimensions, `dim` is from 0 to d. The tensors are operands as in
    /// [`cat`](Self::cat).
    ///
    /// # Errors
    /// In the `Pending`: those of [`cat`](Self::cat); `Shape` if the shapes differ or `dim` exceeds
    /// the number of dimensions.
    ///
    /// # Examples
    /// ```
    /// # use warpline::prelude::*;
    /// # fn main() -> warpline::Result<()> {
    /// # let device = Device::best()?;
    /// let rows = [1.0, 2.0].map(|value| Tensor::full([3], value, &device));
    /// let x = Tensor::stack(&rows, 0).queued()?;
    /// assert_eq!(x.shape(), [2, 3]);
    /// assert_eq!(x.to_vec::<f32>().blocking_wait()?, [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn stack<X: TensorOperand>(tensors: impl IntoIterator<Item = X>, dim: usize) -> Pending<Tensor> {
        joined(&"stack", tensors, |call, tensors| stack(call, tensors, dim))
    }
}

/// Takes the operands, and calls `join` with them and with the op on the first one's device.
#[track_caller]
fn joined<X: TensorOperand>(
    op: &'static &'static str,
    tensors: impl IntoIterator<Item = X>,
    join: impl FnOnce(&Call<'_>, &[&Tensor]) -> Outcome,
) -> Pending<Tensor> {
    let mut all: Vec<X::Held> = Vec::new();
    for tensor in tensors {
        match (tensor.held(), all.first()) {
            (Ok(tensor), _) => all.push(tensor),
            (Err(refusal), Some(first)) => return refused(refusal, first.borrow(), &[]),
            (Err(refusal), None) => return refusal.pass_on(),
        }
    }
    let all: Vec<&Tensor> = all.iter().map(Borrow::borrow).collect();
    let Some(first) = all.first() else {
        let why = format!("{}: 0 tensors cannot be joined; pass at least 1", Site::here(op));
        return Pending::refused(Error::new(ErrorKind::InvalidArgument, why));
    };
    match Call::new(op, &first.device()) {
        Ok(call) => join(&call, &all).unwrap_or_else(Refusal::pass_on),
        Err(refusal) => refusal.pass_on(),
    }
}

fn cat(call: &Call<'_>, tensors: &[&Tensor], dim: usize) -> Outcome {
    let first = tensors[0];
    if first.shape.is_empty() {
        let why = "the tensors are scalars, of shape [], and have no dimension to join; call stack";
        return Err(call.refuse(ErrorKind::Shape, why));
    }
    if dim >= first.shape.len() {
        return Err(out_of_range(call, first, dim, first.shape.len()));
    }
    let mut total = 0usize;
    for x in tensors {
        if x.shape.len() != first.shape.len()
            || replaced(&x.shape, dim, &[]) != replaced(&first.shape, dim, &[])
        {
            let why = format!(
                "the shapes are {} and {}, which differ in more than dimension {dim}; pass tensors \
                 with equal other sizes",
                first.shape, x.shape
            );
            return Err(call.refuse(ErrorKind::Shape, &why));
        }
        total = total.saturating_add(x.shape[dim]);
    }
    side_by_side(call, tensors, product(&first.shape[..dim]), replaced(&first.shape, dim, &[total]))
}

fn stack(call: &Call<'_>, tensors: &[&Tensor], dim: usize) -> Outcome {
    let first = tensors[0];
    tensors.iter().try_for_each(|x| call.same_shape(first, x))?;
    if dim > first.shape.len() {
        return Err(out_of_range(call, first, dim, first.shape.len() + 1));
    }
    let (before, after) = first.shape.split_at(dim);
    let shape = Shape::from([before, &[tensors.len()], after].concat());
    side_by_side(call, tensors, product(before), shape)
}

/// Copies the tensors into a new one, of this shape. Each has `rows` rows, which follow one another
/// in the rows of the result.
fn side_by_side(call: &Call<'_>, tensors: &[&Tensor], rows: usize, shape: Shape) -> Outcome {
    tensors.iter().try_for_each(|x| call.here(x))?;
    let promoted = tensors.iter().map(|x| x.dtype()).reduce(DType::promote).expect("there is a tensor");
    let parts: Vec<_> = tensors
        .iter()
        .map(|x| call.contiguous(x).and_then(|()| converted(call, x, promoted)))
        .collect::<Result<_, _>>()?;
    with_element!(promoted, T => {
        let parts = parts.iter().map(|x| T::buffer(&x.storage).expect("it was converted"));
        let (to, done) = copied(call, parts, rows, &shape)?;
        Ok(done.with(Tensor::of(T::storage(to), shape)))
    })
}

/// Does the work of [`side_by_side`] for parts of one element type.
fn copied<'t, T: Element>(
    call: &Call<'_>,
    parts: impl Iterator<Item = &'t Buffer<T>>,
    rows: usize,
    shape: &Shape,
) -> Result<(Buffer<T>, Pending<()>), Refusal> {
    let to = call.alloc::<T>(shape)?;
    let mut done = Pending::ready(());
    if !to.is_empty() {
        let matrix = to.as_matrix(rows)?;
        let mut at = 0;
        for from in parts.filter(|from| !from.is_empty()) {
            let end = at + from.len() / rows;
            let part = matrix.columns(at..end)?;
            call.through(done)?;
            done = call.stream().at(call.site()).copy_buffer(&part, from);
            at = end;
        }
    }
    Ok((to, done))
}
