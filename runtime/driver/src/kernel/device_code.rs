//! Compares a kernel's device code with its declaration.
//!
//! Called by the first launch of a kernel on any device, so that tests on the CPU device notice
//! device code that a GPU would refuse. Also called by the CUDA driver, which may load code without
//! a launch.

use super::cuda_text::difference_in_cuda;
use super::ptx::{entry_names, entry_params};
use super::{Kernel, ParamKind, Source};
use crate::error::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicBool, Ordering};

/// A note that a kernel's device code agrees with its declaration. Only [`kernel!`](crate::kernel!)
/// creates one.
///
/// It is not a field of [`Kernel`] itself, because constants may read the other fields.
#[doc(hidden)]
#[derive(Debug)]
pub struct Compared(AtomicBool);

impl Compared {
    #[doc(hidden)]
    pub const fn not_yet() -> Self {
        Compared(AtomicBool::new(false))
    }
}

/// Compares the device code of a kernel with its declaration, until it has agreed once.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) where they differ.
#[inline]
pub fn check_device_code(kernel: &Kernel) -> Result<()> {
    if kernel.compared.0.load(Ordering::Relaxed) { Ok(()) } else { compare_device_code(kernel) }
}

#[cold]
fn compare_device_code(kernel: &Kernel) -> Result<()> {
    let difference = match kernel.source {
        Source::Ptx { texts, .. } => texts.iter().find_map(|text| difference_in_ptx(kernel, text)),
        Source::Cuda(text) => difference_in_cuda(kernel, text),
        Source::Image(_) | Source::None => None,
    };
    match difference {
        Some(why) => Err(Error::new(ErrorKind::InvalidArgument, format!("{}: {why}", kernel.name))),
        None => {
            kernel.compared.0.store(true, Ordering::Relaxed);
            Ok(())
        }
    }
}

/// Compares the device code with the declaration. CUDA C++ is first compiled to PTX by `compile`,
/// which gets the kernel's name and text.
///
/// # Errors
/// `InvalidArgument` if they differ or there is no device code, `Unsupported` for an image, and the
/// errors of `compile`.
pub fn check_compiled(kernel: &Kernel, compile: impl FnOnce(&str, &str) -> Result<String>) -> Result<()> {
    let error = |kind, why: &str| Err(Error::new(kind, format!("{}: {why}", kernel.name)));
    match kernel.source {
        Source::Ptx { .. } => compare_device_code(kernel),
        Source::Cuda(text) => {
            // This comes first because it needs no compiler.
            compare_device_code(kernel)?;
            let ptx = compile(kernel.name, text)?;
            match difference_in_ptx(kernel, &ptx) {
                Some(why) => error(ErrorKind::InvalidArgument, &why),
                None => Ok(()),
            }
        }
        Source::Image(_) => error(
            ErrorKind::Unsupported,
            "its device code is an image, which does not describe its parameters; give the kernel \
             cuda or ptx",
        ),
        Source::None => {
            error(ErrorKind::InvalidArgument, "it has no device code to check; give it cuda or ptx")
        }
    }
}

/// Returns how the entry of `kernel` in this PTX differs from the declaration, and the remedy.
pub fn difference_in_ptx(kernel: &Kernel, ptx: &str) -> Option<String> {
    let name = kernel.name;
    let Some(declared) = entry_params(ptx, name) else {
        return Some(match &entry_names(ptx)[..] {
            [] => "its PTX has no entry; declare the kernel extern \"C\" and __global__".to_owned(),
            names if names.iter().any(|other| other == name) => {
                format!("the parameters of {name} in its PTX cannot be read; declare scalars and pointers")
            }
            names => format!(
                "its PTX has no entry {name}, only {}; give both the same name, and declare the one in device code extern \"C\"",
                names.join(", ")
            ),
        });
    };
    let ours: Vec<usize> = kernel.params.iter().map(|param| param.kind.bytes_on_device()).collect();
    (ours != declared).then(|| {
        format!(
            "its parameters have {ours:?} bytes in the declaration and {declared:?} in its PTX; \
             make the two agree"
        )
    })
}

impl ParamKind {
    /// Returns the size of the parameter in device code, where a slice is its address.
    pub const fn bytes_on_device(self) -> usize {
        match self {
            ParamKind::Scalar { bytes, .. } => bytes,
            ParamKind::Slice { .. } => 8,
        }
    }
}
