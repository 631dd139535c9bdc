//! Broadcasting: operands of different shapes.
//!
//! The rule is PyTorch's and NumPy's. Sizes are compared from the last dimension on. Two sizes
//! agree if they are equal or one of them is 1, and a missing size counts as 1. An operand is
//! repeated along the dimensions in which its size is 1 and that of the other is not.

use super::call::Call;
use super::element::Storage;
use super::{Shape, Tensor};
use std::borrow::Cow;
use warpline_kernels::{self as kernels, launch::elements};
use warpline_runtime::{ErrorKind, Pending, Refusal};

/// Returns the shape that both shapes are broadcast to, if there is one.
fn broadcast_shape(x: &[usize], y: &[usize]) -> Option<Shape> {
    let dims = x.len().max(y.len());
    let size = |shape: &[usize], dim: usize| (dim + shape.len()).checked_sub(dims).map_or(1, |at| shape[at]);
    let sizes: Option<Vec<usize>> = (0..dims)
        .map(|dim| match (size(x, dim), size(y, dim)) {
            (a, b) if a == b => Some(a),
            (1, b) => Some(b),
            (a, 1) => Some(a),
            _ => None,
        })
        .collect();
    sizes.map(Shape::from)
}

/// Returns the shape of the result of an elementwise op.
#[inline]
pub(super) fn common_shape(call: &Call<'_>, x: &Tensor, y: &Tensor) -> Result<Shape, Refusal> {
    if x.shape == y.shape {
        return Ok(x.shape.clone());
    }
    broadcast_shape(&x.shape, &y.shape).ok_or_else(|| {
        let why = format!(
            "the shapes are {} and {}; counted from the last dimension, sizes must be equal, or one \
             of them 1",
            x.shape, y.shape
        );
        call.refuse(ErrorKind::Shape, &why)
    })
}

/// Refuses the op unless `x` can be broadcast to `shape`, that of the tensor that is written.
#[inline]
pub(super) fn fits_into(call: &Call<'_>, x: &Tensor, shape: &Shape) -> Result<(), Refusal> {
    if x.shape == *shape || broadcast_shape(&x.shape, shape).as_ref() == Some(shape) {
        return Ok(());
    }
    let why = format!(
        "a tensor of shape {} cannot be written into one of shape {shape}; counted from the last \
         dimension, its sizes must be equal to those, or 1",
        x.shape
    );
    Err(call.refuse(ErrorKind::Shape, &why))
}

/// One repetition: `outer` blocks of `inner` elements, each `repeat` times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Repetition {
    outer: usize,
    repeat: usize,
    inner: usize,
}

/// Returns the repetitions that broadcast `x` to `shape`, the innermost first. Neighbouring
/// dimensions are repeated together. Neither shape has a 0.
fn repetitions(x: &[usize], shape: &[usize]) -> Vec<Repetition> {
    let missing = shape.len() - x.len();
    let repeated = |dim: usize| (dim < missing || x[dim - missing] == 1) && shape[dim] != 1;
    let mut steps = Vec::new();
    let mut dim = shape.len();
    while dim > 0 {
        dim -= 1;
        if !repeated(dim) {
            continue;
        }
        let inner = shape[dim + 1..].iter().product();
        let mut repeat = shape[dim];
        while dim > 0 && repeated(dim - 1) {
            dim -= 1;
            repeat *= shape[dim];
        }
        let outer = x[..dim.saturating_sub(missing)].iter().product();
        steps.push(Repetition { outer, repeat, inner });
    }
    steps
}

/// How far an operand is repeated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// To the whole shape.
    Shape,
    /// To the last dimensions of the shape. The op repeats these rows itself.
    Rows,
}

