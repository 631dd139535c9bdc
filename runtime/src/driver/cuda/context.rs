//! A device's primary context, shared by the whole process.
//!
//! # Rules
//! 1. A context is opened once a process and never let go: at exit the driver tears down by itself, and what is still in use
//!    then is none of ours.
//! 2. Every call into the driver happens inside [`Context::enter`]: drops run on threads without a current context, and the
//!    caller's context is put back. A thread that had none keeps this one.
//! 3. A sticky error ends the context for the process: each runtime's [`Health`] learns of it, and whoever waits is woken.

use super::api::{self, Answer, CUcontext, CUdevice, CUstream, Failed, opened};
use super::events::EventPool;
use super::fault;
use super::functions::Functions;
use super::raw_streams::RawStreams;
use super::spans::Clock;
use super::track::Track;
use super::words::Words;
use crate::driver::Health;
use crate::error::Error;
use crate::offload::{self, Duty};
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
    /// A stream that never captures and never gets work: asked whether the context lives.
    health_stream: CUstream,
    pub(super) clock: Clock,
    dead: OnceLock<Failed>,
    /// What was told of it.
    fault: OnceLock<Error>,
    healths: Mutex<Vec<Weak<Health>>>,
    pub(super) tracks: Mutex<Vec<Weak<Track>>>,
    peers: Mutex<BTreeMap<u32, bool>>,
    /// Whether each op is waited for, as `CUDA_LAUNCH_BLOCKING=1` asks.
    pub(super) blocking: bool,
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

/// How many devices the driver shows.
pub(super) fn device_count() -> Result<u32, String> {
    let api = api::api()?;
    let mut count = 0;
    // SAFETY: cuDeviceGetCount writes one int.
    unsafe { api.cuDeviceGetCount(&raw mut count) }.map_err(|failed| failed.to_string())?;
    Ok(count as u32)
}

impl Context {
    /// The context of device `ordinal`, opened with the first call.
    pub(super) fn of(ordinal: u32) -> Result<&'static Context, String> {
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
        Ok(Context {
            ordinal,
            device,
            raw,
            name: name_of(device)?,
            words: Words::default(),
            events: EventPool::untimed(),
            timed_events: EventPool::timed(),
            streams: RawStreams::new()?,
            functions: Functions::default(),
            has_words: OnceLock::new(),
            health_stream,
            clock: Clock::default(),
            dead: OnceLock::new(),
            fault: OnceLock::new(),
            healths: Mutex::default(),
            tracks: Mutex::default(),
            peers: Mutex::default(),
            blocking: std::env::var("CUDA_LAUNCH_BLOCKING").is_ok_and(|on| on == "1"),
            told_of_full_queue: AtomicBool::new(false),
        })
    }

    /// Makes the context current on this thread until the returned value is dropped.
    #[inline]
    pub(super) fn enter(&self) -> Answer<Entered> {
        if offload::duty() == Duty::Callback {
            return Err(Failed::IN_HOST_FUNCTION);
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
        let mut value = 0;
        // SAFETY: cuDeviceGetAttribute writes one int.
        unsafe { opened().cuDeviceGetAttribute(&raw mut value, number, self.device) }?;
        Ok(value)
    }

    /// A runtime wants to know when the context dies.
    pub(super) fn watch(&self, health: &Arc<Health>) {
        let mut healths = self.healths.lock();
        healths.retain(|health| health.strong_count() > 0);
        healths.push(Arc::downgrade(health));
    }

    /// The error that killed it.
    pub(super) fn death(&self) -> Option<Failed> {
        self.dead.get().copied()
    }

    /// Asks the driver whether the context lives. Never blocks, and does not touch a stream that might capture.
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

    /// Asks the driver whether the context lives, and notes it if not.
    pub(super) fn ask_and_note(&'static self) {
        if let Err(failed) = self.ask() {
            self.note_death(failed, None);
        }
    }

    /// Notes that the context is dead, if this code says so: every runtime's health is told, and nobody is woken yet, since the
    /// caller may hold a lock; the reactor wakes them. `culprit`: the op, if it is known which.
    #[cold]
    pub(super) fn note_death(&'static self, failed: Failed, culprit: Option<&dyn std::fmt::Display>) {
        if !failed.is_sticky() || self.dead.set(failed).is_err() {
            return;
        }
        let error = self.fault.get_or_init(|| self.fault(failed, culprit));
        for health in self.healths.lock().iter().filter_map(Weak::upgrade) {
            health.note(error.clone());
        }
        super::reactor::bury(self);
    }

    /// The error that was told of its death.
    pub(super) fn fault_of_death(&self) -> Option<&Error> {
        self.fault.get()
    }

    fn fault(&self, failed: Failed, culprit: Option<&dyn std::fmt::Display>) -> Error {
        let tracks: Vec<_> = self.tracks.lock().iter().filter_map(Weak::upgrade).collect();
        fault::error(self.ordinal, failed, culprit, &tracks)
    }

    /// By the reactor, after [`note_death`](Self::note_death): nothing of the context runs any more.
    pub(super) fn wake_mourners(&'static self) {
        let tracks: Vec<_> = self.tracks.lock().iter().filter_map(Weak::upgrade).collect();
        for track in tracks {
            track.abandon();
        }
        let healths: Vec<_> = self.healths.lock().iter().filter_map(Weak::upgrade).collect();
        for health in healths {
            health.wake_everybody();
        }
        let Some(cause) = self.fault_of_death() else { return };
        let others: Vec<_> = CONTEXTS.lock().values().copied().collect();
        for other in others.into_iter().filter(|other| !std::ptr::eq(*other, self)) {
            let tracks: Vec<_> = other.tracks.lock().iter().filter_map(Weak::upgrade).collect();
            tracks.iter().for_each(|track| track.mourn(self, cause));
        }
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
                Err(failed) if !failed.is_enabled_already() => return Err(failed),
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
