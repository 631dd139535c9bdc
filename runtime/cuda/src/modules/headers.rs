//! CUDA's headers, such as `cuda_fp16.h` and `cooperative_groups.h`, for sources that include
//! them.
//!
//! NVRTC carries few headers. A toolkit has the others next to its libraries, and so has the
//! Python package `nvidia-cuda-runtime-cu12`. Those of NVRTC's own release are preferred. Folders
//! of the user's own headers come first (`folders`).

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use warpline_driver::environment;

/// A header that each of these folders has.
const ONE: &str = "cuda_fp16.h";

/// Returns the folders of the headers that belong to a library, which has a function at
/// `function`.
pub(super) fn folders(function: *const c_void) -> Vec<PathBuf> {
    let homes = environment::toolkits().chain([PathBuf::from("/usr/local/cuda")]);
    let library = file_of(function);
    let Some(main) = candidates(library.as_deref(), homes).find(|folder| folder.join(ONE).is_file()) else {
        return Vec::new();
    };
    let rest = rest(&main).filter(|folder| folder.is_dir()).collect::<Vec<_>>();
    std::iter::once(main).chain(rest).collect()
}

/// Returns where the headers may be that those in [`ONE`]'s folder include: `crt/mma.h`, and the
/// library for C++. From CUDA 13 on that library has a folder of its own below `main`. With the
/// Python packages of CUDA 12, each package has one.
fn rest(main: &Path) -> impl Iterator<Item = PathBuf> {
    let packages = main.parent().and_then(Path::parent).map(Path::to_owned);
    let beside =
        ["cuda_nvcc", "cuda_cccl"].map(|package| Some(packages.as_ref()?.join(package).join("include")));
    std::iter::once(main.join("cccl")).chain(beside.into_iter().flatten())
}

fn candidates(library: Option<&Path>, homes: impl Iterator<Item = PathBuf>) -> impl Iterator<Item = PathBuf> {
    let above = library.and_then(Path::parent).and_then(Path::parent).map(Path::to_owned);
    // The Python packages of CUDA 12 have a folder each, with `lib` and `include`.
    let package = above.as_deref().and_then(Path::parent).map(|folder| folder.join("cuda_runtime"));
    above.into_iter().chain(package).chain(homes).map(|folder| folder.join("include"))
}

/// Returns the file of the library that has a function.
#[cfg(unix)]
fn file_of(function: *const c_void) -> Option<PathBuf> {
    use std::ffi::{CStr, OsStr};
    use std::os::unix::ffi::OsStrExt;
    let mut found = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: dladdr takes any address and writes a Dl_info.
    if unsafe { libc::dladdr(function, &raw mut found) } == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr returned the library's name, a string that lives as long as the library.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    std::fs::canonicalize(OsStr::from_bytes(name.to_bytes())).ok()
}

#[cfg(not(unix))]
fn file_of(_: *const c_void) -> Option<PathBuf> {
    None
}

/// Returns the way to install the headers, if a message of NVRTC says that it lacks one.
pub(super) fn remedy(log: &str, folders: &[PathBuf]) -> Option<String> {
    if !log.contains("open source file") {
        return None;
    }
    let paths: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
    Some(match paths.len() {
        1.. => format!(
            "headers were looked up in {}; list folders of your own in WARPLINE_NVRTC_INCLUDE; with Python's \
             packages, those of CUDA's compiler and library for C++ are in nvidia-cuda-nvcc-cu12 and \
             nvidia-cuda-cccl-cu12 (from CUDA 13 on nvidia-cuda-crt and nvidia-cuda-cccl)",
            paths.join(" and ")
        ),
        0 => "CUDA's headers were not found; install those of NVRTC's release (pip install \
                 nvidia-cuda-runtime-cu12, or a CUDA toolkit), or set CUDA_HOME to the toolkit"
            .to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_looked_up_beside_the_library_and_then_in_toolkits() {
        let of = |library: &str| {
            let homes = ["/opt/cuda"].map(PathBuf::from).into_iter();
            candidates(Some(Path::new(library)), homes).collect::<Vec<_>>()
        };
        let expected =
            ["/py/nvidia/cuda_nvrtc/include", "/py/nvidia/cuda_runtime/include", "/opt/cuda/include"];
        assert_eq!(of("/py/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"), expected.map(PathBuf::from));
        assert_eq!(of("/cuda-12.4/lib64/libnvrtc.so.12")[0], Path::new("/cuda-12.4/include"));
        assert_eq!(candidates(None, std::iter::empty()).count(), 0);
    }

    #[cfg(unix)]
    #[test]
    fn the_file_of_a_library_is_that_of_its_functions() {
        let file = file_of(libc::getpid as *const c_void).unwrap();
        assert!(file.to_str().unwrap().contains("libc"), "{}", file.display());
        assert_eq!(file_of(std::ptr::null()), None);
    }
}
