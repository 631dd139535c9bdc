//! The pool of CUDA streams, which are never destroyed.
//!
//! Destroying a stream while others are torn down crashes. A stream comes with its completion word,
//! whose value only grows: each lease counts from where the last one stopped.

use super::capturing::Relaxed;
use crate::api::{Answer, CUstream, opened};
use crate::completion::events::PooledEvent;
use crate::completion::words::Word;
use crate::context::{Context, NON_BLOCKING};
use parking_lot::Mutex;
use std::ffi::c_void;
use warpline_driver::Priority;

#[derive(Debug)]
pub(crate) struct RawStream {
    pub(crate) stream: CUstream,
    /// `None` if CUDA registers no memory.
    pub(crate) word: Option<Word>,
    /// The newest value that was or will be written to the word.
    pub(crate) written: u64,
    priority: i32,
}

// SAFETY: a stream may be used from any thread.
unsafe impl Send for RawStream {}

impl RawStream {
    /// Returns a copy of the stream, to return to the pool while this value is being dropped.
    pub(crate) fn taken(&self) -> Self {
        RawStream { ..*self }
    }

    /// Wraps another library's stream, with a word of ours. The context is current.
    pub(crate) fn lent(context: &'static Context, stream: *mut c_void) -> Self {
        let stream = stream.cast();
        let (word, written) = context.work.lent.take(context, stream);
        RawStream { stream, word, written, priority: 0 }
    }
}

#[derive(Debug)]
pub(crate) struct RawStreams {
    /// The numbers of the lowest and the highest priority. A higher priority has a smaller number.
    least: i32,
    greatest: i32,
    /// True if each stream gets a completion word.
    with_words: bool,
    idle: Mutex<Vec<RawStream>>,
    /// Streams returned with unfinished work, each with the event behind that work.
    draining: Mutex<Vec<(RawStream, PooledEvent)>>,
}

impl Context {
    /// Returns a completion word for a stream.
    ///
    /// `None` if CUDA gives none: the stream's markers are events then.
    pub(crate) fn word(&'static self) -> Option<Word> {
        if self.completion.has_words.get() == Some(&false) {
            None
        } else {
            self.completion.words.take(self).ok()
        }
    }
}

impl RawStreams {
    /// Creates an empty pool of streams for work, each with a completion word. The context is
    /// current.
    pub(crate) fn for_work() -> Answer<Self> {
        Self::new(true)
    }

    /// Creates an empty pool of streams on which graphs are captured. The context is current.
    ///
    /// They serve nothing else. A stream for work may be queried after its last handle was dropped,
    /// when it is in its pool again, and a query ends a capture.
    pub(crate) fn for_captures() -> Answer<Self> {
        Self::new(false)
    }

    fn new(with_words: bool) -> Answer<Self> {
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: cuCtxGetStreamPriorityRange writes two ints.
        unsafe { opened().cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest) }?;
        Ok(RawStreams { least, greatest, with_words, idle: Mutex::default(), draining: Mutex::default() })
    }

    fn number(&self, priority: Priority) -> i32 {
        match priority {
            Priority::Low => self.least,
            // The priority that other libraries' streams have.
            Priority::Normal => 0,
            Priority::High => self.greatest,
        }
    }

    /// Returns a stream without unfinished work. `context`, which owns the pool, is current.
    pub(crate) fn take(&self, context: &'static Context, priority: Priority) -> Answer<RawStream> {
        let priority = self.number(priority);
        self.collect()?;
        let mut idle = self.idle.lock();
        if let Some(at) = idle.iter().rposition(|raw| raw.priority == priority) {
            return Ok(idle.swap_remove(at));
        }
        drop(idle);
        let word = if self.with_words { context.word() } else { None };
        let (_relaxed, mut stream) = (Relaxed::new(), std::ptr::null_mut());
        // SAFETY: cuStreamCreateWithPriority writes a stream.
        unsafe { opened().cuStreamCreateWithPriority(&raw mut stream, NON_BLOCKING, priority) }.inspect_err(
            |_| {
                if let Some(word) = word {
                    context.completion.words.give_back(word);
                }
            },
        )?;
        Ok(RawStream { stream, word, written: 0, priority })
    }

    /// Moves the streams that have drained to the idle ones.
    fn collect(&self) -> Answer {
        let mut draining = self.draining.lock();
        let mut at = 0;
        while at < draining.len() {
            if draining[at].1.query()? {
                let (raw, _) = draining.swap_remove(at);
                self.idle.lock().push(raw);
            } else {
                at += 1;
            }
        }
        Ok(())
    }

    /// Returns a stream to the pool. `until` is the event behind its unfinished work, if it has
    /// some.
    pub(crate) fn give_back(&self, raw: RawStream, until: Option<PooledEvent>) {
        match until {
            None => self.idle.lock().push(raw),
            Some(event) => self.draining.lock().push((raw, event)),
        }
    }
}
