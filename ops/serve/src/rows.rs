//! The rows of a batch, one for each call, in pinned and in device memory.
//!
//! The inputs and the outputs of a model are each a tuple of element types, like the samples of a
//! dataset. A row of it is a slice for each element type.

use std::future::Future;
use warpline_ops::data::TensorSample;
use warpline_ops::{Shape, Tensor, TensorElement, TensorOps};
use warpline_runtime::{
    Device, Element, Error, ErrorKind, Pending, Pinned, PinnedPart, Result, Site, Stream,
};

/// The element types of a row: a tuple of one to six types.
///
/// This trait is sealed, as [`TensorSample`] is. The tuple types implement it.
pub trait Rows: TensorSample {
    /// A row as its reader sees it: `(&[A], &[B])` for `(A, B)`.
    type View<'a>;
    /// A row in ordinary memory: `(Vec<A>, Vec<B>)` for `(A, B)`.
    type Owned;

    /// A row in pinned memory, or several.
    #[doc(hidden)]
    type Row: Send + Sync + 'static;
    /// The copies of a batch to the device.
    #[doc(hidden)]
    type Sent: Send;

    #[doc(hidden)]
    fn pinned(
        device: &Device,
        widths: Self::Widths,
        rows: usize,
    ) -> impl Future<Output = Result<Self::Host>> + Send;
    /// Returns a block as rows that can be cut off.
    #[doc(hidden)]
    fn uncut(host: Self::Host) -> Self::Row;
    /// Cuts the first row off.
    #[doc(hidden)]
    fn cut(rows: &mut Self::Row, widths: Self::Widths) -> Self::Row;
    /// Returns the whole block, if no other row of it is left.
    #[doc(hidden)]
    fn whole(rest: Self::Row) -> Option<Self::Host>;
    /// Returns the first `used` elements of a row.
    #[doc(hidden)]
    fn slots(row: &mut Self::Row, used: Self::Widths) -> Self::Slots<'_>;
    #[doc(hidden)]
    fn view(row: &Self::Row) -> Self::View<'_>;
    #[doc(hidden)]
    fn owned(row: &Self::Row) -> Self::Owned;
    /// Zeroes the first `used` elements of a row.
    #[doc(hidden)]
    fn clear(row: &mut Self::Row, used: Self::Widths);
    #[doc(hidden)]
    fn copy(from: &Self::Row, to: &mut Self::Row);

    /// Returns the first dimension of the shapes, and the shapes without it, if all have the same
    /// one.
    #[doc(hidden)]
    fn of_elements(shapes: &Self::Shapes) -> Option<(usize, Self::Shapes)>;
    /// Returns the widths of `len` elements.
    #[doc(hidden)]
    fn times(element: Self::Widths, len: usize) -> Self::Widths;
    /// Moves rows of these lengths together.
    #[doc(hidden)]
    fn pack(host: &mut Self::Host, widths: Self::Widths, element: Self::Widths, lens: &[usize]);

    #[doc(hidden)]
    fn shorten(host: &mut Self::Host, widths: Self::Widths, rows: usize);
    #[doc(hidden)]
    fn alloc(
        stream: &Stream,
        widths: Self::Widths,
        rows: usize,
    ) -> impl Future<Output = Result<Self::Buffers>> + Send;
    #[doc(hidden)]
    fn send_into(buffers: &Self::Buffers, host: Self::Host, stream: &Stream) -> Self::Sent;
    /// Waits for the copies, and returns the pinned memory with all its rows.
    #[doc(hidden)]
    fn sent(sent: Self::Sent) -> impl Future<Output = Result<Self::Host>> + Send;

    /// Copies the first `rows` rows of a model's outputs to the host.
    #[doc(hidden)]
    fn read(
        outputs: Self::Tensors,
        shapes: &Self::Shapes,
        rows: usize,
        stream: &Stream,
    ) -> impl Future<Output = Result<Self::Host>> + Send;
}

/// Copies an output to the host, if it has the shape and the type that the batcher was built for.
fn read<T: TensorElement<Stored = T> + Element>(
    output: &Tensor,
    number: usize,
    shape: &Shape,
    rows: usize,
) -> Result<Pending<Pinned<T>>> {
    let is_expected = output.shape().split_first() == Some((&rows, &**shape));
    if !is_expected || output.dtype() != T::DTYPE {
        let expected: Vec<usize> = [rows].into_iter().chain(shape.iter().copied()).collect();
        let why = format!(
            "output {number} of the model is {} of shape {:?}, and {} of shape {expected:?} is expected; \
             return one row for each row of the inputs, or correct the output's shape in the builder",
            output.dtype(),
            output.shape(),
            T::DTYPE
        );
        return Err(Error::new(ErrorKind::Shape, why));
    }
    // A transposed output is copied into the order of its rows.
    Ok(if output.is_contiguous() { output.to_pinned::<T>() } else { output.contiguous().to_pinned::<T>() })
}

