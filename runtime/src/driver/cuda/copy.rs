//! Copies and fills as driver calls.

use super::api::{Answer, CUdeviceptr, CUstream, opened};
use super::context::Context;
use crate::driver::{Copy, CopyKind, Fill};
use cudarc::driver::sys;
use std::ffi::c_void;

/// Enqueues `copy`, of at least one byte. The context, which is that of `stream`, is current. `peer`: the other device's, for
/// copies between devices.
pub(super) fn copy(copy: &Copy, context: &Context, peer: Option<&Context>, stream: CUstream) -> Answer {
    let api = opened();
    let one_run =
        copy.height == 1 || (copy.src_pitch == copy.width_bytes && copy.dst_pitch == copy.width_bytes);
    let bytes = copy.width_bytes * copy.height;
    match (copy.kind, peer) {
        (CopyKind::Peer { .. }, Some(peer)) if !std::ptr::eq(peer, context) => {
            context.enable_peer(peer)?;
            if one_run {
                // SAFETY: cuMemcpyPeerAsync takes device memory of both contexts. Where the devices cannot reach each other it
                // goes through the host by itself.
                return unsafe {
                    api.cuMemcpyPeerAsync(copy.dst, peer.raw(), copy.src, context.raw(), bytes, stream)
                };
            }
            let copy = rows_between(copy, context, peer);
            // SAFETY: as above; the description lives until the call returns.
            unsafe { api.cuMemcpy3DPeerAsync(&raw const copy, stream) }
        }
        _ if !one_run => {
            let copy = rows_within(copy);
            // SAFETY: cuMemcpy2DAsync takes rows inside live memory of the kinds it names; the host's is page-locked and kept
            // until the ticket is reached. The description lives until the call returns.
            unsafe { api.cuMemcpy2DAsync_v2(&raw const copy, stream) }
        }
        (CopyKind::HostToDevice, _) => {
            // SAFETY: cuMemcpyHtoDAsync needs the host's memory valid until the copy ends: it is kept until the ticket is
            // reached, and it is page-locked.
            unsafe { api.cuMemcpyHtoDAsync_v2(copy.dst, copy.src as *const c_void, bytes, stream) }
        }
        (CopyKind::DeviceToHost, _) => {
            // SAFETY: as for the other way.
            unsafe { api.cuMemcpyDtoHAsync_v2(copy.dst as *mut c_void, copy.src, bytes, stream) }
        }
        (CopyKind::DeviceToDevice | CopyKind::Peer { .. }, _) => {
            // SAFETY: cuMemcpyDtoDAsync takes live device memory of the context.
            unsafe { api.cuMemcpyDtoDAsync_v2(copy.dst, copy.src, bytes, stream) }
        }
    }
}

fn rows_within(copy: &Copy) -> sys::CUDA_MEMCPY2D {
    // SAFETY: the description is plain data, for which zeros are valid: no offsets, no arrays.
    let mut rows: sys::CUDA_MEMCPY2D = unsafe { std::mem::zeroed() };
    if copy.kind == CopyKind::HostToDevice {
        rows.srcMemoryType = sys::CUmemorytype::CU_MEMORYTYPE_HOST;
        rows.srcHost = copy.src as *const c_void;
    } else {
        rows.srcMemoryType = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
        rows.srcDevice = copy.src;
    }
    if copy.kind == CopyKind::DeviceToHost {
        rows.dstMemoryType = sys::CUmemorytype::CU_MEMORYTYPE_HOST;
        rows.dstHost = copy.dst as *mut c_void;
    } else {
        rows.dstMemoryType = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
        rows.dstDevice = copy.dst;
    }
    rows.srcPitch = copy.src_pitch;
    rows.dstPitch = copy.dst_pitch;
    rows.WidthInBytes = copy.width_bytes;
    rows.Height = copy.height;
    rows
}

fn rows_between(copy: &Copy, context: &Context, peer: &Context) -> sys::CUDA_MEMCPY3D_PEER {
    // SAFETY: as above.
    let mut rows: sys::CUDA_MEMCPY3D_PEER = unsafe { std::mem::zeroed() };
    rows.srcMemoryType = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
    rows.srcDevice = copy.src;
    rows.srcContext = context.raw();
    rows.srcPitch = copy.src_pitch;
    rows.srcHeight = copy.height;
    rows.dstMemoryType = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
    rows.dstDevice = copy.dst;
    rows.dstContext = peer.raw();
    rows.dstPitch = copy.dst_pitch;
    rows.dstHeight = copy.height;
    rows.WidthInBytes = copy.width_bytes;
    rows.Height = copy.height;
    rows.Depth = 1;
    rows
}

/// Enqueues `fill`, of at least one byte. The context is current.
///
/// The driver fills with one, two or four bytes. Eight that are not twice the same four are two fills, each of every other four.
pub(super) fn fill(fill: &Fill, stream: CUstream) -> Answer {
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
        for row in rows {
            for (half, value) in [(0, low), (4, high)] {
                // SAFETY: cuMemsetD2D32Async writes `width / 8` rows of one element, eight bytes apart: inside the row, which is
                // a multiple of eight bytes long.
                unsafe { opened().cuMemsetD2D32Async(row + half, 8, value, 1, width / 8, stream) }?;
            }
        }
        return Ok(());
    }
    bytes = bytes.min(4);
    let api = opened();
    let (dst, elements, pitch, rows) = (fill.dst.0, width / bytes, fill.pitch, fill.height);
    // SAFETY: the calls write rows inside live device memory, aligned to their elements.
    unsafe {
        match (bytes, one_run) {
            (1, true) => api.cuMemsetD8Async(dst, low as u8, elements * rows, stream),
            (1, false) => api.cuMemsetD2D8Async(dst, pitch, low as u8, elements, rows, stream),
            (2, true) => api.cuMemsetD16Async(dst, low as u16, elements * rows, stream),
            (2, false) => api.cuMemsetD2D16Async(dst, pitch, low as u16, elements, rows, stream),
            (_, true) => api.cuMemsetD32Async(dst, low, elements * rows, stream),
            (_, false) => api.cuMemsetD2D32Async(dst, pitch, low, elements, rows, stream),
        }
    }
}
