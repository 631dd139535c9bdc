//! A device's primary context, shared by the whole process.
//!
//! # Rules
//! 1. A context is opened once a process and never let go: at exit the driver tears down by itself, and what is still in use
//!    then is none of ours.
//! 2. Every call into the driver happens inside [`Context::enter`]: drops run on threads without a current context, and the
//!    caller's context is put back. A thread that had none keeps this one.
//! 3. A sticky error ends the context for the process: each runtime's [`Health`] learns of it, and whoever waits is woken. A call
//!    that touches two devices answers with the error of either, so the context is asked before it is given up.
//! 4. What a dead device may still be using is kept for good: nobody says when a copy that had begun has ended.

use super::api::{self, Answer, CUcontext, CUdevice, CUstream, Failed, opened};
use super::checks::Checks;
use super::depends::DependsOn;
use super::events::EventPool;
use super::fault;
use super::functions::Functions;
use super::mourning::Dependent;
use super::raw_streams::RawStreams;
use super::spans::Clock;
use super::track::Track;
use super::words::Words;
use crate::driver::{DeviceProperties, Health};
use crate::error::Error;
use crate::offload::{self, Duty};
use crate::site::Site;
use crate::timeline::{Keep, Ticket, Timeline};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Device attributes by their numbers in `CUdevice_attribute` (cuda.h).
pub(super) mod attribute {
    pub(in super::super) const MULTIPROCESSORS: i32 = 16;
    pub(in super::super) const CAPABILITY_MAJOR: i32 = 75;
    pub(in super::super) const CAPABILITY_MINOR: i32 = 76;
    pub(in super::super) const COOPERATIVE_LAUNCH: i32 = 95;
    pub(in super::super) const SHARED_PER_BLOCK_OPTIN: i32 = 97;
    /// Of the `_v2` stream memory operations.
    pub(in super::super) const STREAM_MEMORY_OPERATIONS_64: i32 = 122;
}

#[derive(Debug)]
pub(crate) struct Context {
    pub(super) ordinal: u32,
    pub(super) device: CUdevice,
    raw: CUcontext,
    pub(super) name: String,
    pub(super) words: Words,
    pub(super) events: EventPool,
    pub(super) timed_events: EventPool,
    pub(super) streams: RawStreams,
    pub(super) functions: Functions,
    /// Whether the completion words passed their self-test.
    pub(super) has_words: OnceLock<bool>,
    /// The device's properties that never change.
    pub(super) properties: OnceLock<DeviceProperties>,
    /// A stream that never captures and never gets work: asked whether the context lives.
    health_stream: CUstream,
    pub(super) checks: Checks,
    pub(super) clock: Clock,
    dead: OnceLock<Failed>,
    dying: Mutex<()>,
    /// The error that says so, set after `dead`.
    fault: OnceLock<Error>,
    /// Set when who waits on it was woken.
    buried: OnceLock<()>,
    healths: Mutex<Vec<Weak<Health>>>,
    pub(super) tracks: Mutex<Vec<Weak<Track>>>,
    /// What was in use when it died.
    graves: Mutex<Vec<Keep>>,
    /// Streams of other devices that wait for work of this one.
    dependents: Mutex<Vec<Dependent>>,
    pub(super) depends_on: DependsOn,
    peers: Mutex<BTreeMap<u32, bool>>,
    /// Whether each op is waited for, as `CUDA_LAUNCH_BLOCKING=1` asks.
    pub(super) blocking: bool,
    /// The ops that are waited for just now, where each is.
    waited_for: Mutex<Vec<(Arc<str>, Ticket, Site)>>,
    /// Whether a launch has been told of that blocked because the driver's queue was full.
    pub(super) told_of_full_queue: AtomicBool,
}

// SAFETY: the raw handles are the driver's, which may be used from any thread.
unsafe impl Send for Context {}
// SAFETY: as above; what changes is behind locks.
unsafe impl Sync for Context {}

