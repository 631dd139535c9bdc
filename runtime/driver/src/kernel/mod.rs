//! The description of a kernel: a name, typed parameters with access modes, device code, and
//! perhaps a CPU form, the twin.
//!
//! The macro `kernel!` of the facade writes a [`Kernel`]. `Stream::launch` checks a launch of it,
//! and passes the kernel, the configuration and the packed arguments to the driver.

mod config;
mod cuda_text;
pub(crate) mod device_code;
mod library;
mod ptx;
mod twin_threads;

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
pub use twin_threads::{EnteredTwinThreads, TwinThreads};
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
    /// Describes a scalar of type `T`, of at most 8 bytes.
    pub const fn scalar<T: Element>(name: &'static str) -> Self {
        Param { name, kind: ParamKind::Scalar { element: T::NAME, bytes: size_of::<T>() } }
    }

    /// Describes a slice of `T`, which the kernel accesses in the mode `access`.
    pub const fn slice<T: Element>(name: &'static str, access: AccessMode) -> Self {
        Param { name, kind: ParamKind::Slice { element: T::NAME, element_bytes: size_of::<T>(), access } }
    }
}

/// Formats the parameter as in its declaration: `n: u32`, `x: &[f32]`, `write y: &mut [f32]`.
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

/// The kind of a parameter.
#[derive(Clone, Copy, Debug)]
pub enum ParamKind {
    /// A value of `bytes` bytes (at most 8), passed by value.
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
        /// The size of one element.
        element_bytes: usize,
        /// The access mode of the kernel.
        access: AccessMode,
    },
}

/// The source of a kernel's device code.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// CUDA C++ text, which NVRTC compiles when the kernel is first launched on a CUDA device.
    Cuda(&'static str),
    /// PTX text, which the driver compiles for its GPU when the kernel is first launched there.
    Ptx {
        /// One text, or one each for several targets. Each device gets the text with the newest
        /// target that it supports.
        texts: &'static [&'static str],
        /// True if the texts also assemble for `sm_60`. A GPU of Pascal that supports none of their
        /// targets then gets the first one, with `sm_60` in place of its target.
        from_sm_60: bool,
    },
    /// A cubin or a fatbin: machine code for one or several generations of GPUs. Unlike PTX, it is
    /// not compared with the declaration.
    Image(&'static [u8]),
    /// No device code: the kernel has only a CPU form, and runs on CPU devices only.
    None,
}

/// The description of a kernel. The macro `kernel!` writes it.
pub struct Kernel {
    /// The name in device code, errors and traces.
    pub name: &'static str,
    /// Its parameters, in order.
    pub params: &'static [Param],
    /// True if a written operand may be exactly the same memory as another operand. The twin then
    /// takes `Cell`s.
    pub in_place: bool,
    /// Its device code.
    pub source: Source,
    /// The library that may do the kernel's work on a CUDA device in place of the device code.
    pub library: Option<&'static Library>,
    /// Its CPU form. Without one, CPU devices run its device code.
    pub twin: Option<Twin>,
    /// The largest difference between the results of the CPU form and the device code, as a
    /// fraction of the largest value of the operand. With 0, they have the same bits.
    pub tolerance: f64,
    #[doc(hidden)]
    pub compared: &'static Compared,
}

/// The CPU form of a kernel.
///
/// # Safety
/// The arguments fit the kernel's parameters. Each slice argument is valid for its length and its
/// access while the twin runs. Meanwhile nothing else writes memory that the twin reads, or touches
/// memory that it writes.
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
    /// The scalar in the bytes of lowest address, with the rest zero; or the address.
    pub bits: u64,
    /// The number of elements of the slice; 0 for a scalar.
    pub len: u64,
}

impl Arg {
    /// Packs a value.
    #[inline]
    pub fn scalar<T: Element>(value: T) -> Self {
        const { assert!(size_of::<T>() <= 8, "a scalar argument has at most 8 bytes") };
        let mut bits = [0; 8];
        bits[..size_of::<T>()].copy_from_slice(value.as_bytes());
        Arg { bits: u64::from_ne_bytes(bits), len: 0 }
    }

    /// Packs a slice of `len` elements at `address`.
    #[inline]
    pub const fn slice(address: u64, len: usize) -> Self {
        Arg { bits: address, len: len as u64 }
    }

    /// Returns the value that [`scalar`](Self::scalar) packed.
    #[inline]
    pub fn to_scalar<T: Element>(&self) -> T {
        const { assert!(size_of::<T>() <= 8, "a scalar argument has at most 8 bytes") };
        T::read_from_prefix(&self.bits.to_ne_bytes()).expect("8 bytes are enough").0
    }
}

/// The arguments of a launch. Six fit without an allocation.
pub type Args = SmallVec<[Arg; 6]>;
