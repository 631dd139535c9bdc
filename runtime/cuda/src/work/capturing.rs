//! Handles stream captures made by other code in this process, of streams that it lent and on its
//! own threads.
//!
//! # Streams that are captured
//! 1. Work submitted to a stream while its owner captures it does not run: it becomes a node of the
//!    owner's graph. A marker there would be written at every launch of that graph. So before each
//!    submission to a borrowed stream CUDA is asked whether the stream captures, and if so
//!    the submission is refused. No event is recorded there either: a stream that waits for it
//!    would join the capture. The host holds such a wait instead, and ends it when the work before
//!    the capture has finished.
//! 2. Each op on a borrowed stream gets its marker immediately, because a capture may begin later.
//! 3. The completion word of a borrowed stream serves that stream alone, for the life of the
//!    process ([`Lent`]). So if an owner breaks the rules and captures a marker, the marker is
//!    written to no other stream's word.
//! 4. Foreign work may leave any stream capturing. When its turn ends, CUDA is asked about
//!    the stream, which is abandoned if it captures.
//! 5. A stream that may be capturing is not queried, because a query ends the capture. Warpline's
//!    own captures are on streams of a pool of their own, which are never queried.
//!
//! # Threads that capture
//! While a thread captures in global mode, which is PyTorch's default, calls that may be unsafe
//! during a capture fail on every thread. Each such call also ends that capture (cuda.h at
//! `cuThreadExchangeStreamCaptureMode`; pytorch #104555, #105182, #148594). cuda.h has no list of
//! these calls; allocations, page-locking, loading code, and event queries are among them. This
//! backend's calls do not involve a capturing stream, so the calling thread makes them in relaxed
//! mode. Warpline's own threads stay in that mode from their first such call on; other threads are
//! in it only during the call. Launches, copies, and records are safe, so no op pays for this.

use crate::api::{Answer, CUstream, opened};
use crate::completion::words::Word;
use crate::context::Context;
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};

/// The end of the error message for work on a stream that its owner captures.
pub(crate) const OWNER_CAPTURES: &str = "the stream's owner is capturing it, and ops enqueued now \
    would not run; enqueue before the capture begins or after it ends";
pub(crate) const LEFT_CAPTURING: &str = "the foreign work left the stream capturing, so none of \
    its work runs; end the capture before the closure returns, and use another stream";

/// Returns whether CUDA captures the work enqueued on `stream`.
pub(crate) fn is_captured(stream: CUstream) -> Answer<bool> {
    let mut status: c_int = 0;
    // SAFETY: cuStreamIsCapturing takes a live stream and writes an int. It disturbs no capture.
    unsafe { opened().cuStreamIsCapturing(stream, &raw mut status) }?;
    Ok(status != 0)
}

/// The completion words of streams that are not borrowed at present, by stream, each with the value
/// last written to it.
#[derive(Debug, Default)]
pub(crate) struct Lent(Mutex<BTreeMap<usize, Vec<(Word, u64)>>>);

impl Lent {
    /// Returns a word for `stream` and the value last written to it. The context is current.
    pub(crate) fn take(&self, context: &'static Context, stream: CUstream) -> (Option<Word>, u64) {
        let known = self.0.lock().get_mut(&(stream as usize)).and_then(Vec::pop);
        known.map_or_else(|| (context.word(), 0), |(word, written)| (Some(word), written))
    }

    /// Keeps a word, whose last write has arrived, for the stream's next borrower.
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

/// Notes the calling thread as one of Warpline's own, on which no other code captures.
pub(crate) fn become_ours() {
    THREAD.set(Thread::Ours);
}

/// A guard that keeps the calling thread's calls out of other threads' captures until it is
/// dropped.
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
        // SAFETY: cuThreadExchangeStreamCaptureMode reads a mode and writes the previous one.
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
        // The process may have begun to end during the call that this guards.
        if let Some(mut mode) = self.before
            && !warpline_driver::process::is_ending()
        {
            // SAFETY: as in `new`.
            let _ = unsafe { opened().cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        }
    }
}
