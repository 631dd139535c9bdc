//! The CUDA device of one runtime: how it is opened, and how it implements the traits of a driver.

use super::api::{Answer, CUstream, Failed, opened};
use super::completion::reactor;
use super::context::{Context, attribute};
use super::modules::functions::most_shared_bytes;
use super::modules::{handles, library};
use super::profiling::nvtx;
use super::stream::{Completing, CudaStream};
use super::visible;
use super::work::gate::{
    Free, ahead_unless_held, free_between_gates, free_of, free_unless_held, note_not_freed,
};
use super::work::graph;
use super::work::virtual_memory::reserved::Reserved;
use parking_lot::Mutex;
use std::ffi::c_void;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use warpline_driver::background::{self, Duty};
use warpline_driver::internal::ErrorParts;
use warpline_driver::kernel::{Kernel, LaunchConfig};
use warpline_driver::timeline::Timeline;
use warpline_driver::{
    Completion, DeviceId, DeviceProperties, DevicePtr, Driver, DriverError, DriverEvent, DriverFailure,
    DriverGraph, DriverStream, Error, ErrorKind, FreeMemory, Health, NotFreed, Plan, StreamOptions, WakeUp,
    reentry,
};

/// The flag `CU_MEMHOSTALLOC_PORTABLE`: memory that is page-locked for every context.
const PORTABLE: u32 = 1;
/// The longest time that the self-test of the completion word may take.
const SELF_TEST: Duration = Duration::from_secs(1);

/// A CUDA device of one runtime.
#[derive(Debug)]
pub struct CudaDevice {
    context: &'static Context,
    health: Arc<Health>,
    completing: Completing,
    streams: Mutex<Vec<Weak<CudaStream>>>,
    /// True from [`Driver::shut_down`] on.
    stopping: Arc<AtomicBool>,
    /// The bytes of device memory and of host memory that could not be freed.
    not_freed: [Arc<AtomicUsize>; 2],
    reserved: Reserved,
}

/// The options that a CUDA device is opened with.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaOptions {
    /// How eagerly the reactor looks for progress.
    pub wake_up: WakeUp,
    /// Makes markers events, even where completion words work.
    pub by_events: bool,
}

impl CudaDevice {
    /// Opens device `ordinal` for a runtime, which is notified of its death through `health`.
    pub fn open(ordinal: u32, health: Arc<Health>, options: CudaOptions) -> Result<CudaDevice, Error> {
        let no_such_device = |why: DriverFailure| {
            let id = DeviceId::Cuda(ordinal);
            no_such_device(format!("there is no {id}: {why}"), "; \"cpu\" needs no GPU", why)
        };
        let has_failed = |why: DriverFailure| {
            let text = format!(
                "cuda:{ordinal} cannot be opened: it has failed in this process: {why}; no runtime of this \
                 process can use it again, so start a new process"
            );
            Error::new(ErrorKind::Fault, text).caused_by(why)
        };
        refuse_forked()?;
        reactor::start().map_err(|error| {
            no_such_device(format!("its reactor thread could not be started: {error}").into())
        })?;
        nvtx::start();
        let context = Context::of(ordinal).map_err(|why| {
            // Other code may have lost the device before.
            let is_fault = why.code().is_some_and(|code| Failed { call: "", code }.is_fault());
            if is_fault { has_failed(why) } else { no_such_device(why) }
        })?;
        visible::warn_of_change();
        if let Some(failed) = context.death() {
            return Err(has_failed(failed.into()));
        }
        let words = *context.completion.has_words.get_or_init(|| {
            let works = self_test(context);
            if let Ok(false) | Err(_) = works {
                crate::report::no_completion_words(ordinal, works.err().map(|failed| failed.to_string()));
            }
            works.unwrap_or(false)
        });
        if let Err(failed) = context.query()
            && context.is_killed_by(failed, None)
        {
            return Err(has_failed(failed.into()));
        }
        // The properties are read now: a host function may need them later and cannot call the
        // driver.
        context.properties.get_or_init(|| properties(context));
        context.watch(&health);
        let completing = Completing { wake_up: options.wake_up, by_events: options.by_events || !words };
        Ok(CudaDevice {
            context,
            health,
            completing,
            streams: Mutex::default(),
            stopping: Arc::default(),
            not_freed: Default::default(),
            reserved: Reserved::none(context),
        })
    }

