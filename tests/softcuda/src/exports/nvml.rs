//! The five functions of NVML that list the GPUs of the machine. `CUDA_VISIBLE_DEVICES` hides none
//! of them.

use crate::device::uuid_text;
use crate::plan;
use std::ffi::{c_char, c_int, c_uint, c_void};

const SUCCESS: c_int = 0;
const INVALID_ARGUMENT: c_int = 2;
const INSUFFICIENT_SIZE: c_int = 7;

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> c_int {
    SUCCESS
}

/// # Safety
/// `count` is valid for a write.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> c_int {
    // SAFETY: the caller vouches for the pointer.
    unsafe { count.write(plan::get().gpus) };
    SUCCESS
}

/// A handle is the number of the GPU plus one.
///
/// # Safety
/// `device` is valid for a write.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut *mut c_void) -> c_int {
    if index >= plan::get().gpus {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller vouches for the pointer.
    unsafe { device.write(std::ptr::without_provenance_mut(index as usize + 1)) };
    SUCCESS
}

/// # Safety
/// `text` is valid for writes of `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUUID(device: *mut c_void, text: *mut c_char, len: c_uint) -> c_int {
    let Some(number) = device.addr().checked_sub(1) else { return INVALID_ARGUMENT };
    let uuid = uuid_text(number as u32);
    if uuid.len() >= len as usize {
        return INSUFFICIENT_SIZE;
    }
    // SAFETY: the caller vouches for this many bytes.
    let text = unsafe { std::slice::from_raw_parts_mut(text.cast::<u8>(), len as usize) };
    text[..uuid.len()].copy_from_slice(uuid.as_bytes());
    text[uuid.len()] = 0;
    SUCCESS
}
