//! CUDA version numbers, and the check for the oldest supported driver.
//!
//! The kernels of this project come as PTX 8.0, which drivers for CUDA 12.0 load. An older driver
//! would open devices and then refuse every kernel. Users' own code may need more
//! (`modules/requirements.rs`).

use std::ffi::c_int;

/// The CUDA version of the oldest supported driver, and the first driver branch that has it (CUDA
/// Toolkit Release Notes, "CUDA Toolkit and Corresponding Driver Versions").
const DRIVER: (c_int, u32) = (12_000, 525);
/// Returns the text of a CUDA version number: `13.1` for 13010.
pub(crate) fn cuda_version(number: c_int) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// Refuses a driver for a CUDA version before 12.0. A driver that does not report its version,
/// which is 0 then, is accepted.
pub(crate) fn check_driver(version: c_int) -> Result<(), String> {
    let (oldest, branch) = DRIVER;
    if version == 0 || version >= oldest {
        return Ok(());
    }
    Err(format!(
        "the NVIDIA driver is for CUDA {}; Warpline needs one for CUDA {} ({branch}) or newer; update it",
        cuda_version(version),
        cuda_version(oldest)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_from_525_on_are_taken() {
        assert_eq!([0, 12_000, 13_010].map(check_driver), [const { Ok(()) }; 3]);
        let text =
            "the NVIDIA driver is for CUDA 11.8; Warpline needs one for CUDA 12.0 (525) or newer; update it";
        assert_eq!(check_driver(11_080), Err(text.to_owned()));
    }
}
