//! The typed fields of a sample, and of the batches that are made of samples.
//!
//! A sample is a tuple of element types. Its fields are stored apart: a batch has one pinned
//! buffer and one device buffer for each field, with the samples one after the other. One macro
//! writes the same code for tuples of every length, and everything else in this folder is generic
//! over [`Sample`].

use crate::{Shape, Tensor, TensorElement};
use std::fmt::Debug;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use warpline_runtime::{Buffer, Element, Pending, Pinned, PinnedRoom, Result, Site, Stream};

/// The element types of a sample's fields: a tuple of one to six [`Element`] types.
///
/// For example, `(u8, f32, i64)` is the type of samples with an image of bytes, a row of numbers
/// and a label. The dataset gives each field a shape, which is the same for all its samples.
///
/// This trait is sealed. The tuple types implement it.
pub trait Sample: sealed::Sealed + Send + Sync + 'static {
    /// One shape for each field, without the dimension of the batch: `[Shape; 2]` for `(A, B)`.
    type Shapes: AsRef<[Shape]> + Clone + Debug + Send + Sync;

    /// The memory that fields are written to: `(&mut [A], &mut [B])` for `(A, B)`.
    ///
    /// Each slice has the elements of one sample, or of all samples of a batch one after the other.
    type Slots<'a>;

    /// Fields of many samples in ordinary memory: `(Vec<A>, Vec<B>)` for `(A, B)`.
    type Columns: Default + Send + Sync;

    /// The fields of a batch in device memory: `(Buffer<A>, Buffer<B>)` for `(A, B)`.
    type Buffers: Clone + Debug + Send + Sync;

    /// The number of elements of each field.
    #[doc(hidden)]
    type Widths: AsRef<[usize]> + Copy + Debug + Send + Sync;
    /// The fields of a batch in pinned memory.
    #[doc(hidden)]
    type Host: Send;
    /// The copies of a batch's fields.
    #[doc(hidden)]
    type Copies: Send;

    /// The name and the size in bytes of each field's element type.
    #[doc(hidden)]
    const ELEMENTS: &'static [(&'static str, usize)];

    /// Returns `None` if a shape has more elements than `usize` can count.
    #[doc(hidden)]
    fn widths(shapes: &Self::Shapes) -> Option<Self::Widths>;

    #[doc(hidden)]
    fn host(room: &mut PinnedRoom, widths: Self::Widths, rows: usize) -> Result<Self::Host>;
    #[doc(hidden)]
    fn host_slots(host: &mut Self::Host, widths: Self::Widths, rows: Range<usize>) -> Self::Slots<'_>;
    /// Takes the first row off `rest`, in which there is one.
    #[doc(hidden)]
    fn take_row<'a>(rest: &mut Self::Slots<'a>, widths: Self::Widths) -> Self::Slots<'a>;
    #[doc(hidden)]
    fn truncate(host: &mut Self::Host, widths: Self::Widths, rows: usize);
    /// Undoes `truncate`.
    #[doc(hidden)]
    fn restore(host: &mut Self::Host);

    /// Enqueues a copy of each field, the first field first.
    #[doc(hidden)]
    fn send(host: Self::Host, stream: &Stream, site: Site) -> Result<(Self::Buffers, Self::Copies)>;
    /// Returns whether `poll_copies` would return the memory now. Registers no waker.
    #[doc(hidden)]
    fn copies_are_done(copies: &mut Self::Copies) -> Result<bool>;
    #[doc(hidden)]
    fn poll_copies(copies: &mut Self::Copies, cx: &mut Context<'_>) -> Poll<Result<Self::Host>>;

    /// Returns the number of rows, or the fields' numbers of elements if they do not fit together.
    #[doc(hidden)]
    fn column_rows(columns: &Self::Columns, widths: Self::Widths) -> Result<usize, Vec<usize>>;
    /// Adds one row of zeros.
    #[doc(hidden)]
    fn grow(columns: &mut Self::Columns, widths: Self::Widths);
    #[doc(hidden)]
    fn column_slots(columns: &mut Self::Columns, widths: Self::Widths, row: usize) -> Self::Slots<'_>;
    #[doc(hidden)]
    fn copy_row(columns: &Self::Columns, widths: Self::Widths, row: usize, into: Self::Slots<'_>);
}

/// A sample whose fields can be tensors.
///
/// This trait is sealed. Tuples of [`TensorElement`] types implement it.
pub trait TensorSample: Sample {
    /// One tensor for each field: `(Tensor, Tensor)` for `(A, B)`.
    type Tensors: Clone + Send + Sync;

    /// Returns tensors of `rows` samples, which share the memory of `buffers`.
    #[doc(hidden)]
    fn tensors(buffers: &Self::Buffers, shapes: &Self::Shapes, rows: usize) -> Self::Tensors;
}

/// The copy of a field, and its pinned memory once the copy has finished.
#[derive(Debug)]
pub struct Returning<T: Element> {
    copy: Pending<Pinned<T>>,
    back: Option<Pinned<T>>,
}

impl<T: Element> Returning<T> {
    fn send(host: Pinned<T>, stream: &Stream, site: Site) -> Result<(Buffer<T>, Self)> {
        let (buffer, sent) = stream.at(site).copy_to_device(host)?;
        Ok((buffer, Returning { copy: sent.unobserved(), back: None }))
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if self.back.is_none() {
            self.back = Some(ready!(Pin::new(&mut self.copy).poll(cx))?);
        }
        Poll::Ready(Ok(()))
    }

    fn take(&mut self) -> Pinned<T> {
        self.back.take().expect("its copy has finished")
    }
}

/// Copies `from` to `to`. For a single element, a store is faster than a call of `memcpy`.
#[inline]
fn copy<T: Element>(from: &[T], to: &mut [T]) {
    match (from, to) {
        ([from], [to]) => *to = *from,
        (from, to) => to.copy_from_slice(from),
    }
}

fn tensor<T: TensorElement<Stored = T> + Element>(buffer: &Buffer<T>, shape: &Shape, rows: usize) -> Tensor {
    Tensor::from_buffer(buffer.clone(), shape.of_rows(rows)).expect("a batch has a whole number of samples")
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! samples {
    ($($fields:literal: $($T:ident $i:tt),+;)*) => {$(
        impl<$($T: Element),+> sealed::Sealed for ($($T,)+) {}

        impl<$($T: Element),+> Sample for ($($T,)+) {
            type Shapes = [Shape; $fields];
            type Slots<'a> = ($(&'a mut [$T],)+);
            type Columns = ($(Vec<$T>,)+);
            type Buffers = ($(Buffer<$T>,)+);
            type Widths = [usize; $fields];
            type Host = ($(Pinned<$T>,)+);
            type Copies = ($(Returning<$T>,)+);

            const ELEMENTS: &'static [(&'static str, usize)] = &[$(($T::NAME, size_of::<$T>())),+];

            fn widths(shapes: &Self::Shapes) -> Option<Self::Widths> {
                Some([$(shapes[$i].elements()?),+])
            }

            fn host(room: &mut PinnedRoom, widths: Self::Widths, rows: usize) -> Result<Self::Host> {
                Ok(($(room.make::<$T>(rows * widths[$i])?,)+))
            }

            #[inline]
            fn host_slots(host: &mut Self::Host, widths: Self::Widths, rows: Range<usize>) -> Self::Slots<'_> {
                ($(&mut host.$i[rows.start * widths[$i]..rows.end * widths[$i]],)+)
            }

            #[inline]
            fn take_row<'a>(rest: &mut Self::Slots<'a>, widths: Self::Widths) -> Self::Slots<'a> {
                ($(rest.$i.split_off_mut(..widths[$i]).expect("a row is left"),)+)
            }

            fn truncate(host: &mut Self::Host, widths: Self::Widths, rows: usize) {
                $(host.$i.truncate(rows * widths[$i]);)+
            }

            fn restore(host: &mut Self::Host) {
                $(host.$i.restore_len();)+
            }

            fn send(host: Self::Host, stream: &Stream, site: Site) -> Result<(Self::Buffers, Self::Copies)> {
                let fields = ($(Returning::send(host.$i, stream, site)?,)+);
                Ok((($(fields.$i.0,)+), ($(fields.$i.1,)+)))
            }

            fn copies_are_done(copies: &mut Self::Copies) -> Result<bool> {
                // They are on one stream, and the last field's copy is the last.
                let (.., last) = copies;
                last.copy.query()
            }

            fn poll_copies(copies: &mut Self::Copies, cx: &mut Context<'_>) -> Poll<Result<Self::Host>> {
                $(ready!(copies.$i.poll(cx))?;)+
                Poll::Ready(Ok(($(copies.$i.take(),)+)))
            }

            fn column_rows(columns: &Self::Columns, widths: Self::Widths) -> Result<usize, Vec<usize>> {
                let rows = columns.0.len().checked_div(widths[0]).unwrap_or(0);
                let fits = [$(rows.checked_mul(widths[$i]) == Some(columns.$i.len())),+];
                if fits == [true; $fields] { Ok(rows) } else { Err(vec![$(columns.$i.len()),+]) }
            }

            fn grow(columns: &mut Self::Columns, widths: Self::Widths) {
                $(columns.$i.resize(columns.$i.len() + widths[$i], $T::new_zeroed());)+
            }

            #[inline]
            fn column_slots(columns: &mut Self::Columns, widths: Self::Widths, row: usize) -> Self::Slots<'_> {
                ($(&mut columns.$i[row * widths[$i]..][..widths[$i]],)+)
            }

            #[inline]
            fn copy_row(columns: &Self::Columns, widths: Self::Widths, row: usize, into: Self::Slots<'_>) {
                $(copy(&columns.$i[row * widths[$i]..][..widths[$i]], into.$i);)+
            }
        }

        impl<$($T: TensorElement<Stored = $T> + Element),+> TensorSample for ($($T,)+) {
            type Tensors = ($(samples!(@tensor $T),)+);

            fn tensors(buffers: &Self::Buffers, shapes: &Self::Shapes, rows: usize) -> Self::Tensors {
                ($(tensor(&buffers.$i, &shapes[$i], rows),)+)
            }
        }
    )*};
    (@tensor $T:ident) => { Tensor };
}

samples! {
    1: A 0;
    2: A 0, B 1;
    3: A 0, B 1, C 2;
    4: A 0, B 1, C 2, D 3;
    5: A 0, B 1, C 2, D 3, E 4;
    6: A 0, B 1, C 2, D 3, E 4, F 5;
}
