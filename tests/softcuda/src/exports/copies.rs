//! Copies.

use crate::abi::{
    CUcontext, CUdeviceptr, CUstream, In, MEMORY_DEVICE, MEMORY_HOST, MEMORY_UNIFIED, Memcpy2D, Memcpy3DPeer,
    PeerEnd,
};
use crate::context;
use crate::copy::{End, copy, copy_async, copy_now};
use crate::door::exports;
use crate::errors::{Code, Outcome, refuse};
use crate::stream;
use std::ffi::c_void;

/// Returns the first byte of one end of a 2D copy.
fn end(kind: u32, host: usize, device: u64, offset: Option<usize>) -> Outcome<End> {
    let offset = offset.ok_or(Code::INVALID_VALUE)?;
    Ok(match kind {
        MEMORY_HOST => End::Host(host.wrapping_add(offset)),
        MEMORY_DEVICE => End::Device(device.wrapping_add(offset as u64)),
        MEMORY_UNIFIED => End::Any(device.wrapping_add(offset as u64)),
        _ => refuse!(NOT_SUPPORTED, "memory of type {kind}"),
    })
}

fn offset(x_bytes: usize, y: usize, pitch: usize) -> Option<usize> {
    y.checked_mul(pitch)?.checked_add(x_bytes)
}

/// Returns one end of a copy between contexts. Such a copy needs no peer access, because each end
/// belongs to the context named for it.
fn peer(context: CUcontext, address: CUdeviceptr) -> Outcome<End> {
    let context = if context.0 == 0 { context::current()? } else { context::named(context)? };
    context.report()?;
    Ok(End::Of(context, address))
}

fn peer_end(end: &PeerEnd) -> Outcome<(End, usize)> {
    if end.kind != MEMORY_DEVICE {
        refuse!(NOT_SUPPORTED, "memory of type {} in a copy between peers", end.kind);
    }
    let skipped = end.z.checked_mul(end.height).and_then(|rows| rows.checked_add(end.y));
    let offset = skipped.and_then(|rows| offset(end.x_bytes, rows, end.pitch)).ok_or(Code::INVALID_VALUE)?;
    Ok((peer(end.context, end.device.wrapping_add(offset as u64))?, end.pitch))
}

exports! {
    fn cuMemcpyHtoD_v2(dst: CUdeviceptr, src: *const c_void, bytes: usize) {
        copy_now(End::Device(dst), End::Host(src as usize), bytes)
    }

    fn cuMemcpyDtoH_v2(dst: *mut c_void, src: CUdeviceptr, bytes: usize) {
        copy_now(End::Host(dst as usize), End::Device(src), bytes)
    }

    fn cuMemcpyDtoD_v2(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) {
        copy_now(End::Device(dst), End::Device(src), bytes)
    }

    fn cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) {
        copy_now(End::Any(dst), End::Any(src), bytes)
    }

    fn cuMemcpyPeer(
        dst: CUdeviceptr,
        dst_context: CUcontext,
        src: CUdeviceptr,
        src_context: CUcontext,
        bytes: usize,
    ) {
        copy_now(peer(dst_context, dst)?, peer(src_context, src)?, bytes)
    }

    fn cuMemcpyHtoDAsync_v2(dst: CUdeviceptr, src: *const c_void, bytes: usize, stream: CUstream) {
        copy_async(End::Device(dst), End::Host(src as usize), bytes, stream)
    }

    fn cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: CUdeviceptr, bytes: usize, stream: CUstream) {
        copy_async(End::Host(dst as usize), End::Device(src), bytes, stream)
    }

    fn cuMemcpyDtoDAsync_v2(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream) {
        copy_async(End::Device(dst), End::Device(src), bytes, stream)
    }

    fn cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream) {
        copy_async(End::Any(dst), End::Any(src), bytes, stream)
    }

    fn cuMemcpyPeerAsync(
        dst: CUdeviceptr,
        dst_context: CUcontext,
        src: CUdeviceptr,
        src_context: CUcontext,
        bytes: usize,
        stream: CUstream,
    ) {
        copy_async(peer(dst_context, dst)?, peer(src_context, src)?, bytes, stream)
    }

    fn cuMemcpy2DAsync_v2(copy_params: In<Memcpy2D>, stream: CUstream) {
        let it = copy_params.get()?;
        // A pitch of 0 means rows without gaps.
        let pitch = |pitch: usize| if pitch == 0 { it.width_bytes } else { pitch };
        let (src_pitch, dst_pitch) = (pitch(it.src_pitch), pitch(it.dst_pitch));
        let src = end(it.src_type, it.src_host, it.src_device, offset(it.src_x_bytes, it.src_y, src_pitch))?;
        let dst = end(it.dst_type, it.dst_host, it.dst_device, offset(it.dst_x_bytes, it.dst_y, dst_pitch))?;
        let stream = stream::named(stream)?;
        copy(stream, (dst, dst_pitch), (src, src_pitch), (it.width_bytes, it.height), false)
    }

    fn cuMemcpy3DPeerAsync(copy_params: In<Memcpy3DPeer>, stream: CUstream) {
        let it = copy_params.get()?;
        if it.depth > 1 {
            refuse!(NOT_SUPPORTED, "{} slices; one is", it.depth);
        }
        let (src, dst) = (peer_end(&it.src)?, peer_end(&it.dst)?);
        copy(stream::named(stream)?, dst, src, (it.width_bytes, it.height * it.depth), false)
    }
}
