//! The CUDA driver by itself: what a program that also uses it beside Warpline calls, and what the software CUDA driver counts.

use cudarc::driver::sys;
use std::ffi::{CStr, c_char};

/// How often an entry point of the software CUDA driver was called.
#[track_caller]
pub(crate) fn calls(entry_point: &CStr) -> u64 {
    count(c"softcudaCallCount", entry_point)
}

/// A number that grows with the calls of that entry point which the calling thread makes.
#[track_caller]
fn calls_of_this_thread(entry_point: &CStr) -> u64 {
    count(c"softcudaThreadCallCount", entry_point)
}

/// A number that grows with the calls that all other threads make.
#[track_caller]
pub(crate) fn calls_of_others(entry_point: &CStr) -> u64 {
    calls(entry_point).wrapping_sub(calls_of_this_thread(entry_point))
}

/// A number that grows with each call that finds a stream full.
#[track_caller]
pub(crate) fn waits_for_room() -> u64 {
    number(c"softcudaWaitsForRoom")
}

/// A number that grows when a call begins to wait for a whole device.
#[track_caller]
pub(crate) fn waits_for_device() -> u64 {
    number(c"softcudaWaitsForDevice")
}

#[track_caller]
fn number(name: &CStr) -> u64 {
    type Number = unsafe extern "C" fn() -> u64;
    // SAFETY: the software CUDA driver declares these so.
    let number =
        unsafe { sys::culib().get::<Number>(name.to_bytes_with_nul()) }.expect("the software CUDA driver");
    // SAFETY: it takes nothing.
    unsafe { number() }
}

#[track_caller]
fn count(counter: &CStr, entry_point: &CStr) -> u64 {
    type Count = unsafe extern "C" fn(*const c_char) -> u64;
    // SAFETY: the software CUDA driver declares both so.
    let count =
        unsafe { sys::culib().get::<Count>(counter.to_bytes_with_nul()) }.expect("the software CUDA driver");
    // SAFETY: it takes a string that ends with a NUL.
    let calls = unsafe { count(entry_point.as_ptr()) };
    assert_ne!(calls, u64::MAX, "no entry point is called {entry_point:?}");
    calls
}

/// How often each of them is called in `f`.
#[track_caller]
pub(crate) fn calls_in<const N: usize, R>(entry_points: [&CStr; N], f: impl FnOnce() -> R) -> ([u64; N], R) {
    grown(|| entry_points.map(calls), f)
}

/// The same of calls that the calling thread makes: not those of a thread that asks whether the
/// device lives.
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

/// The primary context of a device, which is never let go.
pub(crate) fn primary_context(ordinal: i32) -> sys::CUcontext {
    let (mut device, mut context) = (0, std::ptr::null_mut());
    // SAFETY: writes a device.
    unsafe { sys::cuDeviceGet(&raw mut device, ordinal) }.result().unwrap();
    // SAFETY: writes a context.
    unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, device) }.result().unwrap();
    context
}

/// The calling thread's current context, or null.
pub(crate) fn current_context() -> sys::CUcontext {
    let mut context = std::ptr::null_mut();
    // SAFETY: writes a context or null.
    unsafe { sys::cuCtxGetCurrent(&raw mut context) }.result().unwrap();
    context
}

/// Makes a context, or none, the calling thread's current one.
pub(crate) fn set_current_context(context: sys::CUcontext) {
    // SAFETY: the contexts of these tests live as long as the process; null is none.
    unsafe { sys::cuCtxSetCurrent(context) }.result().unwrap();
}
