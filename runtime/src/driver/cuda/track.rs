//! What the reactor and pollers need to know of a stream: how far the device says it is, and which timeline follows.
//!
//! # Who may touch what, when
//! * The word is written by the device alone; `healed` by the reactor alone, where no word says it: with event completion, and
//!   where a write was lost. Tickets are the word less `base`: the word goes on counting when the stream is leased again.
//! * `marked` is written at the stream's desk.
//! * `events` are pushed at the desk and popped by the reactor. No driver call that can block is made under its lock.

use super::api::{Answer, CUstream, opened};
use super::context::Context;
use super::events::PooledEvent;
use super::host_fn::Job;
use super::reactor;
use super::recent::Recent;
use super::spans::Spans;
use super::watch::Watch;
use super::words::Word;
use crate::driver::{Health, WakeUp};
use crate::error::Error;
use crate::site::Site;
use crate::timeline::{Progress, Ticket, Timeline};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct Track {
    me: Weak<Track>,
    pub(super) context: &'static Context,
    label: Arc<str>,
    stream: CUstream,
    word: Word,
    base: u64,
    pub(super) wake_up: WakeUp,
    /// Whether markers are events.
    by_events: AtomicBool,
    timeline: Weak<Timeline>,
    watch: Watch,
    marked: AtomicU64,
    healed: AtomicU64,
    events: Mutex<VecDeque<(Ticket, PooledEvent)>>,
    pub(super) recent: Recent,
    /// Host functions that were not called yet, perhaps: dropped if the context dies.
    jobs: Mutex<Vec<Weak<Job>>>,
    asked: Mutex<Option<Asked>>,
    pub(super) spans: Spans,
    /// Who is told if the stream stands still for ever.
    health: Weak<Health>,
    /// Waits for streams of other devices, newest last.
    waits: Mutex<Vec<WaitsElsewhere>>,
    /// Whether there ever were any.
    waits_elsewhere: AtomicBool,
}

/// A wait for a stream of another device.
#[derive(Debug)]
struct WaitsElsewhere {
    ticket: Ticket,
    site: Site,
    context: &'static Context,
}

// SAFETY: the raw handle is the driver's, which may be used from any thread.
unsafe impl Send for Track {}
// SAFETY: as above; the rest is atomic or behind locks.
unsafe impl Sync for Track {}

/// What a track is made of.
pub(super) struct Parts {
    pub(super) context: &'static Context,
    pub(super) label: Arc<str>,
    pub(super) stream: CUstream,
    pub(super) word: Word,
    pub(super) base: u64,
    pub(super) wake_up: WakeUp,
    pub(super) by_events: bool,
    pub(super) health: Weak<Health>,
    pub(super) spans: Spans,
}

impl Track {
    /// A track that `timeline` follows from now on.
    pub(super) fn new(parts: Parts, timeline: &Arc<Timeline>) -> Arc<Self> {
        let track = Arc::new_cyclic(|me| Track {
            me: me.clone(),
            context: parts.context,
            label: parts.label,
            stream: parts.stream,
            word: parts.word,
            base: parts.base,
            wake_up: parts.wake_up,
            by_events: AtomicBool::new(parts.by_events),
            timeline: Arc::downgrade(timeline),
            watch: Watch::new(),
            marked: AtomicU64::new(0),
            healed: AtomicU64::new(0),
            events: Mutex::default(),
            recent: Recent::new(),
            jobs: Mutex::default(),
            asked: Mutex::default(),
            health: parts.health,
            spans: parts.spans,
            waits: Mutex::default(),
            waits_elsewhere: AtomicBool::new(false),
        });
        timeline.follow(track.clone());
        let mut tracks = track.context.tracks.lock();
        if tracks.len() == tracks.capacity() {
            tracks.retain(|track| track.strong_count() > 0);
        }
        tracks.push(Arc::downgrade(&track));
        drop(tracks);
        track
    }

    pub(super) fn label(&self) -> &str {
        &self.label
    }

