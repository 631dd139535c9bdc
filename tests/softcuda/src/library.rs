//! Where the built libraries are, for tests of other crates.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A folder with `libcuda.so` and `libcuda.so.1`, to be put on `LD_LIBRARY_PATH` of a child process.
///
/// For tests and benchmarks of a package that has this one as a dev-dependency: cargo has then built the shared library
/// beside the running executable. The folder is made there if need be; processes that do so at once do not disturb each
/// other.
///
/// # Errors
/// If the library is not beside the executable, or the folder cannot be made.
pub fn library_dir() -> io::Result<PathBuf> {
    folder_of("libwarpline_softcuda.so", "softcuda", &["libcuda.so", "libcuda.so.1"])
}

/// A folder as a CUDA toolkit has it for linking, `stubs`, with a `libcuda.so` whose every call
/// answers `CUDA_ERROR_STUB_LIBRARY`.
///
/// # Errors
/// Returns a path under the rules of [`library_dir`].
pub fn stubs_dir() -> io::Result<PathBuf> {
    folder_of("libwarpline_softcuda.so", "stubs", &["libcuda.so"])
}

/// Returns whether this library was loaded from a folder of that name.
pub(crate) fn is_stub() -> bool {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr takes any address and writes what it knows of it.
    let known = unsafe { libc::dladdr(is_stub as *const libc::c_void, info.as_mut_ptr()) };
    // SAFETY: zeros are valid, and dladdr wrote the rest.
    let file = unsafe { info.assume_init() }.dli_fname;
    if known == 0 || file.is_null() {
        return false;
    }
    // SAFETY: `from_ptr` needs a string that lives: it is the loader's own.
    let file = unsafe { std::ffi::CStr::from_ptr(file) }.to_string_lossy();
    Path::new(&*file).parent().is_some_and(|folder| folder.ends_with("stubs"))
}

/// A stand-in's `libcublas.so.12`, in a folder of its own, likewise: for a package that has `warpline-softcublas` as a
/// dev-dependency.
///
/// # Errors
/// Returns a path under the rules of [`library_dir`].
pub fn cublas_library() -> io::Result<PathBuf> {
    const NAME: &str = "libcublas.so.12";
    Ok(folder_of("libwarpline_softcublas.so", "softcublas", &[NAME])?.join(NAME))
}

/// The folder of that name beside the built library `file`, where the library has these names.
fn folder_of(file: &str, folder: &str, names: &[&str]) -> io::Result<PathBuf> {
    let executable = std::env::current_exe()?;
    let folders: Vec<&Path> = executable.ancestors().skip(1).take(2).collect();
    let of_profile = folders.iter().flat_map(|folder| [folder.join("deps"), folder.to_path_buf()]);
    let library = of_profile.map(|folder| folder.join(file)).find(|path| path.exists());
    let Some(library) = library else {
        let places =
            folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(" nor ");
        let message = format!("{file} is neither in {places}; build it, or add a dev-dependency on it");
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    };
    let dir = library.with_file_name(folder);
    std::fs::create_dir_all(&dir)?;
    for name in names {
        link(&library, &dir.join(name))?;
    }
    Ok(dir)
}

/// Makes `place` a link to `library`, whatever it was and whoever else does so.
fn link(library: &Path, place: &Path) -> io::Result<()> {
    if std::fs::read_link(place).is_ok_and(|target| target == library) {
        return Ok(());
    }
    static LINKS: AtomicU32 = AtomicU32::new(0);
    // A name for each call: several threads of a process may be here at once.
    let name = format!("new-{}-{}", std::process::id(), LINKS.fetch_add(1, Relaxed));
    let fresh = place.with_extension(name);
    let _ = std::fs::remove_file(&fresh);
    symlink(library, &fresh)?;
    std::fs::rename(&fresh, place)
}
