//! The parts of a kernel: a name, typed parameters with access modes, device code, and a CPU form,
//! the *twin*.
//!
//! The [`kernel!`](crate::kernel!) macro writes a [`Kernel`] and a function that makes a
//! [`KernelCall`] from operands and scalars. `Stream::launch` checks the call and passes the
//! kernel, the configuration and the packed arguments to the driver.
//!
//! A twin with milliseconds of work may divide it among the [`TwinThreads`] of its device.
//!
//! The types whose names begin with `Library`, and [`NoHandle`] and [`Workspace`], are for authors
//! of kernels that call a library. They are unstable and may change in any release.

mod call;
mod macros;

pub use crate::shared::{Elements, IntoOperand, Operand};
pub use call::KernelCall;
#[doc(hidden)]
pub use macros::expansion as __private;
#[doc(hidden)]
pub use warpline_driver::kernel::Compared;
pub use warpline_driver::kernel::{
    AccessMode, Arg, Args, EnteredTwinThreads, Kernel, LaunchConfig, Library, LibraryAnswer, LibraryCall,
    LibraryDevice, LibraryDriver, LibraryHandle, LibraryProvider, NoHandle, Param, ParamKind, Source, Twin,
    TwinThreads, Workspace, entry_params, loaded_a_library,
};