    pub(super) fn timeline(&self) -> Option<Arc<Timeline>> {
        self.timeline.upgrade()
    }

    pub(super) fn marked(&self) -> Ticket {
        self.marked.load(Ordering::Acquire)
    }

    /// The value that says that `ticket` is reached.
    pub(super) fn value(&self, ticket: Ticket) -> u64 {
        self.base + ticket
    }

    /// Enqueues the marker of `ticket`, the stream's newest: at the desk, with the context current.
    #[inline]
    pub(super) fn mark(&self, ticket: Ticket) -> Answer {
        if self.by_events.load(Ordering::Relaxed) {
            return self.mark_by_event(ticket);
        }
        // SAFETY: cuStreamWriteValue64 takes a live stream and an eight-byte aligned device address, the word's.
        unsafe { opened().cuStreamWriteValue64_v2(self.stream, self.word.device, self.value(ticket), 0) }?;
        self.marked.store(ticket, Ordering::Release);
        Ok(())
    }

    fn mark_by_event(&self, ticket: Ticket) -> Answer {
        let event = self.context.events.record(self.context, self.stream)?;
        self.events.lock().push_back((ticket, event));
        self.marked.store(ticket, Ordering::Release);
        Ok(())
    }

    /// By the reactor: looks at the oldest markers that are events.
    pub(super) fn ask_events(&self) -> Answer {
        loop {
            let Some((ticket, event)) = self.events.lock().pop_front() else { return Ok(()) };
            match event.query() {
                Ok(true) => self.heal(ticket),
                other => {
                    self.events.lock().push_front((ticket, event));
                    return other.map(|_| ());
                }
            }
        }
    }

    /// By the reactor: `ticket` is reached, although no word says so.
    fn heal(&self, ticket: Ticket) {
        self.healed.fetch_max(ticket, Ordering::Release);
    }

    /// By the reactor, when nothing has moved for long: whether the stream is idle although the word does not say so, because a
    /// write was lost. Its markers are events from then on.
    pub(super) fn heal_if_idle(&self) -> Answer<bool> {
        let marked = self.marked();
        let entered = self.context.enter()?;
        // SAFETY: cuStreamQuery takes a live stream; streams are never destroyed.
        match unsafe { opened().cuStreamQuery(self.stream) } {
            Ok(()) => {}
            Err(failed) if failed.is_not_ready() => return Ok(false),
            Err(failed) => return Err(failed),
        }
        drop(entered);
        if self.reached() >= marked {
            return Ok(false);
        }
        self.by_events.store(true, Ordering::Relaxed);
        self.heal(marked);
        Ok(true)
    }

    /// For somebody who asks again and again: the context may have died, or a write been lost, and nobody else looks.
    fn ask_word(&self) -> Answer {
        let now = Instant::now();
        let reached = self.reached();
        let mut slot = self.asked.lock();
        let asked = slot.get_or_insert(Asked { reached, since: now });
        if asked.reached != reached {
            *asked = Asked { reached, since: now };
        }
        if now - asked.since < IDLE_CHECK_AFTER {
            return Ok(());
        }
        asked.since = now;
        drop(slot);
        self.contexts().into_iter().for_each(Context::ask_and_note);
        if self.heal_if_idle()? {
            crate::report::completion_word_lost(&self.label);
        }
        Ok(())
    }

    /// The ops that the device has not said it is past, as far as they are noted, oldest first.
    pub(super) fn unfinished(&self) -> Vec<(Ticket, Site)> {
        self.recent.after(self.reached())
    }

    pub(super) fn holds_job(&self, job: &Arc<Job>) {
        let mut jobs = self.jobs.lock();
        if jobs.len() == jobs.capacity() {
            jobs.retain(|job| job.strong_count() > 0);
        }
        jobs.push(Arc::downgrade(job));
    }