/// Returns the elements of `x` broadcast to `shape`, which fits: those of `x`, if nothing is
/// repeated.
///
/// Each repetition is one launch, which writes memory of its own: a column against a matrix needs
/// one, and takes as much memory as the matrix.
pub(super) fn expanded<'t>(
    call: &Call<'_>,
    x: &'t Tensor,
    shape: &Shape,
    until: Until,
) -> Result<Cow<'t, Storage>, Refusal> {
    call.contiguous(x)?;
    if x.shape == *shape {
        return Ok(Cow::Borrowed(&x.storage));
    }
    let len = call.elements(shape)?;
    if len == 0 {
        call.here(x)?;
        return Ok(Cow::Owned(Storage::alloc(call, x.dtype(), 0)?));
    }
    let mut steps = repetitions(&x.shape, shape);
    if until == Until::Rows && steps.last().is_some_and(|step| step.outer == 1) {
        steps.pop();
    }
    let mut storage = Cow::Borrowed(&x.storage);
    for step in steps {
        let to = Storage::alloc(call, x.dtype(), step.outer * step.repeat * step.inner)?;
        call.through(repeat(call, step, &storage, &to))?;
        storage = Cow::Owned(to);
    }
    Ok(storage)
}

/// Enqueues one repetition.
fn repeat(call: &Call<'_>, step: Repetition, from: &Storage, to: &Storage) -> Pending<()> {
    let (repeat, inner) = (step.repeat as u64, step.inner as u64);
    let n = step.outer as u64 * repeat * inner;
    macro_rules! step {
        ($word:ty, $kernel:ident) => {
            call.launch(
                kernels::$kernel(n, repeat, inner, &from.words::<$word>(), &to.words()),
                elements(n),
                (),
            )
        };
    }
    match from.dtype().size() {
        1 => step!(u8, expand_1),
        2 => step!(u16, expand_2),
        4 => step!(u32, expand_4),
        _ => step!(u64, expand_8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shapes_agree_from_the_last_dimension_on() {
        let of = |x: &[usize], y: &[usize]| broadcast_shape(x, y).map(|shape| shape.to_vec());
        assert_eq!(of(&[2, 3], &[3]), Some(vec![2, 3]));
        assert_eq!(of(&[2, 1], &[1, 3]), Some(vec![2, 3]));
        assert_eq!(of(&[5, 1, 4, 1], &[3, 1, 1]), Some(vec![5, 3, 4, 1]));
        assert_eq!(of(&[0], &[1]), Some(vec![0]));
        assert_eq!(of(&[], &[]), Some(vec![]));
        assert_eq!(of(&[2, 3], &[2]), None);
        assert_eq!(of(&[0], &[2]), None);
    }

    /// Returns the elements of `x` broadcast to `shape`, by their coordinates.
    fn by_coordinates(x: &[usize], shape: &[usize]) -> Vec<usize> {
        let missing = shape.len() - x.len();
        (0..shape.iter().product())
            .map(|at: usize| {
                let (mut rest, mut index, mut stride) = (at, 0, 1);
                for dim in (missing..shape.len()).rev() {
                    let here: usize = shape[dim + 1..].iter().product();
                    rest = at / here % shape[dim];
                    if x[dim - missing] != 1 {
                        index += rest * stride;
                    }
                    stride *= x[dim - missing];
                }
                let _ = rest;
                index
            })
            .collect()
    }

    proptest! {
        #[test]
        fn repetitions_give_what_coordinates_give(
            shape in prop::collection::vec(1usize..4, 0..6), ones in any::<u32>(), missing in 0usize..6
        ) {
            let x: Vec<usize> = shape
                .iter()
                .enumerate()
                .skip(missing.min(shape.len()))
                .map(|(dim, &size)| if ones >> dim & 1 == 1 { 1 } else { size })
                .collect();
            let mut values: Vec<usize> = (0..x.iter().product()).collect();
            for step in repetitions(&x, &shape) {
                prop_assert_eq!(values.len(), step.outer * step.inner);
                values = values.chunks(step.inner).flat_map(|row| row.repeat(step.repeat)).collect();
            }
            prop_assert_eq!(values, by_coordinates(&x, &shape));
        }
    }
}
