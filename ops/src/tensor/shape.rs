//! The sizes of a tensor.

use smallvec::SmallVec;
use std::fmt;
use std::ops::Deref;

/// The sizes of a tensor, the slowest-varying one first; `[]` is a scalar.
///
/// Shapes are made from arrays, slices and vectors of `usize`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape(SmallVec<[usize; 4]>);

impl Shape {
    /// Returns the number of elements, or `None` if it exceeds `usize::MAX`.
    pub fn elements(&self) -> Option<usize> {
        self.iter().try_fold(1usize, |product, &size| product.checked_mul(size))
    }

    /// Returns the shape with its first size replaced by `first`.
    pub(super) fn with_first(&self, first: usize) -> Self {
        let mut sizes = self.0.clone();
        sizes[0] = first;
        Shape(sizes)
    }

    /// Returns the shape of `rows` values of this shape, one behind the other.
    pub(crate) fn of_rows(&self, rows: usize) -> Self {
        let mut sizes = SmallVec::with_capacity(1 + self.0.len());
        sizes.push(rows);
        sizes.extend_from_slice(&self.0);
        Shape(sizes)
    }
}

impl Deref for Shape {
    type Target = [usize];

    #[inline]
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    #[inline]
    fn from(sizes: [usize; N]) -> Self {
        Shape(SmallVec::from_slice(&sizes))
    }
}

impl From<&[usize]> for Shape {
    #[inline]
    fn from(sizes: &[usize]) -> Self {
        Shape(SmallVec::from_slice(sizes))
    }
}

impl From<Vec<usize>> for Shape {
    fn from(sizes: Vec<usize>) -> Self {
        Shape(SmallVec::from_vec(sizes))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &self.0[..])
    }
}
