//! Loads device code: a context's modules and the functions of kernels.
//!
//! A kernel is loaded with its first launch and stays loaded. One whose code cannot be loaded on
//! this device is not tried again, since CUDA may compile it for long each time. Its
//! parameters are compared with those its PTX declares before anything is launched: a launch with
//! other parameters would read past the arguments.

use super::nvrtc;
use super::requirements;
use super::software;
use crate::api::{Answer, CUfunction, CUmodule, Failed, opened, optional};
use crate::context::{Context, attribute};
use crate::work::capturing::Relaxed;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::OnceLock;
use warpline_driver::kernel::{Kernel, LaunchConfig, Source, difference_in_ptx};
use warpline_driver::{DriverError, DriverFailure};

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
const MAX_DYNAMIC_SHARED_BYTES: i32 = 8;
/// `CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES`
const STATIC_SHARED_BYTES: i32 = 1;
/// The shared memory, static and dynamic, that every launch may have.
const SHARED_WITHOUT_ASKING: u32 = 48 << 10;

/// A loaded kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    pub(crate) raw: CUfunction,
    module: CUmodule,
    /// The dynamic shared memory that every launch may have, in bytes.
    shared_without_asking: u32,
}

// SAFETY: a function handle may be used from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// The reason for which a kernel was not loaded.
enum NotLoaded {
    /// It can never be loaded on this device.
    Ever(DriverFailure),
    /// The next attempt may succeed.
    Now(DriverError),
}

/// CUDA's answers that concern the code alone: `CUDA_ERROR_INVALID_IMAGE`,
/// `NO_BINARY_FOR_GPU`, `INVALID_PTX`, `UNSUPPORTED_PTX_VERSION` and `NOT_FOUND`.
const ABOUT_THE_CODE: [u32; 5] = [200, 209, 218, 222, 500];

#[derive(Debug, Default)]
pub(crate) struct Functions {
    /// Functions by the address of their kernel, or why there never will be one.
    loaded: RwLock<HashMap<usize, Result<Function, DriverFailure>>>,
    /// Held while a kernel is loaded, so that threads do not compile the same one.
    loading: Mutex<()>,
    /// Modules by the address of their text: several kernels may share one.
    modules: Mutex<HashMap<usize, Module>>,
    /// The dynamic shared memory allowed so far, by function.
    shared: Mutex<HashMap<usize, u32>>,
}

#[derive(Clone, Copy, Debug)]
struct Module(CUmodule);

// SAFETY: a module handle may be used from any thread.
unsafe impl Send for Module {}

impl Functions {
    /// Returns the device function of `kernel`. The context is current.
    pub(crate) fn of(&self, context: &Context, kernel: &'static Kernel) -> Result<Function, DriverError> {
        let key = std::ptr::from_ref(kernel) as usize;
        if let Some(known) = self.known(key) {
            return known;
        }
        let _loading = self.loading.lock();
        if let Some(known) = self.known(key) {
            return known;
        }
        let loaded = self.load(context, kernel);
        let kept = match &loaded {
            Ok(function) => Ok(*function),
            Err(NotLoaded::Ever(why)) => Err(why.clone()),
            Err(NotLoaded::Now(error)) => return Err(error.clone()),
        };
        self.loaded.write().insert(key, kept.clone());
        kept.map_err(DriverError::Refused)
    }

    #[inline]
    fn known(&self, key: usize) -> Option<Result<Function, DriverError>> {
        Some(match self.loaded.read().get(&key)? {
            Ok(function) => Ok(*function),
            Err(why) => Err(DriverError::Refused(why.clone())),
        })
    }

    /// Returns the module that contains `kernel`. The context is current.
    pub(crate) fn module_of(
        &self,
        context: &Context,
        kernel: &'static Kernel,
    ) -> Result<CUmodule, DriverError> {
        self.of(context, kernel).map(|function| function.module)
    }

