//! A device's primary context, shared by the whole process.
//!
//! # Rules
//! 1. A context is opened once a process and never let go: at exit the driver tears down by itself, and what is still in use
//!    then is none of ours.
//! 2. Every call into the driver happens inside [`Context::enter`]: drops run on threads without a
//!    current context, and the caller's context is restored. A thread that had none keeps that of
//!    device 0, which is what the CUDA runtime would choose for it, and saves two calls an op.
//! 3. A fault ends the context for the process: each runtime's [`Health`] learns of it, and all
//!    waiters are woken. A call that touches two devices answers with the error of either, and many
//!    codes may mean anything ([`diagnosis`](super::faults::diagnosis)): then the context is asked, on a
//!    stream of its own, before it is given up.
//! 4. What a dead device may still be using is kept for good: nobody says when a copy that had begun has ended.

use super::api::{self, Answer, Api, CUcontext, CUdevice, CUevent, CUstream, Failed, opened};
use super::completion::events::{DISABLE_TIMING, EventPool};
use super::completion::track::Track;
use super::completion::words::Words;
use super::faults::checks::Checks;
use super::faults::dependents::Dependent;
use super::faults::depends::DependsOn;
use super::faults::diagnosis::{ASKED_EVERY, Doubt, LONGEST_DOUBT, Meaning};
use super::faults::fault;
use super::modules::functions::Functions;
use super::modules::handles::Handles;
use super::profiling::spans::Clock;
use super::raw_streams::RawStreams;
use super::work::capturing::{Lent, Relaxed};
use crate::background::{self, Duty};
use crate::driver::{DeviceProperties, Health};
use crate::error::Error;
use crate::order::Site;
use crate::timeline::{Keep, Ticket, Timeline};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

/// Device attributes by their numbers in `CUdevice_attribute` (cuda.h).
pub(crate) mod attribute {
    pub(crate) const MULTIPROCESSORS: i32 = 16;
    pub(crate) const CAPABILITY_MAJOR: i32 = 75;
    pub(crate) const CAPABILITY_MINOR: i32 = 76;
    pub(crate) const COOPERATIVE_LAUNCH: i32 = 95;
    pub(crate) const SHARED_PER_BLOCK_OPTIN: i32 = 97;
    /// Of the `_v2` stream memory operations.
    pub(crate) const STREAM_MEMORY_OPERATIONS_64: i32 = 122;
}

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) ordinal: u32,
    pub(crate) device: CUdevice,
    raw: CUcontext,
    pub(crate) name: String,
    pub(crate) words: Words,
    pub(crate) events: EventPool,
    pub(crate) timed_events: EventPool,
    pub(crate) streams: RawStreams,
    pub(crate) lent: Lent,
    pub(crate) functions: Functions,
    pub(crate) handles: Handles,
    /// Whether the completion words passed their self-test.
    pub(crate) has_words: OnceLock<bool>,
    /// The device's properties that never change.
    pub(crate) properties: OnceLock<DeviceProperties>,
    /// A stream that never captures and never gets work: asked whether the context lives.
    health_stream: CUstream,
    /// The event that is recorded there.
    health_event: CUevent,
    doubt: Mutex<Doubt>,
    pub(crate) checks: Checks,
    pub(crate) clock: Clock,
    dead: OnceLock<Failed>,
    dying: Mutex<()>,
    /// The error that says so, set after `dead`.
    fault: OnceLock<Error>,
    /// Set when who waits on it was woken.
    has_woken: OnceLock<()>,
    healths: Mutex<Vec<Weak<Health>>>,
    pub(crate) tracks: Mutex<Vec<Weak<Track>>>,
    /// What was in use when it died.
    never_freed: Mutex<Vec<Keep>>,
    /// Streams of other devices that wait for work of this one.
    dependents: Mutex<Vec<Dependent>>,
    pub(crate) depends_on: DependsOn,
    /// Its own streams that stand at a wait for a device that failed, and the tickets of those waits.
    standing: Mutex<Vec<(Arc<Track>, Ticket)>>,
    peers: Mutex<BTreeMap<u32, bool>>,
    /// Whether each op is waited for, as `CUDA_LAUNCH_BLOCKING=1` asks.
    pub(crate) blocking: bool,
    /// The ops that are waited for just now, where each is.
    waited_for: Mutex<Vec<(Arc<str>, Ticket, Site)>>,
    /// Whether a launch has been told of that blocked because the driver's queue was full.
    pub(crate) told_of_full_queue: AtomicBool,
}