    /// Returns the call that frees device memory.
    ///
    /// # Safety
    /// The rules of `Driver::free`.
    unsafe fn free_of(&self, ptr: DevicePtr, len_bytes: usize) -> Free {
        // SAFETY: `free_of` has the rules of this function.
        let free = unsafe { free_of(self.context, ptr) };
        counting(free, len_bytes, &self.not_freed[0])
    }

    fn driver_error(&self, failed: Failed) -> DriverError {
        self.context.is_killed_by(failed, None);
        self.context.driver_error(failed)
    }

    /// Refuses another library's stream that belongs to another context.
    fn belongs_here(&self, stream: CUstream) -> Result<(), DriverError> {
        let mut context = std::ptr::null_mut();
        let asked = self.context.enter().and_then(|_entered| {
            // SAFETY: cuStreamGetCtx takes a live stream, as `borrow_raw` demands, and writes a
            // context.
            unsafe { opened().cuStreamGetCtx(stream, &raw mut context) }
        });
        asked.map_err(|failed| self.driver_error(failed))?;
        if context == self.context.raw() {
            return Ok(());
        }
        Err(DriverError::Refused(
            format!(
                "the stream passed to borrow_raw does not belong to the primary context of \
                 cuda:{}; pass one that was created there, or borrow it on its own device",
                self.context.ordinal
            )
            .into(),
        ))
    }

    /// Asks whether the context lives, after an error that came as a text.
    fn look_after(&self) {
        let _ = self.context.look_after();
    }
}

/// Reads the properties of a device that never change.
fn properties(context: &Context) -> DeviceProperties {
    let attribute = |number| context.attribute(number).unwrap_or(0);
    let mut uuid = cudarc::driver::sys::CUuuid { bytes: [0; 16] };
    // SAFETY: cuDeviceGetUuid writes sixteen bytes.
    let has_uuid = unsafe { opened().cuDeviceGetUuid_v2(&raw mut uuid, context.device) }.is_ok();
    let mut total_bytes = 0;
    // SAFETY: cuDeviceTotalMem writes a size.
    let _ = unsafe { opened().cuDeviceTotalMem_v2(&raw mut total_bytes, context.device) };
    let mut properties = DeviceProperties::unknown(context.name.clone());
    properties.total_bytes = total_bytes;
    properties.uuid = has_uuid.then(|| uuid.bytes.map(|byte| byte as u8));
    properties.compute_capability =
        Some((attribute(attribute::CAPABILITY_MAJOR) as u32, attribute(attribute::CAPABILITY_MINOR) as u32));
    properties.multiprocessors = attribute(attribute::MULTIPROCESSORS) as u32;
    properties.shared_bytes_per_block = most_shared_bytes(context).unwrap_or(0) as u32;
    properties.cooperative_launch = attribute(attribute::COOPERATIVE_LAUNCH) != 0;
    properties
}

/// Writes a word from a stream, and returns true if the write arrives in time.
fn self_test(context: &'static Context) -> Answer<bool> {
    if context.attribute(attribute::STREAM_MEMORY_OPERATIONS_64)? == 0 {
        return Ok(false);
    }
    let _entered = context.enter_relaxed()?;
    let mut raw = context.work.streams.take(context, warpline_driver::Priority::Normal)?;
    let Some(word) = raw.word else {
        // This call returns the reason why there is no word.
        return context.completion.words.take(context).map(|_| false);
    };
    raw.written += 1;
    // SAFETY: cuStreamWriteValue64 takes a live stream and an eight-byte aligned device address,
    // here the word's.
    unsafe { opened().cuStreamWriteValue64_v2(raw.stream, word.device, raw.written, 0) }?;
    let since = Instant::now();
    while word.host.load(Ordering::Acquire) != raw.written {
        if since.elapsed() > SELF_TEST {
            // The stream does not return to the pool: the write may still arrive.
            return Ok(false);
        }
        std::thread::yield_now();
    }
    context.work.streams.give_back(raw, None);
    Ok(true)
}

impl Context {
    /// Converts a failed call to the error that a driver returns.
    pub(crate) fn driver_error(&self, failed: Failed) -> DriverError {
        match failed.code {
            Failed::OUT_OF_MEMORY => self.out_of_memory(),
            _ => DriverError::Refused(failed.into()),
        }
    }

