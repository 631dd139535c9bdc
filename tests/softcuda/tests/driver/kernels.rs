//! Modules, functions and launches.

use crate::raw::*;
use crate::support::in_child;
use crate::twins::*;
use cudarc::driver::sys::{CUfunction, CUstream};
use std::ffi::{c_int, c_void};

#[test]
fn parameters_that_differ_from_the_ptx_are_found() {
    let said = in_child(&[], || {
        start();
        assert_eq!(register("add", &[written(4), value(8), value(4)], 0, add), 0);
        assert_eq!(function(ADD, "add"), Err(INVALID_IMAGE));
        assert_eq!(register("add", &[written(4), value(4)], 0, add), 0);
        assert_eq!(function(ADD, "add"), Err(INVALID_IMAGE));
        assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
        assert!(function(ADD, "add").is_ok());
    });
    assert!(said.contains("[8, 4, 4] bytes in the PTX and of [8, 8, 4] in its registration"), "{said}");
}

#[test]
fn what_a_module_does_not_have_is_not_found() {
    in_child(&[], || {
        start();
        assert_eq!(function("no PTX", "add"), Err(INVALID_PTX));
        assert_eq!(function(ADD, "sub"), Err(NOT_FOUND));
        assert_eq!(function("\x7fELF", "add"), Err(NOT_FOUND), "an image has what is registered");
        assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
        assert!(function("\x7fELF", "add").is_ok());
    });
}

#[test]
fn a_twin_that_is_registered_late_replaces_the_ptx() {
    in_child(&[], || {
        start();
        let (kernel, stream, x) = (function(ADD, "add").unwrap(), stream(), upload(&[0.0]));
        assert_eq!(launch_add(kernel, stream, x, 1.0, 1), 0);
        ok!(cuStreamSynchronize(stream));
        assert_eq!(floats::<1>(x), [0.0], "the body in the text is empty");
        assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
        assert_eq!(launch_add(kernel, stream, x, 1.0, 1), 0);
        ok!(cuStreamSynchronize(stream));
        assert_eq!(floats::<1>(x), [1.0]);
    });
}

#[test]
fn globals_are_device_memory_with_their_initial_values() {
    in_child(&[], || {
        start();
        let (mut module, mut address, mut bytes) = (std::ptr::null_mut(), 0, 0);
        let ptx = std::ffi::CString::new(ADD).unwrap();
        ok!(cuModuleLoadData(&mut module, ptx.as_ptr().cast()));
        ok!(cuModuleGetGlobal_v2(&mut address, &mut bytes, module, c"seed".as_ptr()));
        assert_eq!(bytes, 4);
        let mut seed = 0u32;
        ok!(cuMemcpyDtoH_v2((&raw mut seed).cast(), address, 4));
        assert_eq!(seed, 7);
        assert_eq!(cu!(cuModuleGetGlobal_v2(&mut address, &mut bytes, module, c"add".as_ptr())), NOT_FOUND);
        let mut function = std::ptr::null_mut();
        ok!(cuModuleGetFunction(&mut function, module, c"add".as_ptr()));
        ok!(cuModuleUnload(module));
        assert_eq!(cu!(cuModuleUnload(module)), INVALID_HANDLE);
        assert_eq!(launch_add(function, stream(), address, 1.0, 1), INVALID_HANDLE);
        assert_eq!(cu!(cuMemcpyDtoH_v2((&raw mut seed).cast(), address, 4)), INVALID_VALUE);
    });
}

#[test]
fn a_pointer_to_nowhere_faults_when_the_kernel_runs() {
    let said = in_child(&[], || {
        start();
        assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
        let (kernel, stream, word) = (function(ADD, "add").unwrap(), stream(), Word::new());
        assert_eq!(launch_add(kernel, stream, 0xdead_0000, 1.0, 1), 0, "the call does not look");
        assert_eq!(cu!(cuStreamSynchronize(stream)), ILLEGAL_ADDRESS);
        let write = cu!(cuStreamWriteValue64_v2(stream, word.host() as u64, 1, 0));
        assert_eq!(write, ILLEGAL_ADDRESS, "every call says so from now on");
        let mut current = std::ptr::null_mut();
        ok!(cuCtxGetCurrent(&mut current));
        ok!(cuCtxSetCurrent(current));
    });
    assert!(said.contains("kernel add, parameter 0: 0xdead0000"), "{said}");
}