    #[cold]
    fn load(&self, context: &Context, kernel: &'static Kernel) -> Result<Function, NotLoaded> {
        let _relaxed = Relaxed::new();
        software::register(kernel).map_err(NotLoaded::Now)?;
        let with_name = |why: DriverFailure| {
            let text = format!("{} cannot be loaded: {why}", kernel.name);
            why.with_text(text)
        };
        let never = |why: DriverFailure| NotLoaded::Ever(with_name(why));
        let refused = |why: DriverFailure| match why.code() {
            Some(code) if ABOUT_THE_CODE.contains(&code) => never(why),
            _ => NotLoaded::Now(DriverError::Refused(with_name(why))),
        };
        let agrees = |ptx: &str| difference_in_ptx(kernel, ptx).map_or(Ok(()), |why| Err(never(why.into())));
        let module = match kernel.source {
            Source::Ptx { texts, from_sm_60 } => {
                let capability =
                    requirements::capability(context).map_err(|failed| refused(failed.into()))?;
                let text = requirements::choose(texts, capability).map_err(|why| never(why.into()))?;
                agrees(text)?;
                let loaded = requirements::as_loaded(text, from_sm_60, capability);
                self.text_module(context, text.as_ptr() as usize, &loaded).map_err(refused)?
            }
            Source::Image(bytes) => {
                // CUDA is not told a length: zeros end data that is not an image or is cut
                // off.
                let image = || Ok([bytes, &[0; 256]].concat());
                self.module(bytes.as_ptr() as usize, image).map_err(refused)?
            }
            Source::Cuda(source) => {
                let has_skeleton = software::is_present() && kernel.twin.is_some();
                let text = if has_skeleton && !nvrtc::is_present() {
                    software::skeleton(kernel)
                } else {
                    nvrtc::compile(context, kernel.name, source).map_err(refused)?
                };
                agrees(&text)?;
                self.text_module(context, std::ptr::from_ref(kernel) as usize, &text).map_err(refused)?
            }
            Source::None => {
                return Err(never("it has no device code, only a CPU form".into()));
            }
        };
        let name = CString::new(kernel.name).expect("an identifier");
        let mut function = std::ptr::null_mut();
        // SAFETY: cuModuleGetFunction takes a live module and a string, and writes a function.
        unsafe { opened().cuModuleGetFunction(&raw mut function, module, name.as_ptr()) }
            .map_err(|failed| refused(failed.into()))?;
        let static_bytes = load_code(function).map_err(|failed| refused(failed.into()))?;
        let shared_without_asking = SHARED_WITHOUT_ASKING.saturating_sub(static_bytes);
        Ok(Function { raw: function, module, shared_without_asking })
    }

    /// Returns the module of this PTX text.
    ///
    /// If CUDA refuses it because CUDA or the device is too old, the error explains
    /// why.
    fn text_module(&self, context: &Context, key: usize, text: &str) -> Result<CUmodule, DriverFailure> {
        let image = || CString::new(text).map(CString::into_bytes_with_nul).map_err(|_| NUL.into());
        self.module(key, image).map_err(|refused| requirements::explain(context, text, refused))
    }

    fn module(
        &self,
        key: usize,
        image: impl FnOnce() -> Result<Vec<u8>, DriverFailure>,
    ) -> Result<CUmodule, DriverFailure> {
        let mut modules = self.modules.lock();
        if let Some(Module(module)) = modules.get(&key) {
            return Ok(*module);
        }
        let module = load_module(&image()?)?;
        modules.insert(key, Module(module));
        Ok(module)
    }

    /// Allows launches of `function` with this much dynamic shared memory. The context is current.
    #[inline]
    pub(crate) fn allow_shared(&self, function: Function, bytes: u32) -> Answer {
        if bytes <= function.shared_without_asking { Ok(()) } else { self.ask_for_shared(function, bytes) }
    }

    #[cold]
    fn ask_for_shared(&self, function: Function, bytes: u32) -> Answer {
        let mut shared = self.shared.lock();
        let allowed = shared.entry(function.raw as usize).or_insert(function.shared_without_asking);
        if bytes > *allowed {
            // SAFETY: cuFuncSetAttribute takes a live function.
            unsafe { opened().cuFuncSetAttribute(function.raw, MAX_DYNAMIC_SHARED_BYTES, bytes as i32) }?;
            *allowed = bytes;
        }
        Ok(())
    }