    /// Returns the error of a call that found no memory, with how much memory there is.
    pub(crate) fn out_of_memory(&self) -> DriverError {
        let memory = self.memory().map(|(free_bytes, total_bytes)| FreeMemory { free_bytes, total_bytes });
        DriverError::OutOfMemory(memory.ok())
    }

    /// Returns the free bytes and the total bytes of device memory.
    fn memory(&self) -> Answer<(usize, usize)> {
        let _entered = self.enter_relaxed()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: cuMemGetInfo writes two sizes.
        unsafe { opened().cuMemGetInfo_v2(&raw mut free, &raw mut total) }?;
        Ok((free, total))
    }
}

// SAFETY: device memory is CUDA's, which never hands out memory twice; host memory likewise,
// and it is zeroed.
unsafe impl Driver for CudaDevice {
    fn id(&self) -> DeviceId {
        DeviceId::Cuda(self.context.ordinal)
    }

    fn completion(&self) -> Completion {
        Completion::Signalled
    }

    fn new_stream(
        &self,
        options: &StreamOptions,
        timeline: Arc<Timeline>,
    ) -> Result<Arc<dyn DriverStream>, DriverError> {
        if let Some(lent) = options.borrowed {
            self.belongs_here(lent.as_ptr().cast())?;
        }
        let stopping = self.stopping.clone();
        let stream =
            CudaStream::new(self.context, self.health.clone(), self.completing, options, timeline, stopping);
        let stream = Arc::new(stream.map_err(|failed| self.driver_error(failed))?);
        let mut streams = self.streams.lock();
        if streams.len() == streams.capacity() {
            streams.retain(|stream| stream.strong_count() > 0);
        }
        streams.push(Arc::downgrade(&stream));
        Ok(stream)
    }

    fn alloc(&self, len_bytes: usize) -> Result<DevicePtr, DriverError> {
        let mut address = 0;
        let allocated = self.context.enter_relaxed().and_then(|_entered| {
            // SAFETY: cuMemAlloc writes an address.
            unsafe { opened().cuMemAlloc_v2(&raw mut address, len_bytes) }
        });
        allocated.map(|()| DevicePtr(address)).map_err(|failed| self.driver_error(failed))
    }

    unsafe fn free(&self, ptr: DevicePtr, len_bytes: usize) {
        // SAFETY: `free_all` has the same rules, which the caller keeps.
        unsafe { self.free_all(vec![(ptr, len_bytes)]) };
    }

    unsafe fn free_all(&self, memory: Vec<(DevicePtr, usize)>) {
        let context = self.context;
        if warpline_driver::process::is_ending() {
            return;
        }
        let frees = memory.into_iter().map(|(ptr, len_bytes)| {
            // SAFETY: `free_of` has the rules of this function.
            unsafe { self.free_of(ptr, len_bytes) }
        });
        let frees = frees.collect();
        background::run_where_it_may_block(move || free_between_gates(context, frees));
    }

    fn can_free(&self) -> bool {
        !self.context.has_standing_stream()
    }

    fn is_lost_to_process(&self) -> bool {
        self.context.death().is_some()
    }

    unsafe fn free_in_time(&self, ptr: DevicePtr, len_bytes: usize) {
        let context = self.context;
        // SAFETY: `free_of` has the rules of this function.
        let free = unsafe { self.free_of(ptr, len_bytes) };
        background::run_where_it_may_block(move || free_unless_held(context, free));
    }

    fn granule_bytes(&self) -> Option<usize> {
        self.context.granule_bytes()
    }

    fn reserve(&self, len_bytes: usize) -> Result<DevicePtr, DriverError> {
        self.reserved.reserve(len_bytes).map_err(|failed| match self.driver_error(failed) {
            // Addresses ran out, and not the device's memory.
            DriverError::OutOfMemory(_) => DriverError::Refused(failed.into()),
            error => error,
        })
    }

    unsafe fn map(&self, at: DevicePtr, len_bytes: usize, piece_bytes: usize) -> Result<(), DriverError> {
        // SAFETY: `map` of the context has the same rules, which the caller keeps.
        unsafe { self.context.map(at.0, len_bytes, piece_bytes) }.map_err(|failed| self.driver_error(failed))
    }

