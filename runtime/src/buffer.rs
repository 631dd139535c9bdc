//! The handle to a region of device memory.

use crate::order::{AccessMode, ByteRange};
use crate::shared::{Allocation, Device, Elements, IntoOperand, Operand};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use warpline_driver::{Element, Error, ErrorKind, Result};

/// Elements of type `T` in a device's memory: all of an allocation, or a view of part of it.
///
/// A cheap handle: clones and views share the memory, which returns to the allocator when the last
/// of them is dropped. No use borrows the buffer: the order check, not the borrow checker, decides
/// whether an op may follow an earlier use ([`OrderMode`](crate::OrderMode)).
///
/// A buffer consists of `rows` runs of `width` elements. `device.alloc` returns one run;
/// [`as_matrix`](Self::as_matrix) splits it into rows, and [`columns`](Self::columns) makes runs
/// that are not adjacent.
pub struct Buffer<T: Element> {
    allocation: Arc<Allocation>,
    /// Elements before the first of this view.
    offset: usize,
    width: usize,
    rows: usize,
    pitch: usize,
    element: PhantomData<fn() -> T>,
}

/// Sizes of a memory's history: the order check's records, the newest uses by stream, and the
/// marks.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct HistorySizes {
    pub records: usize,
    pub uses: usize,
    pub marks: usize,
}

impl<T: Element> Buffer<T> {
    pub(crate) fn new(allocation: Arc<Allocation>, len: usize) -> Self {
        Buffer { allocation, offset: 0, width: len, rows: 1, pitch: len, element: PhantomData }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.width * self.rows
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the size of all elements in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len() * size_of::<T>()
    }

    /// Returns the number of rows, the elements in a row, and the elements from the start of a row
    /// to the start of the next.
    pub fn shape(&self) -> (usize, usize, usize) {
        (self.rows, self.width, self.pitch)
    }

    /// Returns true if the elements are adjacent in memory.
    pub fn is_contiguous(&self) -> bool {
        self.rows <= 1 || self.pitch == self.width
    }

    /// Returns the device that the memory is on.
    pub fn device(&self) -> Device {
        Device::of(self.allocation.device.clone())
    }

    /// Returns true if the memory is that of a [`Pinned`](crate::Pinned) buffer, from
    /// [`Stream::buffer_from_pinned`](crate::Stream::buffer_from_pinned).
    pub fn is_pinned(&self) -> bool {
        self.allocation.is_pinned()
    }

    /// Returns the sizes of the memory's history, for tests and figures.
    #[doc(hidden)]
    pub fn bookkeeping(&self) -> HistorySizes {
        let (records, uses, marks) = self.allocation.ledger.open().lens();
        HistorySizes { records, uses, marks }
    }

