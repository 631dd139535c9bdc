//! The primary context of a device, shared by the whole process.
//!
//! # Rules
//! 1. A context is opened once per process and never released: at exit CUDA tears it down by
//!    itself, and what is still in use then is not ours to free.
//! 2. Every call into CUDA happens inside [`Context::enter`]: drops run on threads without a
//!    current context, and the caller's context is restored. A thread that had none keeps the
//!    context of device 0, which the CUDA runtime would choose for it. This saves two calls per op.

use super::api::{self, Answer, CUcontext, CUdevice, CUstream, Failed, opened};
use super::completion::Completion;
use super::completion::track::Track;
use super::faults::Faults;
use super::modules::Modules;
use super::profiling::spans::Clock;
use super::visible;
use super::work::Queues;
use super::work::capturing::Relaxed;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::sync::{Arc, OnceLock};
use warpline_driver::background::{self, Duty};
use warpline_driver::timeline::Timeline;
use warpline_driver::{DeviceProperties, DriverFailure};

/// The compute capability of the oldest supported devices, those of Pascal. The PTX of this
/// project's kernels also assembles for `sm_60`.
const DEVICE: (u32, u32) = (6, 0);

/// The numbers of device attributes in `CUdevice_attribute` (cuda.h).
pub(crate) mod attribute {
    pub(crate) const MULTIPROCESSORS: i32 = 16;
    pub(crate) const CAPABILITY_MAJOR: i32 = 75;
    pub(crate) const CAPABILITY_MINOR: i32 = 76;
    pub(crate) const COOPERATIVE_LAUNCH: i32 = 95;
    pub(crate) const SHARED_PER_BLOCK_OPTIN: i32 = 97;
    pub(crate) const VIRTUAL_MEMORY: i32 = 102;
    /// The attribute of mapped memory that other devices on the bus can reach.
    pub(crate) const DIRECT_RDMA_TO_MAPPED: i32 = 110;
    /// The attribute of the `_v2` stream memory operations.
    pub(crate) const STREAM_MEMORY_OPERATIONS_64: i32 = 122;
}

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) ordinal: u32,
    pub(crate) device: CUdevice,
    raw: CUcontext,
    pub(crate) name: String,
    pub(crate) completion: Completion,
    pub(crate) faults: Faults,
    pub(crate) work: Queues,
    pub(crate) modules: Modules,
    pub(crate) clock: Clock,
    /// The properties of the device that never change.
    pub(crate) properties: OnceLock<DeviceProperties>,
    /// True if each op is waited for, as `CUDA_LAUNCH_BLOCKING=1` requests.
    pub(crate) blocking: bool,
}

// SAFETY: the raw handles are CUDA's, which may be used from any thread.
unsafe impl Send for Context {}
// SAFETY: as above; everything that changes is behind locks.
unsafe impl Sync for Context {}

static CONTEXTS: Mutex<BTreeMap<u32, &'static Context>> = Mutex::new(BTreeMap::new());

/// A guard that keeps a context current until it is dropped.
pub(crate) struct Entered {
    restore: Option<CUcontext>,
}

impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.restore {
            // SAFETY: cuCtxSetCurrent takes a live context: this one was current on entry. If it
            // has died since, there is nothing to restore.
            let _ = unsafe { opened().cuCtxSetCurrent(before) };
        }
    }
}

/// Returns the number of devices that CUDA shows.
pub(crate) fn device_count() -> Result<u32, DriverFailure> {
    let api = api::api().map_err(Clone::clone)?;
    let mut count = 0;
    // SAFETY: cuDeviceGetCount writes one int.
    unsafe { api.cuDeviceGetCount(&raw mut count) }?;
    Ok(count as u32)
}

/// Returns the track that `timeline` follows, of any device. `None` for that of a test's gate.
pub(crate) fn followed_by(timeline: &Arc<Timeline>) -> Option<Arc<Track>> {
    let contexts: Vec<_> = CONTEXTS.lock().values().copied().collect();
    contexts.into_iter().find_map(|context| context.completion.followed_by(timeline))
}

