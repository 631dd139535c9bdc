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
//! Freeing does, at the driver, and page-locking may; others' calls may wait for both meanwhile. A
//! gate that is closed may need just such a call before it opens. So while a stream is held,
//! whichever runtime's and device's, nothing is freed until none is ([`Held`]), and nothing is
//! page-locked ahead of need; and no gate closes while the driver frees. One that would close while
//! the driver page-locks ahead of need waits for that, a tenth of a second at most: it may be
//! waiting for work that the caller lets continue. Not so what is needed: an allocation that has to
//! have memory freed and a copy that finds no page-locked memory ask the driver, which may wait for
//! the gates.
//!
//! On a device with a stream that waits for another device, which died, that wait may never end. So
//! there nothing is freed while such a stream stands, and the pools keep what they have. Who frees
//! when the other dies waits for ever, and keeps `HELD`: nobody can end the call.
//!
//! # Without memory operations
//! A host function waits. The driver may have one thread for all of them, which that one then keeps from all others: so there is one
//! such gate at a time, and nothing is held so that others' host functions might have to release.

use crate::api::{Answer, CUstream, opened};
use crate::completion::track::Track;
use crate::completion::words::Word;
use crate::context::Context;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};
use warpline_driver::timeline::{Ticket, Timeline};
use warpline_driver::{DriverError, HostFn, background};

/// `CU_STREAM_WAIT_VALUE_GEQ`
const AT_LEAST: u32 = 0;

/// Gates on a stream, and the tickets of their waits.
#[derive(Debug, Default)]
pub(crate) struct Gates(Mutex<Vec<(Ticket, Arc<Gate>)>>);

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
    /// The number of threads that page-lock ahead of need.
    page_locking: usize,
    put_off: Vec<(&'static Context, Free)>,
}

type Free = Box<dyn FnOnce() -> Answer + Send>;

/// Locked while the driver frees, too.
static HELD: Mutex<Held> = Mutex::new(Held { gates: 0, page_locking: 0, put_off: Vec::new() });
/// Signalled when `page_locking` becomes less.
static PAGE_LOCKED: Condvar = Condvar::new();
/// How long a gate waits before it closes.
const LONGEST_PAGE_LOCKING: Duration = Duration::from_millis(100);

/// Returns true if a gate of the process is closed.
pub(crate) fn is_one_closed() -> bool {
    // While memory is being freed there is none.
    HELD.try_lock().is_some_and(|held| held.gates > 0)
}

/// A gate that is closed, until this is dropped.
#[derive(Debug)]
struct Closed(());

impl Closed {
    /// Waits for what is being freed, and for a while for what is being page-locked.
    fn new() -> Self {
        let mut held = HELD.lock();
        let until = Instant::now() + LONGEST_PAGE_LOCKING;
        let _ = PAGE_LOCKED.wait_while_until(&mut held, |held| held.page_locking > 0, until);
        held.gates += 1;
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
        background::detach(move || {
            put_off.into_iter().for_each(|(context, free)| free_unless_held(context, free))
        });
    }
}

/// Calls `free`, which may wait for all that is on the context's device, when no gate is closed: now or on a thread that may block.
/// Put off where that would not return, until something of the context is freed and it would.
pub(crate) fn free_unless_held(context: &'static Context, free: Free) {
    if warpline_driver::process::is_ending() {
        return;
    }
    let mut held = HELD.lock();
    if held.gates > 0 || context.has_standing_stream() {
        held.put_off.push((context, free));
        return;
    }
    let due = held.put_off.extract_if(.., |(of, _)| std::ptr::eq(*of, context));
    let due: Vec<Free> = due.map(|(_, free)| free).collect();
    let answers: Vec<Answer> = due.into_iter().chain([free]).map(|free| free()).collect();
    drop(held);
    for failed in answers.into_iter().filter_map(Result::err) {
        context.note_failure(failed);
    }
}

/// Calls `page_lock`, which may wait for all that is on the context's device and which nobody needs
/// yet, unless it would wait for ever, a gate is closed or memory is being freed: perhaps another
/// device's, which this one waits for in nothing.
pub(crate) fn ahead_unless_held<R>(context: &Context, page_lock: impl FnOnce() -> R) -> Option<R> {
    if context.has_standing_stream() {
        return None;
    }
    let mut held = HELD.try_lock().filter(|held| held.gates == 0)?;
    held.page_locking += 1;
    drop(held);
    let page_locked = page_lock();
    HELD.lock().page_locking -= 1;
    PAGE_LOCKED.notify_all();
    Some(page_locked)
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
    pub(crate) fn hold(
        &self,
        track: &Track,
        stream: CUstream,
        ticket: Ticket,
        timeline: &Timeline,
        until: Ticket,
    ) -> Answer {
        self.collect(track);
        // Before the gate is closed, since it may have more words made.
        let word = track.context.completion.words.take(track.context)?;
        let closed = Closed::new();
        // SAFETY: cuStreamWaitValue64 takes a live stream and an eight-byte aligned device address, the word's.
        unsafe { opened().cuStreamWaitValue64_v2(stream, word.device, 1, AT_LEAST) }
            .inspect_err(|_| track.context.completion.words.give_back(word))?;
        let gate = self.add(ticket, Some(word));
        timeline.keep_until_over(until, Arc::new(Opens { gate, _listener: None, _closed: closed }));
        Ok(())
    }

    /// The same by a host function, to be put on the stream with that ticket.
    ///
    /// # Errors
    /// The gate would never open, or another one would not.
    pub(crate) fn hold_by_call(
        &self,
        context: &Context,
        ticket: Ticket,
        timeline: &Timeline,
        until: Ticket,
        of_a_stream: bool,
    ) -> Result<HostFn, DriverError> {
        let refused = |why: &str| {
            let ordinal = context.ordinal;
            DriverError::Refused(format!("cuda:{ordinal} has no memory that a stream could wait for, {why}"))
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
    pub(crate) fn collect(&self, track: &Track) {
        let passed = track.passed();
        self.0.lock().retain(|(ticket, gate)| {
            let over = *ticket <= passed && gate.open.load(Ordering::Relaxed);
            if over && let Some(word) = gate.word {
                word.host.store(0, Ordering::Relaxed);
                track.context.completion.words.give_back(word);
            }
            !over
        });
    }

    /// How many are not open.
    pub(crate) fn closed(&self) -> usize {
        self.0.lock().iter().filter(|(_, gate)| !gate.open.load(Ordering::Relaxed)).count()
    }
}
