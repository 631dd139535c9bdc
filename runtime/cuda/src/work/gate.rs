//! Gates, which hold a stream until the host releases it.
//!
//! Only a gate makes a stream wait for a value in memory. Events order streams among each other; a
//! gate does so only where an event could not be recorded. A stream that waits for a value may
//! delay work that CUDA queued behind it, and CUDA does not know what the stream waits
//! for. A test that holds a stream wants exactly that.
//!
//! # When one opens
//! The timeline that a gate waits for keeps the gate until the work of a ticket has finished. So
//! the gate opens when the ticket is reached. On an abandoned stream it opens when nothing of the
//! stream runs any more. Waking a waiter to report a failure never opens it. On a device that died
//! it stays closed, because nothing reports which work still runs there.
//!
//! # What waits for the whole device
//! Freeing waits for the whole device in CUDA, and page-locking may. CUDA calls of other
//! threads may wait for both meanwhile. A closed gate may need just such a call before it opens. So
//! while any stream is held, of any runtime and device, no memory is freed without need
//! ([`Held`]), and nothing is page-locked ahead of need. No gate closes while such a free is in
//! CUDA.
//!
//! An allocation may need the memory of others. It waits until the gates of its context are open,
//! and does not let CUDA wait for them. After ten seconds it calls CUDA nevertheless:
//! gates that overlap must not delay it forever. Gates of other contexts do not count, although
//! its device may wait for them by events. A copy that finds no page-locked memory calls
//! CUDA, which may wait for the gates.
//!
//! A gate that would close while CUDA page-locks ahead of need, or frees what an allocation
//! needs, waits for that, a tenth of a second at most: the call may be waiting for work that the
//! gate's caller lets continue.
//!
//! A stream may wait for another device that died, and that wait may never end. While such a stream
//! waits, nothing is freed on its device, and the pools keep what they have. A thread that is
//! freeing when the other device dies waits forever, since nothing can end the call. If no
//! allocation needs the memory, it keeps `HELD`.
//!
//! # Without memory operations
//! A host function waits instead. CUDA may have one thread for all host functions, and the
//! waiting one then keeps it from all others. So there is one such gate at a time, and it waits for
//! nothing that another host function might have to release.

use crate::api::{Answer, CUstream, Failed, opened};
use crate::completion::track::Track;
use crate::completion::words::Word;
use crate::context::Context;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};
use warpline_driver::timeline::{Ticket, Timeline};
use warpline_driver::{DevicePtr, DriverError, HostFn, background};

/// `CU_STREAM_WAIT_VALUE_GEQ`
const AT_LEAST: u32 = 0;

/// The gates on a stream, with the tickets of their waits.
#[derive(Debug, Default)]
pub(crate) struct Gates(Mutex<Vec<(Ticket, Arc<Gate>)>>);

#[derive(Debug)]
struct Gate {
    /// `None` if the device cannot wait for a word.
    word: Option<Word>,
    open: AtomicBool,
}

/// A guard that opens its gate when dropped.
#[derive(Debug)]
struct Opens {
    gate: Arc<Gate>,
    /// The sender of the channel on which the host function of a gate without a word waits.
    /// Dropping it ends that wait.
    _listener: Option<Sender<()>>,
    /// Dropped after the gate has opened.
    _closed: Closed,
}

impl Drop for Opens {
    fn drop(&mut self) {
        self.gate.open.store(true, Ordering::Relaxed);
        // Written last: from then on the word may belong to another gate.
        if let Some(word) = self.gate.word {
            word.host.store(1, Ordering::Release);
        }
    }
}

