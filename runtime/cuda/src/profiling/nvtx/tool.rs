//! The protocol by which a profiler takes part: NVTX, version 3.
//!
//! NVIDIA's side of it is a C header, of which this is the part for ranges: nothing has to be installed but the profiler, and one
//! build works with those of CUDA 11, 12 and 13. A profiler names its library in `NVTX_INJECTION64_PATH`. The program loads it and
//! calls `InitializeInjectionNvtx2` with a function that gives out tables of **slots**, one for each function of NVTX; the
//! profiler writes its own functions into the slots. What it leaves empty is not called. Names and numbers are those of nvtxTypes.h
//! and nvToolsExt.h.

use crate::loader;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Display;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Where a profiler's function goes.
type Slot = AtomicPtr<c_void>;
/// The addresses of a module's slots, by the numbers of their functions; a null at either end.
type Table = [Option<&'static Slot>; SLOTS_OF_A_MODULE + 1];

/// So many numbers each module has (`NvtxCallbackModule`): none, CORE, CUDA, OPENCL, CUDART, CORE2, SYNC. Number 0 is no function's.
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
/// What is not null may be written.
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
        // SAFETY: a write needs a place for it, which the caller vouches for.
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

/// A domain of ranges, at a profiler that wants them.
pub(super) struct Domain(RawDomain);

// SAFETY: a domain's handle may be used from any thread.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

/// The profiler's function of that number, if it has one.
fn function(number: usize) -> Option<*mut c_void> {
    let function = SLOTS[CORE2][number].load(Ordering::Relaxed);
    (!function.is_null()).then_some(function)
}

impl Domain {
    fn new(name: &'static CStr) -> Self {
        let Some(create) = function(CREATE_A) else {
            // Everybody's domain.
            return Domain(null_mut());
        };
        // SAFETY: `transmute` needs that what is in this slot is an nvtxDomainCreateA: the profiler put it there.
        let create: unsafe extern "C" fn(*const c_char) -> RawDomain = unsafe { std::mem::transmute(create) };
        // SAFETY: nvtxDomainCreateA takes a string, which lives.
        Domain(unsafe { create(name.as_ptr()) })
    }

    /// Begins a range on this thread.
    pub(super) fn push(&self, text: impl Display, payload: u64) {
        let Some(push) = function(RANGE_PUSH_EX) else { return };
        // A NUL in it ends it.
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
        // SAFETY: `transmute` needs that what is in this slot is an nvtxDomainRangePushEx: the profiler put it there.
        let push: unsafe extern "C" fn(RawDomain, *const EventAttributes) -> c_int =
            unsafe { std::mem::transmute(push) };
        // SAFETY: nvtxDomainRangePushEx takes a domain and an event that is good until it returns, and so is its text.
        unsafe { push(self.0, &raw const event) };
    }

    /// Ends the range that this thread began last.
    pub(super) fn pop(&self) {
        let Some(pop) = function(RANGE_POP) else { return };
        // SAFETY: `transmute` needs that what is in this slot is an nvtxDomainRangePop: the profiler put it there.
        let pop: unsafe extern "C" fn(RawDomain) -> c_int = unsafe { std::mem::transmute(pop) };
        // SAFETY: nvtxDomainRangePop takes a domain.
        unsafe { pop(self.0) };
    }
}

/// Has the profiler, if one is named, fill the slots. `None` if none is, or it wants no ranges. Called once a process.
///
/// # Errors
/// What is wrong with what is named.
pub(super) fn attach(name: &'static CStr) -> Result<Option<Domain>, String> {
    // "./." is the protocol's word for none.
    let named = std::env::var_os("NVTX_INJECTION64_PATH").filter(|path| !path.is_empty() && path != "./.");
    let Some(path) = named.map(PathBuf::from) else { return Ok(None) };
    let why = |error: String| format!("NVTX_INJECTION64_PATH is {}: {error}", path.display());
    let library = loader::open(&path).map_err(why)?;
    // SAFETY: a library named so has this function with the type that nvtxTypes.h gives it.
    let initialize = unsafe {
        library.get::<unsafe extern "C" fn(GetExportTable) -> c_int>(b"InitializeInjectionNvtx2\0")
    };
    let initialize = *initialize.map_err(|error| why(loader::why(&error)))?;
    // SAFETY: InitializeInjectionNvtx2 takes a function that gives out NVTX's tables.
    if unsafe { initialize(export_table) } == 0 {
        // It does not want to take part, and is unloaded as NVTX does it.
        return Ok(None);
    }
    // Its functions are called from now on.
    std::mem::forget(library);
    let wanted = function(RANGE_PUSH_EX).is_some() && function(RANGE_POP).is_some();
    Ok(wanted.then(|| Domain::new(name)))
}
