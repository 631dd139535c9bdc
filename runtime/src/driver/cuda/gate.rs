//! Holding a stream until the host lets it go: the one use of a wait for a value in memory.
//!
//! Order between streams is never made so. A stream that waits for a value may hold up what the driver put behind it, and the
//! driver does not know what it waits for; a test that holds a stream wants just that.

use super::api::{Answer, CUstream, opened};
use super::track::Track;
use super::words::Word;
use crate::timeline::{Ticket, Timeline};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

/// `CU_STREAM_WAIT_VALUE_GEQ`
const AT_LEAST: u32 = 0;

/// Words that streams wait for, and until which ticket.
#[derive(Debug, Default)]
pub(super) struct Gates(Mutex<Vec<(Ticket, Arc<Gate>)>>);

#[derive(Debug)]
struct Gate {
    /// None where the device cannot wait for one.
    word: Option<Word>,
    open: AtomicBool,
}

impl Wake for Gate {
    fn wake(self: Arc<Self>) {
        // Once: the word may be another gate's as soon as it was written.
        if !self.open.swap(true, Ordering::Relaxed)
            && let Some(word) = self.word
        {
            word.host.store(1, Ordering::Release);
        }
    }
}

/// Opens a gate that has no word.
#[derive(Debug)]
pub(super) struct Opens(Arc<Gate>);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.open.store(true, Ordering::Relaxed);
    }
}

impl Gates {
    /// Holds `stream` until `timeline` has reached `until`. The context is current; `ticket` is that of the wait.
    pub(super) fn hold(
        &self,
        track: &Track,
        stream: CUstream,
        ticket: Ticket,
        timeline: &Timeline,
        until: Ticket,
    ) -> Answer {
        self.collect(track);
        let word = track.context.words.take()?;
        let gate = Arc::new(Gate { word: Some(word), open: AtomicBool::new(false) });
        // SAFETY: cuStreamWaitValue64 takes a live stream and an eight-byte aligned device address, the word's.
        unsafe { opened().cuStreamWaitValue64_v2(stream, word.device, 1, AT_LEAST) }
            .inspect_err(|_| track.context.words.give_back(word))?;
        if timeline.register(until, &Waker::from(gate.clone()), &mut None).is_ready() {
            gate.clone().wake();
        }
        self.0.lock().push((ticket, gate));
        Ok(())
    }

    /// A gate that others hold the stream with, and open by dropping the returned value.
    pub(super) fn without_word(&self, ticket: Ticket) -> Opens {
        let gate = Arc::new(Gate { word: None, open: AtomicBool::new(false) });
        let mut gates = self.0.lock();
        gates.retain(|(_, gate)| gate.word.is_some() || !gate.open.load(Ordering::Relaxed));
        gates.push((ticket, gate.clone()));
        Opens(gate)
    }

    /// Gives the words back that the device has passed.
    pub(super) fn collect(&self, track: &Track) {
        let passed = track.passed();
        self.0.lock().retain(|(ticket, gate)| {
            let over = *ticket <= passed && gate.open.load(Ordering::Relaxed);
            if over && let Some(word) = gate.word {
                word.host.store(0, Ordering::Relaxed);
                track.context.words.give_back(word);
            }
            !over
        });
    }

    /// The tickets of gates that are not open.
    pub(super) fn closed(&self) -> usize {
        self.0.lock().iter().filter(|(_, gate)| !gate.open.load(Ordering::Relaxed)).count()
    }
}
