//! A stand-in for a profiler besides: what a program tells it of its ranges by NVTX, version 3, it writes to a file.
//!
//! The program finds it if `NVTX_INJECTION64_PATH` names this library; without `SOFTCUDA_NVTX`, which names the file, it does not
//! take part. A line is a thread's number, a domain's name, and `push`, payload and text, or `pop`, with tabs between. Only ranges
//! that are pushed in a domain are heard.

use crate::abi::{In, Text};
use crate::errors::{Code, Outcome};
use parking_lot::Mutex;
use std::ffi::{c_int, c_void};
use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;

/// Numbers of nvtxTypes.h: `NVTX_ETID_CALLBACKS`, `NVTX_CB_MODULE_CORE2`, and in `NvtxCallbackIdCore2`.
const CALLBACKS: u32 = 1;
const CORE2: u32 = 5;
const RANGE_PUSH_EX: usize = 4;
const RANGE_POP: usize = 5;
const CREATE_A: usize = 12;

/// The address of where a function goes.
type Slot = *mut *const c_void;

/// `NvtxExportTableCallbacks`
#[repr(C)]
#[derive(Clone, Copy)]
struct Callbacks {
    struct_size: usize,
    table_of_module: unsafe extern "C" fn(u32, *mut *const Slot, *mut u32) -> c_int,
}

/// `nvtxEventAttributes_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct EventAttributes {
    version: u16,
    size: u16,
    category_and_colour: [u32; 3],
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: Text,
}

const _: () = assert!(size_of::<EventAttributes>() == 48);

/// What ranges are about and who says so; the handle is where the name stands.
type Domain = In<&'static str>;

fn file() -> Option<&'static Mutex<File>> {
    static FILE: OnceLock<Option<Mutex<File>>> = OnceLock::new();
    let open = || File::options().append(true).create(true).open(std::env::var_os("SOFTCUDA_NVTX")?).ok();
    FILE.get_or_init(|| open().map(Mutex::new)).as_ref()
}

/// Returns what NVTX does where there is no depth to tell.
fn note(domain: Domain, what: impl Display) -> c_int {
    // SAFETY: gettid asks for nothing.
    let thread = unsafe { libc::gettid() };
    let line = format!("{thread}\t{}\t{what}\n", domain.get().unwrap_or("none"));
    if let Some(file) = file() {
        let _ = file.lock().write_all(line.as_bytes());
    }
    -1
}

extern "C" fn create(name: Text) -> *const &'static str {
    let name: &'static str = name.get().unwrap_or_default().leak();
    Box::leak(Box::new(name))
}

extern "C" fn push(domain: Domain, event: In<EventAttributes>) -> c_int {
    let told = || -> Outcome<String> {
        let event = event.get()?;
        // An unsigned number of 64 bits, and text.
        let known = event.size as usize == size_of::<EventAttributes>()
            && (event.version, event.payload_type, event.message_type) == (3, 1, 1);
        if !known {
            return Err(Code::INVALID_VALUE.into());
        }
        Ok(format!("push\t{}\t{}", event.payload, event.message.get()?))
    };
    note(domain, told().unwrap_or_else(|_| "what this profiler does not know".to_owned()))
}

extern "C" fn pop(domain: Domain) -> c_int {
    note(domain, "pop")
}

/// Puts the functions above into the program's slots.
fn take_part(callbacks: In<Callbacks>) -> Outcome {
    let (mut table, mut size) = (std::ptr::null(), 0);
    let table_of_module = callbacks.get()?.table_of_module;
    // SAFETY: it writes where a table is and how long that is.
    let found = unsafe { table_of_module(CORE2, &raw mut table, &raw mut size) };
    if found == 0 || size as usize <= CREATE_A {
        return Err(Code::NOT_FOUND.into());
    }
    let functions = [
        (RANGE_PUSH_EX, push as *const c_void),
        (RANGE_POP, pop as *const c_void),
        (CREATE_A, create as *const c_void),
    ];
    for (number, function) in functions {
        // SAFETY: the table is longer than that.
        let slot = unsafe { table.add(number).read() };
        // SAFETY: the program has a place for each of these functions.
        unsafe { slot.write(function) };
    }
    Ok(())
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn InitializeInjectionNvtx2(export_table: extern "C" fn(u32) -> In<Callbacks>) -> c_int {
    c_int::from(file().is_some() && take_part(export_table(CALLBACKS)).is_ok())
}