// SAFETY: the raw handles are the driver's, which may be used from any thread.
unsafe impl Send for Context {}
// SAFETY: as above; what changes is behind locks.
unsafe impl Sync for Context {}

static CONTEXTS: Mutex<BTreeMap<u32, &'static Context>> = Mutex::new(BTreeMap::new());

/// The state of a context as far as a failed call tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Alive,
    Unclear,
    Dead,
}

/// A context that is current until this is dropped.
pub(crate) struct Entered {
    restore: Option<CUcontext>,
}

impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.restore {
            // SAFETY: cuCtxSetCurrent takes a context that lives: it was current when we came. If it has died since there is
            // nothing to put back.
            let _ = unsafe { opened().cuCtxSetCurrent(before) };
        }
    }
}

/// An op that is waited for, until this is dropped.
struct WaitedFor<'a> {
    context: &'a Context,
    op: (Arc<str>, Ticket, Site),
}

impl Drop for WaitedFor<'_> {
    fn drop(&mut self) {
        self.context.waited_for.lock().retain(|op| *op != self.op);
    }
}

/// How many devices the driver shows.
pub(crate) fn device_count() -> Result<u32, String> {
    let api = api::api()?;
    let mut count = 0;
    // SAFETY: cuDeviceGetCount writes one int.
    unsafe { api.cuDeviceGetCount(&raw mut count) }.map_err(|failed| failed.to_string())?;
    Ok(count as u32)
}

/// The stream that a timeline follows, of whatever device. None of a test's gate.
pub(crate) fn followed_by(timeline: &Arc<Timeline>) -> Option<Arc<Track>> {
    let contexts: Vec<_> = CONTEXTS.lock().values().copied().collect();
    contexts.into_iter().find_map(|context| context.followed_by(timeline))
}

