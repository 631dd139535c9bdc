//! Direct use of the CUDA driver, for programs that use it beside Warpline, and the counters of the
//! software CUDA driver.

use cudarc::driver::sys;
use std::ffi::{CStr, c_char};

/// Returns the number of calls to an entry point of the software CUDA driver.
#[track_caller]
pub(crate) fn calls(entry_point: &CStr) -> u64 {
    count(c"softcudaCallCount", entry_point)
}

/// Returns a number that grows with the calling thread's calls to that entry point.
#[track_caller]
fn calls_of_this_thread(entry_point: &CStr) -> u64 {
    count(c"softcudaThreadCallCount", entry_point)
}

/// Returns a number that grows with all other threads' calls to that entry point.
#[track_caller]
pub(crate) fn calls_of_others(entry_point: &CStr) -> u64 {
    calls(entry_point).wrapping_sub(calls_of_this_thread(entry_point))
}

/// Returns a number that grows with each call that finds a stream full.
#[track_caller]
pub(crate) fn waits_for_room() -> u64 {
    number(c"softcudaWaitsForRoom")
}

/// Returns a number that grows whenever a call begins to wait for a whole device.
#[track_caller]
pub(crate) fn waits_for_device() -> u64 {
    number(c"softcudaWaitsForDevice")
}

#[track_caller]
fn number(name: &CStr) -> u64 {
    type Number = unsafe extern "C" fn() -> u64;
    // SAFETY: the library was loaded by a runtime, and cudarc never closes it.
    let library = unsafe { sys::culib() };
    // SAFETY: the software CUDA driver declares each counter of these names with this signature.
    let number =
        unsafe { library.get::<Number>(name.to_bytes_with_nul()) }.expect("the software CUDA driver");
    // SAFETY: the function takes no arguments and reads a counter.
    unsafe { number() }
}

#[track_caller]
fn count(counter: &CStr, entry_point: &CStr) -> u64 {
    type Count = unsafe extern "C" fn(*const c_char) -> u64;
    // SAFETY: the library was loaded by a runtime, and cudarc never closes it.
    let library = unsafe { sys::culib() };
    // SAFETY: the software CUDA driver declares both counters of calls with this signature.
    let count =
        unsafe { library.get::<Count>(counter.to_bytes_with_nul()) }.expect("the software CUDA driver");
    // SAFETY: the function takes a string that ends with a NUL, which a `CStr` does.
    let calls = unsafe { count(entry_point.as_ptr()) };
    assert_ne!(calls, u64::MAX, "no entry point is called {entry_point:?}");
    calls
}

/// Returns the number of calls to each entry point during `f`, and the result of `f`.
#[track_caller]
pub(crate) fn calls_in<const N: usize, R>(entry_points: [&CStr; N], f: impl FnOnce() -> R) -> ([u64; N], R) {
    grown(|| entry_points.map(calls), f)
}

/// Like [`calls_in`], for the calls of the calling thread alone. It leaves out those of the thread
/// that asks whether the device lives.
#[track_caller]
pub(crate) fn own_calls_in<const N: usize, R>(
    entry_points: [&CStr; N],
    f: impl FnOnce() -> R,
) -> ([u64; N], R) {
    grown(|| entry_points.map(calls_of_this_thread), f)
}

fn grown<const N: usize, R>(counts: impl Fn() -> [u64; N], f: impl FnOnce() -> R) -> ([u64; N], R) {
    let before = counts();
    let result = f();
    let mut after = counts();
    after.iter_mut().zip(before).for_each(|(after, before)| *after -= before);
    (after, result)
}

/// Returns the primary context of a device, and never releases it.
pub(crate) fn primary_context(ordinal: i32) -> sys::CUcontext {
    let (mut device, mut context) = (0, std::ptr::null_mut());
    // SAFETY: `cuDeviceGet` writes a device to a live local variable.
    unsafe { sys::cuDeviceGet(&raw mut device, ordinal) }.result().unwrap();
    // SAFETY: the call writes a context to a live local variable; `device` is a device.
    unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, device) }.result().unwrap();
    context
}

/// Returns the calling thread's current context, or null.
pub(crate) fn current_context() -> sys::CUcontext {
    let mut context = std::ptr::null_mut();
    // SAFETY: the call writes a context or null to a live local variable.
    unsafe { sys::cuCtxGetCurrent(&raw mut context) }.result().unwrap();
    context
}

/// Makes `context` the calling thread's current one. Null stands for none.
pub(crate) fn set_current_context(context: sys::CUcontext) {
    // SAFETY: the contexts of these tests live as long as the process, and null stands for none.
    unsafe { sys::cuCtxSetCurrent(context) }.result().unwrap();
}
