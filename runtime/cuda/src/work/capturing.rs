//! Captures of other code in this process: of a stream that it has lent, and on its own threads.
//!
//! # Streams that are captured
//! 1. What is put on a stream while its owner captures it does not run: it becomes a node of the
//!    owner's graph. A marker there would be written at every launch of that graph. So a borrowed
//!    stream is asked before each submission, which is refused while it captures. Nor is an event
//!    recorded there: a stream that waits for it would come into the capture. Such a wait is held
//!    by the host, and ends when the work before the capture has.
//! 2. Each op on a borrowed stream gets its marker at once. Later a capture may have begun.
//! 3. The word of a borrowed stream serves that stream alone, for as long as the process lives
//!    ([`Lent`]): a marker that was captured all the same, by an owner that breaks the rules, is
//!    written into no other stream's word.
//! 4. Foreign work may leave any stream capturing. When its turn ends the stream is asked, and
//!    given up if it captures.
//! 5. A stream that may be captured is not queried, since that ends the capture.
//!
//! # Threads that capture
//! While a thread captures in global mode, which is PyTorch's default, calls that may be unsafe
//! during a capture fail on every thread, and each such call ends that capture as well (cuda.h at
//! `cuThreadExchangeStreamCaptureMode`; pytorch #104555, #105182, #148594). cuda.h has no list of
//! these calls; allocations, page-locking, loading code, and event queries are among them. Our
//! calls have nothing to do with a stream that captures, so the calling thread is in relaxed mode
//! meanwhile: threads of ours from their first such call on, others for the time of the call.
//! Launches, copies, and records are safe, and so no op pays for this.

use crate::api::{Answer, CUstream, opened};
use crate::completion::words::Word;
use crate::context::Context;
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};

/// The end of an error's sentence.
pub(crate) const OWNER_CAPTURES: &str = "the stream's owner is capturing it, and what is put on it would not run; enqueue before the capture \
     begins or after it has ended";
pub(crate) const LEFT_CAPTURING: &str = "the foreign work has left it capturing, and nothing of it runs; end the capture before the closure returns, and use another stream";

/// Asks whether the driver captures what is put on a stream.
pub(crate) fn is_captured(stream: CUstream) -> Answer<bool> {
    let mut status: c_int = 0;
    // SAFETY: cuStreamIsCapturing takes a live stream and writes an int. It disturbs no capture.
    unsafe { opened().cuStreamIsCapturing(stream, &raw mut status) }?;
    Ok(status != 0)
}

/// Words of borrowed streams that nobody borrows at present, by the stream, each with what was last
/// written to it.
#[derive(Debug, Default)]
pub(crate) struct Lent(Mutex<BTreeMap<usize, Vec<(Word, u64)>>>);

impl Lent {
    /// The word of a stream and what was last written to it. The context is current.
    pub(crate) fn take(&self, context: &'static Context, stream: CUstream) -> (Option<Word>, u64) {
        let known = self.0.lock().get_mut(&(stream as usize)).and_then(Vec::pop);
        known.map_or_else(|| (context.word(), 0), |(word, written)| (Some(word), written))
    }

    /// Takes a word back, whose last write has arrived.
    pub(crate) fn give_back(&self, stream: CUstream, word: Word, written: u64) {
        self.0.lock().entry(stream as usize).or_default().push((word, written));
    }
}

/// `CU_STREAM_CAPTURE_MODE_RELAXED`
const RELAXED: c_uint = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Thread {
    Others,
    Ours,
    OursAndRelaxed,
}

thread_local! {
    static THREAD: Cell<Thread> = const { Cell::new(Thread::Others) };
}

/// Says that the calling thread is one of ours, on which nobody captures.
pub(crate) fn become_ours() {
    THREAD.set(Thread::Ours);
}

/// Keeps the calling thread's calls out of other threads' captures, until it is dropped.
pub(crate) struct Relaxed {
    before: Option<c_uint>,
}

impl Relaxed {
    pub(crate) fn new() -> Self {
        let thread = THREAD.get();
        if thread == Thread::OursAndRelaxed {
            return Relaxed { before: None };
        }
        let mut mode = RELAXED;
        // SAFETY: cuThreadExchangeStreamCaptureMode reads a mode and writes the one before.
        let exchanged = unsafe { opened().cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        if thread == Thread::Ours && exchanged.is_ok() {
            THREAD.set(Thread::OursAndRelaxed);
            return Relaxed { before: None };
        }
        Relaxed { before: exchanged.is_ok().then_some(mode) }
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if let Some(mut mode) = self.before {
            // SAFETY: as in `new`.
            let _ = unsafe { opened().cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        }
    }
}