    /// Returns true if both are views of one allocation.
    pub fn shares_memory(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.allocation, &other.allocation)
    }

    /// Returns true if both are the same view of one allocation.
    pub fn is_same(&self, other: &Self) -> bool {
        self.shares_memory(other) && self.range() == other.range()
    }

    fn view(&self, offset: usize, rows: usize, width: usize, pitch: usize) -> Self {
        let allocation = self.allocation.clone();
        Buffer { allocation, offset: self.offset + offset, width, rows, pitch, element: PhantomData }
    }

    /// Returns a view of the elements in `range`.
    ///
    /// # Errors
    /// `Shape` if the range exceeds the buffer or the buffer is not contiguous.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (start, end) = bounds(range, self.len(), "slice")?;
        self.ensure_contiguous("slice", "select rows or columns of it")?;
        Ok(self.view(start, 1, end - start, end - start))
    }

    /// Returns a view of the same elements as a matrix of `rows` rows.
    ///
    /// # Errors
    /// `Shape` if the number of elements is not a multiple of `rows`, or the buffer is not
    /// contiguous.
    pub fn as_matrix(&self, rows: usize) -> Result<Self> {
        self.ensure_contiguous("as_matrix", "copy it to contiguous memory first")?;
        if rows == 0 || !self.len().is_multiple_of(rows) {
            return Err(not_whole_rows(self.len(), rows));
        }
        let width = self.len() / rows;
        Ok(self.view(0, rows, width, width))
    }

    /// Returns a view of the rows in `range` of a matrix.
    ///
    /// # Errors
    /// `Shape` if the range exceeds the rows.
    pub fn rows(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (start, end) = bounds(range, self.rows, "rows")?;
        Ok(self.view(start * self.pitch, end - start, self.width, self.pitch))
    }

    /// Returns a view of the columns in `range` of a matrix: one run of elements in each row.
    ///
    /// # Errors
    /// `Shape` if the range exceeds the columns.
    pub fn columns(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (start, end) = bounds(range, self.width, "columns")?;
        Ok(self.view(start, self.rows, end - start, self.pitch))
    }

    /// Returns a view of the same bytes as elements of type `U`, such as the bits of numbers.
    ///
    /// # Errors
    /// `Shape` if the bytes are not a whole number of aligned `U`, or the buffer is not contiguous.
    pub fn reinterpret<U: Element>(&self) -> Result<Buffer<U>> {
        self.ensure_contiguous("reinterpret", "copy it to contiguous memory first")?;
        let (start, len, size) = (self.offset * size_of::<T>(), self.len_bytes(), size_of::<U>());
        let is_aligned = start.is_multiple_of(size) && self.address().is_multiple_of(size as u64);
        if len != 0 && !(is_aligned && len.is_multiple_of(size)) {
            return Err(not_whole_elements(len, start, size, U::NAME));
        }
        let (allocation, width) = (self.allocation.clone(), len / size);
        Ok(Buffer { allocation, offset: start / size, width, rows: 1, pitch: width, element: PhantomData })
    }

    /// Accepts the current contents of the memory after a write to it was refused.
    ///
    /// A refused write leaves a mark on the bytes that it would have written. Ops that read them
    /// fail with an inherited error ([`Error::is_inherited`]) on the stream that was refused and on
    /// streams that have since waited for it. The mark is removed when the refused call's own
    /// `Pending` is awaited, when a `synchronize` returns that error, when the bytes are
    /// overwritten, or by this call. Work on other streams is not affected.
    ///
    /// In three cases, ops that read the bytes fail on every stream, until the bytes are
    /// overwritten or accepted: if the driver did a part of the work, if foreign work
    /// ([`Stream::external`](crate::Stream::external)) failed, and for every refused write in
    /// [`OrderMode::Wait`](crate::OrderMode::Wait). In the first two cases the bytes may have
    /// changed.
    pub fn accept_contents(&self) {
        self.allocation.ledger.open().clear_marks(&self.range());
    }

    /// Returns an error if the elements are not adjacent in memory.
    fn ensure_contiguous(&self, what: &str, instead: &str) -> Result<()> {
        if self.is_contiguous() { Ok(()) } else { Err(not_contiguous(what, self.shape(), instead)) }
    }

    pub(crate) fn allocation(&self) -> &Arc<Allocation> {
        &self.allocation
    }

    /// Returns its bytes within the allocation.
    #[inline]
    pub(crate) fn range(&self) -> ByteRange {
        let size = size_of::<T>() as u64;
        let offset = self.offset as u64 * size;
        if self.is_contiguous() {
            ByteRange::contiguous(offset, self.len() as u64 * size)
        } else {
            ByteRange::strided(offset, self.width as u64 * size, self.pitch as u64 * size, self.rows as u64)
        }
    }

    /// Returns the operand of an op that accesses it with `access`.
    #[inline]
    pub(crate) fn operand(&self, access: AccessMode) -> Operand<'_> {
        Operand { allocation: &self.allocation, range: self.range(), access }
    }

    /// Returns the address of the first element.
    #[inline]
    pub(crate) fn address(&self) -> u64 {
        self.allocation.ptr.offset((self.offset * size_of::<T>()) as u64).0
    }

    /// Returns the rows, the bytes in a row and the bytes between rows, with adjacent rows joined
    /// into one.
    pub(crate) fn runs(&self) -> (usize, usize, usize) {
        let size = size_of::<T>();
        if self.is_contiguous() {
            (1, self.len() * size, self.len() * size)
        } else {
            (self.rows, self.width * size, self.pitch * size)
        }
    }
}

// The errors of views. Without a type parameter, they are compiled once and not for each type.

#[cold]
fn not_contiguous(what: &str, (rows, width, pitch): (usize, usize, usize), instead: &str) -> Error {
    let why = format!(
        "{what}: the buffer is a strided view of {rows} rows of {width} elements, {pitch} apart; {instead}"
    );
    Error::new(ErrorKind::Shape, why)
}

#[cold]
fn not_whole_rows(len: usize, rows: usize) -> Error {
    let why = format!(
        "as_matrix: {len} elements cannot be divided into {rows} rows; pass a number of rows that divides \
         them"
    );
    Error::new(ErrorKind::Shape, why)
}

#[cold]
fn not_whole_elements(len_bytes: usize, start: usize, size: usize, element: &str) -> Error {
    let why = format!(
        "reinterpret: {len_bytes} bytes that start {start} bytes into their memory are not whole and \
         aligned elements of {size} bytes ({element}); pass a view whose start and length are multiples \
         of {size}"
    );
    Error::new(ErrorKind::Shape, why)
}

fn bounds(range: impl RangeBounds<usize>, len: usize, what: &str) -> Result<(usize, usize)> {
    let start = match range.start_bound() {
        Bound::Included(&n) => n,
        Bound::Excluded(&n) => n.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&n) => n.saturating_add(1),
        Bound::Excluded(&n) => n,
        Bound::Unbounded => len,
    };
    if start > end || end > len {
        let why = format!("{what}: {start}..{end} is not within 0..{len}; pass a range inside the buffer");
        return Err(Error::new(ErrorKind::Shape, why));
    }
    Ok((start, end))
}

impl<'a, T: Element> IntoOperand<'a, T> for &'a Buffer<T> {
    #[inline]
    fn into_operand(self) -> Elements<'a, T> {
        Elements::new(&self.allocation, self.range())
    }
}

impl<T: Element> Clone for Buffer<T> {
    fn clone(&self) -> Self {
        self.view(0, self.rows, self.width, self.pitch)
    }
}

impl<T: Element> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.allocation.device.id;
        if self.is_contiguous() {
            write!(f, "Buffer<{}>({} on {device})", T::NAME, self.len())
        } else {
            write!(f, "Buffer<{}>({} x {} of {} on {device})", T::NAME, self.rows, self.width, self.pitch)
        }
    }
}
