//! Enqueues copies and fills as CUDA calls.

use crate::api::{Answer, CUdeviceptr, CUstream, Failed, opened};
use crate::context::Context;
use cudarc::driver::sys;
use cudarc::driver::sys::CUmemorytype::{CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST};
use std::ffi::c_void;
use warpline_driver::{Copy, CopyKind, Fill};

/// Enqueues `copy` within the device of `stream`, or between that device and the host.
///
/// The copy has at least one byte, and the device's context is current.
pub(crate) fn copy(copy: &Copy, stream: CUstream) -> Answer {
    let api = opened();
    if !is_one_run(copy) {
        let copy = rows_within(copy);
        // SAFETY: cuMemcpy2DAsync takes rows inside live memory of the kinds it names. This backend
        // page-locked the host memory, which `submit`'s caller vouches for (`HostEnd`), and it is
        // kept until the ticket is reached. The description lives until the call returns.
        return unsafe { api.cuMemcpy2DAsync_v2(&raw const copy, stream) };
    }
    let bytes = copy.width_bytes * copy.height;
    match copy.kind {
        CopyKind::HostToDevice => {
            // SAFETY: cuMemcpyHtoDAsync needs the host memory valid until the copy ends. It is kept
            // until the ticket is reached, which is after the copy, because this backend
            // page-locked it. `submit`'s caller vouches for both (`HostEnd`).
            unsafe { api.cuMemcpyHtoDAsync_v2(copy.dst, copy.src as *const c_void, bytes, stream) }
        }
        CopyKind::DeviceToHost => {
            // SAFETY: as for the other direction.
            unsafe { api.cuMemcpyDtoHAsync_v2(copy.dst as *mut c_void, copy.src, bytes, stream) }
        }
        CopyKind::DeviceToDevice => {
            // SAFETY: cuMemcpyDtoDAsync takes live device memory of the context.
            unsafe { api.cuMemcpyDtoDAsync_v2(copy.dst, copy.src, bytes, stream) }
        }
        CopyKind::Peer { .. } => unreachable!("`copy_peer` enqueues copies that touch other devices"),
    }
}

/// Enqueues `copy` from `source`'s memory to `destination`'s, on a stream of `context`.
///
/// The copy has at least one byte. `context` is current, and may be `source`, `destination` or
/// neither.
pub(crate) fn copy_peer(
    copy: &Copy,
    context: &Context,
    source: &Context,
    destination: &Context,
    stream: CUstream,
) -> Answer {
    let api = opened();
    for end in [source, destination] {
        // The stream's device performs the copy.
        if !std::ptr::eq(end, context) {
            context.enable_peer(end)?;
        }
    }
    if is_one_run(copy) {
        let bytes = copy.width_bytes * copy.height;
        // SAFETY: cuMemcpyPeerAsync takes live device memory of the contexts named with it, and a
        // stream of any context. If the devices cannot reach each other, CUDA itself copies
        // through the host.
        return unsafe {
            api.cuMemcpyPeerAsync(copy.dst, destination.raw(), copy.src, source.raw(), bytes, stream)
        };
    }
    let copy = rows_between(copy, source, destination);
    // SAFETY: as above; the description lives until the call returns.
    unsafe { api.cuMemcpy3DPeerAsync(&raw const copy, stream) }
}

/// Returns whether the rows of `copy` follow each other without gaps on both sides.
fn is_one_run(copy: &Copy) -> bool {
    copy.height == 1 || (copy.src_pitch == copy.width_bytes && copy.dst_pitch == copy.width_bytes)
}

