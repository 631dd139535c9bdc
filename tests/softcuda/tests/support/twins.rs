//! Kernels for tests: the PTX that declares them, and their twins.

use cudarc::driver::sys;
use std::ffi::{CString, c_char, c_int, c_void};

#[repr(C)]
pub(crate) struct Param {
    pub(crate) bytes: usize,
    pub(crate) kind: u32,
    pub(crate) element_bytes: u32,
}

/// Returns a parameter that is a value of `bytes` bytes.
pub(crate) const fn value(bytes: usize) -> Param {
    Param { bytes, kind: 0, element_bytes: 0 }
}

/// Returns a parameter that is a pointer to written elements.
pub(crate) const fn written(element_bytes: u32) -> Param {
    Param { bytes: 8, kind: 2, element_bytes }
}

pub(crate) type Twin = extern "C" fn(*const *const c_void, *const c_void, *const c_void) -> c_int;

#[repr(C)]
struct Registration {
    name: *const c_char,
    params: *const Param,
    param_count: usize,
    extra_count: usize,
    twin: Twin,
    user: *const c_void,
}

/// Registers the twin of a kernel, and returns the driver's code.
pub(crate) fn register(name: &str, params: &[Param], extra_count: usize, twin: Twin) -> i32 {
    let name = CString::new(name).unwrap();
    let registration = Registration {
        name: name.as_ptr(),
        params: params.as_ptr(),
        param_count: params.len(),
        extra_count,
        twin,
        user: std::ptr::null(),
    };
    // SAFETY: the software driver is loaded and has the function with this signature. It copies its
    // arguments.
    unsafe {
        let register =
            sys::culib().get::<extern "C" fn(*const Registration) -> i32>(b"softcudaRegisterKernel\0");
        register.unwrap()(&registration)
    }
}

/// Returns how often an entry point was called.
pub(crate) fn calls(entry_point: &str) -> u64 {
    let name = CString::new(entry_point).unwrap();
    // SAFETY: the software driver is loaded and has the function with this signature. It reads a
    // string that ends with a NUL.
    unsafe {
        sys::culib().get::<extern "C" fn(*const c_char) -> u64>(b"softcudaCallCount\0").unwrap()(
            name.as_ptr(),
        )
    }
}

/// Sets all call counts to zero.
pub(crate) fn reset_counts() {
    // SAFETY: the software driver is loaded and has the function with this signature.
    unsafe { sys::culib().get::<extern "C" fn()>(b"softcudaResetCounts\0").unwrap()() }
}

/// PTX that declares the kernel `add`: `x[i] += a`, for `i` below `n`.
pub(crate) const ADD: &str = "
.version 8.1
.target sm_70
.address_size 64
.visible .global .align 4 .u32 seed = 7;
.visible .entry add(.param .u64 add_param_0, .param .f32 add_param_1, .param .u32 add_param_2)
{
    ret;
}
";

/// The parameters of [`ADD`].
pub(crate) const ADD_PARAMS: [Param; 3] = [written(4), value(4), value(4)];

/// The twin of [`ADD`].
pub(crate) extern "C" fn add(
    params: *const *const c_void,
    _launch: *const c_void,
    _user: *const c_void,
) -> c_int {
    // SAFETY: the driver passes a pointer, a float and a count, as the kernel was registered. The
    // tests launch it only with counts that fit the memory.
    unsafe {
        let x = (*params).cast::<*mut f32>().read();
        let a = (*params.add(1)).cast::<f32>().read();
        let n = (*params.add(2)).cast::<u32>().read() as usize;
        for element in std::slice::from_raw_parts_mut(x, n) {
            *element += a;
        }
    }
    0
}
