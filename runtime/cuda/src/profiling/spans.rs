//! When ops ran on the device, for those who trace: timed events around each op, told once the op is over.
//!
//! Only while somebody listens. Then each op is two events, a marker and a look of the reactor more: short ops take noticeably
//! longer. The device's times are put on the host's clock through an event that was recorded while nothing ran, and are as good
//! as the host sees that event: a few microseconds. Where other threads take its core meanwhile it looks again.

use crate::api::{Answer, CUstream, Failed, opened};
use crate::completion::events::PooledEvent;
use crate::context::Context;
use parking_lot::{Mutex, ReentrantMutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use warpline_driver::op_events::{self, Traced};
use warpline_driver::timeline::Ticket;
use warpline_driver::{Command, Site};

/// Elapsed times are `f32` milliseconds: up to here they are exact to a tenth of a microsecond.
const BASE_LASTS: Duration = Duration::from_millis(500);

/// How long an event on a stream without work may take.
const PASSES_WITHIN: Duration = Duration::from_millis(1);
/// The same for the first, which nobody else waits for.
const FIRST_PASSES_WITHIN: Duration = Duration::from_secs(1);

/// How often the host looks at most for a moment that it sees well, and what well is.
const LOOKS: usize = 16;
const SEEN_WELL: Duration = Duration::from_micros(20);

/// A moment of both clocks.
#[derive(Debug)]
struct Base {
    event: PooledEvent,
    /// When the host saw it: no earlier than it was.
    at: Instant,
}

impl Base {
    /// One of now, on a stream without work. The context is current.
    fn now(context: &'static Context, idle: CUstream, within: Duration) -> Answer<Self> {
        let mut best = None;
        for _ in 0..LOOKS {
            let since = Instant::now();
            let event = match passed(context, idle, within) {
                Ok(event) => event,
                // What was seen before will do.
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

/// A context's clock.
#[derive(Debug, Default)]
pub(crate) struct Clock(Mutex<Option<Base>>);

impl Clock {
    /// Makes sure that there is a base before what it will measure. The context is current.
    fn start(&self, context: &'static Context, idle: CUstream) -> Answer {
        let mut base = self.0.lock();
        if base.is_none() {
            *base = Some(Base::now(context, idle, FIRST_PASSES_WITHIN)?);
        }
        Ok(())
    }

    /// When the device passed `event`, which it has. The context is current.
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

/// Nanoseconds between two events that were passed.
fn elapsed(from: &PooledEvent, to: &PooledEvent) -> Answer<i64> {
    let mut milliseconds = 0.0f32;
    // SAFETY: cuEventElapsedTime takes two live, recorded events and writes a float.
    unsafe { opened().cuEventElapsedTime(&raw mut milliseconds, from.raw(), to.raw()) }?;
    Ok((f64::from(milliseconds) * 1e6) as i64)
}

/// A timed event on a stream without work, passed; or none, if that takes longer than it should: on the device the stream may share
/// a queue with one that is held.
fn passed(context: &'static Context, idle: CUstream, within: Duration) -> Answer<PooledEvent> {
    let event = context.completion.timed_events.record(context, idle)?;
    let since = Instant::now();
    while !event.query()? {
        if since.elapsed() > within {
            return Err(Failed::not_ready("cuEventQuery"));
        }
        // Others may want the core: under the software CUDA driver, who is to pass the event.
        std::thread::yield_now();
    }
    Ok(event)
}

/// An op that is not told yet.
#[derive(Debug)]
struct Span {
    ticket: Ticket,
    site: Site,
    kind: &'static str,
    bytes: u64,
    begin: PooledEvent,
    end: PooledEvent,
}

/// Whose ops they are.
#[derive(Debug)]
pub(crate) struct Spans {
    pub(crate) runtime: u64,
    pub(crate) stream_key: u64,
    waiting: Mutex<VecDeque<Span>>,
    /// Held while spans are told, so that who finds none left knows that all were heard. A subscriber may come back.
    telling: ReentrantMutex<()>,
    /// As many as wait, for who does not want the lock.
    count: AtomicUsize,
}

/// An op that is being put on its stream.
pub(crate) struct Begun {
    kind: &'static str,
    bytes: u64,
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

    /// Before an op's call, under the stream's lock with the context current. `None` if nobody listens.
    #[inline]
    pub(crate) fn begin(context: &'static Context, stream: CUstream, command: &Command) -> Option<Begun> {
        if op_events::listened_to() { Self::begin_traced(context, stream, command).ok() } else { None }
    }

    #[cold]
    fn begin_traced(context: &'static Context, stream: CUstream, command: &Command) -> Answer<Begun> {
        context.clock.start(context, context.idle_stream())?;
        let begin = context.completion.timed_events.record(context, stream)?;
        Ok(Begun { kind: command.kind(), bytes: command.bytes(), begin })
    }

    /// After the op's call. Somebody has to tell it when the device is past it.
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
        let Begun { kind, bytes, begin } = begun;
        let mut waiting = self.waiting.lock();
        waiting.push_back(Span { ticket, site, kind, bytes, begin, end });
        self.count.store(waiting.len(), Ordering::Relaxed);
        Ok(())
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Leaves those untold that no device will finish.
    pub(crate) fn forget(&self) {
        let untold = std::mem::take(&mut *self.waiting.lock());
        self.count.store(0, Ordering::Relaxed);
        drop(untold);
    }

    /// Tells of the ops that the device is past, and waits for others who do. Called while no lock is held: subscribers run, under
    /// none but that of the telling itself.
    pub(crate) fn tell(&self, context: &'static Context, label: &Arc<str>, reached: Ticket) -> Answer {
        let _telling = self.telling.lock();
        loop {
            let mut waiting = self.waiting.lock();
            let Some(span) = waiting.pop_front_if(|span| span.ticket <= reached) else { return Ok(()) };
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
            };
            op_events::op_ran(span.ticket, &span.site, (begin, end), traced);
        }
    }
}