    /// The stream waits for one of another device, from `ticket` on.
    pub(super) fn waits_for(&self, context: &'static Context, ticket: Ticket, site: Site) {
        let reached = self.reached();
        let mut waits = self.waits.lock();
        waits.retain(|wait| wait.ticket > reached);
        self.waits_elsewhere.store(true, Ordering::Relaxed);
        waits.push(WaitsElsewhere { ticket, site, context });
    }

    /// The contexts that it cannot go on without: its own, and those of other devices that it waits for.
    pub(super) fn contexts(&self) -> SmallVec<[&'static Context; 4]> {
        let mut contexts: SmallVec<[&'static Context; 4]> = SmallVec::from_slice(&[self.context]);
        if self.waits_elsewhere.load(Ordering::Relaxed) {
            let reached = self.reached();
            for wait in self.waits.lock().iter().filter(|wait| wait.ticket > reached) {
                if !contexts.iter().any(|known| std::ptr::eq(*known, wait.context)) {
                    contexts.push(wait.context);
                }
            }
        }
        contexts
    }

    /// By the reactor, when another device's context is dead: a stream that waits for it stands still for ever.
    pub(super) fn mourn(&self, dead: &'static Context, cause: &Error) {
        let reached = self.reached();
        let waits = self.waits.lock();
        let in_vain = |wait: &&WaitsElsewhere| wait.ticket > reached && std::ptr::eq(wait.context, dead);
        let Some((ticket, site)) = waits.iter().find(in_vain).map(|wait| (wait.ticket, wait.site)) else {
            return;
        };
        drop(waits);
        if let Some(health) = self.health.upgrade() {
            health.note(self.waits_in_vain(ticket, site, cause));
            health.wake_everybody();
        }
    }

    /// The error of a wait for work that will not run.
    pub(super) fn waits_in_vain(&self, ticket: Ticket, site: Site, cause: &Error) -> Error {
        Error::new(
            cause.kind(),
            format!(
                "{} failed at ticket {ticket}: it waits for work that will not run: {cause}; cuda:{} accepts no more work in \
                 this runtime",
                site.on(&self.label),
                self.context.ordinal
            ),
        )
    }

    /// By the reactor, when the context is dead: nothing of the stream runs any more.
    pub(super) fn abandon(&self) {
        let jobs = std::mem::take(&mut *self.jobs.lock());
        jobs.iter().filter_map(Weak::upgrade).for_each(|job| job.forget());
        if let Some(timeline) = self.timeline() {
            timeline.abandon();
        }
    }

    /// Tells of traced ops that the device is past. Called while no lock is held.
    pub(super) fn tell_spans(&self) {
        let told =
            catch_unwind(AssertUnwindSafe(|| self.spans.tell(self.context, &self.label, self.reached())));
        match told {
            Ok(Ok(())) => {}
            Ok(Err(failed)) => self.context.note_death(failed, None),
            Err(_) => crate::report::subscriber_panicked(),
        }
    }

    /// By the reactor: whether it may turn away.
    pub(super) fn rest(&self, timeline: &Timeline) -> bool {
        self.watch.rest(|| timeline.is_wanted() || !self.spans.is_empty())
    }
}

/// How long a stream may stand still before it is asked whether it is idle.
pub(super) const IDLE_CHECK_AFTER: Duration = Duration::from_millis(250);

/// Since when somebody who asks has found the stream where it is.
#[derive(Debug)]
struct Asked {
    reached: Ticket,
    since: Instant,
}

impl Progress for Track {
    fn ask(&self) {
        let asked = if self.by_events.load(Ordering::Relaxed) { self.ask_events() } else { self.ask_word() };
        if let Err(failed) = asked {
            self.context.note_death(failed, None);
        }
    }

    #[inline]
    fn reached(&self) -> Ticket {
        let word = self.word.host.load(Ordering::Acquire).saturating_sub(self.base);
        word.max(self.healed.load(Ordering::Acquire))
    }

    #[inline]
    fn wanted(&self) {
        if self.watch.want()
            && let Some(me) = self.me.upgrade()
        {
            reactor::watch(me);
        }
    }
}