    unsafe fn unmap(&self, pieces: &[(DevicePtr, usize)], is_needed: bool) -> usize {
        // SAFETY: `unmap` of the context has the same rules, which the caller keeps.
        unsafe { self.context.unmap(pieces, is_needed) }
    }

    fn not_freed(&self) -> NotFreed {
        let [device_bytes, host_bytes] = self.not_freed.each_ref().map(|bytes| bytes.load(Ordering::Relaxed));
        NotFreed { device_bytes, host_bytes }
    }

    fn alloc_host(&self, len_bytes: usize) -> Result<*mut u8, DriverError> {
        let mut address: *mut c_void = std::ptr::null_mut();
        let allocated = self.context.enter_relaxed().and_then(|_entered| {
            // SAFETY: cuMemHostAlloc writes an address.
            unsafe { opened().cuMemHostAlloc(&raw mut address, len_bytes.max(1), PORTABLE) }
        });
        allocated.map_err(|failed| match self.driver_error(failed) {
            // The amount of free device memory does not matter here.
            DriverError::OutOfMemory(_) => DriverError::OutOfMemory(None),
            error => error,
        })?;
        let address = address.cast::<u8>();
        // SAFETY: the memory is ours and that long.
        unsafe { address.write_bytes(0, len_bytes) };
        Ok(address)
    }

    /// Returns false with `CUDA_LAUNCH_BLOCKING`: every op is waited for anyway, and the op that
    /// fails must be the op that was called.
    fn host_memory_is_slow(&self) -> bool {
        !self.context.blocking
    }

    fn alloc_host_ahead(&self, len_bytes: usize) -> Option<Result<*mut u8, DriverError>> {
        ahead_unless_held(self.context, || self.alloc_host(len_bytes))
    }

    unsafe fn free_host(&self, ptr: *mut u8, len_bytes: usize) {
        let (context, address) = (self.context, ptr as usize);
        let free = move || {
            let _entered = context.enter_relaxed()?;
            // SAFETY: cuMemFreeHost takes an address that cuMemHostAlloc gave; the caller vouches
            // for it.
            unsafe { opened().cuMemFreeHost(address as *mut c_void) }
        };
        let free = counting(Box::new(free), len_bytes, &self.not_freed[1]);
        background::run_where_it_may_block(move || free_unless_held(context, free));
    }

    unsafe fn register_host(&self, ptr: *mut u8, len_bytes: usize) -> Result<(), DriverError> {
        let registered = self.context.enter_relaxed().and_then(|_entered| {
            // SAFETY: cuMemHostRegister takes memory that stays valid until it is unregistered; the
            // caller vouches for it.
            unsafe { opened().cuMemHostRegister_v2(ptr.cast::<c_void>(), len_bytes, PORTABLE) }
        });
        registered.map_err(|failed| self.driver_error(failed))
    }

    unsafe fn unregister_host(&self, ptr: *mut u8) -> Result<(), DriverError> {
        if warpline_driver::process::is_ending() {
            return Ok(());
        }
        if self.context.has_standing_stream() {
            let why = format!(
                "{} has a stream that waits for a device that failed, and this call would block on \
                 that stream",
                self.id()
            );
            crate::report::not_freed(self.context.ordinal, &why);
            return Err(DriverError::Refused(why.into()));
        }
        let done = self.context.enter_relaxed().and_then(|_entered| {
            // SAFETY: cuMemHostUnregister takes memory that is registered and in no copy; the
            // caller vouches for it.
            unsafe { opened().cuMemHostUnregister(ptr.cast::<c_void>()) }
        });
        done.map_err(|failed| {
            note_not_freed(self.context, failed);
            self.driver_error(failed)
        })
    }

    fn elapsed(&self, earlier: &DriverEvent, later: &DriverEvent) -> Result<Duration, DriverError> {
        let event = |event: &DriverEvent| {
            event
                .downcast_ref::<super::completion::events::PooledEvent>()
                .expect("an event of this driver")
                .raw()
        };
        let mut milliseconds = 0.0f32;
        let measured = self.context.enter_relaxed().and_then(|_entered| {
            // SAFETY: cuEventElapsedTime takes two live, recorded events and writes a float.
            unsafe { opened().cuEventElapsedTime(&raw mut milliseconds, event(earlier), event(later)) }
        });
        measured.map_err(|failed| self.driver_error(failed))?;
        Ok(Duration::from_secs_f64((f64::from(milliseconds) / 1e3).max(0.0)))
    }

