//! Operands: the device memory that an op touches, and how it touches it.

use super::Allocation;
use crate::order::{Access, AccessMode, ByteRange, Ledger};
use std::marker::PhantomData;
use std::sync::Arc;
use warpline_driver::{DevicePtr, Element};

/// A range of device memory that an op touches, and its access mode.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    pub(crate) allocation: &'a Arc<Allocation>,
    pub(crate) range: ByteRange,
    pub(crate) access: AccessMode,
}

impl Operand<'_> {
    /// Returns the address of the first byte.
    #[inline]
    pub fn address(&self) -> DevicePtr {
        self.allocation.ptr.offset(self.range.offset())
    }

    /// Returns the bytes within the allocation.
    #[inline]
    pub const fn range(&self) -> ByteRange {
        self.range
    }

    /// Returns the access mode of the op.
    #[inline]
    pub const fn access(&self) -> AccessMode {
        self.access
    }

    /// Returns whether the range is contiguous, as kernels require.
    #[inline]
    pub const fn is_contiguous(&self) -> bool {
        self.range.is_contiguous()
    }
}

impl Access for Operand<'_> {
    #[inline]
    fn ledger(&self) -> &Ledger {
        &self.allocation.ledger
    }

    #[inline]
    fn range(&self) -> &ByteRange {
        &self.range
    }

    #[inline]
    fn mode(&self) -> AccessMode {
        self.access
    }
}

/// A value that can be passed to a kernel for a parameter `&[T]` or `&mut [T]`, such as a
/// `&Buffer<T>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be passed where the kernel takes a slice of `{T}`",
    note = "pass a reference to device memory of that element type, such as `&Buffer<{T}>`"
)]
pub trait IntoOperand<'a, T: Element> {
    /// Returns the device memory that this value stands for.
    fn into_operand(self) -> Elements<'a, T>;
}

/// Elements of device memory whose access mode is not known yet.
#[derive(Debug)]
pub struct Elements<'a, T> {
    allocation: &'a Arc<Allocation>,
    range: ByteRange,
    len: usize,
    _element: PhantomData<fn() -> T>,
}

impl<T> Clone for Elements<'_, T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Elements<'_, T> {}

impl<'a, T: Element> Elements<'a, T> {
    /// Creates the elements in `range`, given in bytes from the start of `allocation`. The range is
    /// inside the allocation, and each run holds whole, aligned elements.
    #[inline]
    pub(crate) fn new(allocation: &'a Arc<Allocation>, range: ByteRange) -> Self {
        debug_assert!(range.end() <= allocation.len_bytes as u64);
        debug_assert!(range.runs().all(|(offset, len)| {
            (offset | len).is_multiple_of(size_of::<T>() as u64)
                && (allocation.ptr.0 + offset).is_multiple_of(align_of::<T>() as u64)
        }));
        let len = range.len_bytes() as usize / size_of::<T>();
        Elements { allocation, range, len, _element: PhantomData }
    }

    /// Returns the number of elements.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no elements.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte.
    #[inline]
    pub(crate) fn address(&self) -> DevicePtr {
        self.allocation.ptr.offset(self.range.offset())
    }

    /// Returns the operand of an op with this access mode.
    #[inline]
    pub(crate) const fn with_access(self, access: AccessMode) -> Operand<'a> {
        Operand { allocation: self.allocation, range: self.range, access }
    }
}

impl<'a, T: Element> IntoOperand<'a, T> for Elements<'a, T> {
    #[inline]
    fn into_operand(self) -> Elements<'a, T> {
        self
    }
}