impl Context {
    /// The context of device `ordinal`, opened with the first call.
    pub(crate) fn of(ordinal: u32) -> Result<&'static Context, String> {
        if let Some(context) = CONTEXTS.lock().get(&ordinal) {
            return Ok(context);
        }
        let count = device_count()?;
        if ordinal >= count {
            let hidden = std::env::var("CUDA_VISIBLE_DEVICES").map_or(String::new(), |list| {
                format!(" (CUDA_VISIBLE_DEVICES is \"{list}\", which numbers the devices anew from 0)")
            });
            return Err(format!(
                "the NVIDIA driver shows {count} device{}{hidden}",
                match count {
                    0 => "s".to_owned(),
                    1 => ", cuda:0".to_owned(),
                    _ => format!("s, cuda:0 to cuda:{}", count - 1),
                }
            ));
        }
        let mut contexts = CONTEXTS.lock();
        if let Some(context) = contexts.get(&ordinal) {
            return Ok(context);
        }
        super::requirements::check_device(ordinal)?;
        let context = Box::leak(Box::new(Self::open(ordinal).map_err(|failed| failed.to_string())?));
        context.checks.start(context).map_err(|error| format!("its thread does not start: {error}"))?;
        contexts.insert(ordinal, context);
        drop(contexts);
        Ok(context)
    }

    fn open(ordinal: u32) -> Answer<Context> {
        let api = opened();
        let _relaxed = Relaxed::new();
        let (mut device, mut raw, mut before) = (0, std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: cuDeviceGet writes a device; the ordinal is below the count.
        unsafe { api.cuDeviceGet(&raw mut device, ordinal as c_int) }?;
        // SAFETY: cuDevicePrimaryCtxRetain writes a context.
        unsafe { api.cuDevicePrimaryCtxRetain(&raw mut raw, device) }?;
        // SAFETY: cuCtxGetCurrent writes a context or null.
        unsafe { api.cuCtxGetCurrent(&raw mut before) }?;
        // SAFETY: cuCtxSetCurrent takes a live context: it was just retained.
        unsafe { api.cuCtxSetCurrent(raw) }?;
        let is_noticed = before != raw && (!before.is_null() || ordinal != 0);
        let _entered = Entered { restore: is_noticed.then_some(before) };
        let mut health_stream = std::ptr::null_mut();
        // SAFETY: cuStreamCreateWithPriority writes a stream.
        unsafe { api.cuStreamCreateWithPriority(&raw mut health_stream, NON_BLOCKING, 0) }?;
        let mut health_event = std::ptr::null_mut();
        // SAFETY: cuEventCreate writes an event.
        unsafe { api.cuEventCreate(&raw mut health_event, DISABLE_TIMING) }?;
        let words = Words::default();
        // If it fails now, whoever takes the first word learns why.
        let _ = words.grow();
        Ok(Context {
            ordinal,
            device,
            raw,
            name: name_of(device)?,
            words,
            events: EventPool::untimed(),
            timed_events: EventPool::timed(),
            streams: RawStreams::new()?,
            lent: Lent::default(),
            functions: Functions::default(),
            handles: Handles::default(),
            has_words: OnceLock::new(),
            properties: OnceLock::new(),
            health_stream,
            health_event,
            doubt: Mutex::default(),
            checks: Checks::default(),
            clock: Clock::default(),
            dead: OnceLock::new(),
            dying: Mutex::new(()),
            fault: OnceLock::new(),
            has_woken: OnceLock::new(),
            healths: Mutex::default(),
            tracks: Mutex::default(),
            never_freed: Mutex::default(),
            dependents: Mutex::default(),
            depends_on: DependsOn::default(),
            standing: Mutex::default(),
            peers: Mutex::default(),
            blocking: std::env::var("CUDA_LAUNCH_BLOCKING").is_ok_and(|on| on == "1"),
            waited_for: Mutex::default(),
            told_of_full_queue: AtomicBool::new(false),
        })
    }

    /// Like [`enter`](Self::enter), for calls that may be unsafe while others capture.
    pub(crate) fn enter_relaxed(&self) -> Answer<(Relaxed, Entered)> {
        let entered = self.enter()?;
        Ok((Relaxed::new(), entered))
    }

    /// Makes the context current on this thread until the returned value is dropped.
    #[inline]
    pub(crate) fn enter(&self) -> Answer<Entered> {
        if background::duty() == Duty::Callback {
            return Err(Failed::IN_HOST_FUNCTION);
        }
        if crate::process::is_ending() {
            return Err(if crate::process::is_forked() { Failed::FORKED } else { Failed::ENDING });
        }
        let api = opened();
        let mut before = std::ptr::null_mut();
        // SAFETY: cuCtxGetCurrent writes a context or null.
        if unsafe { api.cuCtxGetCurrent(&raw mut before) }.is_err() {
            // The current context has failed, and may be another device's. It is not worth
            // restoring. SAFETY: cuCtxSetCurrent takes a live context: this one is never let go.
            unsafe { api.cuCtxSetCurrent(self.raw) }?;
            return Ok(Entered { restore: None });
        }
        if before == self.raw {
            return Ok(Entered { restore: None });
        }
        // SAFETY: cuCtxSetCurrent takes a live context: this one is never let go.
        unsafe { api.cuCtxSetCurrent(self.raw) }?;
        Ok(Entered { restore: self.is_noticed(before).then_some(before) })
    }

    /// Returns true if a thread on which `before` was current would notice that this context is
    /// current afterwards. The CUDA runtime takes the current context for the thread's device, and
    /// device 0 where there is none (CUDA programming guide, "Driver API", "Interoperability
    /// between Runtime and Driver APIs").
    fn is_noticed(&self, before: CUcontext) -> bool {
        !before.is_null() || self.ordinal != 0
    }

    /// A stream that never gets work.
    pub(crate) fn idle_stream(&self) -> CUstream {
        self.health_stream
    }

    pub(crate) fn raw(&self) -> CUcontext {
        self.raw
    }

    /// An attribute of the device by its number.
    pub(crate) fn attribute(&self, number: i32) -> Answer<i32> {
        if crate::process::is_forked() {
            return Err(Failed::FORKED);
        }
        let mut value = 0;
        // SAFETY: cuDeviceGetAttribute writes one int.
        unsafe { opened().cuDeviceGetAttribute(&raw mut value, number, self.device) }?;
        Ok(value)
    }

    /// A runtime wants to know when the context dies, or that it has.
    pub(crate) fn watch(&self, health: &Arc<Health>) {
        let mut healths = self.healths.lock();
        healths.retain(|health| health.strong_count() > 0);
        healths.push(Arc::downgrade(health));
        drop(healths);
        if let Some(fault) = self.fault.get() {
            health.note(fault.clone());
        }
    }

    /// The error that killed it.
    pub(crate) fn death(&self) -> Option<Failed> {
        self.dead.get().copied()
    }

    /// As [`death`](Self::death), in the words of the fault.
    pub(crate) fn fault(&self) -> Option<&Error> {
        self.fault.get()
    }

    /// The streams that there are.
    pub(crate) fn live_tracks(&self) -> Vec<Arc<Track>> {
        self.tracks.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// That of them which a timeline follows.
    pub(crate) fn followed_by(&self, timeline: &Arc<Timeline>) -> Option<Arc<Track>> {
        self.live_tracks().into_iter().find(|track| track.is_followed_by(timeline))
    }

    /// Asks whether the context lives, and notes it if it does not.
    pub(crate) fn look_after(&'static self) -> Answer {
        self.ask().inspect_err(|failed| {
            self.believe(*failed, None);
        })
    }

    /// Asks the driver whether the context lives, on a stream that never gets work. An error that
    /// says nothing about the device is no answer, and so no error here.
    ///
    /// Does not touch a stream that might capture, nor wait for one; but calls of a context may
    /// wait for each other, and this one for a launch that waits for room.
    pub(crate) fn ask(&'static self) -> Answer {
        self.ask_by(|api| {
            // SAFETY: cuStreamQuery takes a live stream: this one is never destroyed.
            unsafe { api.cuStreamQuery(self.health_stream) }?;
            // Nothing says that a query of an empty stream looks for faults; work that is put there
            // does. Not again while the last one is on its way: the stream may share a hardware
            // queue with one that is held. SAFETY: cuEventRecordWithFlags takes a live event and a
            // live stream of one context: neither is ever destroyed. By this entry point, so that
            // who counts or traces calls can tell a question from the program's events.
            unsafe { api.cuEventRecordWithFlags(self.health_event, self.health_stream, 0) }
        })
    }

    /// The cheap half of [`ask`](Self::ask), for a caller whose own work has completed.
    pub(crate) fn query(&self) -> Answer {
        // SAFETY: cuStreamQuery takes a live stream: this one is never destroyed.
        self.ask_by(|api| unsafe { api.cuStreamQuery(self.health_stream) })
    }

    fn ask_by(&self, question: impl FnOnce(&Api) -> Answer) -> Answer {
        if let Some(failed) = self.death() {
            return Err(failed);
        }
        match self.enter_relaxed().and_then(|_entered| question(opened())) {
            Err(failed) if failed.meaning() != Meaning::Innocent => Err(failed),
            answer => {
                if answer.is_ok() {
                    self.doubt.lock().ends();
                }
                Ok(())
            }
        }
    }

    /// Takes note of a call that failed, and asks the context if that leaves it in doubt. Returns
    /// whether it is known to be dead. Does not wait for a doubt to end.
    #[cold]
    pub(crate) fn note_failure(&'static self, failed: Failed) -> bool {
        self.judge(failed, None) == Verdict::Dead
    }

    /// Like [`note_failure`](Self::note_failure), but waits for a doubt to end, a quarter of a
    /// second at most. `culprit`: the op, if it is known which.
    #[cold]
    pub(crate) fn is_killed_by(&'static self, failed: Failed, culprit: Option<&dyn Display>) -> bool {
        let since = Instant::now();
        loop {
            match self.judge(failed, culprit) {
                Verdict::Dead => return true,
                // Between two questions to a device that may be dead; a call to a healthy one never
                // comes here.
                Verdict::Unclear if since.elapsed() < LONGEST_DOUBT => std::thread::sleep(ASKED_EVERY),
                _ => return false,
            }
        }
    }

    fn judge(&'static self, failed: Failed, culprit: Option<&dyn Display>) -> Verdict {
        if self.is_dead() {
            return Verdict::Dead;
        }
        match failed.meaning() {
            Meaning::Innocent => Verdict::Alive,
            Meaning::Fault if !failed.may_be_anothers() => self.believe(failed, culprit),
            _ => self.ask().map_or_else(|answer| self.believe(answer, culprit), |()| Verdict::Alive),
        }
    }

    /// Takes note of an error that can only be this context's own.
    fn believe(&'static self, failed: Failed, culprit: Option<&dyn Display>) -> Verdict {
        if self.is_dead() {
            return Verdict::Dead;
        }
        let is_dead = match failed.meaning() {
            Meaning::Innocent => return Verdict::Alive,
            Meaning::Fault => true,
            Meaning::Unclear => self.doubt.lock().deepens(Instant::now(), self.completed()),
        };
        if !is_dead {
            return Verdict::Unclear;
        }
        self.note_death(failed, culprit);
        Verdict::Dead
    }

    /// A number that grows when work of the device completes. It falls when a stream is dropped.
    pub(crate) fn completed(&self) -> u64 {
        self.live_tracks().iter().map(|track| track.passed()).sum()
    }

    /// Returns true if the context is known to be dead, once every runtime has been notified.
    fn is_dead(&self) -> bool {
        self.death().is_some() && {
            drop(self.dying.lock());
            true
        }
    }

    /// Notes that the context is dead: every runtime's health is told, and nobody is woken yet,
    /// since the caller may hold a lock; the reactor wakes them.
    #[cold]
    fn note_death(&'static self, failed: Failed, culprit: Option<&dyn Display>) {
        let _dying = self.dying.lock();
        if self.dead.set(failed).is_err() {
            return;
        }
        let waited_for = self.only_waited_for();
        let culprit = culprit.or(waited_for.as_ref().map(|op| op as &dyn Display));
        let fault = fault::error(self.ordinal, failed, culprit, &self.live_tracks());
        let fault = self.fault.get_or_init(|| fault);
        for health in self.healths.lock().iter().filter_map(Weak::upgrade) {
            health.note(fault.clone());
        }
        super::completion::reactor::bury(self);
    }

    /// Where each op is waited for: this one is, until the returned value is dropped.
    #[cold]
    pub(crate) fn wait_for(&self, label: &str, ticket: Ticket, site: Site) -> impl Drop {
        let op = (Arc::from(label), ticket, site);
        self.waited_for.lock().push(Clone::clone(&op));
        WaitedFor { context: self, op }
    }

    /// Where each op is waited for, the one that is, unless there are several.
    fn only_waited_for(&self) -> Option<String> {
        match &self.waited_for.lock()[..] {
            [(label, ticket, site)] => Some(fault::named(*site, label, *ticket)),
            _ => None,
        }
    }

    /// By the reactor, after [`note_death`](Self::note_death): nothing of the context starts any more.
    pub(crate) fn fail_and_wake(&self) {
        for track in self.live_tracks() {
            let kept = track.abandon();
            self.never_freed.lock().extend(kept);
        }
        let healths: Vec<_> = self.healths.lock().iter().filter_map(Weak::upgrade).collect();
        for health in healths {
            health.wake_everybody();
        }
        let _ = self.has_woken.set(());
        // Asks the streams that wait for it, which the reactor does not.
        self.checks.lives(None);
    }

    /// Sees to the streams that wait for this dead device. Again and again, while somebody waits for them. Calls the driver.
    pub(crate) fn settle_dependents(&self) {
        let (Some(fault), Some(())) = (self.fault.get(), self.has_woken.get()) else { return };
        let mut dependents = std::mem::take(&mut *self.dependents.lock());
        dependents.retain_mut(|dependent| !dependent.settle(fault));
        if !dependents.is_empty() {
            self.dependents.lock().append(&mut dependents);
        }
    }

    /// This device has failed in the runtime whose health that is.
    pub(crate) fn fail_dependents(&self, health: &Arc<Health>, why: &Error) {
        let theirs = |dependent: &mut Dependent| Arc::ptr_eq(&dependent.health, health);
        let dependents: Vec<_> = self.dependents.lock().extract_if(.., theirs).collect();
        dependents.iter().for_each(|dependent| dependent.fail_if_it_waits(why));
    }

    /// `dependent` waits for work of this device.
    pub(crate) fn add_dependent(&self, dependent: Dependent) {
        let mut dependents = self.dependents.lock();
        if dependents.len() == dependents.capacity() {
            dependents.retain(Dependent::still_waits);
        }
        dependents.push(dependent);
    }

    /// `track`, of this device, stands at the wait with that ticket, perhaps for ever.
    pub(crate) fn note_standing(&self, track: Arc<Track>, ticket: Ticket) {
        self.standing.lock().push((track, ticket));
    }

    /// Returns true if a stream of it stands at a wait for a device that failed. Then a call that
    /// waits for everything on the device would not return, whichever runtime makes it.
    pub(crate) fn has_standing_stream(&self) -> bool {
        let mut standing = self.standing.lock();
        let over: Vec<_> = standing.extract_if(.., |(track, ticket)| track.passed() >= *ticket).collect();
        let some = !standing.is_empty();
        drop(standing);
        drop(over);
        some
    }

    /// Lets this device's kernels and copies reach the memory of `peer` directly, if the machine can: asked and enabled once.
    pub(crate) fn enable_peer(&self, peer: &Context) -> Answer<bool> {
        let mut peers = self.peers.lock();
        if let Some(&can) = peers.get(&peer.ordinal) {
            return Ok(can);
        }
        let mut can: c_int = 0;
        // SAFETY: cuDeviceCanAccessPeer writes one int.
        unsafe { opened().cuDeviceCanAccessPeer(&raw mut can, self.device, peer.device) }?;
        if can != 0 {
            let _entered = self.enter_relaxed()?;
            // SAFETY: cuCtxEnablePeerAccess takes a live context.
            match unsafe { opened().cuCtxEnablePeerAccess(peer.raw, 0) } {
                Err(failed) if failed.is_fault() => return Err(failed),
                // A device has only so many peers; copies to the others go through the host.
                Err(failed) if !failed.is_enabled_already() => can = 0,
                _ => {}
            }
        }
        peers.insert(peer.ordinal, can != 0);
        Ok(can != 0)
    }

    /// Says once that a launch had to wait for room in the driver's queue.
    pub(crate) fn tell_of_full_queue(&self) -> bool {
        !self.told_of_full_queue.swap(true, Ordering::Relaxed)
    }
}

/// `CU_STREAM_NON_BLOCKING`: no order with the null stream.
pub(crate) const NON_BLOCKING: u32 = 1;

pub(crate) fn name_of(device: CUdevice) -> Answer<String> {
    let mut bytes = [0u8; 256];
    // SAFETY: cuDeviceGetName writes a string of at most that length with its NUL.
    unsafe { opened().cuDeviceGetName(bytes.as_mut_ptr().cast::<c_char>(), bytes.len() as c_int, device) }?;
    let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    Ok(String::from_utf8_lossy(&bytes[..len]).into_owned())
}