/// The closed gates of all devices, and the frees to run when none is closed.
///
/// All devices are counted together, because streams of one wait for streams of another.
struct Held {
    /// The context of the stream of each closed gate.
    gates: Vec<&'static Context>,
    /// The number of threads that page-lock ahead of need.
    page_locking: usize,
    /// The number of threads that free what an allocation needs.
    freeing: usize,
    put_off: Vec<(&'static Context, Free)>,
}

impl Held {
    /// Takes out the frees of a context that were put off.
    fn due(&mut self, context: &'static Context) -> impl Iterator<Item = Free> {
        self.put_off.extract_if(.., move |(of, _)| std::ptr::eq(*of, context)).map(|(_, free)| free)
    }
}

pub(crate) type Free = Box<dyn FnOnce() -> Answer + Send>;

/// The closed gates of the process. The lock is also held while CUDA frees what no
/// allocation needs.
static HELD: Mutex<Held> =
    Mutex::new(Held { gates: Vec::new(), page_locking: 0, freeing: 0, put_off: Vec::new() });
/// Signalled when a gate opens.
static OPENED: Condvar = Condvar::new();
/// Signalled when `page_locking` or `freeing` decreases.
static RETURNED: Condvar = Condvar::new();
/// The longest time that a gate waits for such calls before it closes.
const LONGEST_CALL: Duration = Duration::from_millis(100);
/// The longest time that an allocation waits for gates before it frees memory.
const LONGEST_HOLD: Duration = Duration::from_secs(10);
/// The time after which it looks for the death of its device, which signals nothing here.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Returns whether a gate of the process is closed.
pub(crate) fn is_one_closed() -> bool {
    // No gate is closed while another thread has the lock for long.
    HELD.try_lock().is_some_and(|held| !held.gates.is_empty())
}

/// A gate on a stream of this context that counts as closed until this is dropped.
#[derive(Debug)]
struct Closed(&'static Context);

impl Closed {
    /// Counts a gate as closed.
    ///
    /// Waits until frees have finished that no allocation needs. Then waits for page-locking and
    /// other frees, for `LONGEST_CALL` at most.
    fn new(context: &'static Context) -> Self {
        let mut held = HELD.lock();
        let until = Instant::now() + LONGEST_CALL;
        let _ = RETURNED.wait_while_until(&mut held, |held| held.page_locking + held.freeing > 0, until);
        held.gates.push(context);
        Closed(context)
    }
}

impl Drop for Closed {
    /// Never waits: no thread has the lock for long while a gate is closed.
    fn drop(&mut self) {
        if warpline_driver::process::is_forked() {
            return;
        }
        let mut held = HELD.lock();
        if let Some(this) = held.gates.iter().position(|of| std::ptr::eq(*of, self.0)) {
            held.gates.swap_remove(this);
        }
        OPENED.notify_all();
        if !held.gates.is_empty() || held.put_off.is_empty() {
            return;
        }
        let put_off = std::mem::take(&mut held.put_off);
        drop(held);
        background::detach(move || {
            put_off.into_iter().for_each(|(context, free)| free_unless_held(context, free))
        });
    }
}

/// Returns the call that frees memory.
///
/// # Safety
/// The rules of `Driver::free`.
pub(crate) unsafe fn free_of(context: &'static Context, ptr: DevicePtr) -> Free {
    Box::new(move || {
        let _entered = context.enter_relaxed()?;
        // SAFETY: cuMemFree takes an address that cuMemAlloc gave; the caller vouches for it.
        unsafe { opened().cuMemFree_v2(ptr.0) }
    })
}

/// Calls `free` when no gate is closed: now, or later on a thread that may block.
///
/// `free` may wait for all work on the context's device. While it would never return, the call is
/// put off until something else of the context is freed and the call would return.
pub(crate) fn free_unless_held(context: &'static Context, free: Free) {
    if warpline_driver::process::is_ending() {
        return;
    }
    let mut held = HELD.lock();
    if !held.gates.is_empty() || context.has_standing_stream() {
        held.put_off.push((context, free));
        return;
    }
    let due: Vec<Free> = held.due(context).chain([free]).collect();
    let answers = due.into_iter().map(|free| free()).collect();
    drop(held);
    note_failures(context, answers);
}

/// Calls each of `frees`, because an allocation needs the memory, and those of the context that
/// were put off.
///
/// They wait for all work on the context's device. Before them, this waits until the gates of the
/// context are open, for `LONGEST_HOLD` at most. While the calls would never return, they are put
/// off as by [`free_unless_held`].
pub(crate) fn free_between_gates(context: &'static Context, frees: Vec<Free>) {
    let mut held = when_gates_are_open(context);
    if context.has_standing_stream() {
        held.put_off.extend(frees.into_iter().map(|free| (context, free)));
        return;
    }
    let due: Vec<Free> = held.due(context).chain(frees).collect();
    // Without the lock: the host may have to close and open gates of other streams before the
    // device is idle.
    let call = || due.into_iter().map(|free| free()).collect::<Vec<Answer>>();
    note_failures(context, in_driver(held, |held| &mut held.freeing, call));
}

/// Waits until the gates of the context are open, for `LONGEST_HOLD` at most.
fn when_gates_are_open(context: &Context) -> MutexGuard<'static, Held> {
    let mut held = HELD.lock();
    let until = Instant::now() + LONGEST_HOLD;
    while !context.has_standing_stream()
        // The gates of a dead context never open, and its calls fail without waiting.
        && context.death().is_none()
        && held.gates.iter().any(|of| std::ptr::eq(*of, context))
        && Instant::now() < until
    {
        let _ = OPENED.wait_for(&mut held, LOOK_AGAIN);
    }
    held
}

/// Calls `free` as an allocation needs it, unless the call would never return. If `is_needed` is
/// false, also returns `None` while a gate is closed.
pub(crate) fn freeing_unless_held<R>(
    context: &Context,
    is_needed: bool,
    free: impl FnOnce() -> R,
) -> Option<R> {
    let held = if is_needed { when_gates_are_open(context) } else { HELD.lock() };
    if context.has_standing_stream() || !is_needed && !held.gates.is_empty() {
        return None;
    }
    Some(in_driver(held, |held| &mut held.freeing, free))
}

fn note_failures(context: &'static Context, answers: Vec<Answer>) {
    for failed in answers.into_iter().filter_map(Result::err) {
        note_not_freed(context, failed);
    }
}

/// Reports memory or a graph that could not be freed, unless its device is lost with all it holds.
#[cold]
pub(crate) fn note_not_freed(context: &'static Context, failed: Failed) {
    if !context.note_failure(failed) {
        crate::report::not_freed(context.ordinal, &failed.to_string());
    }
}

/// Calls `page_lock` unless it would wait forever, a gate is closed, or memory is being freed.
///
/// `page_lock` may wait for all work on the context's device, and no caller needs its memory yet.
/// The gate or the memory may belong to another device, with which this one has nothing to do.
pub(crate) fn ahead_unless_held<R>(context: &Context, page_lock: impl FnOnce() -> R) -> Option<R> {
    if context.has_standing_stream() {
        return None;
    }
    let held = HELD.try_lock().filter(|held| held.gates.is_empty() && held.freeing == 0)?;
    Some(in_driver(held, |held| &mut held.page_locking, page_lock))
}

/// Makes a call of CUDA that may wait for the device, for which new gates wait a little.
/// `count` is the number of threads in such calls.
fn in_driver<R>(
    mut held: MutexGuard<'_, Held>,
    count: fn(&mut Held) -> &mut usize,
    call: impl FnOnce() -> R,
) -> R {
    *count(&mut held) += 1;
    drop(held);
    let answer = call();
    *count(&mut HELD.lock()) -= 1;
    RETURNED.notify_all();
    answer
}

/// True while a gate keeps CUDA's thread for host functions.
static HOST_THREAD_IS_KEPT: AtomicBool = AtomicBool::new(false);

/// A guard that keeps CUDA's thread for host functions until it is dropped.
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
    /// Holds `stream` until `timeline` has reached `until`.
    ///
    /// `ticket` is the ticket of the wait, and the context is current.
    pub(crate) fn hold(
        &self,
        track: &Track,
        stream: CUstream,
        ticket: Ticket,
        timeline: &Timeline,
        until: Ticket,
    ) -> Answer {
        self.collect(track);
        // Taken before the gate closes, because this may register more words.
        let word = track.context.completion.words.take(track.context)?;
        let closed = Closed::new(track.context);
        // SAFETY: cuStreamWaitValue64 takes a live stream and an eight-byte aligned device address,
        // the word's.
        unsafe { opened().cuStreamWaitValue64_v2(stream, word.device, 1, AT_LEAST) }
            .inspect_err(|_| track.context.completion.words.give_back(word))?;
        let gate = self.add(ticket, Some(word));
        timeline.keep_until_over(until, Arc::new(Opens { gate, _listener: None, _closed: closed }));
        Ok(())
    }