#[test]
fn lengths_are_checked_against_the_allocation() {
    let said = in_child(&[], || {
        start();
        assert_eq!(register("add", &ADD_PARAMS, 2, add), INVALID_VALUE as i32, "there is one pointer");
        assert_eq!(register("add", &ADD_PARAMS, 1, add), 0);
        let (kernel, stream, x) = (function(ADD, "add").unwrap(), stream(), upload(&[1.0; 4]));
        assert_eq!(launch_add_len(kernel, stream, (x, 4), 4), 0);
        assert_eq!(launch_add_len(kernel, stream, (x + 8, 2), 2), 0);
        assert_eq!(launch_add_len(kernel, stream, (x, 0), 0), 0);
        ok!(cuStreamSynchronize(stream));
        assert_eq!(floats::<4>(x), [2.0, 2.0, 3.0, 3.0]);
        assert_eq!(launch_add_len(kernel, stream, (x, 5), 4), 0);
        assert_eq!(cu!(cuStreamSynchronize(stream)), ILLEGAL_ADDRESS);
    });
    assert!(said.contains("20 bytes or more, has 16 bytes left in its allocation"), "{said}");
}

extern "C" fn trap(_: *const *const c_void, _: *const c_void, _: *const c_void) -> c_int {
    3
}

#[test]
fn a_trap_is_a_launch_failure() {
    in_child(&[], || {
        start();
        assert_eq!(register("add", &ADD_PARAMS, 0, trap), 0);
        let (kernel, stream, x) = (function(ADD, "add").unwrap(), stream(), upload(&[0.0]));
        assert_eq!(launch_add(kernel, stream, x, 1.0, 1), 0);
        assert_eq!(cu!(cuCtxSynchronize()), LAUNCH_FAILED);
    });
}

#[test]
fn a_launch_must_fit_the_device() {
    in_child(&[], || {
        start();
        assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
        let (kernel, stream, mut x) = (function(ADD, "add").unwrap(), stream(), upload(&[0.0]));
        let (mut a, mut n) = (1f32, 1u32);
        let mut params: [*mut c_void; 3] = [(&raw mut x).cast(), (&raw mut a).cast(), (&raw mut n).cast()];
        let params = params.as_mut_ptr();
        let none = std::ptr::null_mut();
        let try_one = |grid: u32, block: u32, shared: u32| {
            cu!(cuLaunchKernel(kernel, grid, 1, 1, block, 1, 1, shared, stream, params, none))
        };
        assert_eq!(try_one(1, 1024, 48 << 10), 0);
        assert_eq!(try_one(0, 1, 0), INVALID_VALUE);
        assert_eq!(try_one(1, 1025, 0), INVALID_VALUE);
        assert_eq!(try_one(1, 1, (48 << 10) + 1), INVALID_VALUE);
        let more = cudarc::driver::sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        ok!(cuFuncSetAttribute(kernel, more, 64 << 10));
        assert_eq!(try_one(1, 1, 64 << 10), 0);
        assert_eq!(cu!(cuFuncSetAttribute(kernel, more, 1 << 20)), INVALID_VALUE);
        assert_eq!(cu!(cuLaunchCooperativeKernel(kernel, 1 << 20, 1, 1, 32, 1, 1, 0, stream, params)), 720);
        let mut extra = none;
        let with_both =
            cu!(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, (&raw mut extra).cast()));
        assert_eq!(with_both, INVALID_VALUE);
        let mut blocks = 0;
        ok!(cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, kernel, 256, 0));
        assert_eq!(blocks, 8);
    });
}

