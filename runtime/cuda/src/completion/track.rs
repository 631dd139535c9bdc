//! The completion state of a stream: how far the device has come, and which timeline follows it.
//!
//! The reactor and pollers read it.
//!
//! # Who may touch what, when
//! * Only the device writes the word. `healed` only grows. The reactor, the device's thread and
//!   pollers raise it where the word does not report completion: with event markers, after a lost
//!   write, and when a borrowed stream gives its word away. A ticket is the value of the word minus
//!   `base`: the word continues counting when the stream is leased again.
//! * Only the holder of a handle uses the raw stream. The device's thread holds none, so it queries
//!   only streams that are never destroyed. It never queries a **borrowed** stream: its owner may
//!   have destroyed it by then.
//! * `marker_at` is written under the stream's lock.
//! * `events` are pushed under the stream's lock. They are popped under a lock that is held while
//!   the oldest event is queried: of two threads that query, one waits. An event query does not
//!   block.
//! * Foreign code may capture the stream during its turn, and a query would end the capture. So a
//!   query holds the lock `foreign_turn` and is left out in such a turn. The turn sets the flag
//!   under the lock when it begins. It then waits for one query, which may take as long as a launch
//!   that waits for room.
//! * A host function that panicked lowers `failed_from` before it returns, and so before later work
//!   on the stream runs. A thread that sees the word pass a ticket therefore sees the limit that
//!   holds for it. The device continues after the function. What it has **passed** releases kept
//!   values, but does not count as **reached**.

use super::events::PooledEvent;
use super::reactor;
use super::watch::Watch;
use super::words::Word;
use crate::api::{Answer, CUstream, opened};
use crate::context::Context;
use crate::faults::diagnosis::{ASKED_EVERY, Doubt, Meaning};
use crate::faults::recent::Recent;
use crate::profiling::spans::Spans;
use crate::work::capturing::is_captured;
use crate::work::host_fn::Job;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use warpline_driver::internal::ErrorParts;
use warpline_driver::timeline::{Keep, Progress, Ticket, Timeline};
use warpline_driver::{Error, ErrorKind, Health, Site, WakeUp};

#[derive(Debug)]
pub(crate) struct Track {
    me: Weak<Track>,
    pub(crate) context: &'static Context,
    label: Arc<str>,
    /// The health of the runtime's device.
    health: Arc<Health>,
    stream: CUstream,
    /// True if another library owns the stream.
    pub(crate) borrowed: bool,
    word: Option<Word>,
    base: u64,
    pub(crate) wake_up: WakeUp,
    /// True if markers are events.
    by_events: AtomicBool,
    timeline: Weak<Timeline>,
    watch: Watch,
    marker_at: AtomicU64,
    healed: AtomicU64,
    left_capturing: AtomicBool,
    /// True while foreign code enqueues its work.
    foreign_turn: Mutex<bool>,
    /// The newest ticket of the stream when it was last found idle without a marker.
    idle_at: AtomicU64,
    /// The first ticket that never counts as reached, even if the device passes it.
    failed_from: AtomicU64,
    events: Mutex<VecDeque<(Ticket, PooledEvent)>>,
    pub(crate) recent: Recent,
    /// Host functions that may not have been called yet; dropped if the context dies.
    jobs: Mutex<Vec<Weak<Job>>>,
    asked: Mutex<Option<Asked>>,
    /// Errors that the stream answered while it made no progress.
    doubt: Mutex<Doubt>,
    pub(crate) spans: Spans,
}

// SAFETY: the raw handle is CUDA's, which may be used from any thread.
unsafe impl Send for Track {}
// SAFETY: as above; the rest is atomic or behind locks.
unsafe impl Sync for Track {}

/// The parts of a [`Track`].
pub(crate) struct Parts {
    pub(crate) context: &'static Context,
    pub(crate) label: Arc<str>,
    pub(crate) health: Arc<Health>,
    pub(crate) stream: CUstream,
    pub(crate) borrowed: bool,
    pub(crate) word: Option<Word>,
    pub(crate) base: u64,
    pub(crate) wake_up: WakeUp,
    pub(crate) by_events: bool,
    pub(crate) spans: Spans,
}

