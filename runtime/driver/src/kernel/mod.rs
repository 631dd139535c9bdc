//! What a kernel is: a name, typed parameters with access modes, device code, and its CPU form, the twin.
//!
//! The macro `kernel!` of the facade writes a [`Kernel`]. `Stream::launch` checks a call of it, and hands the kernel, the
//! configuration and the packed arguments to the driver.

mod config;
mod cuda_text;
pub(crate) mod device_code;
mod library;
mod ptx;

pub use config::LaunchConfig;
#[doc(hidden)]
pub use device_code::Compared;
pub use device_code::difference_in_ptx;
pub use library::{
    Library, LibraryAnswer, LibraryCall, LibraryDevice, LibraryDriver, LibraryHandle, LibraryProvider,
    NoHandle, Workspace, loaded_a_library,
};
pub use ptx::entry_params;
pub use ptx::{Target, head};
pub use warpline_order::AccessMode;

use crate::element::Element;
use smallvec::SmallVec;

/// One parameter of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// Its name in the declaration.
    pub name: &'static str,
    /// Its type.
    pub kind: ParamKind,
}

impl Param {
    /// A value of type `T`, of at most 8 bytes.
    pub const fn scalar<T: Element>(name: &'static str) -> Self {
        Param { name, kind: ParamKind::Scalar { element: T::NAME, bytes: size_of::<T>() } }
    }

    /// A slice of `T`, which the kernel accesses so.
    pub const fn slice<T: Element>(name: &'static str, access: AccessMode) -> Self {
        Param { name, kind: ParamKind::Slice { element: T::NAME, element_bytes: size_of::<T>(), access } }
    }
}

/// Formats the parameter as its declaration has it: `n: u32`, `x: &[f32]`, `write y: &mut [f32]`.
impl std::fmt::Display for Param {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.name;
        match self.kind {
            ParamKind::Scalar { element, .. } => write!(f, "{name}: {element}"),
            ParamKind::Slice { element, access, .. } => match access {
                AccessMode::Read => write!(f, "{name}: &[{element}]"),
                AccessMode::ReadWrite => write!(f, "{name}: &mut [{element}]"),
                AccessMode::Write => write!(f, "write {name}: &mut [{element}]"),
            },
        }
    }
}

/// What a parameter is.
#[derive(Clone, Copy, Debug)]
pub enum ParamKind {
    /// A value of `bytes` bytes (at most 8), passed as it is.
    Scalar {
        /// The type's name.
        element: &'static str,
        /// Its size.
        bytes: usize,
    },
    /// A contiguous run of device memory, passed as its address.
    Slice {
        /// The element type's name.
        element: &'static str,
        /// The size of one.
        element_bytes: usize,
        /// What the kernel does with it.
        access: AccessMode,
    },
}

/// Where a kernel's device code comes from.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// CUDA C++ text, compiled by NVRTC when it is first launched on a CUDA device.
    Cuda(&'static str),
    /// PTX text, which the driver compiles for its GPU when the kernel is first launched there:
    /// one, or one each for several targets, of which a device gets the newest that it runs.
    Ptx(&'static [&'static str]),
    /// A cubin or a fatbin: machine code for one or several generations of GPUs. Unlike PTX it is
    /// not compared with the declaration.
    Image(&'static [u8]),
    /// The CPU device only.
    None,
}

/// A kernel: what can be launched. Written by the macro `kernel!`.
pub struct Kernel {
    /// The name in device code, errors and traces.
    pub name: &'static str,
    /// Its parameters, in order.
    pub params: &'static [Param],
    /// Whether a written operand may be the very same range as another operand. Its twin takes cells.
    pub in_place: bool,
    /// Its device code.
    pub source: Source,
    /// What may do its work on a CUDA device in place of the device code.
    pub library: Option<&'static Library>,
    /// Its CPU form.
    pub twin: Twin,
    #[doc(hidden)]
    pub compared: &'static Compared,
}

/// The CPU form of a kernel.
///
/// # Safety
/// The arguments fit the kernel's parameters; each slice argument is valid for its length, for its access, while the twin
/// runs, and nobody else writes what it reads or touches what it writes.
pub type Twin = unsafe fn(&[Arg]);

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel")
            .field("name", &self.name)
            .field("params", &self.params)
            .finish_non_exhaustive()
    }
}

/// One packed argument: a scalar's bytes, or a slice's address and its length in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arg {
    /// The scalar in the bytes of lowest address, the rest zero; or the address.
    pub bits: u64,
    /// Elements of the slice; 0 for a scalar.
    pub len: u64,
}

impl Arg {
    /// A value.
    #[inline]
    pub fn scalar<T: Element>(value: T) -> Self {
        const { assert!(size_of::<T>() <= 8, "a scalar argument has at most 8 bytes") };
        let mut bits = [0; 8];
        bits[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
        Arg { bits: u64::from_ne_bytes(bits), len: 0 }
    }

    /// `len` elements from `address` on.
    #[inline]
    pub const fn slice(address: u64, len: usize) -> Self {
        Arg { bits: address, len: len as u64 }
    }

    /// The value that [`scalar`](Self::scalar) packed.
    #[inline]
    pub fn to_scalar<T: Element>(&self) -> T {
        const { assert!(size_of::<T>() <= 8, "a scalar argument has at most 8 bytes") };
        bytemuck::pod_read_unaligned(&self.bits.to_ne_bytes()[..size_of::<T>()])
    }
}

/// A launch's arguments. Six fit without an allocation.
pub type Args = SmallVec<[Arg; 6]>;
