//! The folders of the built libraries, for tests of other crates.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Returns a folder with `libcuda.so`, `libcuda.so.1` and `libnvidia-ml.so.1`, for
/// `LD_LIBRARY_PATH` of a child process.
///
/// For tests and benchmarks of a package with a dev-dependency on this one: cargo then builds the
/// shared library beside the running executable. The function creates the folder if it does not
/// exist. Several processes may do so at the same time.
///
/// # Errors
/// Fails if the library is not beside the executable, or if the folder or its links cannot be
/// created.
pub fn library_dir() -> io::Result<PathBuf> {
    folder_of("libwarpline_softcuda.so", "softcuda", &["libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"])
}

/// Returns a folder with a decoy `libcuda.so`, like the `stubs` folder of a CUDA toolkit.
///
/// Each driver call into that library returns `CUDA_ERROR_STUB_LIBRARY`.
///
/// # Errors
/// Fails under the conditions of [`library_dir`].
pub fn stubs_dir() -> io::Result<PathBuf> {
    folder_of("libwarpline_softcuda.so", "stubs", &["libcuda.so"])
}

/// Returns true if this library was loaded from a folder named `stubs`.
pub(crate) fn is_stub() -> bool {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `dladdr` accepts any address, and `info` has room for its answer.
    let known = unsafe { libc::dladdr(is_stub as *const libc::c_void, info.as_mut_ptr()) };
    // SAFETY: zeros are a valid `Dl_info`, as is the answer of `dladdr`.
    let file = unsafe { info.assume_init() }.dli_fname;
    if known == 0 || file.is_null() {
        return false;
    }
    // SAFETY: not null, so it is the loader's own string for this library, which stays loaded.
    let file = unsafe { std::ffi::CStr::from_ptr(file) }.to_string_lossy();
    Path::new(&*file).parent().is_some_and(|folder| folder.ends_with("stubs"))
}

/// Returns the path of a software stand-in for `libcublas.so.12`, in a folder of its own.
///
/// For a package with a dev-dependency on `warpline-softcublas`. The folder is created like that of
/// [`library_dir`].
///
/// # Errors
/// Fails under the conditions of [`library_dir`].
pub fn cublas_library() -> io::Result<PathBuf> {
    const NAME: &str = "libcublas.so.12";
    Ok(folder_of("libwarpline_softcublas.so", "softcublas", &[NAME])?.join(NAME))
}

/// Returns `folder` beside the built library `file`, with a link to the library for each name.
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

/// Makes `place` a link to `library` and replaces any file there. Several processes may do so at
/// the same time: the rename is atomic.
fn link(library: &Path, place: &Path) -> io::Result<()> {
    if std::fs::read_link(place).is_ok_and(|target| target == library) {
        return Ok(());
    }
    static LINKS: AtomicU32 = AtomicU32::new(0);
    // Unique for each call: several threads of the process may be here at the same time.
    let name = format!("new-{}-{}", std::process::id(), LINKS.fetch_add(1, Relaxed));
    let fresh = place.with_extension(name);
    let _ = std::fs::remove_file(&fresh);
    symlink(library, &fresh)?;
    std::fs::rename(&fresh, place)
}