impl Track {
    /// Creates a track that `timeline` follows from now on.
    pub(crate) fn new(parts: Parts, timeline: &Arc<Timeline>) -> Arc<Self> {
        let track = Arc::new_cyclic(|me| Track {
            me: me.clone(),
            context: parts.context,
            label: parts.label,
            health: parts.health,
            stream: parts.stream,
            borrowed: parts.borrowed,
            word: parts.word,
            base: parts.base,
            wake_up: parts.wake_up,
            by_events: AtomicBool::new(parts.by_events || parts.word.is_none()),
            timeline: Arc::downgrade(timeline),
            watch: Watch::new(),
            marker_at: AtomicU64::new(0),
            healed: AtomicU64::new(0),
            left_capturing: AtomicBool::new(false),
            foreign_turn: Mutex::new(false),
            idle_at: AtomicU64::new(0),
            failed_from: AtomicU64::new(u64::MAX),
            events: Mutex::default(),
            recent: Recent::new(),
            jobs: Mutex::default(),
            asked: Mutex::default(),
            doubt: Mutex::default(),
            spans: parts.spans,
        });
        timeline.follow(track.clone());
        let mut tracks = track.context.completion.tracks.lock();
        if tracks.len() == tracks.capacity() {
            tracks.retain(|track| track.strong_count() > 0);
        }
        tracks.push(Arc::downgrade(&track));
        drop(tracks);
        track
    }

    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    pub(crate) fn timeline(&self) -> Option<Arc<Timeline>> {
        self.timeline.upgrade()
    }

    /// Returns true if `timeline` follows this track.
    pub(crate) fn is_followed_by(&self, timeline: &Arc<Timeline>) -> bool {
        std::ptr::eq(self.timeline.as_ptr(), Arc::as_ptr(timeline))
    }

    pub(crate) fn marker_at(&self) -> Ticket {
        self.marker_at.load(Ordering::Acquire)
    }

    /// Returns the value that the word has once `ticket` is reached.
    pub(crate) fn value(&self, ticket: Ticket) -> u64 {
        self.base + ticket
    }

    /// Enqueues the marker of `ticket`, the stream's newest. The caller holds the stream's lock,
    /// and the context is current.
    #[inline]
    pub(crate) fn write_marker(&self, ticket: Ticket) -> Answer {
        if self.marker_at.load(Ordering::Relaxed) >= ticket {
            // A traced op already has its marker.
            return Ok(());
        }
        let word = self.word.filter(|_| !self.by_events.load(Ordering::Relaxed));
        let Some(word) = word else { return self.write_event(ticket) };
        // SAFETY: cuStreamWriteValue64 takes a live stream and an eight-byte aligned device
        // address, here the word's.
        unsafe { opened().cuStreamWriteValue64_v2(self.stream, word.device, self.value(ticket), 0) }?;
        self.marker_at.store(ticket, Ordering::Release);
        Ok(())
    }

    fn write_event(&self, ticket: Ticket) -> Answer {
        let event = self.context.completion.events.record(self.context, self.stream)?;
        self.events.lock().push_back((ticket, event));
        self.marker_at.store(ticket, Ordering::Release);
        Ok(())
    }

    /// Queries the oldest markers that are events. Called by the reactor and by callers that poll.
    pub(crate) fn ask_events(&self) -> Answer {
        let mut events = self.events.lock();
        while let Some((ticket, event)) = events.front() {
            if !event.query()? {
                break;
            }
            self.heal(*ticket);
            events.pop_front();
        }
        Ok(())
    }

    /// Notes that the device has passed `ticket`, although the word does not say so.
    fn heal(&self, ticket: Ticket) {
        self.healed.fetch_max(ticket, Ordering::Release);
    }

    /// Stores the progress that the word shows, before the stream gives the word away.
    pub(crate) fn word_goes(&self) {
        self.heal(self.passed());
    }

    /// Returns true if the stream is idle although its word does not say so, because a write was
    /// lost. Called after a long time without progress. From then on the stream's markers are
    /// events.
    pub(crate) fn heal_if_idle(&self) -> Answer<bool> {
        let marker_at = self.marker_at();
        // A stream whose work has all finished is not queried: its lender may have taken it back.
        if self.passed() >= marker_at || !self.is_idle()? || self.passed() >= marker_at {
            return Ok(false);
        }
        self.by_events.store(true, Ordering::Relaxed);
        self.heal(marker_at);
        Ok(true)
    }

    /// Returns true if its markers are events, which report nothing until they are queried.
    pub(crate) fn has_event_markers(&self) -> bool {
        self.by_events.load(Ordering::Relaxed)
    }

    /// Notes that foreign work has left the stream capturing.
    pub(crate) fn is_left_capturing(&self) {
        self.left_capturing.store(true, Ordering::Relaxed);
    }

