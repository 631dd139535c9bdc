//! Operations on device memory, enqueued on the current stream of their operands' device.
//!
//! [`Tensor`] is device memory with a shape. Its ops are the methods of [`TensorOps`] and
//! [`NnOps`], which allocate what they return. The functions here work on plain buffers, which the
//! caller allocates.
//!
//! Each op launches one kernel of `warpline-kernels` and chooses its launch configuration. Large
//! reductions to one value launch two kernels, and convolutions three for some images at a time.
//! Joins of tensors are copies. The current stream is that of the innermost
//! `stream.scope` or `stream.enter`, else the device's default stream. [`data`] brings batches of a
//! dataset to a device ahead of the work on them.
#![cfg_attr(docsrs, feature(doc_cfg))]
// A size that is cut gives a wrong result instead of an error.
#![cfg_attr(not(test), deny(clippy::cast_possible_truncation))]
#![forbid(unsafe_code)]

pub mod data;
mod elementwise;
pub mod nn;
mod random;
mod reduce;
mod sum;
mod tensor;

pub use elementwise::{add_, axpy_, copy_, fill_, read, relu_into, standardize_};
pub use random::{normal_, uniform_};
pub use reduce::{ColumnMoments, column_sums_into, sum};
pub use tensor::{
    DType, DTypeScope, NestedArray, NnOps, OperandOrScalar, Scalar, Shape, Tensor, TensorDisplay,
    TensorElement, TensorOperand, TensorOps, TensorOptions,
};

use warpline_runtime::kernel::{KernelCall, LaunchConfig};
use warpline_runtime::{Buffer, Element, Error, ErrorKind, Pending, Refusal, Result, Site, Stream};

/// Launches `call` on the current stream of `operand`'s device.
#[track_caller]
fn launch<T: Element>(operand: &Buffer<T>, call: KernelCall<'_>, config: LaunchConfig) -> Pending<()> {
    match Stream::current(&operand.device()) {
        Ok(stream) => stream.launch(call, config),
        Err(error) => Pending::refused(error),
    }
}

/// Returns the number of rows of `x` and `cols`, its number of columns, as kernels take them.
///
/// # Errors
/// `Shape` if `x` does not consist of whole rows.
#[track_caller]
fn rows_and_columns<T: Element>(
    op: &'static &'static str,
    x: &Buffer<T>,
    cols: usize,
) -> Result<[u64; 2], Refusal> {
    let len = x.len();
    if !len.is_multiple_of(cols) {
        let (stream, line) = (stream_of(x)?, Site::here(op).location);
        let why = format!(
            "{op} on stream \"{}\" ({}:{}): x has {len} elements, which is not a multiple of its {cols} \
             columns; pass whole rows",
            stream.label(),
            line.file(),
            line.line()
        );
        return Err(Refusal::on(&stream, Error::new(ErrorKind::Shape, why)));
    }
    Ok([len.checked_div(cols).unwrap_or(0) as u64, cols as u64])
}

/// Returns the current stream of `operand`'s device.
fn stream_of<T: Element>(operand: &Buffer<T>) -> Result<Stream> {
    Stream::current(&operand.device())
}
