//! Elementwise operations on buffers, at the speed of memory.

use crate::{launch, rows_and_columns, stream_of};
use warpline_kernels::{self as kernels, launch::elements};
use warpline_runtime::{Buffer, Element, Pending};

/// Sets every element: x ← value.
///
/// # Errors
/// In the `Pending`, as for every op: `Unordered` if an earlier use is not ordered before this op;
/// `Fault` or `ShutDown` if the device accepts no more work.
#[track_caller]
pub fn fill_<T: Element>(x: &Buffer<T>, value: T) -> Pending<()> {
    match stream_of(x) {
        Ok(stream) => stream.fill(x, value),
        Err(error) => Pending::refused(error),
    }
}

/// Copies one buffer to another of the same length on the same device: y ← x.
///
/// # Errors
/// The errors of [`fill_`]; `Shape` if the lengths differ.
#[track_caller]
pub fn copy_<T: Element>(y: &Buffer<T>, x: &Buffer<T>) -> Pending<()> {
    match stream_of(x) {
        Ok(stream) => stream.copy_buffer(y, x),
        Err(error) => Pending::refused(error),
    }
}

/// Reads the elements of `x` back to the host through pinned memory.
///
/// # Errors
/// The errors of [`fill_`]; `OutOfMemory` if the pinned memory that is held leaves no room.
#[track_caller]
pub fn read<T: Element>(x: &Buffer<T>) -> Pending<Vec<T>> {
    match stream_of(x) {
        Ok(stream) => stream.read(x),
        Err(error) => Pending::refused(error),
    }
}

/// Computes y ← a·x + y.
///
/// # Errors
/// The errors of [`fill_`]; `Shape` if the lengths differ.
#[track_caller]
pub fn axpy_(y: &Buffer<f32>, a: f32, x: &Buffer<f32>) -> Pending<()> {
    let n = y.len() as u64;
    launch(y, kernels::axpy(n, a, x, y), elements(n))
}

/// Computes y ← y + x. `x` may be `y` itself.
///
/// # Errors
/// The errors of [`fill_`]; `Shape` if the lengths differ; `Overlap` if they overlap without
/// being the same view.
#[track_caller]
pub fn add_(y: &Buffer<f32>, x: &Buffer<f32>) -> Pending<()> {
    let n = y.len() as u64;
    launch(y, kernels::add_(n, y, x), elements(n))
}

/// Computes y ← x where x is positive or NaN, else 0. `y` may be `x` itself.
///
/// # Errors
/// The errors of [`fill_`]; `Shape` if the lengths differ.
#[track_caller]
pub fn relu_into(y: &Buffer<f32>, x: &Buffer<f32>) -> Pending<()> {
    let n = y.len() as u64;
    launch(y, kernels::relu(n, x, y), elements(n))
}

/// Computes x\[r, c\] ← (x\[r, c\] − mean\[c\]) / deviation\[c\] in a matrix of `mean.len()`
/// columns.
///
/// # Errors
/// The errors of [`fill_`]; `Shape` if `x` does not consist of whole rows, or if `deviation` has
/// another length than `mean`.
#[track_caller]
pub fn standardize_(x: &Buffer<f32>, mean: &Buffer<f32>, deviation: &Buffer<f32>) -> Pending<()> {
    let [rows, cols] = match rows_and_columns(&"standardize_", x, mean.len()) {
        Ok(lengths) => lengths,
        Err(refusal) => return refusal.pass_on(),
    };
    let call = kernels::standardize(rows, cols, mean, deviation, x);
    launch(x, call, elements(x.len() as u64))
}