impl Context {
    /// Returns the context of device `ordinal`. The first call opens it.
    pub(crate) fn of(ordinal: u32) -> Result<&'static Context, DriverFailure> {
        if let Some(context) = CONTEXTS.lock().get(&ordinal) {
            return Ok(context);
        }
        let count = device_count()?;
        if ordinal >= count {
            let hidden = match visible::list() {
                // The caller adds both values.
                _ if visible::change().is_some() => String::new(),
                Some(list) => {
                    let problem = visible::problem(count as usize);
                    let problem = problem.map_or(String::new(), |problem| format!("; {problem}"));
                    format!(
                        " (CUDA_VISIBLE_DEVICES is \"{list}\", which renumbers the devices from 0{problem})"
                    )
                }
                None => String::new(),
            };
            return Err(format!(
                "the NVIDIA driver shows {count} device{}{hidden}",
                match count {
                    0 => "s".to_owned(),
                    1 => ", cuda:0".to_owned(),
                    _ => format!("s, cuda:0 to cuda:{}", count - 1),
                }
            )
            .into());
        }
        let mut contexts = CONTEXTS.lock();
        if let Some(context) = contexts.get(&ordinal) {
            return Ok(context);
        }
        check_device(ordinal)?;
        let context = Box::leak(Box::new(Self::open(ordinal)?));
        context
            .faults
            .checks
            .start(context)
            .map_err(|error| format!("its thread could not be started: {error}"))?;
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
        let faults = Faults::begin()?;
        Ok(Context {
            ordinal,
            device,
            raw,
            name: name_of(device)?,
            completion: Completion::default(),
            faults,
            work: Queues::new()?,
            modules: Modules::default(),
            clock: Clock::default(),
            properties: OnceLock::new(),
            blocking: warpline_driver::process::launches_block(),
        })
    }

    /// Like [`enter`](Self::enter), for calls that may be unsafe while other threads capture.
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
        if warpline_driver::process::is_ending() {
            return Err(if warpline_driver::process::is_forked() { Failed::FORKED } else { Failed::ENDING });
        }
        let api = opened();
        let mut before = std::ptr::null_mut();
        // SAFETY: cuCtxGetCurrent writes a context or null.
        if unsafe { api.cuCtxGetCurrent(&raw mut before) }.is_err() {
            // The current context has failed, and may be another device's. It is not worth
            // restoring.
            // SAFETY: cuCtxSetCurrent takes a live context: this one is never released.
            unsafe { api.cuCtxSetCurrent(self.raw) }?;
            return Ok(Entered { restore: None });
        }
        if before == self.raw {
            return Ok(Entered { restore: None });
        }
        // SAFETY: cuCtxSetCurrent takes a live context: this one is never released.
        unsafe { api.cuCtxSetCurrent(self.raw) }?;
        Ok(Entered { restore: self.is_noticed(before).then_some(before) })
    }

    /// Returns true if a thread on which `before` was current would notice that this context stays
    /// current. The CUDA runtime takes the current context as the thread's device, and device 0
    /// where there is none (CUDA programming guide, "Driver API", "Interoperability between Runtime
    /// and Driver APIs").
    fn is_noticed(&self, before: CUcontext) -> bool {
        !before.is_null() || self.ordinal != 0
    }

    /// Returns a stream that never gets work.
    pub(crate) fn idle_stream(&self) -> CUstream {
        self.faults.life.stream
    }

    pub(crate) fn raw(&self) -> CUcontext {
        self.raw
    }

    /// Returns an attribute of the device by its number.
    pub(crate) fn attribute(&self, number: i32) -> Answer<i32> {
        if warpline_driver::process::is_forked() {
            return Err(Failed::FORKED);
        }
        let mut value = 0;
        // SAFETY: cuDeviceGetAttribute writes one int.
        unsafe { opened().cuDeviceGetAttribute(&raw mut value, number, self.device) }?;
        Ok(value)
    }
}

/// The flag `CU_STREAM_NON_BLOCKING`: the stream is not ordered with the null stream.
pub(crate) const NON_BLOCKING: u32 = 1;

pub(crate) fn name_of(device: CUdevice) -> Answer<String> {
    let mut bytes = [0u8; 256];
    // SAFETY: cuDeviceGetName writes a string of at most that length, including its NUL.
    unsafe { opened().cuDeviceGetName(bytes.as_mut_ptr().cast::<c_char>(), bytes.len() as c_int, device) }?;
    let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    Ok(String::from_utf8_lossy(&bytes[..len]).into_owned())
}

/// Refuses a device of a generation before Pascal. CUDA is initialised and has a device of
/// that ordinal.
fn check_device(ordinal: u32) -> Result<(), DriverFailure> {
    let mut device = 0;
    // SAFETY: cuDeviceGet writes a device; the ordinal is below the count.
    unsafe { opened().cuDeviceGet(&raw mut device, ordinal as c_int) }?;
    let number = |which| {
        let mut value = 0;
        // SAFETY: cuDeviceGetAttribute writes one int.
        unsafe { opened().cuDeviceGetAttribute(&raw mut value, which, device) }.map(|()| value as u32)
    };
    let capability = (number(attribute::CAPABILITY_MAJOR)?, number(attribute::CAPABILITY_MINOR)?);
    if capability >= DEVICE {
        return Ok(());
    }
    let ((major, minor), (needed, dot)) = (capability, DEVICE);
    let name = name_of(device)?;
    Err(format!(
        "cuda:{ordinal} ({name}) has compute capability {major}.{minor}; Warpline needs {needed}.{dot} (Pascal) or newer; use \
         another device"
    )
    .into())
}
