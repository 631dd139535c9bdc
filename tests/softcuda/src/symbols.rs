//! The lookup of entry points by base name and CUDA version, for `cuGetProcAddress`.

use crate::entries::Entry;
use std::ffi::c_void;

/// The CUDA version that introduced each entry point whose name or whose older form has a suffix
/// (`cudaTypedefs.h` of CUDA 12.9). The other entry points count as old as the oldest version.
const INTRODUCED: &[(&str, i32)] = &[
    ("cuCtxCreate_v2", 3020),
    ("cuCtxCreate_v3", 11040),
    ("cuCtxCreate_v4", 12050),
    ("cuCtxDestroy_v2", 4000),
    ("cuCtxPopCurrent_v2", 4000),
    ("cuCtxPushCurrent_v2", 4000),
    ("cuDeviceGetUuid", 9020),
    ("cuDeviceGetUuid_v2", 11040),
    ("cuDevicePrimaryCtxRelease_v2", 11000),
    ("cuDevicePrimaryCtxReset_v2", 11000),
    ("cuDevicePrimaryCtxSetFlags_v2", 11000),
    ("cuDeviceTotalMem_v2", 3020),
    ("cuEventDestroy_v2", 4000),
    ("cuEventElapsedTime", 2000),
    ("cuEventElapsedTime_v2", 12080),
    ("cuGetProcAddress", 11030),
    ("cuGetProcAddress_v2", 12000),
    ("cuGraphExecUpdate_v2", 12000),
    ("cuLinkAddData_v2", 6050),
    ("cuLinkAddFile_v2", 6050),
    ("cuLinkCreate_v2", 6050),
    ("cuMemAdvise", 8000),
    ("cuMemAdvise_v2", 12020),
    ("cuMemAllocHost_v2", 3020),
    ("cuMemAlloc_v2", 3020),
    ("cuMemFree_v2", 3020),
    ("cuMemGetAddressRange_v2", 3020),
    ("cuMemGetInfo_v2", 3020),
    ("cuMemHostGetDevicePointer_v2", 3020),
    ("cuMemHostRegister_v2", 6050),
    ("cuMemPrefetchAsync", 8000),
    ("cuMemPrefetchAsync_v2", 12020),
    ("cuMemcpy2DAsync_v2", 3020),
    ("cuMemcpyDtoDAsync_v2", 3020),
    ("cuMemcpyDtoD_v2", 3020),
    ("cuMemcpyDtoHAsync_v2", 3020),
    ("cuMemcpyDtoH_v2", 3020),
    ("cuMemcpyHtoDAsync_v2", 3020),
    ("cuMemcpyHtoD_v2", 3020),
    ("cuMemsetD16_v2", 3020),
    ("cuMemsetD32_v2", 3020),
    ("cuMemsetD8_v2", 3020),
    ("cuModuleGetGlobal_v2", 3020),
    ("cuStreamBeginCapture_v2", 10010),
    ("cuStreamDestroy_v2", 4000),
    ("cuStreamGetCaptureInfo_v2", 11030),
    ("cuStreamWaitValue32", 8000),
    ("cuStreamWaitValue32_v2", 11070),
    ("cuStreamWaitValue64", 9000),
    ("cuStreamWaitValue64_v2", 11070),
    ("cuStreamWriteValue32", 8000),
    ("cuStreamWriteValue32_v2", 11070),
    ("cuStreamWriteValue64", 9000),
    ("cuStreamWriteValue64_v2", 11070),
];

/// The outcome of a lookup.
#[derive(Debug, PartialEq)]
pub(crate) enum Found {
    Address(*const c_void),
    /// Each form of the entry point is newer than the version.
    Newer,
    Missing,
}

/// Returns the newest form of an entry point that `version` of CUDA has.
pub(crate) fn find(base: &str, version: i32) -> Found {
    let mut found = Found::Missing;
    for suffix in ["", "_v2", "_v3", "_v4"] {
        let name = format!("{base}{suffix}");
        let Some(address) = Entry::address_of(&name) else { continue };
        let introduced = INTRODUCED.iter().find(|(known, _)| *known == name);
        if introduced.is_none_or(|(_, introduced)| *introduced <= version) {
            found = Found::Address(address);
        } else if found == Found::Missing {
            found = Found::Newer;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entries::NAMES;

    #[test]
    fn a_lookup_returns_the_form_of_the_version() {
        let exactly = |name: &str| Found::Address(Entry::address_of(name).unwrap());
        assert_eq!(find("cuCtxCreate", 12080), exactly("cuCtxCreate_v4"));
        assert_eq!(find("cuCtxCreate", 11040), exactly("cuCtxCreate_v3"));
        assert_eq!(find("cuCtxCreate", 3020), exactly("cuCtxCreate_v2"));
        assert_eq!(find("cuCtxCreate", 2000), Found::Newer);
        assert_eq!(find("cuMemAdvise", 12010), exactly("cuMemAdvise"));
        assert_eq!(find("cuInit", 2000), exactly("cuInit"));
        assert_eq!(find("cuNothing", 12000), Found::Missing);
    }

    #[test]
    fn each_name_with_a_suffix_has_a_version() {
        let is_listed = |name: &str| INTRODUCED.iter().any(|(known, _)| *known == name);
        for name in NAMES.iter().filter(|name| name.contains("_v")) {
            let base = name.rsplit_once("_v").unwrap().0;
            assert!(is_listed(name), "{name}");
            assert!(Entry::address_of(base).is_none() || is_listed(base), "{base}");
        }
        for (name, _) in INTRODUCED {
            assert!(NAMES.contains(name), "there is no {name}");
        }
    }
}
