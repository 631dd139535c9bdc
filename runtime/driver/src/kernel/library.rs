//! The library form of a kernel, which may do its work on a CUDA device in place of its device
//! code.
//!
//! A kernel names a [`Library`] in its declaration. A CUDA device asks the library first at every
//! launch. A `Library` is data and functions, without any state of a launch. A launch can therefore
//! be enqueued any number of times, on any stream. The CPU device runs twins and never asks a
//! library.

use super::{Arg, Kernel, LaunchConfig};
use crate::device_ptr::DevicePtr;
use std::ffi::c_void;

/// A library that may do a kernel's work on a CUDA device.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// The part of the library that several kernels may share.
    pub provider: &'static LibraryProvider,
    /// Enqueues the work of one launch on its stream, or leaves it to the kernel's device code.
    ///
    /// It is called while the caller holds the stream's lock. It must not take a lock that other
    /// threads may hold while they wait, and must not emit `tracing` events.
    ///
    /// # Safety
    /// The arguments fit the kernel's parameters. The memory that they name is valid, for the
    /// declared access, for work that is enqueued on the call's stream now. The stream lives and
    /// belongs to the device's primary context, which is current. The handle, if there is one,
    /// belongs to the kernel's provider and that context, and no other call has it. Nothing else
    /// uses the workspace before the enqueued work has run.
    pub enqueue: unsafe fn(&LibraryCall<'_>) -> LibraryAnswer,
    /// The additional kernels that `enqueue` launches. They are loaded with this one.
    pub kernels: &'static [&'static Kernel],
}

/// The part of a library that its kernels share: handles and workspaces.
///
/// The runtime decides when handles are created and destroyed, and which call gets one.
#[derive(Clone, Copy, Debug)]
pub struct LibraryProvider {
    /// Returns the best workspace size of a call in bytes, given the device and its compute
    /// capability. Returns 0 if the library is not used there. An error fails each op that asks for
    /// the library.
    pub workspace_bytes: fn(LibraryDevice, (u32, u32)) -> Result<usize, String>,
    /// The smallest workspace of a call in bytes, which a call gets if memory is short.
    pub least_workspace_bytes: usize,
    /// Creates a handle on a device that the library is used on, whose primary context is current.
    /// May take milliseconds, allocate device memory and wait for the device.
    pub make: fn(LibraryDevice) -> Result<LibraryHandle, NoHandle>,
    /// Destroys a handle. May wait for the device.
    ///
    /// # Safety
    /// The handle was created by `make`, its context is current, and it is not used again.
    pub destroy: unsafe fn(LibraryHandle),
}

/// A handle for a library's calls, such as a `cublasHandle_t`. One call at a time uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LibraryHandle(pub *mut c_void);

// SAFETY: here it is only a number. `LibraryProvider::make` returns handles that any thread may
// use, one thread at a time.
unsafe impl Send for LibraryHandle {}

/// The reason why a handle was not created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoHandle {
    /// There was perhaps too little device memory. With more memory, creating a handle may succeed.
    NoMemory,
    /// The library failed with an error that can mean too little device memory, but also something
    /// else. It counts as `NoMemory` until it occurs again while 256 MiB of the device are free.
    PerhapsNoMemory(String),
    /// The library cannot be used. The text is the reason.
    Failed(String),
}

/// The result of asking a [`Library`] for a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LibraryAnswer {
    /// The work is on the stream. The text names the code that runs, for traces.
    Enqueued(&'static str),
    /// Nothing is on the stream; the kernel's device code is to run.
    Declined {
        /// The reason, for traces.
        because: &'static str,
        /// True if the reason should be logged, for example because a library was not found. It is
        /// reported at most once per process and reason.
        is_news: bool,
    },
    /// The op fails.
    Failed {
        /// The library's error, in the words of an error message.
        why: String,
        /// True if some of the work may be on the stream nevertheless.
        halfway: bool,
    },
}

/// One launch, as a [`Library`] sees it.
#[derive(Clone, Copy)]
pub struct LibraryCall<'a> {
    /// One for each of the kernel's parameters.
    pub args: &'a [Arg],
    /// The `CUstream`. One caller at a time uses it.
    pub stream: *mut c_void,
    /// The device of the stream.
    pub device: LibraryDevice,
    /// A handle of the library for this call. `None` if the library is not used, or if no handle
    /// was free and none could be created.
    pub handle: Option<LibraryHandle>,
    /// A workspace for this call. In a graph it belongs to the graph, otherwise to the op. `None`
    /// if the library is not used, or if there was not enough memory.
    pub workspace: Option<Workspace>,
    /// The functions that the driver offers to a library.
    pub driver: &'a dyn LibraryDriver,
}

/// Device memory for a library to work in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workspace {
    /// The address, a multiple of 512.
    pub ptr: DevicePtr,
    /// The size in bytes.
    pub len_bytes: usize,
}

/// A device, as a [`Library`] sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LibraryDevice {
    /// The device's ordinal. The device's primary context is used.
    pub ordinal: u32,
    /// The CUDA version of the driver library, as `cuDriverGetVersion` returns it: 13010 is 13.1.
    /// It is 0 if that call fails.
    pub driver_version: i32,
    /// True if the software CUDA driver replaces the real one. It runs no device code, and no
    /// library's either.
    pub is_software: bool,
}

/// The functions that the driver offers to a library during a launch.
pub trait LibraryDriver {
    /// Puts a kernel's device code on the stream, as a part of the same op.
    ///
    /// # Safety
    /// The rules of [`Library::enqueue`] apply, with the arguments of this kernel.
    ///
    /// # Errors
    /// The driver's error. Nothing was enqueued then.
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

/// Makes the runtime's exit handler run before that of a library that was just loaded, so that no
/// thread of the runtime calls the driver while the library tears itself down. Call it after each
/// load of a library.
pub fn loaded_a_library() {
    crate::process::end_before_the_libraries();
}
