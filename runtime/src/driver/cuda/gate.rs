//! Holding a stream until the host lets it go: the one use of a wait for a value in memory.
//!
//! Order between streams is not made so, but where an event could not be recorded. A stream that waits for a value may hold up what
//! the driver put behind it, and the driver does not know what it waits for; a test that holds a stream wants just that.
//!
//! # When one opens
//! A gate is kept by the timeline that it waits for until the work of a ticket is over. So it opens when the ticket is reached, and on
//! a stream that was given up when nothing of it runs any more; never because somebody was woken to learn that it failed. On a device
//! that died it stays closed: nobody says what still runs there.
//!
//! # What waits for the whole device
//! Freeing does, at the driver, and others' calls may wait for it meanwhile. A gate that is closed may need just such a call before it
//! opens: so what is freed while a stream is held, whichever runtime's and device's, is freed when none is ([`Held`]), and no gate
//! closes while the driver frees. Not so what an allocation needs to have freed: it waits for the gates.
//!
//! # Without memory operations
//! A host function waits. The driver may have one thread for all of them, which that one then keeps from all others: so there is one
//! such gate at a time, and nothing is held so that others' host functions might have to release.

use super::api::{Answer, CUstream, opened};
use super::context::Context;
use super::track::Track;
use super::words::Word;
use crate::driver::{DriverError, HostFn};
use crate::offload;
use crate::timeline::{Ticket, Timeline};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};

/// `CU_STREAM_WAIT_VALUE_GEQ`
const AT_LEAST: u32 = 0;

/// Gates on a stream, and the tickets of their waits.
#[derive(Debug, Default)]
pub(super) struct Gates(Mutex<Vec<(Ticket, Arc<Gate>)>>);

#[derive(Debug)]
struct Gate {
    /// None where the device cannot wait for one.
    word: Option<Word>,
    open: AtomicBool,
}

/// Opens a gate by being dropped.
#[derive(Debug)]
struct Opens {
    gate: Arc<Gate>,
    /// What the host function of a gate without a word listens to, which hears that this is gone.
    _listener: Option<Sender<()>>,
    /// Dropped after the gate was opened.
    _closed: Closed,
}

impl Drop for Opens {
    fn drop(&mut self) {
        self.gate.open.store(true, Ordering::Relaxed);
        // Last: the word may be another gate's as soon as it was written.
        if let Some(word) = self.gate.word {
            word.host.store(1, Ordering::Release);
        }
    }
}

/// The closed gates of all devices, as one's streams wait for another's, and what is to be freed when there is none.
struct Held {
    gates: usize,
    put_off: Vec<(&'static Context, Free)>,
}

type Free = Box<dyn FnOnce() -> Answer + Send>;

/// Locked while the driver frees, too.
static HELD: Mutex<Held> = Mutex::new(Held { gates: 0, put_off: Vec::new() });

/// A gate that is closed, until this is dropped.
#[derive(Debug)]
struct Closed(());

impl Closed {
    /// Waits for what is being freed.
    fn new() -> Self {
        HELD.lock().gates += 1;
        Closed(())
    }
}

impl Drop for Closed {
    /// Waits for nobody: nothing is being freed while there is one.
    fn drop(&mut self) {
        let mut held = HELD.lock();
        held.gates -= 1;
        if held.gates > 0 || held.put_off.is_empty() {
            return;
        }
        let put_off = std::mem::take(&mut held.put_off);
        drop(held);
        offload::detach(move || {
            put_off.into_iter().for_each(|(context, free)| free_unless_held(context, free))
        });
    }
}

/// Calls `free`, which may wait for all that is on the context's device, when no gate is closed: now or on a thread that may block.
pub(super) fn free_unless_held(context: &'static Context, free: Free) {
    if crate::process::is_ending() {
        return;
    }
    let mut held = HELD.lock();
    if held.gates > 0 {
        held.put_off.push((context, free));
        return;
    }
    let freed = free();
    drop(held);
    if let Err(failed) = freed {
        context.note_death(failed, None);
    }
}

/// Whether a gate keeps the driver's thread for host functions.
static HOST_THREAD_IS_KEPT: AtomicBool = AtomicBool::new(false);

/// Keeps it until this is dropped.
struct KeepsHostThread;

impl KeepsHostThread {
    fn unless_another_does() -> Option<Self> {
        (!HOST_THREAD_IS_KEPT.swap(true, Ordering::Relaxed)).then_some(KeepsHostThread)
    }
}

impl Drop for KeepsHostThread {
    fn drop(&mut self) {
        HOST_THREAD_IS_KEPT.store(false, Ordering::Relaxed);
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
        let closed = Closed::new();
        let word = track.context.words.take(track.context)?;
        // SAFETY: cuStreamWaitValue64 takes a live stream and an eight-byte aligned device address, the word's.
        unsafe { opened().cuStreamWaitValue64_v2(stream, word.device, 1, AT_LEAST) }
            .inspect_err(|_| track.context.words.give_back(word))?;
        let gate = self.add(ticket, Some(word));
        timeline.keep_until_over(until, Arc::new(Opens { gate, _listener: None, _closed: closed }));
        Ok(())
    }

    /// The same by a host function, to be put on the stream with that ticket.
    ///
    /// # Errors
    /// The gate would never open, or another one would not.
    pub(super) fn hold_by_call(
        &self,
        context: &Context,
        ticket: Ticket,
        timeline: &Timeline,
        until: Ticket,
        of_a_stream: bool,
    ) -> Result<HostFn, DriverError> {
        let refused = |why: &str| {
            let ordinal = context.ordinal;
            DriverError::Refused(format!("cuda:{ordinal} has no stream memory operations, {why}"))
        };
        if of_a_stream {
            return Err(refused(
                "and the event that it would wait for could not be recorded; record another, or await it on the host",
            ));
        }
        let Some(keeps) = KeepsHostThread::unless_another_does() else {
            return Err(refused(
                "so a gate keeps the driver's thread for host functions, which another closed one has already; open that first",
            ));
        };
        self.0.lock().retain(|(_, gate)| gate.word.is_some() || !gate.open.load(Ordering::Relaxed));
        let closed = Closed::new();
        let gate = self.add(ticket, None);
        let (listener, opens) = channel();
        timeline.keep_until_over(until, Arc::new(Opens { gate, _listener: Some(listener), _closed: closed }));
        Ok(HostFn(Box::new(move || {
            let _keeps = keeps;
            // Nothing is ever sent: it ends when the other side does.
            let _ = opens.recv();
        })))
    }

    fn add(&self, ticket: Ticket, word: Option<Word>) -> Arc<Gate> {
        let gate = Arc::new(Gate { word, open: AtomicBool::new(false) });
        self.0.lock().push((ticket, gate.clone()));
        gate
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

    /// How many are not open.
    pub(super) fn closed(&self) -> usize {
        self.0.lock().iter().filter(|(_, gate)| !gate.open.load(Ordering::Relaxed)).count()
    }
}
