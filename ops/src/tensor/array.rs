//! Nested arrays and vectors of the host, as the contents of tensors.

use super::call::Call;
use super::element::TensorElement;
use super::{DType, Shape};
use half::{bf16, f16};
use warpline_runtime::{ErrorKind, Refusal};

/// A number, or arrays, slices or vectors of numbers, nested to any depth: `[[1, 2], [3, 4]]`.
///
/// All parts of one level have to have the same length.
pub trait NestedArray {
    /// The type of the numbers.
    type Element: TensorElement;

    /// Returns the sizes that the first element of each level has.
    #[doc(hidden)]
    fn sizes(&self) -> Vec<usize>;

    /// Appends all numbers in row-major order. Returns the first part whose length differs from its
    /// level's: both lengths.
    #[doc(hidden)]
    fn append(&self, sizes: &[usize], to: &mut Vec<Self::Element>) -> Result<(), [usize; 2]>;
}

macro_rules! numbers {
    ($($ty:ty),*) => {$(
        impl NestedArray for $ty {
            type Element = $ty;

            fn sizes(&self) -> Vec<usize> {
                Vec::new()
            }

            fn append(&self, _: &[usize], to: &mut Vec<$ty>) -> Result<(), [usize; 2]> {
                to.push(*self);
                Ok(())
            }
        }
    )*};
}
numbers!(f32, f64, f16, bf16, i64, i32, i16, i8, u8, bool);

impl<A: NestedArray> NestedArray for [A] {
    type Element = A::Element;

    fn sizes(&self) -> Vec<usize> {
        let inner = self.first().map_or_else(Vec::new, A::sizes);
        [self.len()].into_iter().chain(inner).collect()
    }

    fn append(&self, sizes: &[usize], to: &mut Vec<A::Element>) -> Result<(), [usize; 2]> {
        let (&len, inner) = sizes.split_first().expect("a size for each level");
        if self.len() != len {
            return Err([len, self.len()]);
        }
        self.iter().try_for_each(|part| part.append(inner, to))
    }
}

macro_rules! slices {
    ($([$($generics:tt)*] $ty:ty),*) => {$(
        impl<$($generics)*> NestedArray for $ty {
            type Element = A::Element;

            fn sizes(&self) -> Vec<usize> {
                self[..].sizes()
            }

            fn append(&self, sizes: &[usize], to: &mut Vec<A::Element>) -> Result<(), [usize; 2]> {
                self[..].append(sizes, to)
            }
        }
    )*};
}
slices!([A: NestedArray, const N: usize] [A; N], [A: NestedArray] Vec<A>, [A: NestedArray] &[A]);

/// Returns the numbers and their shape.
pub(super) fn flattened<A: NestedArray>(
    call: &Call<'_>,
    data: &A,
) -> Result<(Vec<A::Element>, Shape), Refusal> {
    let (sizes, mut numbers) = (data.sizes(), Vec::new());
    data.append(&sizes, &mut numbers).map_err(|[len, other]| {
        let why = format!("parts of one level have {len} and {other} elements; make them equally long");
        call.refuse(ErrorKind::Shape, &why)
    })?;
    Ok((numbers, sizes.into()))
}

/// Returns the type of a tensor of numbers of type `of`, if none is given: PyTorch's for numbers of
/// Python.
pub(super) fn literal_type(of: DType) -> DType {
    match of {
        _ if of.is_floating_point() => DType::default_float(),
        DType::Bool => DType::Bool,
        _ => DType::I64,
    }
}
