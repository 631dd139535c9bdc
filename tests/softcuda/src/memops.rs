//! Stream memory operations: words that streams write and wait for.

use crate::abi::{CUdeviceptr, CUstream};
use crate::errors::{Outcome, refuse};
use crate::managed;
use crate::memory::{self, Asker};
use crate::op::{Compare, Op, Word};
use crate::plan;
use crate::stream::{self, Stream};

/// `CU_STREAM_WAIT_VALUE_FLUSH`.
const FLUSH: u32 = 1 << 30;

fn word(stream: &Stream, address: CUdeviceptr, value: u64, wide: bool) -> Outcome<Word> {
    if !plan::get().memops {
        refuse!(NOT_SUPPORTED, "SOFTCUDA_NO_MEMOPS is set");
    }
    let bytes = if wide { 8 } else { 4 };
    if !address.is_multiple_of(bytes) {
        refuse!(INVALID_VALUE, "{address:#x} is not aligned to {bytes}");
    }
    if plan::get().confidential && !memory::is_device_address(address) {
        refuse!(INVALID_VALUE, "{address:#x} is page-locked, so managed, as SOFTCUDA_CONFIDENTIAL is set");
    }
    if managed::has(address) {
        refuse!(
            INVALID_VALUE,
            "the word at {address:#x} is managed memory, which these operations do not take"
        );
    }
    match memory::device_range(stream.context(), address, bytes as usize, Asker::Call) {
        Ok(behind) => Ok(Word { address: behind, value, wide }),
        Err(bad) => refuse!(INVALID_VALUE, "the word at {address:#x} {bad}"),
    }
}

/// Enqueues the write of a word.
#[inline]
pub(crate) fn write(on: CUstream, address: CUdeviceptr, value: u64, wide: bool, flags: u32) -> Outcome {
    let stream = stream::named_here(on)?;
    if flags > 1 {
        refuse!(INVALID_VALUE, "flags {flags:#x}");
    }
    let word = word(stream, address, value, wide)?;
    if plan::get().immediate && !stream.is_capturing() {
        word.store();
        return Ok(());
    }
    stream.submit(Op::WriteWord(word))?;
    Ok(())
}

/// Makes a stream wait until a comparison with a word holds.
pub(crate) fn wait(on: CUstream, address: CUdeviceptr, value: u64, wide: bool, flags: u32) -> Outcome {
    let stream = stream::named_here(on)?;
    let compare = match flags & !FLUSH {
        0 => Compare::AtLeast,
        1 => Compare::Equal,
        2 => Compare::AnyBit,
        3 => refuse!(NOT_SUPPORTED, "CU_STREAM_WAIT_VALUE_NOR"),
        _ => refuse!(INVALID_VALUE, "flags {flags:#x}"),
    };
    let word = word(stream, address, value, wide)?;
    if plan::get().immediate && !stream.is_capturing() {
        return Ok(());
    }
    stream.submit(Op::WaitWord { word, compare })?;
    Ok(())
}
