//! The table of CUDA's entry points, each called in the same way, and the error of a failed
//! call.
//!
//! cudarc declares the library's types, and [`loader`] opens the library. All entry points are
//! looked up here together. So a CUDA library that lacks one is an error when the first device is
//! opened, and not a panic in the middle of a program. Return codes stay numbers: a newer one may
//! answer with a code that no current header names.

use super::loader;
use super::{versions, visible};
use cudarc::driver::sys;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use warpline_driver::DriverFailure;

pub(crate) use sys::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUmodule, CUstream};

/// A failed CUDA call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    /// The name of the entry point.
    pub(crate) call: &'static str,
    pub(crate) code: u32,
}

pub(crate) type Answer<T = ()> = Result<T, Failed>;

impl Failed {
    pub(crate) const OUT_OF_MEMORY: u32 = 2;
    /// The failure of every call in the child of a fork: CUDA is not called.
    pub(crate) const FORKED: Failed = Failed { call: "cuCtxGetCurrent", code: 3 };
    const STUB_LIBRARY: u32 = 34;
    /// The failure of every call while the process ends: CUDA is not called.
    pub(crate) const ENDING: Failed = Failed { call: "", code: 4 };
    const NO_DEVICE: u32 = 100;
    const NOT_FOUND: u32 = 500;
    const PEER_ACCESS_ALREADY_ENABLED: u32 = 704;
    const NOT_READY: u32 = 600;
    pub(crate) const NOT_SUPPORTED: u32 = 801;
    /// The failure of a call from a host function: CUDA is not called, since it is calling
    /// that function. CUDA may answer so itself (`CUDA_ERROR_NOT_PERMITTED`), by its
    /// description of `cuLaunchHostFunc`, but need not.
    pub(crate) const IN_HOST_FUNCTION: Failed = Failed { call: "", code: 800 };

    #[cfg(test)]
    pub(crate) const fn of(call: &'static str, code: u32) -> Self {
        Failed { call, code }
    }

    /// Returns the failure of a query that was repeated for long enough.
    pub(crate) const fn not_ready(call: &'static str) -> Self {
        Failed { call, code: Self::NOT_READY }
    }

    pub(crate) fn is_not_ready(self) -> bool {
        self.code == Self::NOT_READY
    }

    pub(crate) fn is_not_found(self) -> bool {
        self.code == Self::NOT_FOUND
    }

    pub(crate) fn is_no_device(self) -> bool {
        self.code == Self::NO_DEVICE
    }

    pub(crate) fn is_enabled_already(self) -> bool {
        self.code == Self::PEER_ACCESS_ALREADY_ENABLED
    }

    /// Returns the name of the error, such as `CUDA_ERROR_ILLEGAL_ADDRESS`, or its number where
    /// CUDA has no name for it.
    pub(crate) fn name(self) -> String {
        self.text(|api| api.cuGetErrorName).unwrap_or_else(|| format!("CUDA error {}", self.code))
    }

    /// Returns the failure with a text that explains it in place of CUDA's.
    pub(crate) fn explained(self, text: String) -> DriverFailure {
        DriverFailure::from(text).with_code(self.code)
    }

