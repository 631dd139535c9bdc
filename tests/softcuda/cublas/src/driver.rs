//! The driver library that the process has loaded, and the entry points that this crate calls.

use crate::status::{Outcome, Status, refused};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

pub(crate) type Twin = unsafe extern "C" fn(*const *const c_void, *const c_void, *const c_void) -> c_int;

#[repr(C)]
pub(crate) struct SoftParam {
    pub(crate) bytes: usize,
    /// 0 for a value, 1 for a pointer that is read, 2 for a pointer that is written.
    pub(crate) kind: u32,
    pub(crate) element_bytes: u32,
}

#[repr(C)]
pub(crate) struct SoftKernel {
    pub(crate) name: *const c_char,
    pub(crate) params: *const SoftParam,
    pub(crate) param_count: usize,
    pub(crate) extra_count: usize,
    pub(crate) twin: Twin,
    pub(crate) user: *const c_void,
}

macro_rules! entry_points {
    ($(fn $name:ident($($type:ty),* $(,)?);)*) => {
        /// The driver's entry points. A `CUresult` of 0 means success.
        #[allow(non_snake_case, reason = "they are called so")]
        pub(crate) struct Driver {
            $(pub(crate) $name: unsafe extern "C" fn($($type),*) -> c_int,)*
        }

        #[allow(non_snake_case, reason = "they are called so")]
        fn find(library: *mut c_void) -> Option<Driver> {
            $(
                // SAFETY: `library` is loaded, and the name ends with a NUL.
                let $name = unsafe { libc::dlsym(library, concat!(stringify!($name), "\0").as_ptr().cast()) };
            )*
            if [$($name),*].iter().any(|symbol| symbol.is_null()) {
                return None;
            }
            Some(Driver {
                $(
                    // SAFETY: the library declares the function with this signature.
                    $name: unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_int>($name)
                    },
                )*
            })
        }
    };
}

entry_points! {
    fn cuCtxGetCurrent(*mut u64);
    fn cuStreamGetCtx(u64, *mut u64);
    fn cuMemAlloc_v2(*mut u64, usize);
    fn cuMemFree_v2(u64);
    fn cuModuleLoadData(*mut u64, *const c_void);
    fn cuModuleGetFunction(*mut u64, u64, *const c_char);
    fn cuMemsetD8Async(u64, u8, usize, u64);
    fn cuLaunchKernel(u64, u32, u32, u32, u32, u32, u32, u32, u64, *mut *mut c_void, *mut *mut c_void);
    fn softcudaRegisterKernel(*const SoftKernel);
}

/// Returns the loaded driver, if it is the software one.
pub(crate) fn driver() -> Outcome<&'static Driver> {
    const LIBRARY: &CStr = c"libcuda.so.1";
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    let driver = DRIVER.get_or_init(|| {
        // SAFETY: `RTLD_NOLOAD` loads no library; it finds one that is already loaded.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        if library.is_null() { None } else { find(library) }
    });
    match driver {
        Some(driver) => Ok(driver),
        None => refused(Status::NOT_INITIALIZED, "the software CUDA driver is not loaded in this process"),
    }
}

/// Returns the context that is current on this thread.
pub(crate) fn current_context() -> Outcome<u64> {
    let mut context = 0;
    // SAFETY: `cuCtxGetCurrent` writes a handle, for which `context` has room.
    match unsafe { (driver()?.cuCtxGetCurrent)(&raw mut context) } {
        0 if context != 0 => Ok(context),
        _ => refused(Status::NOT_INITIALIZED, "no context is current"),
    }
}