    fn confirm(&self) -> Result<(), DriverError> {
        if background::duty() != Duty::Callback && warpline_driver::op_events::listened_to() {
            let streams: Vec<_> = self.streams.lock().iter().filter_map(Weak::upgrade).collect();
            streams.iter().for_each(|stream| stream.track.tell_spans());
        }
        if background::duty() != Duty::Callback {
            self.context.query().map_err(|failed| self.driver_error(failed))?;
        }
        // A host function may have failed the device while the context lives.
        self.health.fault().map_or(Ok(()), |fault| Err(DriverError::Refused(fault.into())))
    }

    fn properties(&self) -> DeviceProperties {
        let mut properties = self.context.properties.get_or_init(|| properties(self.context)).clone();
        properties.completion_words = !self.completing.by_events;
        properties
    }

    fn free_bytes(&self) -> Option<usize> {
        self.context.memory().ok().map(|(free, _)| free)
    }

    fn suggest(
        &self,
        kernel: &'static Kernel,
        elements: u64,
        shared_bytes: u32,
    ) -> Result<LaunchConfig, DriverError> {
        let _entered = self.context.enter_relaxed().map_err(|failed| self.driver_error(failed))?;
        let config = self.context.modules.functions.suggest(self.context, kernel, elements, shared_bytes);
        config.inspect_err(|_| self.look_after())
    }

    fn load(&self, kernel: &'static Kernel) -> Result<(), DriverError> {
        let _entered = self.context.enter_relaxed().map_err(|failed| self.driver_error(failed))?;
        let load = |kernel| self.context.modules.functions.of(self.context, kernel).map(drop);
        let loaded = load(kernel).and_then(|()| match kernel.library {
            None => Ok(()),
            Some(library) => {
                library.kernels.iter().try_for_each(|kernel| load(kernel))?;
                library::ready(self.context, library.provider).map(drop)
            }
        });
        loaded.inspect_err(|_| self.look_after())
    }

    fn ready_library(&self, kernel: &'static Kernel) -> Result<Option<RangeInclusive<usize>>, DriverError> {
        let Some(library) = kernel.library else { return Ok(None) };
        library::ready(self.context, library.provider).inspect_err(|_| self.look_after())
    }

    fn release_idle(&self) -> bool {
        handles::release(self.context)
    }

    fn workspace_bytes(&self, plan: &Plan) -> Result<Vec<usize>, DriverError> {
        graph::workspace_bytes(self.context, plan).inspect_err(|_| self.look_after())
    }

    fn instantiate(&self, plan: &Arc<Plan>) -> Result<DriverGraph, DriverError> {
        graph::instantiate(self.context, plan).inspect_err(|_| self.look_after())
    }

    fn global(&self, kernel: &'static Kernel, name: &str) -> Result<(DevicePtr, usize), DriverError> {
        let _entered = self.context.enter_relaxed().map_err(|failed| self.driver_error(failed))?;
        let module = self.context.modules.functions.module_of(self.context, kernel);
        let module = module.inspect_err(|_| self.look_after())?;
        let text = std::ffi::CString::new(name)
            .map_err(|_| DriverError::Refused(format!("{name:?} is not a variable's name").into()))?;
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: cuModuleGetGlobal takes a live module and a string, and writes an address and a
        // size.
        unsafe { opened().cuModuleGetGlobal_v2(&raw mut address, &raw mut bytes, module, text.as_ptr()) }
            .map_err(|failed| {
                if failed.is_not_found() {
                    return DriverError::Refused(
                        format!(
                            "the module of {} has no variable \"{name}\"; declare it extern \"C\", \
                             or pass its name in the PTX",
                            kernel.name
                        )
                        .into(),
                    );
                }
                self.driver_error(failed)
            })?;
        Ok((DevicePtr(address), bytes))
    }

    fn can_access_peer(&self, peer: DeviceId) -> Result<bool, DriverError> {
        let peer = Context::of(peer.ordinal()).map_err(DriverError::Refused)?;
        self.context.can_access(peer).map_err(|failed| self.driver_error(failed))
    }

