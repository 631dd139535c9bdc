//! The memory of a tensor as bytes, for files.

use super::Tensor;
use super::call::{Call, Outcome};
use warpline_runtime::{Pending, Refusal};

impl Tensor {
    /// Reads the elements, in row-major order, as the bytes of the device's memory.
    #[track_caller]
    pub(crate) fn read_bytes(&self, op: &'static &'static str) -> Pending<Vec<u8>> {
        read(op, self).unwrap_or_else(Refusal::pass_on)
    }

    /// Writes the elements from their bytes, which are as many.
    #[track_caller]
    pub(crate) fn write_bytes(&self, op: &'static &'static str, bytes: &[u8]) -> Pending<()> {
        write(op, self, bytes).unwrap_or_else(Refusal::pass_on)
    }
}

#[track_caller]
fn read(op: &'static &'static str, x: &Tensor) -> Outcome<Vec<u8>> {
    let call = Call::new(op, &x.device())?;
    call.contiguous(x)?;
    Ok(call.stream().at(call.site()).read(&x.storage.words()))
}

#[track_caller]
fn write(op: &'static &'static str, x: &Tensor, bytes: &[u8]) -> Outcome<()> {
    let call = Call::in_place(op, [x])?;
    call.contiguous(x)?;
    Ok(call.stream().at(call.site()).write(&x.storage.words(), bytes))
}
