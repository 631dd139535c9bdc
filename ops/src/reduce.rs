//! Sums and column moments of buffers, added in a fixed order that gives the same bits in every
//! run.

use crate::sum::{Over, enqueue_sum};
use crate::{launch, rows_and_columns, stream_of};
use warpline_kernels::{self as kernels, launch::columns, launch::elements};
use warpline_runtime::{Buffer, Device, Error, ErrorKind, Pending, Result, Site, Stream};

/// Computes the sum of all elements, 0 if there are none, and reads it back to the host.
///
/// # Errors
/// In the `Pending`: `Unordered` if an earlier use is not ordered before this op; `OutOfMemory`;
/// `Fault` or `ShutDown` if the device accepts no more work.
#[track_caller]
pub fn sum(x: &Buffer<f32>) -> Pending<f32> {
    let site = Site::here(&"sum");
    let enqueue = || {
        let stream = stream_of(x)?;
        let total = stream.alloc::<f32>(1)?;
        let summed = enqueue_sum(&stream, site, x, Over::One, &total)?;
        Ok((stream, total, summed))
    };
    match enqueue() {
        Ok((stream, total, summed)) => match summed.into_operand() {
            Ok(()) => stream.read_one(&total),
            Err(refusal) => refusal.pass_on(),
        },
        Err(error) => Pending::refused(error),
    }
}

/// Computes sums\[c\] ← the sum of column c of `x`, a matrix of `sums.len()` columns.
///
/// # Errors
/// The errors of [`sum`]; `Shape` if `x` does not consist of whole rows.
#[track_caller]
pub fn column_sums_into(sums: &Buffer<f32>, x: &Buffer<f32>) -> Pending<()> {
    match rows_and_columns(&"column_sums_into", x, sums.len()) {
        Ok([rows, cols]) => launch(x, kernels::column_sums(rows, cols, x, sums), columns(cols)),
        Err(refusal) => refusal.pass_on(),
    }
}

/// The running mean and standard deviation of each column over batches of rows, kept on the device.
///
/// They are accumulated in f64 by the pairwise update of Chan, Golub and LeVeque (1979). The number
/// of rows is kept on the device too, so a merge counts when the device does it: a refused one
/// never does, and one in a graph does at each launch.
#[derive(Debug)]
pub struct ColumnMoments {
    /// The number of rows merged, once for each column.
    seen: Buffer<u64>,
    means: Buffer<f64>,
    squares: Buffer<f64>,
}

impl ColumnMoments {
    /// Creates the moments of `cols` columns, on the current stream of `device`.
    ///
    /// # Errors
    /// `InvalidArgument` if `cols` is 0, and the errors of `Stream::alloc`.
    #[track_caller]
    pub fn new(cols: usize, device: &Device) -> Result<Self> {
        if cols == 0 {
            let why = "ColumnMoments: the number of columns is 0, and at least 1 is needed; pass \
                the length of a row";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        let stream = Stream::current(device)?;
        let (means, squares) = (stream.alloc_zeroed(cols)?, stream.alloc_zeroed(cols)?);
        Ok(ColumnMoments { seen: stream.alloc_zeroed(cols)?, means, squares })
    }

    /// Merges the rows of `x`.
    ///
    /// # Errors
    /// In the `Pending`: `Shape` if `x` does not consist of whole rows, and the errors of [`sum`].
    #[track_caller]
    pub fn merge(&self, x: &Buffer<f32>) -> Pending<()> {
        let [rows, cols] = match rows_and_columns(&"ColumnMoments::merge", x, self.means.len()) {
            Ok(lengths) => lengths,
            Err(refusal) => return refusal.pass_on(),
        };
        let call = kernels::column_moments(rows, cols, x, &self.seen, &self.means, &self.squares);
        launch(x, call, columns(cols))
    }

    /// Reads back the number of rows merged by the ops so far.
    ///
    /// # Errors
    /// The errors of [`sum`].
    #[track_caller]
    pub fn seen(&self) -> Pending<u64> {
        let site = Site::here(&"seen");
        match stream_of(&self.seen).and_then(|stream| Ok((stream, self.seen.slice(..1)?))) {
            Ok((stream, first)) => stream.at(site).read_one(&first),
            Err(error) => Pending::refused(error),
        }
    }

    /// Computes each column's mean and standard deviation, which
    /// [`standardize_`](crate::standardize_) takes.
    ///
    /// The deviation is that of the population (divided by n), or 1 where it would be 0. Without
    /// rows, the mean is 0 and the deviation 1.
    ///
    /// # Errors
    /// The errors of [`sum`], returned by the call itself.
    #[track_caller]
    pub fn scales(&self) -> Result<(Buffer<f32>, Buffer<f32>)> {
        let cols = self.means.len();
        let stream = stream_of(&self.means)?;
        let (mean, deviation) = (stream.alloc(cols)?, stream.alloc(cols)?);
        let n = cols as u64;
        let call = kernels::column_scales(n, &self.seen, &self.means, &self.squares, &mean, &deviation);
        launch(&self.means, call, elements(n)).queued()?;
        Ok((mean, deviation))
    }
}
