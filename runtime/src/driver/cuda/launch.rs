//! A launch: arguments by reference, and the attributes that only some launches have.

use super::api::{Answer, CUstream, opened};
use super::functions::Function;
use super::software;
use crate::driver::Launch;
use crate::kernel::ParamKind;
use cudarc::driver::sys;
use smallvec::SmallVec;
use std::ffi::c_void;

/// Enqueues it. The context is current, and dynamic shared memory was allowed.
#[inline]
pub(super) fn launch(launch: &Launch, function: Function, stream: CUstream) -> Answer {
    let mut params: SmallVec<[*mut c_void; 12]> =
        launch.args.iter().map(|arg| (&raw const arg.bits).cast_mut().cast::<c_void>()).collect();
    if software::is_present() {
        let slices = launch.kernel.params.iter().zip(&launch.args);
        let lens = slices.filter(|(param, _)| matches!(param.kind, ParamKind::Slice { .. }));
        params.extend(lens.map(|(_, arg)| (&raw const arg.len).cast_mut().cast::<c_void>()));
    }
    let config = &launch.config;
    let ([gx, gy, gz], [bx, by, bz]) = (config.grid, config.block);
    if config.cluster.is_none() && !config.cooperative {
        // SAFETY: cuLaunchKernel takes a live function and stream of one context, and a pointer to each of the kernel's
        // parameters, whose number and sizes were compared with the device code when it was loaded; they are read before it
        // returns. A scalar's bytes stand at the lowest addresses of its eight.
        return unsafe {
            opened().cuLaunchKernel(
                function.raw,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                config.shared_bytes,
                stream,
                params.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
    }
    let mut attributes: SmallVec<[sys::CUlaunchAttribute; 2]> = SmallVec::new();
    if let Some([x, y, z]) = config.cluster {
        attributes
            .push(attribute(sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, |value| {
                value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z }
            }));
    }
    if config.cooperative {
        attributes.push(attribute(sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, |value| {
            value.cooperative = 1;
        }));
    }
    let config = sys::CUlaunchConfig {
        gridDimX: gx,
        gridDimY: gy,
        gridDimZ: gz,
        blockDimX: bx,
        blockDimY: by,
        blockDimZ: bz,
        sharedMemBytes: config.shared_bytes,
        hStream: stream,
        attrs: attributes.as_mut_ptr(),
        numAttrs: attributes.len() as u32,
    };
    // SAFETY: as above; the configuration and its attributes live until the call returns.
    unsafe {
        opened().cuLaunchKernelEx(&raw const config, function.raw, params.as_mut_ptr(), std::ptr::null_mut())
    }
}

fn attribute(
    id: sys::CUlaunchAttributeID,
    set: impl FnOnce(&mut sys::CUlaunchAttributeValue),
) -> sys::CUlaunchAttribute {
    // SAFETY: the attribute is plain data, for which zeros are valid.
    let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    attribute.id = id;
    set(&mut attribute.value);
    attribute
}
