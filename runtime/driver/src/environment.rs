//! The environment variables that Warpline reads.
//!
//! Its crates read the environment here and nowhere else. `ci/files --check` finds code of a
//! library that reads it elsewhere, and compares the constants with the table in
//! `docs/guide/environment.md`.
//!
//! Each constant says when its variable is read. "For each runtime" means: when the runtime takes
//! its settings from the environment. Values of such variables are parsed, and refused, by the
//! crate that has the type of the setting.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

/// The name of an environment variable.
///
/// The functions differ in the treatment of an empty value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable(&'static str);

impl Variable {
    /// Returns the value, which may be empty.
    pub fn value(self) -> Option<OsString> {
        std::env::var_os(self.0)
    }

    /// Returns the value as text. A value that is empty or not Unicode counts as not set.
    pub fn text(self) -> Option<String> {
        text(self.value())
    }

    /// Returns the value as a path. An empty value counts as not set.
    pub fn path(self) -> Option<PathBuf> {
        path(self.value())
    }
}

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

fn text(value: Option<OsString>) -> Option<String> {
    value?.into_string().ok().filter(|text| !text.is_empty())
}

fn path(value: Option<OsString>) -> Option<PathBuf> {
    value.filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The mode of the order check. Read for each runtime.
pub const WARPLINE_ORDER: Variable = Variable("WARPLINE_ORDER");
/// The treatment of blocking calls in tasks. Read for each runtime.
pub const WARPLINE_SYNC: Variable = Variable("WARPLINE_SYNC");
/// The schedule of CPU devices. Read for each runtime.
pub const WARPLINE_SCHEDULE: Variable = Variable("WARPLINE_SCHEDULE");
/// The number of CPU devices. Read for each runtime.
pub const WARPLINE_CPU_DEVICES: Variable = Variable("WARPLINE_CPU_DEVICES");
/// The form of kernels that CPU devices run. Read for each runtime.
pub const WARPLINE_KERNELS: Variable = Variable("WARPLINE_KERNELS");
/// The checks of device code on CPU devices. Read for each runtime.
pub const WARPLINE_CHECK_KERNELS: Variable = Variable("WARPLINE_CHECK_KERNELS");
/// The wake-up mode of CUDA devices. Read for each runtime.
pub const WARPLINE_WAKE_UP: Variable = Variable("WARPLINE_WAKE_UP");
/// The way in which CUDA devices report progress. Read for each runtime.
pub const WARPLINE_COMPLETION: Variable = Variable("WARPLINE_COMPLETION");

/// `1` requests that each op is waited for. Read for each CPU device, and when the process opens a
/// CUDA device for the first time.
pub const CUDA_LAUNCH_BLOCKING: Variable = Variable("CUDA_LAUNCH_BLOCKING");
/// The CUDA devices to use. Read right before the NVIDIA driver is initialised, and later to report
/// a change.
pub const CUDA_VISIBLE_DEVICES: Variable = Variable("CUDA_VISIBLE_DEVICES");
/// The library of a profiler. Read once, before the first CUDA device is opened.
pub const NVTX_INJECTION64_PATH: Variable = Variable("NVTX_INJECTION64_PATH");
/// The folders in which the loader looks. Read once, for the error that there is no NVIDIA driver.
pub const LD_LIBRARY_PATH: Variable = Variable("LD_LIBRARY_PATH");

/// The cuBLAS to use, or `off`. Read once, when cuBLAS is looked up.
pub const WARPLINE_CUBLAS: Variable = Variable("WARPLINE_CUBLAS");
/// `1` allows TF32 in products. Read once, when the setting is needed and no call has made it.
pub const WARPLINE_ALLOW_TF32: Variable = Variable("WARPLINE_ALLOW_TF32");

/// The NVRTC to try first, a file or a folder. Read once, when NVRTC is looked up.
pub const WARPLINE_NVRTC: Variable = Variable("WARPLINE_NVRTC");
/// The folders of a program's own headers. Read at each compilation.
pub const WARPLINE_NVRTC_INCLUDE: Variable = Variable("WARPLINE_NVRTC_INCLUDE");
/// The architecture of sources for CPU devices. Read at each compilation for them.
pub const WARPLINE_NVRTC_ARCH: Variable = Variable("WARPLINE_NVRTC_ARCH");
/// The folder that keeps PTX. Read after each compilation.
pub const WARPLINE_KEEP_PTX: Variable = Variable("WARPLINE_KEEP_PTX");

/// The folder of a CUDA toolkit. Read when cuBLAS, NVRTC or the headers of NVRTC are looked up.
pub const CUDA_HOME: Variable = Variable("CUDA_HOME");
/// The folder of another CUDA toolkit. Read with `CUDA_HOME`.
pub const CUDA_PATH: Variable = Variable("CUDA_PATH");

/// Returns the folders of CUDA toolkits that `CUDA_HOME` and `CUDA_PATH` name.
pub fn toolkits() -> impl Iterator<Item = PathBuf> {
    [CUDA_HOME, CUDA_PATH].into_iter().filter_map(Variable::value).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_text_or_path_counts_as_not_set() {
        let read = |value: &str| (text(Some(value.into())), path(Some(value.into())));
        assert_eq!(read("1"), (Some("1".to_owned()), Some(PathBuf::from("1"))));
        assert_eq!(read(""), (None, None));
        assert_eq!((text(None), path(None)), (None, None));
    }

    #[test]
    #[cfg(unix)]
    fn a_text_that_is_no_unicode_counts_as_not_set_and_a_path_may_be_any_bytes() {
        use std::os::unix::ffi::OsStringExt;
        let value = OsString::from_vec(b"/cud\xff".to_vec());
        assert_eq!(text(Some(value.clone())), None);
        assert_eq!(path(Some(value.clone())), Some(PathBuf::from(value)));
    }
}
