//! The element types of tensors.

use super::{Scalar, Storage};
use std::fmt;
use warpline_runtime::{Buffer, Element};

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// 32-bit floating point.
    F32,
    /// 64-bit integers: labels and indices.
    I64,
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => f32::NAME,
            DType::I64 => i64::NAME,
        })
    }
}

/// An element type of tensors.
pub trait TensorElement: Element + sealed::Sealed {
    /// This type as a [`DType`].
    const DTYPE: DType;

    #[doc(hidden)]
    fn buffer(storage: &Storage) -> Option<&Buffer<Self>>;
    #[doc(hidden)]
    fn storage(buffer: Buffer<Self>) -> Storage;
    #[doc(hidden)]
    fn scalar(scalar: Scalar) -> Option<Self>;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($ty:ty = $variant:ident),*) => {$(
        impl sealed::Sealed for $ty {}
        impl TensorElement for $ty {
            const DTYPE: DType = DType::$variant;

            #[inline]
            fn buffer(storage: &Storage) -> Option<&Buffer<$ty>> {
                match storage {
                    Storage::$variant(buffer) => Some(buffer),
                    _ => None,
                }
            }

            #[inline]
            fn storage(buffer: Buffer<$ty>) -> Storage {
                Storage::$variant(buffer)
            }

            #[inline]
            fn scalar(scalar: Scalar) -> Option<$ty> {
                match scalar {
                    Scalar::$variant(scalar) => Some(scalar),
                    _ => None,
                }
            }
        }
    )*};
}

elements! { f32 = F32, i64 = I64 }