fn rows_within(copy: &Copy) -> sys::CUDA_MEMCPY2D {
    let nowhere = std::ptr::null_mut();
    let (src_on, src_host, src_device) = match copy.kind {
        CopyKind::HostToDevice => (CU_MEMORYTYPE_HOST, copy.src as *const c_void, 0),
        _ => (CU_MEMORYTYPE_DEVICE, std::ptr::null(), copy.src),
    };
    let (dst_on, dst_host, dst_device) = match copy.kind {
        CopyKind::DeviceToHost => (CU_MEMORYTYPE_HOST, copy.dst as *mut c_void, 0),
        _ => (CU_MEMORYTYPE_DEVICE, std::ptr::null_mut(), copy.dst),
    };
    sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: src_on,
        srcHost: src_host,
        srcDevice: src_device,
        srcArray: nowhere,
        srcPitch: copy.src_pitch,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: dst_on,
        dstHost: dst_host,
        dstDevice: dst_device,
        dstArray: nowhere,
        dstPitch: copy.dst_pitch,
        WidthInBytes: copy.width_bytes,
        Height: copy.height,
    }
}

fn rows_between(copy: &Copy, source: &Context, destination: &Context) -> sys::CUDA_MEMCPY3D_PEER {
    let nowhere = std::ptr::null_mut();
    sys::CUDA_MEMCPY3D_PEER {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: CU_MEMORYTYPE_DEVICE,
        srcHost: std::ptr::null(),
        srcDevice: copy.src,
        srcArray: nowhere,
        srcContext: source.raw(),
        srcPitch: copy.src_pitch,
        srcHeight: copy.height,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: CU_MEMORYTYPE_DEVICE,
        dstHost: std::ptr::null_mut(),
        dstDevice: copy.dst,
        dstArray: nowhere,
        dstContext: destination.raw(),
        dstPitch: copy.dst_pitch,
        dstHeight: copy.height,
        WidthInBytes: copy.width_bytes,
        Height: copy.height,
        Depth: 1,
    }
}

/// Enqueues `fill`, of at least one byte. The context is current.
///
/// CUDA fills with one, two or four bytes. An eight-byte pattern whose halves differ takes
/// two fills, each of every other four bytes.
///
/// # Errors
/// Returns how many fills were enqueued, and why the next one failed.
pub(crate) fn fill(fill: &Fill, stream: CUstream) -> Result<(), (usize, Failed)> {
    let (mut width, mut bytes, pattern) = (fill.width_bytes, usize::from(fill.pattern_bytes), fill.pattern);
    let one_run = fill.height == 1 || fill.pitch == fill.width_bytes;
    let (low, high) = (pattern as u32, (pattern >> 32) as u32);
    if bytes == 8 && low != high {
        let rows: Vec<CUdeviceptr> = if one_run {
            width *= fill.height;
            vec![fill.dst.0]
        } else {
            (0..fill.height).map(|row| fill.dst.0 + (row * fill.pitch) as CUdeviceptr).collect()
        };
        let halves = rows.iter().flat_map(|row| [(*row, low), (*row + 4, high)]);
        for (enqueued, (address, value)) in halves.enumerate() {
            // SAFETY: cuMemsetD2D32Async writes `width / 8` rows of one element, eight bytes apart.
            // They lie inside the row, which is a multiple of eight bytes long.
            unsafe { opened().cuMemsetD2D32Async(address, 8, value, 1, width / 8, stream) }
                .map_err(|failed| (enqueued, failed))?;
        }
        return Ok(());
    }
    bytes = bytes.min(4);
    let api = opened();
    let (dst, elements, pitch, rows) = (fill.dst.0, width / bytes, fill.pitch, fill.height);
    #[allow(clippy::multiple_unsafe_ops_per_block, reason = "exactly one of the calls runs")]
    // SAFETY: each call writes rows inside live device memory, aligned to their elements.
    let filled = unsafe {
        match (bytes, one_run) {
            (1, true) => api.cuMemsetD8Async(dst, low as u8, elements * rows, stream),
            (1, false) => api.cuMemsetD2D8Async(dst, pitch, low as u8, elements, rows, stream),
            (2, true) => api.cuMemsetD16Async(dst, low as u16, elements * rows, stream),
            (2, false) => api.cuMemsetD2D16Async(dst, pitch, low as u16, elements, rows, stream),
            (_, true) => api.cuMemsetD32Async(dst, low, elements * rows, stream),
            (_, false) => api.cuMemsetD2D32Async(dst, pitch, low, elements, rows, stream),
        }
    };
    filled.map_err(|failed| (0, failed))
}