    /// Suggests a launch configuration for `elements` elements.
    ///
    /// The block size is the one that keeps the device busiest, by CUDA's occupancy
    /// calculator. There are as many blocks as the elements need, but no more than fill the device
    /// in one wave.
    pub(crate) fn suggest(
        &self,
        context: &Context,
        kernel: &'static Kernel,
        elements: u64,
        shared_bytes: u32,
    ) -> Result<LaunchConfig, DriverError> {
        let function = self.of(context, kernel)?;
        self.allow_shared(function, shared_bytes)
            .map_err(|failed| no_such_shared(context, kernel, shared_bytes, failed))?;
        let (mut grid, mut block) = (0, 0);
        // SAFETY: cuOccupancyMaxPotentialBlockSize takes a live function and writes two ints.
        // Without a function for the shared memory, the number counts.
        unsafe {
            opened().cuOccupancyMaxPotentialBlockSize(
                &raw mut grid,
                &raw mut block,
                function.raw,
                std::ptr::null(),
                shared_bytes as usize,
                0,
            )
        }
        .map_err(|failed| DriverError::Refused(failed.into()))?;
        let (grid, block) = (grid.max(1) as u64, block.max(1) as u32);
        let needed = elements.div_ceil(u64::from(block)).max(1);
        Ok(LaunchConfig::linear(needed.min(grid) as u32, block).with_shared_bytes(shared_bytes))
    }
}

/// Loads the function's code now, and returns its static shared memory in bytes.
///
/// Drivers from 12.2 on put loading off to the first launch. That launch then waits for the whole
/// context to be idle, and forever if one of its streams waits for the host. Drivers from 12.4 on
/// have a call that loads the code. Earlier drivers load it when they are asked for an attribute.
fn load_code(function: CUfunction) -> Answer<u32> {
    type Load = unsafe extern "C" fn(CUfunction) -> u32;
    static LOAD: OnceLock<Option<Load>> = OnceLock::new();
    // SAFETY: cuFuncLoad has this type (cuda.h 12.4).
    if let Some(load) = LOAD.get_or_init(|| unsafe { optional("cuFuncLoad") }) {
        // SAFETY: cuFuncLoad takes a live function of the current context.
        let code = unsafe { load(function) };
        if code != 0 {
            return Err(Failed { call: "cuFuncLoad", code });
        }
    }
    let mut bytes = 0;
    // SAFETY: cuFuncGetAttribute takes a live function and writes an int.
    unsafe { opened().cuFuncGetAttribute(&raw mut bytes, STATIC_SHARED_BYTES, function) }?;
    Ok(bytes as u32)
}

const NUL: &str = "its text contains a NUL byte";

/// `CU_JIT_ERROR_LOG_BUFFER` and `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`
const ERROR_LOG: [c_int; 2] = [5, 6];
/// The size of the log buffer. CUDA truncates a longer log.
const LOG_BYTES: usize = 4096;

/// Loads PTX text with its NUL, a cubin or a fatbin. The context is current.
///
/// # Errors
/// Returns CUDA's answer, with what its compiler reports about the text.
fn load_module(image: &[u8]) -> Result<CUmodule, DriverFailure> {
    let mut module = std::ptr::null_mut();
    let (mut log, mut options) = ([0u8; LOG_BYTES], ERROR_LOG);
    let mut values = [log.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(LOG_BYTES)];
    // SAFETY: cuModuleLoadDataEx takes PTX text that ends with a NUL, or an image that states its
    // own length, and copies it. The options give the address of a log buffer and its size. The
    // size stands in place of a pointer, and CUDA overwrites it.
    let loaded = unsafe {
        let (image, count) = (image.as_ptr().cast::<c_void>(), options.len() as u32);
        opened().cuModuleLoadDataEx(&raw mut module, image, count, options.as_mut_ptr(), values.as_mut_ptr())
    };
    loaded.map(|()| module).map_err(|failed| {
        let said = CStr::from_bytes_until_nul(&log).map_or_else(|_| "".into(), CStr::to_string_lossy);
        match said.trim() {
            "" => failed.into(),
            said => failed.explained(format!("{failed}:\n{said}")),
        }
    })
}

/// Explains why a request for `bytes` of dynamic shared memory failed, with both numbers.
#[cold]
pub(crate) fn no_such_shared(context: &Context, kernel: &Kernel, bytes: u32, failed: Failed) -> DriverError {
    let text = match most_shared_bytes(context) {
        Ok(most) if i64::from(bytes) > i64::from(most) => format!(
            "{bytes} bytes of dynamic shared memory a block were requested, and a block has at \
             most {most} on cuda:{}; request less",
            context.ordinal
        ),
        _ => format!("{} cannot have {bytes} bytes of dynamic shared memory a block: {failed}", kernel.name),
    };
    DriverError::Refused(failed.explained(text))
}

/// Returns the most dynamic shared memory that a block of this device can ask for.
pub(crate) fn most_shared_bytes(context: &Context) -> Answer<i32> {
    context.attribute(attribute::SHARED_PER_BLOCK_OPTIN)
}
