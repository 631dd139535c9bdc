//! Modules and their functions.
//!
//! A module is either PTX text, whose kernels run, or an image, which is assumed to contain every
//! registered kernel.

use crate::abi::{CUdeviceptr, CUfunction, CUkernel, CUmodule};
use crate::context::{self, Context};
use crate::device::{MAX_THREADS, SHARED_BYTES, SHARED_OPTIN_BYTES};
use crate::errors::{Code, Outcome, refuse};
use crate::kernel::{self, Kernel, Name};
use crate::libraries;
use crate::memory::{self, Asker};
use crate::plan;
use crate::ptx::{self, Entry, Ptx, Slot};
use crate::slab::Slab;
use crate::target::Version;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};

/// A module.
struct Module {
    handle: AtomicU64,
    context: u32,
    /// The declarations; `None` for an image.
    ptx: Option<Ptx>,
    /// The device code; `None` for an image.
    code: Option<warpline_ptx::Module>,
    /// The address and size of each variable.
    globals: Globals,
    functions: Mutex<BTreeMap<String, u64>>,
}

/// A function of a module.
pub(crate) struct Function {
    /// The slot of its module's context.
    pub(crate) context: u32,
    /// Its name, to which `cuFuncGetName` returns a pointer.
    pub(crate) name: CString,
    twin: &'static Name,
    /// The declaration in the PTX; `None` for a function of an image.
    declared: Option<Entry>,
    /// The device code of its module.
    code: Option<warpline_ptx::Module>,
    /// The kernel once it was needed, or the reason why it cannot run.
    ready: OnceLock<Result<warpline_ptx::Kernel, String>>,
    /// The number of the newest registration that was compared with the declaration.
    compared: AtomicU32,
    /// The dynamic shared memory that a launch may request, in bytes.
    pub(crate) max_shared: AtomicU32,
    carveout: AtomicI32,
}

static MODULES: Slab<Module> = Slab::new(4);
static FUNCTIONS: Slab<Function> = Slab::new(5);

/// The first bytes of ELF files, fat binaries and the wrappers of fat binaries.
const IMAGES: [[u8; 4]; 3] = [*b"\x7fELF", [0x50, 0xed, 0x55, 0xba], [0xb1, 0x43, 0x62, 0x46]];

/// The code of a module that is not loaded yet.
pub(crate) enum Image {
    /// An ELF file or a fat binary. Its content does not matter.
    Binary,
    Text(Vec<u8>),
}

impl Image {
    /// Copies the code at an address: PTX text that ends with a nul, or an image.
    pub(crate) fn at(image: *const c_char) -> Outcome<Image> {
        if image.is_null() {
            refuse!(INVALID_VALUE, "the image is null");
        }
        // SAFETY: the address is not null, so the caller promises an image, which is longer than
        // four bytes, or a C string. No magic number contains a nul, so reading stops at the
        // string's end.
        let begins = |magic: &[u8; 4]| (0..4).all(|at| unsafe { *image.wrapping_add(at) } as u8 == magic[at]);
        if IMAGES.iter().any(begins) {
            return Ok(Image::Binary);
        }
        // SAFETY: `image` is not null and no image, so the caller promises text that ends with a
        // nul.
        Ok(Image::Text(unsafe { CStr::from_ptr(image) }.to_bytes().to_vec()))
    }

    /// Reads the code in a file.
    pub(crate) fn of_file(name: &str) -> Outcome<Image> {
        let Ok(bytes) = std::fs::read(name) else {
            refuse!(FILE_NOT_FOUND, "{name} cannot be read");
        };
        let is_binary = IMAGES.iter().any(|magic| bytes.starts_with(magic));
        Ok(if is_binary { Image::Binary } else { Image::Text(bytes) })
    }

    /// Checks that the driver and the devices accept the code.
    pub(crate) fn check(&self) -> Outcome {
        match self {
            Image::Binary => Ok(()),
            Image::Text(text) => checked(text).map(drop),
        }
    }
}

/// Loads a module into the current context.
pub(crate) fn load(image: &Image) -> Outcome<CUmodule> {
    let context = loading()?;
    match image {
        Image::Binary => Ok(new_module(context, None, None, BTreeMap::new())),
        Image::Text(text) => load_text(context, text),
    }
}

