//! Runs kernels of these tests on a CUDA driver, to compare what they expect with hardware.
//!
//! With `WARPLINE_PTX_DRIVER=1` the tests that compare results launch their kernels on device 0 of
//! the machine's driver instead of the executor. Tests that expect a report, or run with seeds and
//! several threads, still use the executor. A fault of a kernel on the driver ends all launches of
//! the process, so give each test a process of its own.

#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a sequence of raw driver calls rests on one promise"
)]

use cudarc::driver::{result, sys};
use std::ffi::{CString, c_void};
use std::sync::OnceLock;
use warpline_ptx::Config;

/// Returns whether kernels run on the driver.
pub(crate) fn is_asked() -> bool {
    std::env::var_os("WARPLINE_PTX_DRIVER").is_some_and(|value| value == "1")
}

/// Returns whether kernels run on a GPU: on a driver that is not the software driver, which runs
/// them on the executor.
#[allow(dead_code, reason = "not all test binaries expect something else of a GPU")]
pub(crate) fn is_gpu() -> bool {
    static IS_GPU: OnceLock<bool> = OnceLock::new();
    let name = || {
        result::init()?;
        result::device::get_name(result::device::get(0)?)
    };
    is_asked() && *IS_GPU.get_or_init(|| name().is_ok_and(|name| !name.to_lowercase().contains("software")))
}

/// Runs a kernel on copies of `arrays`, then writes their contents back. From the addresses of the
/// copies, `parameters` makes the bytes of each parameter.
pub(crate) fn launch(
    text: &str,
    kernel: &str,
    config: &Config,
    arrays: &mut [&mut [u8]],
    parameters: impl FnOnce(&[u64]) -> Vec<Vec<u8>>,
) -> Result<(), String> {
    // SAFETY: every address that the launch gets is that of memory allocated here, which is freed
    // after the kernel has ended. The kernels of these tests stay inside it.
    unsafe { try_launch(text, kernel, config, arrays, parameters) }
        .map_err(|error| format!("{kernel}: {error}"))
}

unsafe fn try_launch(
    text: &str,
    kernel: &str,
    config: &Config,
    arrays: &mut [&mut [u8]],
    parameters: impl FnOnce(&[u64]) -> Vec<Vec<u8>>,
) -> Result<(), result::DriverError> {
    let (text, kernel) = (CString::new(text).expect("no zero"), CString::new(kernel).expect("no zero"));
    result::init()?;
    let device = result::device::get(0)?;
    // SAFETY: the context is never released. The text ends with a zero, and the function is used
    // before its module is unloaded.
    let (module, function) = unsafe {
        result::ctx::set_current(result::primary_ctx::retain(device)?)?;
        let module = result::module::load_data(text.as_ptr().cast::<c_void>())?;
        (module, result::module::get_function(module, kernel)?)
    };
    let mut addresses = Vec::new();
    for array in arrays.iter() {
        // SAFETY: the copy is as long as the allocation, at most.
        unsafe {
            let address = result::malloc_sync(array.len().max(1))?;
            result::memcpy_htod_sync(address, array)?;
            addresses.push(address);
        }
    }
    let mut values = parameters(&addresses);
    let mut pointers: Vec<*mut c_void> = values.iter_mut().map(|value| value.as_mut_ptr().cast()).collect();
    // SAFETY: there is a pointer for each parameter of the kernel, to as many bytes as it has, and
    // they live until the call returns. Every array is as long as its allocation.
    unsafe {
        if config.shared_bytes > 48 << 10 {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            result::function::set_function_attribute(function, attribute, config.shared_bytes as i32)?;
        }
        launch_function(function, config, &mut pointers)?;
        result::ctx::synchronize()?;
        for (array, address) in arrays.iter_mut().zip(addresses) {
            result::memcpy_dtoh_sync(array, address)?;
            result::free_sync(address)?;
        }
        result::module::unload(module)
    }
}

unsafe fn launch_function(
    function: sys::CUfunction,
    config: &Config,
    pointers: &mut [*mut c_void],
) -> Result<(), result::DriverError> {
    let mut attributes = Vec::new();
    // SAFETY: an attribute is plain data, for which zeros are valid.
    let empty: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    if let Some([x, y, z]) = config.cluster {
        let mut attribute = empty;
        attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attribute.value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z };
        attributes.push(attribute);
    }
    if config.is_cooperative {
        let mut attribute = empty;
        attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        attribute.value.cooperative = 1;
        attributes.push(attribute);
    }
    let config = sys::CUlaunchConfig {
        gridDimX: config.grid[0],
        gridDimY: config.grid[1],
        gridDimZ: config.grid[2],
        blockDimX: config.block[0],
        blockDimY: config.block[1],
        blockDimZ: config.block[2],
        sharedMemBytes: config.shared_bytes,
        hStream: std::ptr::null_mut(),
        attrs: attributes.as_mut_ptr(),
        numAttrs: attributes.len() as u32,
    };
    // SAFETY: the caller vouches for the pointers. The configuration lives until the call returns.
    unsafe {
        sys::cuLaunchKernelEx(&raw const config, function, pointers.as_mut_ptr(), std::ptr::null_mut())
            .result()
    }
}
