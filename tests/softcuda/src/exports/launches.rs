//! Launches and host functions.

use crate::abi::{CUfunction, CUstream, HostFn, In, LaunchConfig, StreamCallback};
use crate::door::exports;
use crate::errors::refuse;
use crate::kernel::LaunchShape;
use crate::launch::{
    Given, LaunchKind, check_attributes, check_cooperative, host_function, launch, stream_callback,
};
use crate::module;
use std::ffi::c_void;

exports! {
    fn cuLaunchKernel(
        function: CUfunction,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        stream: CUstream,
        params: In<In<u8>>,
        extra: In<In<u8>>,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = LaunchShape { grid, block, shared_bytes, reserved: 0 };
        launch(function, shape, stream, Given { params, extra }, LaunchKind::default())
    }

    fn cuLaunchKernelEx(config: In<LaunchConfig>, function: CUfunction, params: In<In<u8>>, extra: In<In<u8>>) {
        let LaunchConfig { grid, block, shared_bytes, stream, attributes, attribute_count } = config.get()?;
        let shape = LaunchShape { grid, block, shared_bytes, reserved: 0 };
        let kind = check_attributes(function, &shape, attributes, attribute_count as usize)?;
        launch(function, shape, stream, Given { params, extra }, kind)
    }

    fn cuLaunchCooperativeKernel(
        function: CUfunction,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        stream: CUstream,
        params: In<In<u8>>,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = LaunchShape { grid, block, shared_bytes, reserved: 0 };
        check_cooperative(module::function(function)?, &shape)?;
        launch(function, shape, stream, Given { params, extra: In::none() }, LaunchKind::COOPERATIVE)
    }

    fn cuLaunchHostFunc(stream: CUstream, function: Option<HostFn>, data: *mut c_void) {
        host_function(stream, function, data)
    }

    fn cuStreamAddCallback(
        stream: CUstream,
        callback: Option<StreamCallback>,
        data: *mut c_void,
        flags: u32,
    ) {
        if flags != 0 {
            refuse!(INVALID_VALUE, "flags {flags:#x}");
        }
        stream_callback(stream, callback, data)
    }
}
