//! Traces when ops ran on the device, by timed events around each op.
//!
//! Events are recorded only while a subscriber listens, and an op is reported once it has finished.
//! Each traced op costs two events, a marker and a check by the reactor, so short ops take
//! noticeably longer. The device's times are mapped to the host's clock through an event that was
//! recorded while nothing ran. They are as accurate as the host's view of that event: a few
//! microseconds. If other threads take its core meanwhile, the host looks again.

use crate::api::{Answer, CUstream, Failed, opened};
use crate::completion::events::PooledEvent;
use crate::context::Context;
use parking_lot::{Mutex, ReentrantMutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tracing::Id;
use warpline_driver::op_events::{self, Traced};
use warpline_driver::timeline::Ticket;
use warpline_driver::{Command, Site};

/// The age from which a base is replaced.
///
/// Elapsed times are `f32` milliseconds: up to here they are exact to a tenth of a microsecond.
const BASE_LASTS: Duration = Duration::from_millis(500);

/// The longest time that an event on a stream without work may take.
const PASSES_WITHIN: Duration = Duration::from_millis(1);
/// The longest time that the first event may take, which no other thread waits for.
const FIRST_PASSES_WITHIN: Duration = Duration::from_secs(1);

/// The most attempts to see an event in time, and the delay that is good enough.
const LOOKS: usize = 16;
const SEEN_WELL: Duration = Duration::from_micros(20);

/// A moment on both clocks.
#[derive(Debug)]
struct Base {
    event: PooledEvent,
    /// When the host observed the event, which is no earlier than it happened.
    at: Instant,
}

impl Base {
    /// Returns a base for the present moment. The context is current.
    ///
    /// It is measured on `idle`, a stream without work.
    fn now(context: &'static Context, idle: CUstream, within: Duration) -> Answer<Self> {
        let mut best = None;
        for _ in 0..LOOKS {
            let since = Instant::now();
            let event = match passed(context, idle, within) {
                Ok(event) => event,
                // An earlier attempt is good enough.
                Err(_) if best.is_some() => break,
                Err(failed) => return Err(failed),
            };
            let at = Instant::now();
            let took = at - since;
            if best.as_ref().is_none_or(|(least, _)| took < *least) {
                best = Some((took, Base { event, at }));
            }
            if took <= SEEN_WELL {
                break;
            }
        }
        Ok(best.expect("it has looked").1)
    }
}

/// A context's clock, which maps the device's times to the host's.
#[derive(Debug, Default)]
pub(crate) struct Clock(Mutex<Option<Base>>);

impl Clock {
    /// Makes sure that a base precedes the events it will measure. The context is current.
    fn start(&self, context: &'static Context, idle: CUstream) -> Answer {
        let mut base = self.0.lock();
        if base.is_none() {
            *base = Some(Base::now(context, idle, FIRST_PASSES_WITHIN)?);
        }
        Ok(())
    }

    /// Returns when the device passed `event`.
    ///
    /// The device has passed it, and the context is current.
    fn time_of(&self, context: &'static Context, idle: CUstream, event: &PooledEvent) -> Answer<Instant> {
        let mut slot = self.0.lock();
        let base = slot.as_mut().expect("started before the event was recorded");
        let at = after(base.at, elapsed(&base.event, event)?);
        if at.saturating_duration_since(base.at) > BASE_LASTS
            && let Ok(now) = Base::now(context, idle, PASSES_WITHIN)
        {
            *base = now;
        }
        Ok(at)
    }
}

fn after(at: Instant, nanoseconds: i64) -> Instant {
    let time = Duration::from_nanos(nanoseconds.unsigned_abs());
    if nanoseconds < 0 { at.checked_sub(time).unwrap_or(at) } else { at + time }
}

/// Returns the nanoseconds between two events that the device has passed.
fn elapsed(from: &PooledEvent, to: &PooledEvent) -> Answer<i64> {
    let mut milliseconds = 0.0f32;
    // SAFETY: cuEventElapsedTime takes two live, recorded events and writes a float.
    unsafe { opened().cuEventElapsedTime(&raw mut milliseconds, from.raw(), to.raw()) }?;
    Ok((f64::from(milliseconds) * 1e6) as i64)
}

/// Records a timed event on a stream without work, and waits until the device has passed it.
///
/// Fails if that takes longer than `within`: on the device the stream may share a queue with a
/// stream that is held.
fn passed(context: &'static Context, idle: CUstream, within: Duration) -> Answer<PooledEvent> {
    let event = context.completion.timed_events.record(context, idle)?;
    let since = Instant::now();
    while !event.query()? {
        if since.elapsed() > within {
            return Err(Failed::not_ready("cuEventQuery"));
        }
        // Another thread may need the core: under the software CUDA driver, the one that passes the
        // event.
        std::thread::yield_now();
    }
    Ok(event)
}

/// An op that has not been reported yet.
#[derive(Debug)]
struct Span {
    ticket: Ticket,
    site: Site,
    kind: &'static str,
    bytes: u64,
    caller: Option<Id>,
    begin: PooledEvent,
    end: PooledEvent,
}

/// The unreported ops of a stream.
#[derive(Debug)]
pub(crate) struct Spans {
    pub(crate) runtime: u64,
    pub(crate) stream_key: u64,
    waiting: Mutex<VecDeque<Span>>,
    /// Held while spans are reported: a caller that finds none left knows that subscribers have
    /// received all of them. The lock is reentrant, since a subscriber may come back.
    telling: ReentrantMutex<()>,
    /// The number of waiting spans, for readers that do not take the lock.
    count: AtomicUsize,
}

/// An op that is being enqueued.
pub(crate) struct Begun {
    kind: &'static str,
    bytes: u64,
    caller: Option<Id>,
    begin: PooledEvent,
}

impl Spans {
    pub(crate) fn new(runtime: u64, stream_key: u64) -> Self {
        Spans {
            runtime,
            stream_key,
            waiting: Mutex::default(),
            telling: ReentrantMutex::new(()),
            count: AtomicUsize::new(0),
        }
    }

    /// Begins to trace an op, before its CUDA call. Returns `None` if no subscriber listens.
    ///
    /// Called under the stream's lock, with the context current.
    #[inline]
    pub(crate) fn begin(
        context: &'static Context,
        stream: CUstream,
        command: &Command,
        caller: &Option<Id>,
    ) -> Option<Begun> {
        if op_events::listened_to() {
            Self::begin_traced(context, stream, command, caller.clone()).ok()
        } else {
            None
        }
    }

    #[cold]
    fn begin_traced(
        context: &'static Context,
        stream: CUstream,
        command: &Command,
        caller: Option<Id>,
    ) -> Answer<Begun> {
        context.clock.start(context, context.idle_stream())?;
        let begin = context.completion.timed_events.record(context, stream)?;
        Ok(Begun { kind: command.kind(), bytes: command.bytes(), caller, begin })
    }

    /// Ends the trace of an op, after its CUDA call.
    ///
    /// The caller must arrange for the op to be reported once the device has passed it.
    #[cold]
    pub(crate) fn end(
        &self,
        context: &'static Context,
        stream: CUstream,
        begun: Begun,
        ticket: Ticket,
        site: Site,
    ) -> Answer {
        let end = context.completion.timed_events.record(context, stream)?;
        let Begun { kind, bytes, caller, begin } = begun;
        let mut waiting = self.waiting.lock();
        waiting.push_back(Span { ticket, site, kind, bytes, caller, begin, end });
        self.count.store(waiting.len(), Ordering::Relaxed);
        Ok(())
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Drops the waiting ops unreported, because no device will finish them.
    pub(crate) fn forget(&self) {
        let untold = std::mem::take(&mut *self.waiting.lock());
        self.count.store(0, Ordering::Relaxed);
        drop(untold);
    }

    /// Reports the ops that the device has passed, and waits for other threads that report.
    ///
    /// Called while no lock is held: subscribers run under no lock but `telling`.
    pub(crate) fn tell(&self, context: &'static Context, label: &Arc<str>, reached: Ticket) -> Answer {
        let _telling = self.telling.lock();
        loop {
            let mut waiting = self.waiting.lock();
            if waiting.front().is_none_or(|span| span.ticket > reached) {
                return Ok(());
            }
            let span = waiting.pop_front().expect("there is a first one");
            self.count.store(waiting.len(), Ordering::Relaxed);
            drop(waiting);
            let entered = context.enter_relaxed()?;
            let begin = context.clock.time_of(context, context.idle_stream(), &span.begin)?;
            let end = after(begin, elapsed(&span.begin, &span.end)?.max(0));
            drop(entered);
            let traced = || Traced {
                runtime: self.runtime,
                device: warpline_driver::DeviceId::Cuda(context.ordinal),
                label,
                stream_key: self.stream_key,
                kind: span.kind,
                bytes: span.bytes,
                caller: span.caller.clone(),
            };
            op_events::op_ran(span.ticket, &span.site, (begin, end), traced);
        }
    }
}