    /// Returns true if other code may be capturing the stream.
    pub(crate) fn may_be_captured(&self) -> bool {
        self.borrowed || self.left_capturing.load(Ordering::Relaxed)
    }

    /// Begins a turn of foreign code, which may capture the stream.
    pub(crate) fn foreign_begins(&self) {
        *self.foreign_turn.lock() = true;
    }

    /// Ends the turn, in which the work of `ticket` was enqueued. A query before it began may have
    /// found the stream idle.
    pub(crate) fn foreign_ends(&self, ticket: Ticket) {
        if warpline_driver::process::is_forked() {
            return;
        }
        let mut foreign_turn = self.foreign_turn.lock();
        *foreign_turn = false;
        self.idle_at.fetch_min(ticket - 1, Ordering::Relaxed);
    }

    /// Returns true if the stream may have unfinished work, whether or not it has a marker.
    pub(crate) fn may_be_busy(&self) -> bool {
        self.recent.newest() > self.passed().max(self.idle_at.load(Ordering::Relaxed))
    }

    /// Asks whether the stream has become idle, so that it is not asked again before it gets new
    /// work. A borrowed stream is not asked.
    pub(crate) fn find_idle(&self) -> Answer {
        let foreign_turn = self.foreign_turn.lock();
        let newest = self.recent.newest();
        if !self.borrowed && !*foreign_turn && self.query_idle()? {
            self.idle_at.fetch_max(newest, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns true if all work on the stream has finished. False in a turn of foreign code.
    pub(crate) fn is_idle(&self) -> Answer<bool> {
        let foreign_turn = self.foreign_turn.lock();
        if *foreign_turn { Ok(false) } else { self.query_idle() }
    }

    /// Queries the stream. The caller holds the lock `foreign_turn`.
    fn query_idle(&self) -> Answer<bool> {
        let _entered = self.context.enter_relaxed()?;
        if self.may_be_captured() && is_captured(self.stream)? {
            return Ok(false);
        }
        // SAFETY: cuStreamQuery takes a live stream. Our streams are never destroyed. A borrowed
        // stream lives while some of its markers have not been passed, or while a handle to it
        // exists: the caller ensures one of these.
        match unsafe { opened().cuStreamQuery(self.stream) } {
            Ok(()) => Ok(true),
            Err(failed) if failed.is_not_ready() => Ok(false),
            Err(failed) => Err(failed),
        }
    }

    /// Returns the newest ticket that the device has passed.
    #[inline]
    pub(crate) fn passed(&self) -> Ticket {
        let word = self.word.map_or(0, |word| word.host.load(Ordering::Acquire).saturating_sub(self.base));
        word.max(self.healed.load(Ordering::Acquire))
    }

    /// Returns true if the device may pass tickets that do not count as reached.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed_from.load(Ordering::Acquire) != u64::MAX
    }

    /// Keeps `ticket` and all later tickets from ever counting as reached.
    fn fail_at(&self, ticket: Ticket) {
        self.failed_from.fetch_min(ticket, Ordering::AcqRel);
    }

    pub(crate) fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Fails `ticket` and with it the runtime's device: none of the device's streams counts what it
    /// passes from now on. The caller then has the reactor wake the waiters.
    pub(crate) fn fail_device(&self, ticket: Ticket, error: Error) {
        self.health.note(error.clone());
        self.fail_at(ticket);
        for track in self.context.completion.live_tracks() {
            if Arc::ptr_eq(&track.health, &self.health) && !std::ptr::eq(&*track, self) {
                track.fail_at(track.passed() + 1);
            }
        }
        self.context.fail_dependents(&self.health, &error);
    }

    /// Requests checks for a caller that polls while the reactor may not be watching: the context
    /// may have died, or a write may have been lost. The device's thread makes the queries, because
    /// CUDA may not answer while a launch waits for room.
    fn ask_device(&self) {
        let now = Instant::now();
        let reached = self.reached();
        let mut slot = self.asked.lock();
        let asked = slot.get_or_insert(Asked { reached, since: now, last: now });
        if asked.reached != reached {
            *asked = Asked { reached, since: now, last: now };
        }
        if now - asked.last < ASKED_EVERY {
            return;
        }
        asked.last = now;
        let stands_long = now - asked.since >= IDLE_CHECK_AFTER;
        if stands_long {
            asked.since = now;
        }
        drop(slot);
        let me = self.me.upgrade().filter(|_| !self.borrowed);
        for other in self.context.devices().into_iter().skip(1) {
            other.faults.checks.lives(None);
        }
        self.context.faults.checks.lives(me.clone());
        if !stands_long || self.by_events.load(Ordering::Relaxed) {
            return;
        }
        match (me, self.timeline()) {
            (Some(me), Some(timeline)) => self.context.faults.checks.idle(&me, &timeline),
            // The owner has not destroyed the stream: the caller holds a handle to it.
            _ => match self.heal_if_idle() {
                Ok(true) => crate::report::completion_word_lost(&self.label),
                Ok(false) => {}
                Err(failed) => {
                    self.context.note_failure(failed);
                }
            },
        }
    }

    /// Queries a stalled stream that is not borrowed. Called by the device's thread. An error is
    /// attributed to the context. If the context denies it, the error ends this stream alone.
    pub(crate) fn ask_stalled(&self) {
        let failed = match self.is_idle() {
            Err(failed) if failed.meaning() != Meaning::Innocent => failed,
            _ => return self.doubt.lock().ends(),
        };
        if self.context.note_failure(failed) || !self.doubt.lock().deepens(Instant::now(), self.passed()) {
            return;
        }
        if let Some(timeline) = self.timeline() {
            let error = Error::new(
                ErrorKind::Driver,
                format!(
                    "stream \"{}\" of cuda:{} was abandoned after ticket {}: it reports no \
                     progress: {failed}; use another stream",
                    self.label,
                    self.context.ordinal,
                    self.passed()
                ),
            );
            timeline.give_up(error.caused_by(failed.into()));
            reactor::wake_timeline(timeline);
        }
    }

    /// Returns the ops that the device has not reported as passed, as far as they are recorded,
    /// oldest first.
    pub(crate) fn unfinished(&self) -> Vec<(Ticket, Site)> {
        self.recent.after(self.passed())
    }

    pub(crate) fn holds_job(&self, job: &Arc<Job>) {
        let mut jobs = self.jobs.lock();
        if jobs.len() == jobs.capacity() {
            jobs.retain(|job| job.strong_count() > 0);
        }
        jobs.push(Arc::downgrade(job));
    }

    /// Abandons the stream of a dead context: none of its work starts any more. Called by the
    /// reactor.
    ///
    /// Returns the values to keep for good. They are host memory that a started copy may still use,
    /// since a dead device does not report when the copy ends, and values that CUDA holds
    /// pointers to.
    #[must_use]
    pub(crate) fn abandon(&self) -> Vec<Keep> {
        self.spans.forget();
        let jobs = std::mem::take(&mut *self.jobs.lock());
        let jobs: Vec<Arc<Job>> = jobs.iter().filter_map(Weak::upgrade).collect();
        jobs.iter().for_each(|job| job.forget());
        let mut kept = self.timeline().map_or_else(Vec::new, |timeline| timeline.abandon_dead());
        kept.extend(jobs.into_iter().map(|job| job as Keep));
        kept
    }

    /// Reports the traced ops that the device has passed. Called while no lock is held.
    pub(crate) fn tell_spans(&self) {
        let told =
            catch_unwind(AssertUnwindSafe(|| self.spans.tell(self.context, &self.label, self.reached())));
        match told {
            Ok(Ok(())) => {}
            Ok(Err(failed)) => {
                self.context.note_failure(failed);
            }
            Err(_) => crate::report::subscriber_panicked(),
        }
    }

    /// Returns true if the reactor may stop watching the stream. Called by the reactor.
    pub(crate) fn rest(&self, timeline: &Timeline) -> bool {
        self.watch.rest(|| timeline.is_wanted() || !self.spans.is_empty())
    }
}

/// The time without progress after which a stream is checked for being idle.
pub(crate) const IDLE_CHECK_AFTER: Duration = Duration::from_millis(250);

/// The progress that a polling caller has seen, and since when it has not changed.
#[derive(Debug)]
struct Asked {
    reached: Ticket,
    since: Instant,
    /// When the device was last checked.
    last: Instant,
}

impl Progress for Track {
    fn ask(&self) {
        if self.by_events.load(Ordering::Relaxed)
            && let Err(failed) = self.ask_events()
        {
            self.context.note_failure(failed);
        }
        self.ask_device();
    }

    #[inline]
    fn reached(&self) -> Ticket {
        let passed = self.passed();
        passed.min(self.failed_from.load(Ordering::Acquire).saturating_sub(1))
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
