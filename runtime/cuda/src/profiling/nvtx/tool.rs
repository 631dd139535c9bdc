//! The NVTX protocol, version 3, through which a profiler takes part.
//!
//! NVIDIA's side of it is a C header, and this is the part for ranges. So only the profiler has to
//! be installed, and one build works with the profilers of CUDA 11, 12 and 13. A profiler names its
//! library in `NVTX_INJECTION64_PATH`. The program loads it and calls `InitializeInjectionNvtx2`
//! with a function that returns tables of **slots**, one for each function of NVTX. The profiler
//! writes its own functions into the slots. Empty slots are not called. Names and numbers are those
//! of nvtxTypes.h and nvToolsExt.h.
// Decision: docs/decisions/0036-nvtx-in-rust.md

use crate::loader;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Display;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use warpline_driver::environment::NVTX_INJECTION64_PATH;

/// A place for one of the profiler's functions.
type Slot = AtomicPtr<c_void>;
/// The addresses of a module's slots, by the numbers of their functions; a null at either end.
type Table = [Option<&'static Slot>; SLOTS_OF_A_MODULE + 1];

/// The count of numbers that each module has (`NvtxCallbackModule`): none, CORE, CUDA, OPENCL,
/// CUDART, CORE2, SYNC. Number 0 belongs to no function.
const SIZES: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
const SLOTS_OF_A_MODULE: usize = 16;
/// `NVTX_CB_MODULE_CORE2`, the functions with a domain (`NvtxCallbackIdCore2`).
const CORE2: usize = 5;
const RANGE_PUSH_EX: usize = 4;
const RANGE_POP: usize = 5;
const CREATE_A: usize = 12;

static SLOTS: [[Slot; SLOTS_OF_A_MODULE]; SIZES.len()] =
    [const { [const { Slot::new(null_mut()) }; SLOTS_OF_A_MODULE] }; SIZES.len()];

static TABLES: [Table; SIZES.len()] = {
    let mut tables = [[None; SLOTS_OF_A_MODULE + 1]; SIZES.len()];
    let mut module = 0;
    while module < SIZES.len() {
        let mut number = 1;
        while number < SIZES[module] {
            tables[module][number] = Some(&SLOTS[module][number]);
            number += 1;
        }
        module += 1;
    }
    tables
};

/// `NvtxExportTableCallbacks`
#[repr(C)]
struct Callbacks {
    struct_size: usize,
    get_module_function_table:
        unsafe extern "C" fn(u32, *mut *const Option<&'static Slot>, *mut u32) -> c_int,
}

/// `NvtxExportTableVersionInfo`
#[repr(C)]
struct VersionInfo {
    struct_size: usize,
    version: u32,
    reserved: u32,
    set_injection_version: extern "C" fn(u32),
}

/// `NVTX_VERSION`
const VERSION: u16 = 3;

static CALLBACKS: Callbacks =
    Callbacks { struct_size: size_of::<Callbacks>(), get_module_function_table: table_of_module };
static VERSION_INFO: VersionInfo = VersionInfo {
    struct_size: size_of::<VersionInfo>(),
    version: VERSION as u32,
    reserved: 0,
    set_injection_version: ignore_version,
};

/// `NvtxGetExportTableFunc_t`, with the numbers of `NvtxExportTableID`.
type GetExportTable = extern "C" fn(u32) -> *const c_void;

extern "C" fn export_table(id: u32) -> *const c_void {
    match id {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSION_INFO).cast(),
        _ => std::ptr::null(),
    }
}

extern "C" fn ignore_version(_version: u32) {}

/// # Safety
/// `table` and `size` may be written if they are not null.
unsafe extern "C" fn table_of_module(
    module: u32,
    table: *mut *const Option<&'static Slot>,
    size: *mut u32,
) -> c_int {
    let module = module as usize;
    if !(1..SIZES.len()).contains(&module) {
        return 0;
    }
    if !table.is_null() {
        // SAFETY: `write` needs a place for the value, which the caller vouches for.
        unsafe { table.write(TABLES[module].as_ptr()) };
    }
    if !size.is_null() {
        // SAFETY: as above.
        unsafe { size.write(SIZES[module] as u32) };
    }
    1
}

/// `nvtxEventAttributes_t`
#[repr(C)]
struct EventAttributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_char,
}

