//! Errors of the code that fills batches.

use std::panic::{AssertUnwindSafe, catch_unwind};
use warpline_runtime::{Error, ErrorKind, Result};

/// A function that returns `true` if the consumer no longer wants rows.
///
/// It is called before every row, since reading a row may take long.
pub(super) type Stop<'a> = &'a dyn Fn() -> bool;

/// Returns the result of `call`, which calls `callee` for this batch.
///
/// A panic becomes an error that names the batch and the epoch.
pub(super) fn caught<T>(callee: &str, epoch: u64, batch: u64, call: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let why = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("with no message");
        Err(Error::new(
            ErrorKind::Data,
            format!("{callee} panicked at batch {batch} of epoch {epoch}: {why}; correct its code"),
        ))
    })
}

/// Returns the error for an epoch with only `rows` rows.
#[cold]
pub(super) fn no_batch(epoch: u64, name: &str, rows: usize, batch_size: usize) -> Error {
    Error::new(
        ErrorKind::Data,
        format!(
            "epoch {epoch} has no batch: {name} has {rows} rows and batch_size is {batch_size}; lower \
             batch_size, or keep the smaller last batch"
        ),
    )
}
