//! The log of errors that the options of a load or a link give: `CU_JIT_ERROR_LOG_BUFFER` and
//! `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.

use crate::abi::{In, Out};
use crate::errors::{Failure, Outcome};
use std::ffi::{c_int, c_void};

/// `CU_JIT_ERROR_LOG_BUFFER` and `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
const ERROR_LOG: [c_int; 2] = [5, 6];

/// The addresses of a buffer and of the option that returns the number of bytes in it.
#[derive(Clone, Copy)]
struct Buffer {
    start: usize,
    len_bytes: usize,
    used: usize,
}

/// A log of errors; without a buffer if the options give none.
#[derive(Clone, Copy, Default)]
pub(crate) struct JitLog(Option<Buffer>);

impl JitLog {
    /// Finds the log in the options. The caller promises that it stays valid while it is used.
    pub(crate) fn of(count: u32, options: In<c_int>, values: &Out<*mut c_void>) -> Outcome<JitLog> {
        let mut places = [None; 2];
        for index in 0..count as usize {
            let option = options.at(index)?;
            if let Some(which) = ERROR_LOG.iter().position(|wanted| *wanted == option) {
                places[which] = Some(index);
            }
        }
        let [Some(buffer), Some(size)] = places else { return Ok(JitLog(None)) };
        let given = values.given();
        Ok(JitLog(Some(Buffer {
            start: given.at(buffer)?.expose_provenance(),
            len_bytes: given.at(size)?.addr(),
            used: values.as_ptr().wrapping_add(size).expose_provenance(),
        })))
    }

    /// Returns `outcome`. If it is a failure with a reason, writes that into the log first.
    pub(crate) fn keep<T>(self, outcome: Outcome<T>) -> Outcome<T> {
        if let Err(Failure { why: Some(why), .. }) = &outcome
            && let Some(buffer) = self.0
        {
            buffer.write(why)?;
        }
        outcome
    }
}

impl Buffer {
    fn write(self, why: &str) -> Outcome {
        let text = &why.as_bytes()[..why.len().min(self.len_bytes.saturating_sub(1))];
        let bytes = Out::of(std::ptr::with_exposed_provenance_mut::<u8>(self.start));
        for (index, byte) in text.iter().chain([&0]).take(self.len_bytes).enumerate() {
            bytes.set_at(index, *byte)?;
        }
        let used = std::ptr::with_exposed_provenance_mut::<*mut c_void>(self.used);
        Out::of(used).set(std::ptr::without_provenance_mut(text.len() + 1))
    }
}