fn loading() -> Outcome<&'static Context> {
    let context = context::current()?;
    crate::capture::refuse_unsafe()?;
    context.synchronize_if_asked("loading a module")?;
    Ok(context)
}

/// Parses a text that the driver and the devices accept.
pub(crate) fn checked(text: &[u8]) -> Outcome<(&str, Ptx)> {
    let parsed = std::str::from_utf8(text).map_err(|error| error.to_string());
    let (text, ptx) = match parsed.and_then(|text| Ok((text, ptx::parse(text)?))) {
        Ok(parsed) => parsed,
        Err(why) => refuse!(INVALID_PTX, "{why}"),
    };
    let (newest, capability) = (Version::newest_of(plan::get().driver_version), plan::get().capability);
    if ptx.version > newest {
        refuse!(
            UNSUPPORTED_PTX_VERSION,
            "Unsupported .version {}; current version is '{newest}'",
            ptx.version
        );
    }
    if !ptx.target.runs_on(capability) {
        refuse!(
            NO_BINARY_FOR_GPU,
            "SM version specified by .target is higher than default SM version assumed"
        );
    }
    let shared = ptx.entries.iter().find(|(_, entry)| entry.shared_bytes > SHARED_BYTES);
    if let Some((name, entry)) = shared {
        let bytes = entry.shared_bytes;
        refuse!(
            INVALID_PTX,
            "Entry function '{name}' uses too much shared data ({bytes:#x} bytes, {SHARED_BYTES:#x} max)"
        );
    }
    Ok((text, ptx))
}

fn load_text(context: &'static Context, text: &[u8]) -> Outcome<CUmodule> {
    let (text, ptx) = checked(text)?;
    let mut globals = BTreeMap::new();
    match variables(context, text, &mut globals) {
        Ok(code) => Ok(new_module(context, Some(ptx), Some(code), globals)),
        Err(refusal) => {
            free(&globals);
            Err(refusal)
        }
    }
}

/// The address and the size of each variable of a module.
type Globals = BTreeMap<String, (CUdeviceptr, usize)>;

/// Allocates the variables of a text, and writes their initial values.
fn variables(context: &Context, text: &str, globals: &mut Globals) -> Outcome<warpline_ptx::Module> {
    let mut refusal = None;
    let loaded = warpline_ptx::Module::with_variables_at(text, |name, len| {
        let len = len as usize;
        match memory::allocate(context, len.max(1)) {
            Ok(address) => {
                globals.insert(name.to_owned(), (address, len));
                address
            }
            Err(failure) => {
                refusal = Some(failure);
                0
            }
        }
    });
    if let Some(refusal) = refusal {
        return Err(refusal);
    }
    let code = match loaded {
        Ok(code) => code,
        Err(why) => refuse!(INVALID_PTX, "{why}"),
    };
    for (_, address, bytes) in code.initial_values() {
        if let Ok(behind) = memory::device_range(context, address, bytes.len(), Asker::Call) {
            // SAFETY: `behind` is the host address of an allocation of at least that length. It was
            // made above, so no other code uses it yet.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), behind as *mut u8, bytes.len()) };
        }
    }
    Ok(code)
}

fn new_module(
    context: &'static Context,
    ptx: Option<Ptx>,
    code: Option<warpline_ptx::Module>,
    globals: Globals,
) -> CUmodule {
    let functions = Mutex::default();
    let module = Module { handle: AtomicU64::new(0), context: context.index, ptx, code, globals, functions };
    let (index, module) = MODULES.take(|_| module);
    let handle = MODULES.publish(index);
    module.handle.store(handle, Relaxed);
    CUmodule(handle)
}

fn known(handle: CUmodule) -> Outcome<&'static Module> {
    context::current()?;
    match MODULES.get(handle.0) {
        Some(module) => {
            context::at(module.context).usable()?;
            Ok(module)
        }
        None => refuse!(INVALID_HANDLE, "the module is {}", MODULES.what_is(handle.0)),
    }
}

/// Unloads a module with its functions and variables, once the context's work has finished.
pub(crate) fn unload(handle: CUmodule) -> Outcome {
    known(handle)?;
    crate::capture::refuse_unsafe()?;
    unload_from_its_context(handle)
}