    /// Returns a host function that holds a stream until `timeline` has reached `until`.
    ///
    /// The caller enqueues it with `ticket`.
    ///
    /// # Errors
    /// If this gate or another one would never open.
    pub(crate) fn hold_by_call(
        &self,
        context: &'static Context,
        ticket: Ticket,
        timeline: &Timeline,
        until: Ticket,
        of_a_stream: bool,
    ) -> Result<HostFn, DriverError> {
        let refused = |why: &str| {
            let ordinal = context.ordinal;
            DriverError::Refused(
                format!("cuda:{ordinal} has no memory words that a stream can wait for, {why}").into(),
            )
        };
        if of_a_stream {
            return Err(refused(
                "and the event to wait for could not be recorded; record another, or await it on \
                 the host",
            ));
        }
        let Some(keeps) = KeepsHostThread::unless_another_does() else {
            return Err(refused(
                "so a gate occupies the driver's thread for host functions, and another closed \
                 gate already does; open that gate first",
            ));
        };
        self.0.lock().retain(|(_, gate)| gate.word.is_some() || !gate.open.load(Ordering::Relaxed));
        let closed = Closed::new(context);
        let gate = self.add(ticket, None);
        let (listener, opens) = channel();
        timeline.keep_until_over(until, Arc::new(Opens { gate, _listener: Some(listener), _closed: closed }));
        Ok(HostFn(Box::new(move || {
            let _keeps = keeps;
            // Nothing is ever sent: `recv` returns when the sender is dropped.
            let _ = opens.recv();
        })))
    }

    fn add(&self, ticket: Ticket, word: Option<Word>) -> Arc<Gate> {
        let gate = Arc::new(Gate { word, open: AtomicBool::new(false) });
        self.0.lock().push((ticket, gate.clone()));
        gate
    }

    /// Returns the words of open gates to their pool, if the device has passed the waits.
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

    /// Returns the number of gates that are not open.
    pub(crate) fn closed(&self) -> usize {
        self.0.lock().iter().filter(|(_, gate)| !gate.open.load(Ordering::Relaxed)).count()
    }
}
