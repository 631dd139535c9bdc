//! Copies as rows of bytes, the form in which drivers take them.

use crate::buffer::Buffer;
use std::fmt;
use warpline_driver::{Copy, CopyKind, Element, Error, ErrorKind, Result};

/// Returns a copy between a buffer and contiguous host memory at the address `host`.
pub(super) fn host_copy<T: Element>(kind: CopyKind, host: u64, buffer: &Buffer<T>) -> Copy {
    let (height, width_bytes, pitch) = buffer.runs();
    let (host, device) = ((host, width_bytes), (buffer.address(), pitch));
    let ((src, src_pitch), (dst, dst_pitch)) = match kind {
        CopyKind::DeviceToHost => (device, host),
        _ => (host, device),
    };
    Copy { kind, src, src_pitch, dst, dst_pitch, width_bytes, height }
}

/// Returns a copy between two buffers. One of them must be contiguous, or both must have the same
/// rows.
pub(super) fn device_copy<T: Element>(
    site: &dyn fmt::Display,
    kind: CopyKind,
    source: &Buffer<T>,
    destination: &Buffer<T>,
) -> Result<Copy> {
    let refused = |why| Err(Error::new(ErrorKind::Shape, format!("{site}: {why}")));
    let (from, to) = (source.len(), destination.len());
    if from != to {
        return refused(format!(
            "the source has {from} elements and the destination {to}; take a slice of the longer one"
        ));
    }
    let (src_rows, src_width, src_pitch) = source.runs();
    let (dst_rows, dst_width, dst_pitch) = destination.runs();
    let (height, width_bytes, src_pitch, dst_pitch) = match (src_rows, dst_rows) {
        (1, _) => (dst_rows, dst_width, dst_width, dst_pitch),
        (_, 1) => (src_rows, src_width, src_pitch, src_width),
        _ if src_rows == dst_rows => (src_rows, src_width, src_pitch, dst_pitch),
        _ => {
            return refused(format!(
                "the source is a strided view of {src_rows} rows and the destination one of {dst_rows}; copy \
                 through contiguous memory"
            ));
        }
    };
    let (src, dst) = (source.address(), destination.address());
    Ok(Copy { kind, src, src_pitch, dst, dst_pitch, width_bytes, height })
}
