//! Launches of kernels that have a library form, with device memory as the library's workspace.
//!
//! The workspace is one more operand of the op: allocated in the order of the stream, written by
//! the op and dropped when the op is enqueued. So it counts in the device's memory figures. The
//! next such op on the stream gets the same block at no cost. Other streams and other allocations
//! get the block once this stream no longer uses it. (pytorch #194311 measures 0.3 µs for a
//! workspace a call.) A stream that is being captured gets its workspace from the graph.
//!
//! If memory is short, also after waiting for unfinished work, the workspace is smaller, and the
//! library cannot use some of its faster algorithms. If there is too little memory even for that,
//! or for a handle, the kernel's own code runs.
// Decision: docs/decisions/0042-library-workspace-is-an-operand.md

use super::alloc_outside;
use super::handle::refusal;
use crate::kernel::{AccessMode, Kernel, KernelCall, LaunchConfig, Operand, Workspace};
use crate::order::{ByteRange, Site};
use crate::pending::Pending;
use crate::shared::{Allocation, Request, Stream, StreamCore};
use std::sync::Arc;
use warpline_driver::{DriverError, Result};

impl Stream {
    /// Launches a kernel that has a library form.
    pub(super) fn launch_with_library(
        &self,
        site: Site,
        mut call: KernelCall<'_>,
        config: LaunchConfig,
    ) -> Pending<()> {
        let memory = match refusal(&call, config) {
            // The launch refuses the call.
            Some(_) => Ok(None),
            None => library_memory(self.core(), site, call.kernel),
        };
        match memory {
            Ok(Some(memory)) => self.launch_in(site, call, config, &memory),
            Ok(None) => self.launch_call(site, &mut call, config, 0),
            Err(error) => {
                let request = Request::new("kernel", site, &call.operands);
                Pending::refused_on(self.core(), self.core().refuse(&request, error))
            }
        }
    }

    /// Launches a kernel whose library works in `memory`, which becomes one more operand.
    fn launch_in(
        &self,
        site: Site,
        call: KernelCall<'_>,
        config: LaunchConfig,
        memory: &Arc<Allocation>,
    ) -> Pending<()> {
        let bytes = call.operands.iter().map(|operand| operand.range.len_bytes()).sum();
        let (ptr, len_bytes) = (memory.ptr, memory.len_bytes);
        // The vector cannot take an operand that is borrowed for a shorter time.
        let KernelCall { kernel, args, operands, extras, failed } = call;
        let mut call =
            KernelCall { kernel, args, operands: operands.iter().copied().collect(), extras, failed };
        call.extras.get_or_insert_default().workspace = Some(Workspace { ptr, len_bytes });
        let range = ByteRange::contiguous(0, len_bytes as u64);
        call.operands.push(Operand { allocation: memory, range, access: AccessMode::Write });
        self.launch_call(site, &mut call, config, bytes)
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
    Ok(sizes.into_iter().find_map(|len_bytes| alloc_outside(core, site, len_bytes).ok()))
}
