//! Launches of kernels that have a library form, with device memory as the library's workspace.
//!
//! The workspace is one more operand of the op: allocated in the order of the stream, written by
//! the op and dropped when the op is enqueued. So it counts in the device's memory figures. The
//! next such op on the stream gets the same block at no cost. Other streams and other allocations
//! get the block once this stream no longer uses it. (pytorch #194311 measures 0.3 µs for a
//! workspace a call.) A stream that is being captured gets its workspace from the graph.
//!
//! If memory is short the workspace is smaller, and the library cannot use some of its faster
//! algorithms. If there is too little memory even for that, or for a handle, the kernel's own code
//! runs.
// Decision: docs/decisions/0042-library-workspace-is-an-operand.md

use super::alloc_unspecified;
use crate::kernel::{AccessMode, Kernel, KernelCall, LaunchConfig, Operand, Workspace};
use crate::order::{ByteRange, Site};
use crate::pending::Pending;
use crate::shared::{Allocation, Op, Stream, StreamCore};
use smallvec::SmallVec;
use std::sync::Arc;
use warpline_driver::{Command, DriverError, Error, Launch, Result};

impl Stream {
    /// Launches a kernel that has a library form. `refused` is the reason why it cannot be
    /// launched, if there is one.
    pub(super) fn launch_with_library(
        &self,
        site: Site,
        call: &mut KernelCall<'_>,
        config: LaunchConfig,
        mut refused: Option<Error>,
    ) -> Pending<()> {
        let (core, kernel) = (self.core(), call.kernel);
        let mut memory = None;
        if refused.is_none() {
            match library_memory(core, site, kernel) {
                Ok(allocation) => memory = allocation,
                Err(error) => refused = Some(error),
            }
        }
        let mut operands: SmallVec<[Operand<'_>; 6]> = call.operands.iter().copied().collect();
        let moved = operands.iter().map(|operand| operand.range.len_bytes()).sum();
        operands.extend(memory.as_ref().map(|allocation| {
            let range = ByteRange::contiguous(0, allocation.len_bytes as u64);
            Operand { allocation, range, access: AccessMode::Write }
        }));
        let workspace =
            memory.as_ref().map(|memory| Workspace { ptr: memory.ptr, len_bytes: memory.len_bytes });
        let mut op = Op::new("kernel", site, &operands[..]);
        (op.in_place, op.refused, op.moved) = (kernel.in_place, refused, moved);
        let place = core.enqueue(&mut op, |_| {
            let args = std::mem::take(&mut call.args);
            let mut extras = call.extras.take();
            if workspace.is_some() {
                extras.get_or_insert_default().workspace = workspace;
            }
            Command::Launch(Launch { kernel, config, args, extras })
        });
        Pending::value(core, place, ())
    }
}

/// Prepares the library of `kernel`, and allocates its workspace. Returns `None` if the library
/// is not used, and if there is no memory.
fn library_memory(
    core: &Arc<StreamCore>,
    site: Site,
    kernel: &'static Kernel,
) -> Result<Option<Arc<Allocation>>> {
    // The op itself returns the error.
    if core.is_captured() || core.ensure_open(site).is_err() {
        return Ok(None);
    }
    let ready = core.device.with_room(|driver| driver.ready_library(kernel));
    let bytes = match ready {
        Ok(Some(bytes)) => bytes,
        Ok(None) | Err(DriverError::OutOfMemory(_)) => return Ok(None),
        Err(error) => return Err(core.refused(site, &error)),
    };
    let sizes = [*bytes.end(), *bytes.start()];
    Ok(sizes.into_iter().find_map(|len_bytes| alloc_unspecified(core, site, len_bytes).ok()))
}
