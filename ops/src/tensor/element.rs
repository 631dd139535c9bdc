//! Typed access to the memory of tensors.

use super::DType;
use super::call::Call;
use half::{bf16, f16};
use warpline_runtime::{Buffer, Element, Refusal, Result};
use zerocopy::IntoBytes;

/// The memory of a tensor: one contiguous range.
#[derive(Clone)]
#[doc(hidden)]
pub enum Storage {
    F32(Buffer<f32>),
    F64(Buffer<f64>),
    F16(Buffer<f16>),
    BF16(Buffer<bf16>),
    I64(Buffer<i64>),
    I32(Buffer<i32>),
    I16(Buffer<i16>),
    I8(Buffer<i8>),
    U8(Buffer<u8>),
    /// Bytes, of which 0 is false.
    Bool(Buffer<u8>),
}

/// Evaluates `$body` with the buffer, whatever its element type.
macro_rules! with_buffer {
    ($storage:expr, $buffer:ident => $body:expr) => {{
        use $crate::tensor::element::Storage;
        match $storage {
            Storage::F32($buffer) => $body,
            Storage::F64($buffer) => $body,
            Storage::F16($buffer) => $body,
            Storage::BF16($buffer) => $body,
            Storage::I64($buffer) => $body,
            Storage::I32($buffer) => $body,
            Storage::I16($buffer) => $body,
            Storage::I8($buffer) => $body,
            Storage::U8($buffer) => $body,
            Storage::Bool($buffer) => $body,
        }
    }};
}

/// Evaluates `$body` with `$ty` as the [`TensorElement`] of the type `$dtype`.
macro_rules! with_element {
    ($dtype:expr, $ty:ident => $body:expr) => {
        with_element!(@ $dtype, $ty => $body, F32 f32, F64 f64, F16 half::f16, BF16 half::bf16,
            I64 i64, I32 i32, I16 i16, I8 i8, U8 u8, Bool bool)
    };
    (@ $dtype:expr, $ty:ident => $body:expr, $($variant:ident $of:ty),*) => {
        match $dtype {
            $($crate::tensor::DType::$variant => {
                type $ty = $of;
                $body
            })*
        }
    };
}
pub(super) use {with_buffer, with_element};

/// An element type of tensors.
///
/// Buffers hold the elements as [`Stored`](Self::Stored): the type itself, and bytes for `bool`,
/// since not every byte that a device can write is a `bool`.
pub trait TensorElement: Copy + Send + Sync + sealed::Sealed + 'static {
    /// The elements of the buffer.
    type Stored: Element;

    /// This type as a [`DType`].
    const DTYPE: DType;

    #[doc(hidden)]
    fn buffer(storage: &Storage) -> Option<&Buffer<Self::Stored>>;
    #[doc(hidden)]
    fn storage(buffer: Buffer<Self::Stored>) -> Storage;
    #[doc(hidden)]
    fn as_stored(elements: &[Self]) -> &[Self::Stored];
    #[doc(hidden)]
    fn from_stored(stored: Self::Stored) -> Self;
    /// Appends elements that were read.
    #[doc(hidden)]
    fn append(to: &mut Vec<Self>, stored: &[Self::Stored]);
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($ty:ty = $variant:ident $(or $same:ident)?),*) => {$(
        impl sealed::Sealed for $ty {}
        impl TensorElement for $ty {
            type Stored = $ty;

            const DTYPE: DType = DType::$variant;

            #[inline]
            fn buffer(storage: &Storage) -> Option<&Buffer<$ty>> {
                match storage {
                    Storage::$variant(buffer) => Some(buffer),
                    $(Storage::$same(buffer) => Some(buffer),)?
                    _ => None,
                }
            }

            #[inline]
            fn storage(buffer: Buffer<$ty>) -> Storage {
                Storage::$variant(buffer)
            }

            fn as_stored(elements: &[$ty]) -> &[$ty] {
                elements
            }

            fn from_stored(stored: $ty) -> $ty {
                stored
            }

            fn append(to: &mut Vec<$ty>, stored: &[$ty]) {
                to.extend_from_slice(stored);
            }
        }
    )*};
}

elements! {
    f32 = F32, f64 = F64, f16 = F16, bf16 = BF16, i64 = I64, i32 = I32, i16 = I16, i8 = I8,
    u8 = U8 or Bool
}

impl sealed::Sealed for bool {}
impl TensorElement for bool {
    type Stored = u8;

    const DTYPE: DType = DType::Bool;

    fn buffer(storage: &Storage) -> Option<&Buffer<u8>> {
        match storage {
            Storage::Bool(buffer) => Some(buffer),
            _ => None,
        }
    }

    fn storage(buffer: Buffer<u8>) -> Storage {
        Storage::Bool(buffer)
    }

    fn as_stored(elements: &[bool]) -> &[u8] {
        elements.as_bytes()
    }

    fn from_stored(stored: u8) -> bool {
        stored != 0
    }

    fn append(to: &mut Vec<bool>, stored: &[u8]) {
        to.extend(stored.iter().map(|&stored| Self::from_stored(stored)));
    }
}

impl Storage {
    pub(super) fn dtype(&self) -> DType {
        match self {
            Storage::F32(_) => DType::F32,
            Storage::F64(_) => DType::F64,
            Storage::F16(_) => DType::F16,
            Storage::BF16(_) => DType::BF16,
            Storage::I64(_) => DType::I64,
            Storage::I32(_) => DType::I32,
            Storage::I16(_) => DType::I16,
            Storage::I8(_) => DType::I8,
            Storage::U8(_) => DType::U8,
            Storage::Bool(_) => DType::Bool,
        }
    }

    /// Allocates memory for `len` elements of type `dtype` on the stream of `call`.
    pub(super) fn alloc(call: &Call<'_>, dtype: DType, len: usize) -> Result<Storage, Refusal> {
        with_element!(dtype, T => Ok(T::storage(call.scratch(len)?)))
    }

    /// Returns the number of elements.
    #[inline]
    pub(super) fn len(&self) -> usize {
        with_buffer!(self, buffer => buffer.len())
    }

    /// Returns the memory as elements of another type, whose size divides that of the elements.
    pub(super) fn words<T: Element>(&self) -> Buffer<T> {
        with_buffer!(self, buffer => buffer.reinterpret())
            .expect("elements are aligned, and the memory of a tensor is contiguous")
    }

    /// Returns a view of the elements `start..end`.
    pub(super) fn slice(&self, start: usize, end: usize) -> Result<Storage> {
        with_element!(self.dtype(), T => {
            let buffer = T::buffer(self).expect("it has this type");
            Ok(T::storage(buffer.slice(start..end)?))
        })
    }

    pub(super) fn shares_memory(&self, other: &Storage) -> bool {
        self.words::<u8>().shares_memory(&other.words())
    }
}
