//! Launches kernels, with arguments by reference and the attributes that only some launches have.

use crate::api::{Answer, CUstream, opened};
use crate::modules::functions::Function;
use crate::modules::software;
use cudarc::driver::sys;
use smallvec::SmallVec;
use std::ffi::c_void;
use warpline_driver::Launch;
use warpline_driver::kernel::ParamKind;

/// The number of arguments that are pointed to without an allocation.
///
/// The software CUDA driver gets up to twice as many pointers.
const FEW: usize = 8;

/// Enqueues `launch`. The context is current, and the dynamic shared memory has been allowed.
#[inline]
pub(crate) fn launch(launch: &Launch, function: Function, stream: CUstream) -> Answer {
    let args = &launch.args[..];
    if args.len() <= FEW {
        let mut few = [std::ptr::null_mut(); 2 * FEW];
        point_at(launch, few.iter_mut());
        return with_params(launch, function, stream, &mut few);
    }
    let mut many = vec![std::ptr::null_mut(); 2 * args.len()];
    point_at(launch, many.iter_mut());
    with_params(launch, function, stream, &mut many)
}

/// Points `places` at the arguments.
///
/// For the software CUDA driver, pointers to the length of each slice follow.
#[inline]
fn point_at<'a>(launch: &Launch, mut places: impl Iterator<Item = &'a mut *mut c_void>) {
    let mut point = |to: *const u64| {
        if let Some(place) = places.next() {
            *place = to.cast_mut().cast();
        }
    };
    launch.args.iter().for_each(|arg| point(&raw const arg.bits));
    if software::is_present() {
        let slices = launch.kernel.params.iter().zip(&launch.args);
        let slices = slices.filter(|(param, _)| matches!(param.kind, ParamKind::Slice { .. }));
        slices.for_each(|(_, arg)| point(&raw const arg.len));
    }
}

#[inline]
fn with_params(launch: &Launch, function: Function, stream: CUstream, params: &mut [*mut c_void]) -> Answer {
    let config = &launch.config;
    let ([gx, gy, gz], [bx, by, bz]) = (config.grid, config.block);
    if config.cluster.is_none() && !config.cooperative {
        // SAFETY: cuLaunchKernel takes a live function and stream of one context, and a pointer to
        // each of the kernel's parameters. Their number and sizes were compared with the device
        // code when it was loaded; for an image, the kernel's `unsafe` declaration promises them.
        // They are read before the call returns. A scalar's bytes are at the lowest addresses of
        // its eight.
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
