//! Operands: device memory that an op touches, and how.

use super::Allocation;
use crate::order::{Access, AccessMode, ByteRange, Ledger};
use std::marker::PhantomData;
use std::sync::Arc;
use warpline_driver::{DevicePtr, Element};

/// Device memory that an op touches, and how.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    pub(crate) allocation: &'a Arc<Allocation>,
    pub(crate) range: ByteRange,
    pub(crate) access: AccessMode,
}

impl Operand<'_> {
    /// The address of its first byte.
    #[inline]
    pub fn address(&self) -> DevicePtr {
        self.allocation.ptr.offset(self.range.offset())
    }

    /// Which bytes of its allocation it is.
    #[inline]
    pub const fn range(&self) -> ByteRange {
        self.range
    }

    /// What the op does with it.
    #[inline]
    pub const fn access(&self) -> AccessMode {
        self.access
    }

    /// Whether it is one run of memory, as kernels take it.
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

/// An operand that owns its memory (an `Arc`), or lets it go (a `Weak`).
#[derive(Clone)]
pub(crate) struct OwnedOperand<A> {
    pub(crate) allocation: A,
    pub(crate) range: ByteRange,
    pub(crate) access: AccessMode,
}

impl Access for OwnedOperand<Arc<Allocation>> {
    fn ledger(&self) -> &Ledger {
        &self.allocation.ledger
    }

    fn range(&self) -> &ByteRange {
        &self.range
    }

    fn mode(&self) -> AccessMode {
        self.access
    }
}

/// Something that a kernel can take where its declaration says `&[T]` or `&mut [T]`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be passed where the kernel takes a slice of `{T}`",
    note = "pass a reference to device memory of that element type, such as `&Buffer<{T}>`"
)]
pub trait IntoOperand<'a, T: Element> {
    /// Which memory it is.
    fn into_operand(self) -> Elements<'a, T>;
}

/// Elements of device memory, before it is known what a kernel does with them.
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
    /// The elements in `range`, by bytes from the start of `allocation`: inside it, and each run whole, aligned elements.
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

    /// Elements.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of its first byte.
    #[inline]
    pub(crate) fn address(&self) -> DevicePtr {
        self.allocation.ptr.offset(self.range.offset())
    }

    /// The operand of an op that accesses it so.
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
