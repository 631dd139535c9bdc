//! Libraries (`CUlibrary`) and their kernels (`CUkernel`), which belong to no context.
//!
//! A library is loaded into a context on first use there, as CUDA does with `CUDA_MODULE_LOADING`
//! set to `LAZY`: from then on, the context has a module of it.

use crate::abi::{CUfunction, CUkernel, CUlibrary, CUmodule};
use crate::context;
use crate::errors::{Code, Outcome, refuse};
use crate::module::{self, Image};
use crate::slab::Slab;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::CString;

struct Library {
    image: Image,
    /// The module of each context, by the index of the context. A context that was destroyed has
    /// unloaded its module.
    modules: Mutex<BTreeMap<u32, CUmodule>>,
    kernels: Mutex<BTreeMap<String, u64>>,
}

/// A kernel of a library.
pub(crate) struct LibraryKernel {
    pub(crate) library: CUlibrary,
    pub(crate) name: CString,
}

static LIBRARIES: Slab<Library> = Slab::new(11);
static KERNELS: Slab<LibraryKernel> = Slab::new(KERNEL);
/// The kind in the handles of kernels.
const KERNEL: u8 = 12;

/// Loads a library. Needs no context.
pub(crate) fn load(image: Image) -> Outcome<CUlibrary> {
    image.check()?;
    let library = Library { image, modules: Mutex::default(), kernels: Mutex::default() };
    let (index, _) = LIBRARIES.take(|_| library);
    Ok(CUlibrary(LIBRARIES.publish(index)))
}

fn known(handle: CUlibrary) -> Outcome<&'static Library> {
    match LIBRARIES.get(handle.0) {
        Some(library) => Ok(library),
        None => refuse!(INVALID_HANDLE, "the library is {}", LIBRARIES.what_is(handle.0)),
    }
}

/// Unloads a library from all contexts, once their work has finished.
pub(crate) fn unload(handle: CUlibrary) -> Outcome {
    let library = known(handle)?;
    crate::capture::refuse_unsafe()?;
    if LIBRARIES.revoke(handle.0).is_none() {
        refuse!(INVALID_HANDLE, "the library is destroyed");
    }
    for kernel in library.kernels.lock().values() {
        KERNELS.revoke(*kernel);
    }
    let modules = std::mem::take(&mut *library.modules.lock());
    modules
        .into_values()
        .filter(|module| module::is_loaded(*module))
        .try_for_each(module::unload_from_its_context)
}

/// Returns the module of a library in the current context, and loads it on first use.
pub(crate) fn module_of(handle: CUlibrary) -> Outcome<CUmodule> {
    let library = known(handle)?;
    let context = context::current()?;
    let mut modules = library.modules.lock();
    if let Some(module) = modules.get(&context.index).filter(|module| module::is_loaded(**module)) {
        return Ok(*module);
    }
    let module = module::load(&library.image)?;
    modules.insert(context.index, module);
    Ok(module)
}

/// Returns the names of a library's kernels, in alphabetical order.
pub(crate) fn names(handle: CUlibrary) -> Outcome<Vec<String>> {
    match &known(handle)?.image {
        Image::Text(text) => Ok(module::checked(text)?.1.entries.into_keys().collect()),
        Image::Binary => {
            refuse!(NOT_SUPPORTED, "this driver does not read images, so their kernels are unknown")
        }
    }
}

/// Returns the kernel with a name: the same handle each time.
pub(crate) fn kernel(handle: CUlibrary, name: &str) -> Outcome<CUkernel> {
    let library = known(handle)?;
    if let Image::Text(_) = library.image
        && !names(handle)?.iter().any(|known| known == name)
    {
        return Err(Code::NOT_FOUND.into());
    }
    let mut kernels = library.kernels.lock();
    if let Some(known) = kernels.get(name) {
        return Ok(CUkernel(*known));
    }
    let c_name = CString::new(name).map_err(|_| Code::INVALID_VALUE)?;
    let (index, _) = KERNELS.take(|_| LibraryKernel { library: handle, name: c_name });
    let kernel = KERNELS.publish(index);
    kernels.insert(name.to_owned(), kernel);
    Ok(CUkernel(kernel))
}

/// Returns the kernel that a handle names.
pub(crate) fn known_kernel(handle: CUkernel) -> Outcome<&'static LibraryKernel> {
    match KERNELS.get(handle.0) {
        Some(kernel) => Ok(kernel),
        None => refuse!(INVALID_HANDLE, "the kernel is {}", KERNELS.what_is(handle.0)),
    }
}

/// Returns the function of a kernel in the current context; none if the handle is not a kernel's.
pub(crate) fn function_of(handle: CUkernel) -> Outcome<Option<CUfunction>> {
    if (handle.0 >> 56) as u8 != KERNEL {
        return Ok(None);
    }
    let kernel = known_kernel(handle)?;
    let module = module_of(kernel.library)?;
    module::get_function(module, &kernel.name.to_string_lossy()).map(Some)
}