/// Returns PTX for this version and target, whose kernel `add` has these directives and this body.
fn text(version: &str, target: &str, directives: &str, body: &str) -> String {
    format!(
        ".version {version}\n.target {target}\n.address_size 64\n.visible .entry add(.param .u64 x, .param .f32 a, .param .u32 n)\n\
         {directives}\n{{\n{body}\nret;\n}}\n"
    )
}

#[test]
fn text_of_a_newer_isa_than_the_driver_s_is_refused() {
    let said = in_child(&[("SOFTCUDA_DRIVER_VERSION", "12000")], || {
        start();
        assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
        assert!(function(&text("8.0", "sm_70", "", ""), "add").is_ok());
        assert!(function(&text("7.8", "sm_70", "", ""), "add").is_ok());
        assert_eq!(function(&text("8.1", "sm_70", "", ""), "add"), Err(UNSUPPORTED_PTX_VERSION));
    });
    assert!(said.contains("Unsupported .version 8.1; current version is '8.0'"), "{said}");
}

#[test]
fn text_for_a_newer_device_is_refused() {
    let said = in_child(&[("SOFTCUDA_CAPABILITY", "6.1")], || {
        start();
        let mut minor = 0;
        let attribute = cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
        ok!(cuDeviceGetAttribute(&mut minor, attribute, 0));
        assert_eq!(minor, 1);
        assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
        assert!(function(&text("8.0", "sm_60", "", ""), "add").is_ok());
        assert_eq!(function(&text("8.0", "sm_70", "", ""), "add"), Err(NO_BINARY_FOR_GPU));
    });
    assert!(said.contains("SM version specified by .target is higher"), "{said}");
}

#[test]
fn a_launch_keeps_the_limits_of_its_text() {
    in_child(&[], || {
        start();
        assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
        let (stream, mut x) = (stream(), upload(&[0.0]));
        let (mut a, mut n) = (1f32, 1u32);
        let mut params: [*mut c_void; 3] = [(&raw mut x).cast(), (&raw mut a).cast(), (&raw mut n).cast()];
        let mut launch = |kernel, block: [u32; 3], shared: u32| {
            let [bx, by, bz] = block;
            let params = params.as_mut_ptr();
            cu!(cuLaunchKernel(kernel, 1, 1, 1, bx, by, bz, shared, stream, params, std::ptr::null_mut()))
        };
        let most = function(&text("8.0", "sm_70", ".maxntid 64, 2, 1", ""), "add").unwrap();
        assert_eq!(launch(most, [1, 128, 1], 0), 0, "it is the product that counts");
        assert_eq!(launch(most, [129, 1, 1], 0), INVALID_VALUE);
        let exact = function(&text("8.0", "sm_70", ".reqntid 32", ""), "add").unwrap();
        assert_eq!(launch(exact, [32, 1, 1], 0), 0);
        assert_eq!(launch(exact, [16, 1, 1], 0), INVALID_VALUE);
        let threads = cudarc::driver::sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
        let mut value = 0;
        ok!(cuFuncGetAttribute(&mut value, threads, most));
        assert_eq!(value, 128);

        let body = ".shared .align 4 .b8 own[40960];";
        let shared = function(&text("8.0", "sm_70", "", body), "add").unwrap();
        assert_eq!(launch(shared, [1, 1, 1], 8 << 10), 0);
        assert_eq!(launch(shared, [1, 1, 1], (8 << 10) + 1), INVALID_VALUE, "both count");
        let more = cudarc::driver::sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        assert_eq!(cu!(cuFuncSetAttribute(shared, more, 60 << 10)), INVALID_VALUE, "of 99 KiB 40 are static");
        ok!(cuFuncSetAttribute(shared, more, 59 << 10));
        assert_eq!(launch(shared, [1, 1, 1], 59 << 10), 0);
        let too_much = ".shared .align 4 .b8 own[49156];";
        assert_eq!(function(&text("8.0", "sm_70", "", too_much), "add"), Err(INVALID_PTX));
        ok!(cuStreamSynchronize(stream));
    });
}

