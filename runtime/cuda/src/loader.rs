//! The one place that loads libraries: CUDA, NVRTC, and what a profiler names.
//!
//! # Rules
//! 1. Every library is loaded by [`open`] and by nothing else in this crate, so that what has to
//!    happen after a load has one place. cuBLAS is loaded by the crate of the kernels.
//! 2. Names with a version come before names without. The latter belong to a toolkit, for linking.
//!    In the toolkit's folder `stubs` they name libraries whose functions only fail, while real
//!    drivers always have `libcuda.so.1` (libfabric #10365, tensorpipe #294, NVIDIA/warp #219).
//!    cudarc tries `libcuda.so` first, so CUDA is not opened through cudarc.
//! 3. CUDA is opened once per process and never closed.

use libloading::Library;
use std::error::Error;
use std::ffi::{CStr, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use warpline_driver::environment::LD_LIBRARY_PATH;

/// The file name of CUDA's library, the only name that its packages promise.
#[cfg(not(windows))]
const DRIVER: &str = "libcuda.so.1";
#[cfg(windows)]
const DRIVER: &str = "nvcuda.dll";

/// Loads the library at `path`, or the library of that name from where the system's loader looks.
///
/// # Errors
/// The loader's message, which names the file.
pub(crate) fn open(path: &Path) -> Result<Library, String> {
    // SAFETY: `Library::new` runs the library's initialisers: those of NVIDIA's libraries and of
    // libraries that the environment names.
    let library = unsafe { Library::new(path) }.map_err(|error| why(&error));
    warpline_driver::process::end_before_the_libraries();
    library
}

/// Returns the loader's message, which names the file or the symbol.
pub(crate) fn why(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The reason why there is no library of CUDA.
pub(crate) struct Missing {
    pub(crate) why: String,
    /// True if there is no file of that name. Otherwise there is a file that cannot be loaded.
    pub(crate) is_absent: bool,
}

/// Returns the library, or the reason why there is none.
pub(crate) fn driver() -> Result<&'static Library, &'static Missing> {
    static LIBRARY: OnceLock<Result<Library, Missing>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        open(Path::new(DRIVER)).map_err(|why| {
            // The wording of glibc's loader. If a library that this one needs is missing, the
            // message names that library instead.
            let is_absent =
                why.starts_with(&format!("{DRIVER}: cannot open shared object file: No such file"));
            Missing { why: not_found(&why), is_absent }
        })
    });
    library.as_ref()
}

#[cold]
fn not_found(why: &str) -> String {
    let path = match LD_LIBRARY_PATH.text() {
        Some(path) => format!("{LD_LIBRARY_PATH}, which is {path}"),
        None => format!("{LD_LIBRARY_PATH}, which is not set"),
    };
    format!(
        "no NVIDIA driver was found: looked for {DRIVER} where the loader looks, and in {path} ({why}); install the driver, or \
         add its folder to {LD_LIBRARY_PATH}"
    )
}

/// Returns CUDA's entry point of that name, if it exists.
///
/// # Safety
/// If CUDA has the entry point, its type is `F`.
pub(crate) unsafe fn entry_point<F: Copy>(name: &str) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*const c_void>(), "an entry point is a pointer") };
    let address = address_of(name)?;
    // SAFETY: transmute_copy needs a source of the same size whose bits are an `F`: the size is
    // checked above, the caller vouches for the type, and the library is never closed.
    Some(unsafe { std::mem::transmute_copy(&address) })
}

/// Returns the address of CUDA's entry point of that name, if it exists. The search is
/// compiled once, not for the type of each entry point.
fn address_of(name: &str) -> Option<*const c_void> {
    // SAFETY: `get` needs the type of the symbol: any symbol has an address, and nothing more is
    // used here.
    unsafe { driver().ok()?.get::<*const c_void>(name.as_bytes()) }.ok().map(|symbol| *symbol)
}

/// Returns the file that CUDA was loaded from, where the system reports it.
pub(crate) fn driver_file() -> Option<PathBuf> {
    file_of(address_of("cuInit")?)
}

#[cfg(unix)]
fn file_of(address: *const c_void) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr takes any address and writes what it knows about it.
    if unsafe { libc::dladdr(address, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: zeros are valid, and dladdr wrote the rest.
    let name = unsafe { info.assume_init() }.dli_fname;
    if name.is_null() {
        return None;
    }
    // SAFETY: `from_ptr` needs a live string: it is the loader's own, of a library that is never
    // closed.
    let name = unsafe { CStr::from_ptr(name) };
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())))
}

#[cfg(not(unix))]
fn file_of(_address: *const c_void) -> Option<PathBuf> {
    None
}