static CONTEXTS: Mutex<BTreeMap<u32, &'static Context>> = Mutex::new(BTreeMap::new());

/// A context that is current until this is dropped.
pub(super) struct Entered {
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
pub(super) fn device_count() -> Result<u32, String> {
    let api = api::api()?;
    let mut count = 0;
    // SAFETY: cuDeviceGetCount writes one int.
    unsafe { api.cuDeviceGetCount(&raw mut count) }.map_err(|failed| failed.to_string())?;
    Ok(count as u32)
}

/// The stream that a timeline follows, of whatever device. None of a test's gate.
pub(super) fn followed_by(timeline: &Arc<Timeline>) -> Option<Arc<Track>> {
    let contexts: Vec<_> = CONTEXTS.lock().values().copied().collect();
    contexts.into_iter().find_map(|context| context.followed_by(timeline))
}

impl Context {
    /// The context of device `ordinal`, opened with the first call.
    pub(super) fn of(ordinal: u32) -> Result<&'static Context, String> {
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
                    1 => ", cuda:0".to_owned(),
                    _ => format!("s, cuda:0 to cuda:{}", count - 1),
                }
            ));
        }
        let mut contexts = CONTEXTS.lock();
        if let Some(context) = contexts.get(&ordinal) {
            return Ok(context);
        }
        let context = Box::leak(Box::new(Self::open(ordinal).map_err(|failed| failed.to_string())?));
        context.checks.start(context).map_err(|error| format!("its thread does not start: {error}"))?;
        contexts.insert(ordinal, context);
        drop(contexts);
        Ok(context)
    }

    fn open(ordinal: u32) -> Answer<Context> {
        let api = opened();
        let (mut device, mut raw, mut before) = (0, std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: cuDeviceGet writes a device; the ordinal is below the count.
        unsafe { api.cuDeviceGet(&raw mut device, ordinal as c_int) }?;
        // SAFETY: cuDevicePrimaryCtxRetain writes a context.
        unsafe { api.cuDevicePrimaryCtxRetain(&raw mut raw, device) }?;
        // SAFETY: cuCtxGetCurrent writes a context or null.
        unsafe { api.cuCtxGetCurrent(&raw mut before) }?;
        // SAFETY: cuCtxSetCurrent takes a live context: it was just retained.
        unsafe { api.cuCtxSetCurrent(raw) }?;
        let _entered = Entered { restore: (!before.is_null() && before != raw).then_some(before) };
        let mut health_stream = std::ptr::null_mut();
        // SAFETY: cuStreamCreateWithPriority writes a stream.
        unsafe { api.cuStreamCreateWithPriority(&raw mut health_stream, NON_BLOCKING, 0) }?;
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
            functions: Functions::default(),
            has_words: OnceLock::new(),
            properties: OnceLock::new(),
            health_stream,
            checks: Checks::default(),
            clock: Clock::default(),
            dead: OnceLock::new(),
            dying: Mutex::new(()),
            fault: OnceLock::new(),
            buried: OnceLock::new(),
            healths: Mutex::default(),
            tracks: Mutex::default(),
            graves: Mutex::default(),
            dependents: Mutex::default(),
            depends_on: DependsOn::default(),
            peers: Mutex::default(),
            blocking: std::env::var("CUDA_LAUNCH_BLOCKING").is_ok_and(|on| on == "1"),
            waited_for: Mutex::default(),
            told_of_full_queue: AtomicBool::new(false),
        })
    }

    /// Makes the context current on this thread until the returned value is dropped.
    #[inline]
    pub(super) fn enter(&self) -> Answer<Entered> {
        if offload::duty() == Duty::Callback {
            return Err(Failed::IN_HOST_FUNCTION);
        }
        if crate::process::is_forked() {
            return Err(Failed::FORKED);
        }
        let api = opened();
        let mut before = std::ptr::null_mut();
        // SAFETY: cuCtxGetCurrent writes a context or null.
        unsafe { api.cuCtxGetCurrent(&raw mut before) }?;
        if before == self.raw {
            return Ok(Entered { restore: None });
        }
        // SAFETY: cuCtxSetCurrent takes a live context: this one is never let go.
        unsafe { api.cuCtxSetCurrent(self.raw) }?;
        Ok(Entered { restore: (!before.is_null()).then_some(before) })
    }

    /// A stream that never gets work.
    pub(super) fn idle_stream(&self) -> CUstream {
        self.health_stream
    }

    pub(super) fn raw(&self) -> CUcontext {
        self.raw
    }

    /// An attribute of the device by its number.
    pub(super) fn attribute(&self, number: i32) -> Answer<i32> {
        if crate::process::is_forked() {
            return Err(Failed::FORKED);
        }
        let mut value = 0;
        // SAFETY: cuDeviceGetAttribute writes one int.
        unsafe { opened().cuDeviceGetAttribute(&raw mut value, number, self.device) }?;
        Ok(value)
    }

    /// A runtime wants to know when the context dies, or that it has.
    pub(super) fn watch(&self, health: &Arc<Health>) {
        let mut healths = self.healths.lock();
        healths.retain(|health| health.strong_count() > 0);
        healths.push(Arc::downgrade(health));
        drop(healths);
        if let Some(fault) = self.fault.get() {
            health.note(fault.clone());
        }
    }

    /// The error that killed it.
    pub(super) fn death(&self) -> Option<Failed> {
        self.dead.get().copied()
    }

    /// As [`death`](Self::death), in the words of the fault.
    pub(super) fn fault(&self) -> Option<&Error> {
        self.fault.get()
    }

    /// The streams that there are.
    pub(super) fn live_tracks(&self) -> Vec<Arc<Track>> {
        self.tracks.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// That of them which a timeline follows.
    pub(super) fn followed_by(&self, timeline: &Arc<Timeline>) -> Option<Arc<Track>> {
        self.live_tracks().into_iter().find(|track| track.is_followed_by(timeline))
    }

    /// Asks whether the context lives, and notes it if it does not.
    pub(super) fn look_after(&'static self) -> Answer {
        self.ask().inspect_err(|failed| {
            self.note_death(*failed, None);
        })
    }

    /// Asks the driver whether the context lives. Does not touch a stream that might capture, nor wait for one; but calls of a context
    /// may wait for each other, and this one for a launch that waits for room.
    pub(super) fn ask(&self) -> Answer {
        if let Some(failed) = self.death() {
            return Err(failed);
        }
        let _entered = self.enter()?;
        // SAFETY: cuStreamQuery takes a live stream: this one is never destroyed.
        match unsafe { opened().cuStreamQuery(self.health_stream) } {
            Err(failed) if !failed.is_not_ready() => Err(failed),
            _ => Ok(()),
        }
    }

    /// Notes that the context is dead, if this code says so and the driver does not deny it: every runtime's health is told, and
    /// nobody is woken yet, since the caller may hold a lock; the reactor wakes them. `culprit`: the op, if it is known which.
    /// Whether the context is dead.
    #[cold]
    pub(super) fn note_death(&'static self, failed: Failed, culprit: Option<&dyn std::fmt::Display>) -> bool {
        if !failed.is_sticky() {
            return false;
        }
        // Of two who find out, the second goes on when everybody has been told.
        let _dying = self.dying.lock();
        if self.death().is_some() {
            return true;
        }
        // The error may be that of another device which the call touched.
        let Some(failed) = self.ask().err().filter(|failed| failed.is_sticky()) else { return false };
        let _ = self.dead.set(failed);
        let waited_for = self.only_waited_for();
        let culprit = culprit.or(waited_for.as_ref().map(|op| op as &dyn std::fmt::Display));
        let fault = fault::error(self.ordinal, failed, culprit, &self.live_tracks());
        let fault = self.fault.get_or_init(|| fault);
        for health in self.healths.lock().iter().filter_map(Weak::upgrade) {
            health.note(fault.clone());
        }
        super::reactor::bury(self);
        true
    }

    /// Where each op is waited for: this one is, until the returned value is dropped.
    #[cold]
    pub(super) fn wait_for(&self, label: &str, ticket: Ticket, site: Site) -> impl Drop {
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
    pub(super) fn wake_mourners(&self) {
        for track in self.live_tracks() {
            let kept = track.abandon();
            self.graves.lock().extend(kept);
        }
        let healths: Vec<_> = self.healths.lock().iter().filter_map(Weak::upgrade).collect();
        for health in healths {
            health.wake_everybody();
        }
        let _ = self.buried.set(());
        // Asks the streams that wait for it, which the reactor does not.
        self.checks.lives();
    }

    /// Sees to the streams that wait for this dead device. Again and again, while somebody waits for them. Calls the driver.
    pub(super) fn bereave(&self) {
        let (Some(fault), Some(())) = (self.fault.get(), self.buried.get()) else { return };
        let mut dependents = std::mem::take(&mut *self.dependents.lock());
        dependents.retain_mut(|dependent| !dependent.bereave(fault));
        if !dependents.is_empty() {
            self.dependents.lock().append(&mut dependents);
        }
    }

    /// This device has failed in the runtime whose health that is.
    pub(super) fn fail_dependents(&self, health: &Arc<Health>, why: &Error) {
        let theirs = |dependent: &mut Dependent| Arc::ptr_eq(&dependent.health, health);
        let dependents: Vec<_> = self.dependents.lock().extract_if(.., theirs).collect();
        dependents.iter().for_each(|dependent| dependent.mourn(why));
    }

    /// `dependent` waits for work of this device.
    pub(super) fn add_dependent(&self, dependent: Dependent) {
        let mut dependents = self.dependents.lock();
        if dependents.len() == dependents.capacity() {
            dependents.retain(Dependent::still_waits);
        }
        dependents.push(dependent);
    }

    /// Lets this device's kernels and copies reach the memory of `peer` directly, if the machine can: asked and enabled once.
    pub(super) fn enable_peer(&self, peer: &Context) -> Answer<bool> {
        let mut peers = self.peers.lock();
        if let Some(&can) = peers.get(&peer.ordinal) {
            return Ok(can);
        }
        let mut can: c_int = 0;
        // SAFETY: cuDeviceCanAccessPeer writes one int.
        unsafe { opened().cuDeviceCanAccessPeer(&raw mut can, self.device, peer.device) }?;
        if can != 0 {
            let _entered = self.enter()?;
            // SAFETY: cuCtxEnablePeerAccess takes a live context.
            match unsafe { opened().cuCtxEnablePeerAccess(peer.raw, 0) } {
                Err(failed) if failed.is_sticky() => return Err(failed),
                // A device has only so many peers; copies to the others go through the host.
                Err(failed) if !failed.is_enabled_already() => can = 0,
                _ => {}
            }
        }
        peers.insert(peer.ordinal, can != 0);
        Ok(can != 0)
    }

    /// Says once that a launch had to wait for room in the driver's queue.
    pub(super) fn tell_of_full_queue(&self) -> bool {
        !self.told_of_full_queue.swap(true, Ordering::Relaxed)
    }
}

/// `CU_STREAM_NON_BLOCKING`: no order with the null stream.
pub(super) const NON_BLOCKING: u32 = 1;

fn name_of(device: CUdevice) -> Answer<String> {
    let mut bytes = [0u8; 256];
    // SAFETY: cuDeviceGetName writes a string of at most that length with its NUL.
    unsafe { opened().cuDeviceGetName(bytes.as_mut_ptr().cast::<c_char>(), bytes.len() as c_int, device) }?;
    let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    Ok(String::from_utf8_lossy(&bytes[..len]).into_owned())
}