    fn streams_kept(&self) -> usize {
        self.context.completion.tracks.lock().len().max(self.streams.lock().len())
    }

    fn shut_down(&self) {
        // A gate that closes later finds this set.
        self.stopping.store(true, Ordering::SeqCst);
        let streams: Vec<_> = self.streams.lock().iter().filter_map(Weak::upgrade).collect();
        if let Some(held) = streams.iter().find(|stream| stream.closed_gates() > 0) {
            held.fail_by_shutdown();
        }
    }
}

/// Builds the error of a missing device. `why` is its source if a CUDA call reported it.
fn no_such_device(message: String, advice: &str, why: DriverFailure) -> Error {
    let change = visible::change().map_or(String::new(), |change| format!("; {change}"));
    let kind = if super::api::is_forked() { ErrorKind::Forked } else { ErrorKind::NoSuchDevice };
    let error = Error::new(kind, message + &change + advice);
    if why.code().is_some() { error.caused_by(why) } else { error }
}

/// Refuses to use CUDA in the child of a process that has initialised it.
fn refuse_forked() -> Result<(), Error> {
    if !super::api::is_initialised_elsewhere() {
        return Ok(());
    }
    let text = "CUDA devices cannot be used here: this process was forked from one in which Warpline had \
                initialised the NVIDIA driver, which does not work in a forked child; start a new process \
                instead (exec, or a spawn that does not fork), or ask in the parent with \
                cuda::likely_device_count, which does not initialise the driver; \"cpu\" needs no GPU";
    Err(Error::new(ErrorKind::Forked, text))
}

/// Returns true if CUDA is installed and shows a device. Returns false in a host function,
/// which cannot call CUDA, and in the child of a fork if its parent has called it.
///
/// It initialises CUDA, which then does not work in children that this process forks. To ask
/// without that, use [`likely_device_count`].
pub fn is_available() -> bool {
    device_count().is_ok_and(|count| count > 0)
}

/// Returns how many CUDA devices there probably are, without initialising CUDA: the GPUs of
/// the machine that `CUDA_VISIBLE_DEVICES` leaves visible. So a process can ask before it forks.
///
/// NVML counts the GPUs. Where it cannot be used, the files `/dev/nvidia0`, `/dev/nvidia1` … are
/// counted. The variable is read as it is now.
///
/// # What it cannot know
/// - Whether CUDA works: its library may be missing, too old, or not start.
/// - Whether a GPU is in an exclusive mode and taken.
/// - How many devices a GPU shows that is divided by MIG.
/// - Whether a UUID in the variable exists, if NVML cannot be used.
/// - Anything, without NVML and without such files: then it returns 0, also where CUDA works.
///
/// [`device_count`] knows, but initialises CUDA.
pub fn likely_device_count() -> usize {
    let gpus = crate::machine::gpus();
    match warpline_driver::environment::CUDA_VISIBLE_DEVICES.value() {
        Some(list) => visible::select(&list.to_string_lossy(), gpus).count,
        None => gpus.count,
    }
}

/// Returns the number of devices that CUDA shows.
///
/// # Errors
/// [`NoSuchDevice`](ErrorKind::NoSuchDevice) if there are none, which names the missing part;
/// [`Reentrant`](ErrorKind::Reentrant) in a host function; [`Forked`](ErrorKind::Forked) in the
/// child of a process that has initialised CUDA.
pub fn device_count() -> Result<u32, Error> {
    reentry::may_ask(&"device_count")?;
    refuse_forked()?;
    let count = super::context::device_count().inspect(|_| visible::warn_of_change());
    count.map_err(|why| no_such_device(why.to_string(), "", why))
}

/// Returns true if the machine has no CUDA, or it shows no device.
pub fn is_absent() -> bool {
    super::api::is_absent()
}

/// Returns a call that frees memory and adds the bytes to `not_freed` if it fails.
fn counting(free: Free, len_bytes: usize, not_freed: &Arc<AtomicUsize>) -> Free {
    let not_freed = not_freed.clone();
    Box::new(move || {
        free().inspect_err(|_| {
            not_freed.fetch_add(len_bytes, Ordering::Relaxed);
        })
    })
}