    fn text(self, entry: impl Fn(&Api) -> GetText) -> Option<String> {
        let api = api().ok()?;
        let mut text = std::ptr::null();
        // SAFETY: cuGetErrorName and cuGetErrorString write a pointer to a static string, or null
        // for unknown codes.
        let code = unsafe { entry(api)(self.code, &raw mut text) };
        if code != 0 || text.is_null() {
            return None;
        }
        // SAFETY: `from_ptr` needs a live NUL-terminated string: it is CUDA's own, static.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}

impl From<Failed> for DriverFailure {
    fn from(failed: Failed) -> Self {
        failed.explained(failed.to_string())
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ENDING {
            return f.write_str("the process is exiting, and the driver shuts down with it");
        }
        if *self == Self::IN_HOST_FUNCTION {
            return f
                .write_str("a host function called it, and the driver accepts no calls from host functions");
        }
        write!(f, "{} returned {}", self.call, self.name())?;
        match self.text(|api| api.cuGetErrorString) {
            Some(meaning) => write!(f, " ({meaning})"),
            None => Ok(()),
        }
    }
}

type GetText = unsafe extern "C" fn(u32, *mut *const c_char) -> u32;
type HostFunction = unsafe extern "C" fn(*mut c_void);

/// Declares the table of entry points, each as `fn cuName(argument: Type, …);`.
macro_rules! entry_points {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        /// CUDA's entry points.
        #[allow(non_snake_case, reason = "they are called so")]
        pub(crate) struct Api {
            cuGetErrorName: GetText,
            cuGetErrorString: GetText,
            $($name: unsafe extern "C" fn($($type),*) -> u32,)*
        }

        impl Api {
            /// Looks up every entry point. The error holds the names of those that the library
            /// lacks.
            fn look_up() -> Result<Self, Vec<&'static str>> {
                let mut missing = Vec::new();
                $(if !has(stringify!($name)) { missing.push(stringify!($name)); })*
                for name in ["cuGetErrorName", "cuGetErrorString"] {
                    if !has(name) { missing.push(name); }
                }
                if !missing.is_empty() {
                    return Err(missing);
                }
                Ok(Api {
                    // SAFETY: the library's entry points have the types of the CUDA Driver API's
                    // headers, which the table repeats.
                    cuGetErrorName: unsafe { entry_point("cuGetErrorName") },
                    // SAFETY: as above.
                    cuGetErrorString: unsafe { entry_point("cuGetErrorString") },
                    $(
                        // SAFETY: as above.
                        $name: unsafe { entry_point(stringify!($name)) },
                    )*
                })
            }

            $(
                $(#[$doc])*
                ///
                /// # Safety
                /// The caller keeps the CUDA Driver API's rules for this entry point.
                #[allow(non_snake_case, clippy::too_many_arguments, reason = "as the driver has it")]
                #[inline]
                pub(crate) unsafe fn $name(&self, $($argument: $type),*) -> Answer {
                    // SAFETY: the caller keeps the rules of this entry point.
                    let code = unsafe { (self.$name)($($argument),*) };
                    if code == 0 { Ok(()) } else { Err(Failed { call: stringify!($name), code }) }
                }
            )*
        }
    };
}

entry_points! {
    fn cuInit(flags: c_uint);
    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
    fn cuDeviceGetUuid_v2(uuid: *mut sys::CUuuid, device: CUdevice);
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CUdevice);
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    fn cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice);
    fn cuCtxGetCurrent(context: *mut CUcontext);
    fn cuCtxSetCurrent(context: CUcontext);
    fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint);
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
    fn cuMemFree_v2(address: CUdeviceptr);
    fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
    fn cuMemFreeHost(address: *mut c_void);
    fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: c_uint);
    fn cuMemHostUnregister(address: *mut c_void);
    fn cuMemHostGetDevicePointer_v2(device: *mut CUdeviceptr, host: *mut c_void, flags: c_uint);
    fn cuMemcpyHtoDAsync_v2(dst: CUdeviceptr, src: *const c_void, bytes: usize, stream: CUstream);
    fn cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemcpyDtoDAsync_v2(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemcpy2DAsync_v2(copy: *const sys::CUDA_MEMCPY2D, stream: CUstream);
    fn cuMemcpyPeerAsync(
        dst: CUdeviceptr, dst_context: CUcontext, src: CUdeviceptr, src_context: CUcontext, bytes: usize,
        stream: CUstream,
    );
    fn cuMemcpy3DPeerAsync(copy: *const sys::CUDA_MEMCPY3D_PEER, stream: CUstream);
    fn cuMemsetD8Async(dst: CUdeviceptr, value: u8, elements: usize, stream: CUstream);
    fn cuMemsetD16Async(dst: CUdeviceptr, value: u16, elements: usize, stream: CUstream);
    fn cuMemsetD32Async(dst: CUdeviceptr, value: c_uint, elements: usize, stream: CUstream);
    fn cuMemsetD2D8Async(
        dst: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream,
    );
    fn cuMemsetD2D16Async(
        dst: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize, stream: CUstream,
    );
    fn cuMemsetD2D32Async(
        dst: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize, stream: CUstream,
    );
    fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
    fn cuStreamQuery(stream: CUstream);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    fn cuStreamWriteValue64_v2(stream: CUstream, address: CUdeviceptr, value: u64, flags: c_uint);
    fn cuStreamWaitValue64_v2(stream: CUstream, address: CUdeviceptr, value: u64, flags: c_uint);
    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: c_uint);
    fn cuEventQuery(event: CUevent);
    fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
    fn cuLaunchKernel(
        function: CUfunction,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void,
    );
    fn cuLaunchKernelEx(
        config: *const sys::CUlaunchConfig, function: CUfunction, params: *mut *mut c_void,
        extra: *mut *mut c_void,
    );
    fn cuLaunchHostFunc(stream: CUstream, function: HostFunction, data: *mut c_void);
    fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
    fn cuStreamIsCapturing(stream: CUstream, status: *mut c_int);
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint);
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: c_uint);
    fn cuStreamEndCapture(stream: CUstream, graph: *mut sys::CUgraph);
    fn cuGraphInstantiateWithFlags(executable: *mut sys::CUgraphExec, graph: sys::CUgraph, flags: u64);
    fn cuGraphLaunch(executable: sys::CUgraphExec, stream: CUstream);
    fn cuGraphExecDestroy(executable: sys::CUgraphExec);
    fn cuGraphDestroy(graph: sys::CUgraph);
    fn cuModuleLoadDataEx(
        module: *mut CUmodule, image: *const c_void, options: c_uint, which: *mut c_int, values: *mut *mut c_void,
    );
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    fn cuModuleGetGlobal_v2(address: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char);
    fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: CUfunction);
    fn cuFuncSetAttribute(function: CUfunction, attribute: c_int, value: c_int);
    fn cuOccupancyMaxPotentialBlockSize(
        min_grid: *mut c_int, block: *mut c_int, function: CUfunction, shared_of_block: *const c_void,
        shared_bytes: usize, block_limit: c_int,
    );
}

