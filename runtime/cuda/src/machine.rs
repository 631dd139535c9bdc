//! The GPUs of this machine, found without initialising CUDA.
//!
//! NVML says which there are, with their UUIDs. Where it cannot be loaded or does not start, the
//! files `/dev/nvidia0`, `/dev/nvidia1` … are counted. Neither makes CUDA unusable in a
//! forked child, as `cuInit` does.

use crate::loader;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::sync::OnceLock;

/// The file name of NVML, which NVIDIA's packages install beside `libcuda`.
#[cfg(not(windows))]
const NVML: &str = "libnvidia-ml.so.1";
#[cfg(windows)]
const NVML: &str = "nvml.dll";
/// The length that NVML's header gives for UUIDs (`NVML_DEVICE_UUID_V2_BUFFER_SIZE`).
const UUID_LEN: usize = 96;

/// The GPUs of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gpus {
    pub(crate) count: usize,
    /// Their UUIDs as `nvidia-smi` prints them, if they are known.
    pub(crate) uuids: Option<Vec<String>>,
}

/// Returns the GPUs of this machine. The first call asks.
pub(crate) fn gpus() -> &'static Gpus {
    static GPUS: OnceLock<Gpus> = OnceLock::new();
    GPUS.get_or_init(|| match by_nvml() {
        Some(uuids) => Gpus { count: uuids.len(), uuids: Some(uuids) },
        None => Gpus { count: files_in(Path::new("/dev")), uuids: None },
    })
}

/// Returns the UUIDs of the GPUs that NVML can use, or `None` if it does not answer.
fn by_nvml() -> Option<Vec<String>> {
    static LIBRARY: OnceLock<Option<libloading::Library>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| loader::open(Path::new(NVML)).ok()).as_ref()?;
    // SAFETY: this is the function's type in NVML's header.
    let init: unsafe extern "C" fn() -> c_int = unsafe { function(library, b"nvmlInit_v2") }?;
    // SAFETY: as above.
    let end: unsafe extern "C" fn() -> c_int = unsafe { function(library, b"nvmlShutdown") }?;
    // SAFETY: as above.
    let count: unsafe extern "C" fn(*mut c_uint) -> c_int =
        unsafe { function(library, b"nvmlDeviceGetCount_v2") }?;
    // SAFETY: as above.
    let handle: unsafe extern "C" fn(c_uint, *mut *mut c_void) -> c_int =
        unsafe { function(library, b"nvmlDeviceGetHandleByIndex_v2") }?;
    // SAFETY: as above.
    let uuid: unsafe extern "C" fn(*mut c_void, *mut c_char, c_uint) -> c_int =
        unsafe { function(library, b"nvmlDeviceGetUUID") }?;
    // SAFETY: nvmlInit_v2 may be called at any time, by several callers at once.
    if unsafe { init() } != 0 {
        return None;
    }
    let one = |index| {
        let mut device = std::ptr::null_mut();
        // SAFETY: nvmlDeviceGetHandleByIndex_v2 writes a handle.
        (unsafe { handle(index, &raw mut device) } == 0).then_some(())?;
        let mut text: [c_char; UUID_LEN] = [0; UUID_LEN];
        // SAFETY: nvmlDeviceGetUUID takes a handle and writes at most this many bytes.
        (unsafe { uuid(device, text.as_mut_ptr(), UUID_LEN as c_uint) } == 0).then_some(())?;
        text[UUID_LEN - 1] = 0;
        // SAFETY: the last byte is zero.
        Some(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    };
    let mut number = 0;
    // SAFETY: nvmlDeviceGetCount_v2 writes a number.
    let found = (unsafe { count(&raw mut number) } == 0).then(|| (0..number).filter_map(one).collect());
    // SAFETY: nvmlShutdown ends what nvmlInit_v2 began above.
    unsafe { end() };
    found
}

/// Returns the library's function of that name, if it exists.
///
/// # Safety
/// The type of the function is `F`, and the library is never closed.
unsafe fn function<F: Copy>(library: &libloading::Library, name: &[u8]) -> Option<F> {
    // SAFETY: the caller vouches for the type.
    Some(*unsafe { library.get::<F>(name) }.ok()?)
}

/// Counts the files `nvidia0`, `nvidia1` … in a folder.
fn files_in(folder: &Path) -> usize {
    let is_gpu = |name: &str| name.strip_prefix("nvidia").is_some_and(|number| number.parse::<u32>().is_ok());
    let Ok(files) = std::fs::read_dir(folder) else { return 0 };
    files.flatten().filter(|file| file.file_name().to_str().is_some_and(is_gpu)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_gpus_are_those_with_a_number() {
        let folder = std::env::temp_dir().join(format!("warpline-dev-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["nvidia0", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia", "tty1"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        assert_eq!(files_in(&folder), 2);
        assert_eq!(files_in(&folder.join("nothing")), 0);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