/// Waits for a copy, and returns its pinned memory at full length.
async fn back<T: Element>(sent: Pending<Pinned<T>>) -> Result<Pinned<T>> {
    let mut pinned = match sent.await {
        Ok(pinned) => pinned,
        Err(error) => Pinned::from_error(error.clone()).ok_or(error)?,
    };
    pinned.restore_len();
    Ok(pinned)
}

macro_rules! rows {
    ($($T:ident $i:tt),+) => {
        #[allow(non_snake_case, reason = "variables have the names of their types")]
        impl<$($T: TensorElement<Stored = $T> + Element),+> Rows for ($($T,)+) {
            type View<'a> = ($(&'a [$T],)+);
            type Owned = ($(Vec<$T>,)+);
            type Row = ($(PinnedPart<$T>,)+);
            type Sent = ($(Pending<Pinned<$T>>,)+);

            async fn pinned(device: &Device, widths: Self::Widths, rows: usize) -> Result<Self::Host> {
                let site = Site::here(&"pinned");
                let lens_bytes = [$(rows * widths[$i] * size_of::<$T>()),+];
                let mut room = device.pinned_room(site, &lens_bytes).await?;
                Ok(($(room.make::<$T>(rows * widths[$i])?,)+))
            }

            fn uncut(host: Self::Host) -> Self::Row {
                ($(host.$i.into_part(),)+)
            }

            #[inline]
            fn cut(rows: &mut Self::Row, widths: Self::Widths) -> Self::Row {
                ($(rows.$i.split_to(widths[$i]),)+)
            }

            fn whole(rest: Self::Row) -> Option<Self::Host> {
                Some(($(rest.$i.into_whole().ok()?,)+))
            }

            fn slots(row: &mut Self::Row, used: Self::Widths) -> Self::Slots<'_> {
                ($(&mut row.$i[..used[$i]],)+)
            }

            fn view(row: &Self::Row) -> Self::View<'_> {
                ($(&*row.$i,)+)
            }

            fn owned(row: &Self::Row) -> Self::Owned {
                ($(row.$i.to_vec(),)+)
            }

            fn clear(row: &mut Self::Row, used: Self::Widths) {
                $(row.$i[..used[$i]].fill($T::new_zeroed());)+
            }

            fn copy(from: &Self::Row, to: &mut Self::Row) {
                $(to.$i.copy_from_slice(&from.$i);)+
            }

            fn of_elements(shapes: &Self::Shapes) -> Option<(usize, Self::Shapes)> {
                let longest = *shapes[0].first()?;
                let of_element = |shape: &Shape| match shape.split_first() {
                    Some((first, rest)) if *first == longest => Some(Shape::from(rest)),
                    _ => None,
                };
                Some((longest, [$(of_element(&shapes[$i])?),+]))
            }

            fn times(element: Self::Widths, len: usize) -> Self::Widths {
                [$(element[$i] * len),+]
            }

            fn pack(host: &mut Self::Host, widths: Self::Widths, element: Self::Widths, lens: &[usize]) {
                let mut end = 0;
                for (row, len) in lens.iter().enumerate() {
                    $(
                        let from = row * widths[$i];
                        host.$i.copy_within(from..from + len * element[$i], end * element[$i]);
                    )+
                    end += len;
                }
            }

            fn shorten(host: &mut Self::Host, widths: Self::Widths, rows: usize) {
                $(host.$i.truncate(rows * widths[$i]);)+
            }

            async fn alloc(stream: &Stream, widths: Self::Widths, rows: usize) -> Result<Self::Buffers> {
                Ok(($(stream.alloc_async::<$T>(rows * widths[$i]).await?,)+))
            }

            fn send_into(buffers: &Self::Buffers, host: Self::Host, stream: &Stream) -> Self::Sent {
                ($(stream.copy_into(&buffers.$i, host.$i),)+)
            }

            async fn sent(sent: Self::Sent) -> Result<Self::Host> {
                // All are awaited, so that an error is reported once.
                $(let $T = back(sent.$i).await;)+
                Ok(($($T?,)+))
            }

            async fn read(
                outputs: Self::Tensors,
                shapes: &Self::Shapes,
                rows: usize,
                stream: &Stream,
            ) -> Result<Self::Host> {
                let copies = stream.enter(|| Ok(($(read::<$T>(&outputs.$i, $i, &shapes[$i], rows)?,)+)))?;
                Ok(($(copies.$i.await?,)+))
            }
        }
    };
}

rows!(A 0);
rows!(A 0, B 1);
rows!(A 0, B 1, C 2);
rows!(A 0, B 1, C 2, D 3);
rows!(A 0, B 1, C 2, D 3, E 4);
rows!(A 0, B 1, C 2, D 3, E 4, F 5);