/// Returns true if the library has an entry point of that name.
fn has(name: &str) -> bool {
    // SAFETY: the symbol is looked up and not used.
    unsafe { loader::entry_point::<*const c_void>(name) }.is_some()
}

/// Returns the entry point of that name.
///
/// # Safety
/// The library has the entry point, and its type is `F`.
unsafe fn entry_point<F: Copy>(name: &str) -> F {
    // SAFETY: the caller vouches for the type.
    unsafe { loader::entry_point(name) }.expect("looked for before")
}

/// Returns an optional entry point, which newer versions of CUDA or the software CUDA driver have.
/// CUDA need not be initialised.
///
/// # Safety
/// If the library has the entry point, its type is `F`.
pub(crate) unsafe fn optional<F: Copy>(name: &str) -> Option<F> {
    // SAFETY: the caller vouches for the type.
    unsafe { loader::entry_point(name) }
}

/// The process that initialised CUDA, 0 before that.
static INITIALISED_IN: AtomicU32 = AtomicU32::new(0);

/// Returns true if CUDA was initialised in a process that this one was forked from. It does
/// not work here then, whether or not a device was opened.
pub(crate) fn is_initialised_elsewhere() -> bool {
    matches!(API.get(), Some(Ok(_))) && INITIALISED_IN.load(Ordering::Relaxed) != std::process::id()
}

static API: OnceLock<Result<Api, Unusable>> = OnceLock::new();

/// The reason why no CUDA device can be used.
struct Unusable {
    why: DriverFailure,
    /// True if the machine has no CUDA or shows no device, which is usual where none is wanted.
    is_absent: bool,
    /// True if CUDA was initialised before this process was forked.
    is_forked: bool,
}

/// Returns the library's entry points, or the reason why there are none.
pub(crate) fn api() -> Result<&'static Api, &'static DriverFailure> {
    API.get_or_init(open).as_ref().map_err(|unusable| &unusable.why)
}

