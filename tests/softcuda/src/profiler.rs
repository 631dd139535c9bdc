//! A profiler stand-in: writes the NVTX version 3 ranges that a program pushes to a file.
//!
//! The program loads it if `NVTX_INJECTION64_PATH` names this library. It takes no part unless
//! `SOFTCUDA_NVTX` names the file. A line holds a thread ID, a domain's name, and either `push`,
//! payload and text, or `pop`, separated by tabs. Only ranges that are pushed in a domain are
//! recorded.

use crate::abi::{In, Text};
use crate::errors::{Code, Outcome};
use parking_lot::Mutex;
use std::ffi::{c_int, c_void};
use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;

/// Constants of nvtxTypes.h: `NVTX_ETID_CALLBACKS`, `NVTX_CB_MODULE_CORE2`, and three of
/// `NvtxCallbackIdCore2`.
const CALLBACKS: u32 = 1;
const CORE2: u32 = 5;
const RANGE_PUSH_EX: usize = 4;
const RANGE_POP: usize = 5;
const CREATE_A: usize = 12;

/// The place of a function pointer in the program.
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

/// A domain's handle: the address of its name.
type Domain = In<&'static str>;

fn file() -> Option<&'static Mutex<File>> {
    static FILE: OnceLock<Option<Mutex<File>>> = OnceLock::new();
    let open = || File::options().append(true).create(true).open(std::env::var_os("SOFTCUDA_NVTX")?).ok();
    FILE.get_or_init(|| open().map(Mutex::new)).as_ref()
}

/// Writes a line to the file. Returns -1, a negative value in place of a range's depth.
fn note(domain: Domain, what: impl Display) -> c_int {
    // SAFETY: `gettid` takes no arguments and has no preconditions.
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
        // Version 3, a 64-bit unsigned payload and an ASCII message.
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

/// Stores the functions above in the program's slots.
fn take_part(callbacks: In<Callbacks>) -> Outcome {
    let (mut table, mut size) = (std::ptr::null(), 0);
    let table_of_module = callbacks.get()?.table_of_module;
    // SAFETY: the program's function writes the table's address and its number of slots, for which
    // both places have room.
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
        // SAFETY: the table has more slots than `CREATE_A`, the highest number.
        let slot = unsafe { table.wrapping_add(number).read() };
        // SAFETY: the slot is the program's, for a function of this type.
        unsafe { slot.write(function) };
    }
    Ok(())
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn InitializeInjectionNvtx2(export_table: extern "C" fn(u32) -> In<Callbacks>) -> c_int {
    c_int::from(file().is_some() && take_part(export_table(CALLBACKS)).is_ok())
}