/// Returns true if a module is loaded.
pub(crate) fn is_loaded(handle: CUmodule) -> bool {
    MODULES.get(handle.0).is_some()
}

/// Unloads a module whose context need not be current.
pub(crate) fn unload_from_its_context(handle: CUmodule) -> Outcome {
    let Some(module) = MODULES.get(handle.0) else {
        refuse!(INVALID_HANDLE, "the module is {}", MODULES.what_is(handle.0));
    };
    context::at(module.context).synchronize()?;
    if MODULES.revoke(handle.0).is_none() {
        refuse!(INVALID_HANDLE, "the module is destroyed");
    }
    module.end();
    Ok(())
}

/// Unloads all modules of a context that has no work.
pub(crate) fn unload_all(context: &Context) {
    for module in MODULES.all().filter(|module| module.context == context.index) {
        if MODULES.revoke(module.handle.load(Relaxed)).is_some() {
            module.end();
        }
    }
}

impl Module {
    /// Destroys its functions and frees its variables.
    fn end(&self) {
        for function in self.functions.lock().values() {
            FUNCTIONS.revoke(*function);
        }
        free(&self.globals);
    }
}

/// Frees variables.
fn free(globals: &Globals) {
    for (address, _) in globals.values() {
        if let Ok(allocation) = memory::to_free(*address)
            && memory::begin_free(allocation)
        {
            memory::release(allocation);
        }
    }
}

/// Returns the function with a name: the same handle each time.
pub(crate) fn get_function(handle: CUmodule, name: &str) -> Outcome<CUfunction> {
    let module = known(handle)?;
    let twin = kernel::named(name);
    let declared = match &module.ptx {
        Some(ptx) => match ptx.entries.get(name) {
            Some(entry) => Some(entry.clone()),
            None => return Err(Code::NOT_FOUND.into()),
        },
        None if twin.newest().is_some() => None,
        None => refuse!(NOT_FOUND, "an image has the kernels that are registered, and {name} is not"),
    };
    if !module.functions.lock().contains_key(name) {
        context::at(module.context).synchronize_if_asked("cuModuleGetFunction")?;
    }
    let mut functions = module.functions.lock();
    if let Some(known) = functions.get(name) {
        if let Some(function) = FUNCTIONS.get(*known) {
            function.kernel()?;
        }
        return Ok(CUfunction(*known));
    }
    let static_bytes = declared.as_ref().map_or(0, |entry| entry.shared_bytes);
    let function = Function {
        context: module.context,
        name: CString::new(name).map_err(|_| Code::INVALID_VALUE)?,
        twin,
        declared,
        code: module.code.clone(),
        ready: OnceLock::new(),
        compared: AtomicU32::new(0),
        max_shared: AtomicU32::new(SHARED_BYTES - static_bytes),
        carveout: AtomicI32::new(-1),
    };
    function.kernel()?;
    let (index, _) = FUNCTIONS.take(|_| function);
    let handle = FUNCTIONS.publish(index);
    functions.insert(name.to_owned(), handle);
    Ok(CUfunction(handle))
}

/// Returns the address and size of a variable.
pub(crate) fn get_global(handle: CUmodule, name: &str) -> Outcome<(CUdeviceptr, usize)> {
    known(handle)?.globals.get(name).copied().ok_or(Code::NOT_FOUND.into())
}

/// Returns the function that a handle names. The handle of a library's kernel names its function in
/// the current context.
#[inline]
pub(crate) fn function(handle: CUfunction) -> Outcome<&'static Function> {
    if let Some(function) = FUNCTIONS.get(handle.0) {
        return Ok(function);
    }
    let in_context = libraries::function_of(CUkernel(handle.0))?.unwrap_or(handle);
    match FUNCTIONS.get(in_context.0) {
        Some(function) => Ok(function),
        None => refuse!(INVALID_HANDLE, "the function is {}", FUNCTIONS.what_is(handle.0)),
    }
}

