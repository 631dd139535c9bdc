//! Where libraries are loaded: the NVIDIA driver, NVRTC and what a profiler names.
//!
//! # Rules
//! 1. Every library is loaded by [`open`], and by nothing else in this driver: what has to happen
//!    behind a load has one place. cuBLAS is loaded by the crate of the kernels.
//! 2. Names with a version come before those without. The latter are a toolkit's, for linking, and
//!    in its folder `stubs` they name libraries whose functions only fail, while real drivers
//!    always have `libcuda.so.1` (libfabric #10365, tensorpipe #294, NVIDIA/warp #219). cudarc
//!    begins with `libcuda.so`, so the driver is not opened through it.
//! 3. The driver is opened once a process and never closed.

use libloading::Library;
use std::error::Error;
use std::ffi::{CStr, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The driver: by the only name that its packages promise.
#[cfg(not(windows))]
const DRIVER: &str = "libcuda.so.1";
#[cfg(windows)]
const DRIVER: &str = "nvcuda.dll";

/// Loads the library at `path`, or of that name where the loader looks.
///
/// # Errors
/// The loader's message, which names the file.
pub(crate) fn open(path: &Path) -> Result<Library, String> {
    // SAFETY: `Library::new` runs the library's initialisers: those of NVIDIA's libraries and of
    // what the environment names.
    let library = unsafe { Library::new(path) }.map_err(|error| why(&error));
    warpline_driver::process::end_before_the_libraries();
    library
}

/// The loader's message, which names the file or the symbol.
pub(crate) fn why(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The reason for which there is no driver library.
pub(crate) struct Missing {
    pub(crate) why: String,
    /// There is no file of that name. Else there is one that cannot be loaded.
    pub(crate) is_absent: bool,
}

/// The driver library, or why there is none.
pub(crate) fn driver() -> Result<&'static Library, &'static Missing> {
    static LIBRARY: OnceLock<Result<Library, Missing>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        open(Path::new(DRIVER)).map_err(|why| {
            // The words of glibc's loader. Where a library that this one needs is not there it names
            // that one.
            let is_absent =
                why.starts_with(&format!("{DRIVER}: cannot open shared object file: No such file"));
            Missing { why: not_found(&why), is_absent }
        })
    });
    library.as_ref()
}

#[cold]
fn not_found(why: &str) -> String {
    let path = match std::env::var("LD_LIBRARY_PATH") {
        Ok(path) if !path.is_empty() => format!("LD_LIBRARY_PATH, which is {path}"),
        _ => "LD_LIBRARY_PATH, which is not set".to_owned(),
    };
    format!(
        "no NVIDIA driver was found: looked for {DRIVER} where the loader looks, and in {path} ({why}); install the driver, or \
         add its folder to LD_LIBRARY_PATH"
    )
}

/// The driver's entry point of that name, if it has one.
///
/// # Safety
/// If the driver has it, it is of type `F`.
pub(crate) unsafe fn entry_point<F: Copy>(name: &str) -> Option<F> {
    // SAFETY: the caller vouches for the type; the library is never closed, so the pointer stays
    // good.
    unsafe { driver().ok()?.get::<F>(name.as_bytes()) }.ok().map(|symbol| *symbol)
}

/// The file that the driver was loaded from, where the system says.
pub(crate) fn driver_file() -> Option<PathBuf> {
    // SAFETY: the entry point is only looked at.
    let address = unsafe { entry_point::<*const c_void>("cuInit") }?;
    file_of(address)
}

#[cfg(unix)]
fn file_of(address: *const c_void) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr takes any address and writes what it knows of it.
    if unsafe { libc::dladdr(address, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: zeros are valid, and dladdr wrote the rest.
    let name = unsafe { info.assume_init() }.dli_fname;
    if name.is_null() {
        return None;
    }
    // SAFETY: `from_ptr` needs a string that lives: it is the loader's own, of a library that is
    // never closed.
    let name = unsafe { CStr::from_ptr(name) };
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())))
}

#[cfg(not(unix))]
fn file_of(_address: *const c_void) -> Option<PathBuf> {
    None
}