/// `NVTX_PAYLOAD_TYPE_UNSIGNED_INT64`
const UNSIGNED_INT64: i32 = 1;
/// `NVTX_MESSAGE_TYPE_ASCII`, which tools read as UTF-8.
const ASCII: i32 = 1;

/// `nvtxDomainHandle_t`
type RawDomain = *mut c_void;

/// A domain of ranges, in a profiler that wants them.
pub(super) struct Domain(RawDomain);

// SAFETY: a domain's handle may be used from any thread.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

/// Returns the profiler's function with that number, if it has one.
fn function(number: usize) -> Option<*mut c_void> {
    let function = SLOTS[CORE2][number].load(Ordering::Relaxed);
    (!function.is_null()).then_some(function)
}

impl Domain {
    fn new(name: &'static CStr) -> Self {
        let Some(create) = function(CREATE_A) else {
            // The domain that all code shares.
            return Domain(null_mut());
        };
        // SAFETY: `transmute` needs an nvtxDomainCreateA in this slot: the profiler put it there.
        let create: unsafe extern "C" fn(*const c_char) -> RawDomain = unsafe { std::mem::transmute(create) };
        // SAFETY: nvtxDomainCreateA takes a string, which is static.
        Domain(unsafe { create(name.as_ptr()) })
    }

    /// Begins a range on this thread.
    pub(super) fn push(&self, text: impl Display, payload: u64) {
        let Some(push) = function(RANGE_PUSH_EX) else { return };
        // A NUL in the text ends it.
        let text = format!("{text}\0");
        let event = EventAttributes {
            version: VERSION,
            size: size_of::<EventAttributes>() as u16,
            category: 0,
            color_type: 0,
            color: 0,
            payload_type: UNSIGNED_INT64,
            reserved: 0,
            payload,
            message_type: ASCII,
            message: text.as_ptr().cast(),
        };
        // SAFETY: `transmute` needs an nvtxDomainRangePushEx in this slot: the profiler put it
        // there.
        let push: unsafe extern "C" fn(RawDomain, *const EventAttributes) -> c_int =
            unsafe { std::mem::transmute(push) };
        // SAFETY: nvtxDomainRangePushEx takes a domain, and an event that is valid until it
        // returns, as its text is.
        unsafe { push(self.0, &raw const event) };
    }

    /// Ends the range that this thread began last.
    pub(super) fn pop(&self) {
        let Some(pop) = function(RANGE_POP) else { return };
        // SAFETY: `transmute` needs an nvtxDomainRangePop in this slot: the profiler put it there.
        let pop: unsafe extern "C" fn(RawDomain) -> c_int = unsafe { std::mem::transmute(pop) };
        // SAFETY: nvtxDomainRangePop takes a domain.
        unsafe { pop(self.0) };
    }
}

/// Lets the profiler, if one is named, fill the slots. Called once per process.
///
/// Returns `None` if no profiler is named, or if it wants no ranges.
///
/// # Errors
/// Returns what is wrong with the library that is named.
pub(super) fn attach(name: &'static CStr) -> Result<Option<Domain>, String> {
    // In the protocol "./." stands for none.
    let named = NVTX_INJECTION64_PATH.path().filter(|path| path.as_os_str() != "./.");
    let Some(path) = named else { return Ok(None) };
    let why = |error: String| format!("{NVTX_INJECTION64_PATH} is {}: {error}", path.display());
    let library = loader::open(&path).map_err(why)?;
    // SAFETY: a library named there has this function, with the type that nvtxTypes.h gives it.
    let initialize = unsafe {
        library.get::<unsafe extern "C" fn(GetExportTable) -> c_int>(b"InitializeInjectionNvtx2\0")
    };
    let initialize = *initialize.map_err(|error| why(loader::why(&error)))?;
    // SAFETY: InitializeInjectionNvtx2 takes a function that gives out NVTX's tables.
    if unsafe { initialize(export_table) } == 0 {
        // The profiler does not want to take part. Its library is unloaded, as NVTX does it.
        return Ok(None);
    }
    // Never unloaded: its functions are called from now on.
    std::mem::forget(library);
    let wanted = function(RANGE_PUSH_EX).is_some() && function(RANGE_POP).is_some();
    Ok(wanted.then(|| Domain::new(name)))
}
