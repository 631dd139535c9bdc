//! Devices: how many are visible, in which order, and their attributes.

use crate::raw::*;
use crate::support::in_child;

/// Returns the numbers that the visible devices have without `CUDA_VISIBLE_DEVICES`, or the code of
/// `cuInit`.
fn visible() -> Result<Vec<i32>, u32> {
    match cu!(cuInit(0)) {
        0 => {
            let mut count = 0;
            ok!(cuDeviceGetCount(&mut count));
            Ok((0..count).map(bus_number).collect())
        }
        refused => Err(refused),
    }
}

/// Returns the number that a device has without `CUDA_VISIBLE_DEVICES`. Its bus number is one more.
fn bus_number(device: i32) -> i32 {
    let mut bus = 0;
    ok!(cuDeviceGetAttribute(&mut bus, attribute(33), device));
    bus - 1
}

fn attribute(number: i32) -> cudarc::driver::sys::CUdevice_attribute {
    // SAFETY: the tests pass only numbers that cuda.h defines.
    unsafe { std::mem::transmute(number) }
}

macro_rules! visible_devices {
    ($($test:ident: $list:literal => $expected:expr;)*) => {$(
        #[test]
        fn $test() {
            in_child(&[("SOFTCUDA_DEVICES", "4"), ("CUDA_VISIBLE_DEVICES", $list)], || {
                assert_eq!(visible(), $expected);
            });
        }
    )*};
}

visible_devices! {
    the_list_gives_the_order: "2,0" => Ok(vec![2, 0]);
    a_number_too_large_ends_the_list: "1,9,0" => Ok(vec![1]);
    minus_one_ends_the_list: "0,-1,2" => Ok(vec![0]);
    an_empty_list_leaves_no_device: "" => Err(NO_DEVICE);
    a_device_named_twice_leaves_none: "1,1" => Err(NO_DEVICE);
}

#[test]
fn there_are_no_export_tables_and_the_driver_says_so() {
    in_child(&[], || {
        ok!(cuInit(0));
        let id = cudarc::driver::sys::CUuuid { bytes: [7; 16] };
        let mut table = std::ptr::dangling();
        assert_eq!(cu!(cuGetExportTable(&mut table, &id)), 500);
        assert!(table.is_null());
    });
}

#[test]
fn a_device_says_that_it_is_software() {
    in_child(&[("SOFTCUDA_MEMORY", "1048576"), ("SOFTCUDA_DRIVER_VERSION", "13000")], || {
        let mut version = 0;
        ok!(cuDriverGetVersion(&mut version));
        assert_eq!(version, 13000);
        ok!(cuInit(0));
        let mut name = [0; 64];
        ok!(cuDeviceGetName(name.as_mut_ptr(), 64, 0));
        // SAFETY: the driver wrote a string that ends with a NUL.
        let name = unsafe { std::ffi::CStr::from_ptr(name.as_ptr()) };
        assert_eq!(name.to_str(), Ok("software CUDA driver (not a GPU)"));
        let mut bytes = 0;
        ok!(cuDeviceTotalMem_v2(&mut bytes, 0));
        assert_eq!(bytes, 1 << 20);
        let mut device = 0;
        assert_eq!(cu!(cuDeviceGet(&mut device, 1)), INVALID_DEVICE);
        assert_eq!(cu!(cuDeviceGet(&mut device, -1)), INVALID_DEVICE);
    });
}

#[test]
fn a_malformed_setting_fails_init() {
    let said = in_child(&[("SOFTCUDA_MEMORY", "plenty")], || {
        assert_eq!(cu!(cuInit(0)), INVALID_VALUE);
    });
    assert!(said.contains("SOFTCUDA_MEMORY=plenty is malformed"), "{said}");
}