/// Returns true if CUDA does not work because this process was forked from one that had
/// initialised it, without this crate.
pub(crate) fn is_forked() -> bool {
    API.get_or_init(open).as_ref().is_err_and(|unusable| unusable.is_forked)
}

/// Returns true if there is no CUDA, or it shows no device.
pub(crate) fn is_absent() -> bool {
    API.get_or_init(open).as_ref().is_err_and(|unusable| unusable.is_absent)
}

/// Returns the library's entry points, which exist because a device was opened.
#[inline]
pub(crate) fn opened() -> &'static Api {
    match API.get() {
        Some(Ok(api)) => api,
        _ => unreachable!("a device was opened"),
    }
}

#[cold]
fn open() -> Result<Api, Unusable> {
    let broken = |why: String| Unusable { why: why.into(), is_absent: false, is_forked: false };
    loader::driver()
        .map_err(|missing| Unusable { is_absent: missing.is_absent, ..broken(missing.why.clone()) })?;
    versions::check_driver(driver_version()).map_err(broken)?;
    let api = Api::look_up().map_err(|missing| {
        broken(format!(
            "the NVIDIA driver that was found is too old: it lacks {}; install one for CUDA 12 or newer",
            missing.join(", ")
        ))
    })?;
    visible::note();
    INITIALISED_IN.store(std::process::id(), Ordering::Relaxed);
    // SAFETY: cuInit may be called at any time, with 0.
    let initialised = unsafe { api.cuInit(0) };
    warpline_driver::process::end_before_the_libraries();
    match initialised {
        Ok(()) => Ok(api),
        Err(failed) => Err(Unusable {
            why: failed.explained(not_initialised(failed, &api)),
            is_absent: failed.is_no_device(),
            is_forked: failed.code == Failed::FORKED.code,
        }),
    }
}

fn not_initialised(failed: Failed, api: &Api) -> String {
    if failed.is_no_device() {
        return match visible::list() {
            Some(list) => format!(
                "the NVIDIA driver shows no device, and CUDA_VISIBLE_DEVICES is \"{list}\"; {}",
                visible::problem(0).unwrap_or_else(|| {
                    "an empty list, or one that begins with a number that no device has, hides every device"
                        .to_owned()
                })
            ),
            None => "the NVIDIA driver finds no device in this machine".to_owned(),
        };
    }
    if failed.code == Failed::STUB_LIBRARY {
        let file = loader::driver_file().map_or(String::new(), |file| format!(", {},", file.display()));
        return format!(
            "the libcuda.so.1 that the loader finds{file} is a CUDA toolkit's stub, which is only \
             for linking; remove its folder from LD_LIBRARY_PATH"
        );
    }
    if failed.code == Failed::FORKED.code {
        return "this process was forked from one in which other code had initialised CUDA, which \
                does not work in a forked child; start a new process instead (exec, or a spawn that \
                does not fork)"
            .to_owned();
    }
    let mut text = std::ptr::null();
    // SAFETY: cuGetErrorName writes a pointer to a static string, or null.
    unsafe { (api.cuGetErrorName)(failed.code, &raw mut text) };
    let name = if text.is_null() {
        format!("error {}", failed.code)
    } else {
        // SAFETY: `from_ptr` needs a live NUL-terminated string: it is CUDA's own, static.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    format!("the NVIDIA driver does not start: cuInit returned {name}; check that nvidia-smi works")
}

/// Returns the CUDA version that the library is for: 13010 for 13.1, 0 if it is not
/// reported.
pub(crate) fn driver_version() -> i32 {
    type GetVersion = unsafe extern "C" fn(*mut c_int) -> u32;
    static VERSION: OnceLock<i32> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let mut version = 0;
        // SAFETY: cuDriverGetVersion is declared with this type (cuda.h).
        if let Some(get) = unsafe { optional::<GetVersion>("cuDriverGetVersion") } {
            // SAFETY: cuDriverGetVersion writes an int.
            let _ = unsafe { get(&raw mut version) };
        }
        version
    })
}