impl Function {
    /// Returns the kernel registered under its name, if any. Fails if the kernel's parameters
    /// differ from those in the PTX.
    #[inline]
    pub(crate) fn kernel(&self) -> Outcome<Option<&'static Kernel>> {
        let Some((number, kernel)) = self.twin.newest() else { return Ok(None) };
        if self.compared.load(Relaxed) != number {
            self.compare(kernel)?;
            self.compared.store(number, Relaxed);
        }
        Ok(Some(kernel))
    }

    #[cold]
    fn compare(&self, kernel: &Kernel) -> Outcome {
        match &self.declared {
            Some(entry) if !kernel.sizes().eq(entry.params.iter().map(|param| param.bytes)) => refuse!(
                INVALID_IMAGE,
                "kernel {} has parameters of {:?} bytes in the PTX and of {:?} in its registration",
                kernel.name,
                entry.params.iter().map(|param| param.bytes).collect::<Vec<_>>(),
                kernel.sizes().collect::<Vec<_>>()
            ),
            _ => Ok(()),
        }
    }

    /// Returns true if it has PTX that does something.
    pub(crate) fn has_device_code(&self) -> bool {
        self.declared.as_ref().is_some_and(|entry| !entry.is_empty)
    }

    /// Returns the kernel that runs its device code. Fails if that contains something that cannot
    /// run.
    pub(crate) fn device_code(&self) -> Outcome<&warpline_ptx::Kernel> {
        let name = self.name.to_string_lossy();
        let Some(code) = &self.code else {
            refuse!(NOT_SUPPORTED, "kernel {name} has no CPU form and no PTX; register a CPU form");
        };
        let prepare = || code.kernel(&name).map_err(|why| why.to_string());
        match self.ready.get_or_init(prepare) {
            Ok(kernel) => Ok(kernel),
            Err(why) => refuse!(NOT_SUPPORTED, "the PTX of kernel {name} cannot run: {why}"),
        }
    }

    /// Returns its static shared memory, in bytes.
    pub(crate) fn static_shared(&self) -> u32 {
        self.declared.as_ref().map_or(0, |entry| entry.shared_bytes)
    }

    /// Returns the maximum number of threads per block.
    pub(crate) fn max_threads(&self) -> u32 {
        let limits = |entry: &Entry| entry.threads.map(|axes| axes.iter().product()).or(entry.max_threads);
        self.declared.as_ref().and_then(limits).map_or(MAX_THREADS, |most| most.min(MAX_THREADS))
    }

    /// Returns the threads that a block must have along each axis, if the PTX requires that.
    pub(crate) fn required_threads(&self) -> Option<[u32; 3]> {
        self.declared.as_ref().and_then(|entry| entry.threads)
    }

    /// Returns the places of its parameters.
    pub(crate) fn params(&self) -> Outcome<Vec<Slot>> {
        if let Some(entry) = &self.declared {
            return Ok(entry.params.clone());
        }
        let kernel = self.kernel()?.ok_or(Code::INVALID_VALUE)?;
        let mut end = 0usize;
        let places = kernel.sizes().map(|bytes| {
            let align = if bytes.is_power_of_two() { bytes.min(16) } else { 8 };
            let offset = end.next_multiple_of(align);
            end = offset + bytes;
            Slot { offset, bytes }
        });
        Ok(places.collect())
    }

    /// Returns the value of a `CUfunction_attribute`.
    pub(crate) fn attribute(&self, attribute: i32) -> Outcome<i32> {
        Ok(match attribute {
            0 => self.max_threads() as i32,
            1 => self.static_shared() as i32,
            2 => self.declared.as_ref().map_or(0, |entry| entry.const_bytes as i32),
            // No image has local memory, because only twins run.
            3 => match self.code {
                Some(_) => self.device_code()?.local_bytes() as i32,
                None => 0,
            },
            7 => 0,
            4 => 32,
            5 | 6 => 80,
            8 => self.max_shared.load(Relaxed) as i32,
            9 => self.carveout.load(Relaxed),
            10..=15 => 0,
            _ => return Err(Code::INVALID_VALUE.into()),
        })
    }

    /// Sets a `CUfunction_attribute`, if it can be set.
    pub(crate) fn set_attribute(&self, attribute: i32, value: i32) -> Outcome {
        match (attribute, value) {
            (8, 0..) if value as u32 <= SHARED_OPTIN_BYTES - self.static_shared() => {
                self.max_shared.store(value as u32, Relaxed);
            }
            (9, -1..=100) => self.carveout.store(value, Relaxed),
            (10..=15, _) => {}
            _ => refuse!(INVALID_VALUE, "function attribute {attribute} cannot be {value}"),
        }
        Ok(())
    }
}