#[test]
fn clusters_need_compute_capability_9() {
    in_child(&[], || {
        start();
        assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
        assert_eq!(cluster_launch(function(ADD, "add").unwrap(), stream()), NOT_SUPPORTED);
    });
}

/// Launches `add` on one cluster of one block.
fn cluster_launch(kernel: CUfunction, stream: CUstream) -> u32 {
    use cudarc::driver::sys::{
        CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig,
    };
    let (mut x, mut a, mut n) = (upload(&[0.0]), 1f32, 1u32);
    let mut params: [*mut c_void; 3] = [(&raw mut x).cast(), (&raw mut a).cast(), (&raw mut n).cast()];
    let mut pad = [0; 64];
    (pad[0], pad[4], pad[8]) = (1, 1, 1);
    let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    let mut attribute = CUlaunchAttribute { id, pad: [0; 4], value: CUlaunchAttributeValue { pad } };
    let config = CUlaunchConfig {
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: stream,
        attrs: &mut attribute,
        numAttrs: 1,
    };
    cu!(cuLaunchKernelEx(&config, kernel, params.as_mut_ptr(), std::ptr::null_mut()))
}

#[test]
fn launch_attributes_are_held_against_the_device() {
    in_child(&[("SOFTCUDA_CAPABILITY", "9.0")], || {
        use cudarc::driver::sys::{
            CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig,
        };
        start();
        assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
        let (kernel, stream, mut x) = (function(ADD, "add").unwrap(), stream(), upload(&[0.0]));
        let (mut a, mut n) = (1f32, 1u32);
        let mut params: [*mut c_void; 3] = [(&raw mut x).cast(), (&raw mut a).cast(), (&raw mut n).cast()];
        let mut launch = |grid: u32, id, words: [u32; 3]| {
            let mut pad = [0; 64];
            for (place, word) in words.iter().enumerate() {
                for (byte, value) in word.to_ne_bytes().into_iter().enumerate() {
                    pad[place * 4 + byte] = value as std::ffi::c_char;
                }
            }
            let mut attribute = CUlaunchAttribute { id, pad: [0; 4], value: CUlaunchAttributeValue { pad } };
            let config = CUlaunchConfig {
                gridDimX: grid,
                gridDimY: 1,
                gridDimZ: 1,
                blockDimX: 1024,
                blockDimY: 1,
                blockDimZ: 1,
                sharedMemBytes: 0,
                hStream: stream,
                attrs: &mut attribute,
                numAttrs: 1,
            };
            cu!(cuLaunchKernelEx(&config, kernel, params.as_mut_ptr(), std::ptr::null_mut()))
        };
        let cooperative = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        let cluster = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        assert_eq!(launch(32, cooperative, [1, 0, 0]), 0);
        assert_eq!(launch(33, cooperative, [1, 0, 0]), 720, "they would not all be on the device");
        assert_eq!(launch(33, cooperative, [0, 0, 0]), 0);
        assert_eq!(launch(8, cluster, [4, 1, 1]), 0);
        assert_eq!(launch(9, cluster, [4, 1, 1]), 912, "the grid is not made of whole clusters");
        assert_eq!(launch(16, cluster, [16, 1, 1]), 912);
        ok!(cuStreamSynchronize(stream));
        assert_eq!(floats::<1>(x), [3.0]);
    });
}

#[test]
fn a_function_and_its_stream_are_of_the_current_context() {
    in_child(&[("SOFTCUDA_DEVICES", "2")], || {
        start_on(0);
        assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
        let (kernel, stream_0) = (function(ADD, "add").unwrap(), stream());
        start_on(1);
        let (stream_1, x) = (stream(), upload(&[0.0]));
        assert_eq!(
            launch_add(kernel, stream_1, x, 1.0, 1),
            INVALID_HANDLE,
            "a function of the other context"
        );
        assert_eq!(launch_add(kernel, stream_0, x, 1.0, 1), INVALID_HANDLE, "a stream of the other context");
    });
}
