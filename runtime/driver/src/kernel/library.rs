//! The library form of a kernel: what may do its work on a CUDA device in place of its device code.
//!
//! A kernel names a [`Library`] in its declaration; a CUDA device asks it first at every launch. It is data and functions, with
//! nothing of one launch in it, so that a launch can be enqueued any number of times, on any stream. The CPU device runs twins and
//! never asks.

use super::{Arg, Kernel, LaunchConfig};
use crate::device_ptr::DevicePtr;
use std::ffi::c_void;

/// A library that may do a kernel's work on a CUDA device.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// The library itself, which several kernels may share.
    pub provider: &'static LibraryProvider,
    /// Enqueues the work of one launch on its stream, or leaves it to the kernel's device code.
    ///
    /// Called with the stream's turn held, like the driver: it takes no lock that is held while others wait, and tells nobody.
    ///
    /// # Safety
    /// The arguments fit the kernel's parameters, and what they name is valid, for the access that
    /// its declaration says, for work that is enqueued on the call's stream now. The stream lives
    /// and belongs to the device's primary context, which is current. The handle, if there is one,
    /// is of the kernel's provider and that context, and no other call has it. The workspace is
    /// used by nothing else before the enqueued work has run.
    pub enqueue: unsafe fn(&LibraryCall<'_>) -> LibraryAnswer,
    /// The kernels that `enqueue` launches besides, which are loaded with this one.
    pub kernels: &'static [&'static Kernel],
}

/// The part of a library that its kernels share: handles, and memory to work in.
///
/// The runtime decides when handles are made and destroyed, and which call has one.
#[derive(Clone, Copy, Debug)]
pub struct LibraryProvider {
    /// Returns how many bytes of device memory a call works in at best, given the device and its
    /// compute capability; 0 if the library is not used there. An error fails each op that asks for
    /// the library.
    pub workspace_bytes: fn(LibraryDevice, (u32, u32)) -> Result<usize, String>,
    /// The bytes that a call works in at least: what it gets where memory is short.
    pub least_workspace_bytes: usize,
    /// Makes a handle on a device that the library is used on, whose primary context is current.
    /// May take milliseconds, allocate device memory and wait for the device.
    pub make: fn(LibraryDevice) -> Result<LibraryHandle, NoHandle>,
    /// Destroys a handle. May wait for the device.
    ///
    /// # Safety
    /// The handle was made by `make`, its context is current, and nobody uses it again.
    pub destroy: unsafe fn(LibraryHandle),
}

/// A handle that a library's calls are made with, such as a `cublasHandle_t`. One call at a time
/// has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LibraryHandle(pub *mut c_void);

// SAFETY: a number here. `LibraryProvider::make` gives handles that any thread may use, one at a
// time.
unsafe impl Send for LibraryHandle {}

/// The reason for which a handle was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoHandle {
    /// There may have been too little device memory for it. With more it may work.
    NoMemory,
    /// The library's answer, which it gives where there is too little device memory and for other
    /// reasons. It counts as the first until it comes again, with 256 MiB of the device free.
    PerhapsNoMemory(String),
    /// The library cannot be used, for this reason.
    Failed(String),
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
        /// True if the program's operator should hear of it: a library was not found, say. At most
        /// once a process and reason.
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
    /// A handle of the library for this call. None where it is not used, and where none was free
    /// and none could be made.
    pub handle: Option<LibraryHandle>,
    /// Device memory for this call to work in: in a graph memory of the graph's, else of the op's.
    /// None where the library is not used, and where there was not enough memory.
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

/// What the driver does for a library in the middle of a launch.
pub trait LibraryDriver {
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
            .field("handle", &self.handle)
            .field("workspace", &self.workspace)
            .finish_non_exhaustive()
    }
}

/// Keeps threads of the runtime out of the driver before a library that was just loaded tears
/// itself down at exit. To be called after each load.
pub fn loaded_a_library() {
    crate::process::end_before_the_libraries();
}
