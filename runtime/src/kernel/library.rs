//! The library form of a kernel: what may do its work on a CUDA device in place of its device code.
//!
//! A kernel names a [`Library`] in its declaration; a CUDA device asks it first at every launch. It is data and functions, with
//! nothing of one launch in it, so that a launch can be enqueued any number of times, on any stream. The CPU device runs twins and
//! never asks.

use super::{Arg, Kernel, LaunchConfig};
use crate::driver::DevicePtr;
use std::ffi::c_void;

/// A library that may do a kernel's work on a CUDA device.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// Enqueues the work of one launch on its stream, or leaves it to the kernel's device code.
    ///
    /// Called with the stream's turn held, like the driver: it takes no lock that is held while others wait, and tells nobody.
    ///
    /// # Safety
    /// The arguments fit the kernel's parameters, and what they name is valid, for the access that its declaration says, for work
    /// that is enqueued on the call's stream now. The stream lives and belongs to the device's primary context, which is current.
    pub enqueue: unsafe fn(&LibraryCall<'_>) -> LibraryAnswer,
    /// Gets ready on a device, whose primary context is current, so that the next first launch on a stream does not have to:
    /// what [`Device::load`](crate::Device::load) calls, every time; and on a stream, before a graph captures launches there. Not called
    /// while something is captured, unless by the user.
    pub prepare: fn(LibraryDevice, Option<LibraryStream>) -> Result<(), String>,
    /// How much device memory it wants to work in on a stream that a graph is captured on, given the device and its compute capability:
    /// what it is handed in [`LibraryCall::workspace`] there. What it took by itself in a capture would count nowhere.
    pub workspace_bytes: fn(LibraryDevice, (u32, u32)) -> usize,
    /// The kernels that `enqueue` launches besides, which are loaded with this one.
    pub kernels: &'static [&'static Kernel],
}

/// What became of a launch that a [`Library`] was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LibraryAnswer {
    /// It is on the stream. The text says what ran, for traces.
    Enqueued(&'static str),
    /// Nothing is on the stream; the kernel's device code is to run.
    Declined {
        /// Why, for traces.
        because: &'static str,
        /// Whether whoever set the machine up should hear of it: a library was not found. At most once a process.
        is_news: bool,
    },
    /// The op fails.
    Failed {
        /// What the library said, in the words of an error message.
        why: String,
        /// Whether some of the work may be on the stream nevertheless.
        halfway: bool,
    },
}

/// One launch, as a [`Library`] sees it.
#[derive(Clone, Copy)]
pub struct LibraryCall<'a> {
    /// One for each of the kernel's parameters.
    pub args: &'a [Arg],
    /// The `CUstream`. One caller at a time has it.
    pub stream: *mut c_void,
    /// The device that it is on.
    pub device: LibraryDevice,
    /// Where it has to work in a graph, since the graph may run on other streams than this one: memory of the graph's, which nothing else
    /// on the stream uses. None outside of graphs, and where it asked for none.
    pub workspace: Option<Workspace>,
    /// What the driver does for a library.
    pub driver: &'a dyn LibraryDriver,
}

/// Device memory for a library to work in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workspace {
    /// Where it starts, a multiple of 512.
    pub ptr: DevicePtr,
    /// How much it is.
    pub len_bytes: usize,
}

/// A device, as a [`Library`] sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LibraryDevice {
    /// Its ordinal. Its primary context is the one that is used.
    pub ordinal: u32,
    /// The CUDA version that the driver library is for, as `cuDriverGetVersion` says it: 13010 is 13.1. 0 if it does not.
    pub driver_version: i32,
    /// Whether the software CUDA driver stands in for the real one: device code does not run there, a library's neither.
    pub is_software: bool,
}

/// A `CUstream` to get ready for, which lives for as long as the process.
#[derive(Clone, Copy, Debug)]
pub struct LibraryStream(pub *mut c_void);

/// What the driver does for a library in the middle of a launch.
pub trait LibraryDriver {
    /// Whether the stream is being captured: what is enqueued becomes part of a graph, and what would allocate breaks the capture.
    fn is_capturing(&self) -> bool;

    /// Puts a kernel's device code on the stream, as a part of the same op.
    ///
    /// # Safety
    /// As for [`Library::enqueue`], with the arguments of this kernel.
    ///
    /// # Errors
    /// What the driver said; then nothing was enqueued.
    unsafe fn launch(
        &self,
        kernel: &'static Kernel,
        config: LaunchConfig,
        args: &[Arg],
    ) -> Result<(), String>;
}

impl std::fmt::Debug for LibraryCall<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LibraryCall")
            .field("args", &self.args)
            .field("stream", &self.stream)
            .field("device", &self.device)
            .field("workspace", &self.workspace)
            .finish_non_exhaustive()
    }
}
