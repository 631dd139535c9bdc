//! Devices that cannot register host memory, and devices in confidential computing.

use crate::raw::*;
use crate::support::in_child;
use cudarc::driver::sys::{CUdevice_attribute as Attribute, CUpointer_attribute as About};

/// Returns true if host memory can be registered. Checks that the device attributes agree.
fn can_register() -> bool {
    let mut said = [0; 2];
    let asked = [
        Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED,
        Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
    ];
    for (value, attribute) in said.iter_mut().zip(asked) {
        ok!(cuDeviceGetAttribute(value, attribute, 0));
    }
    let mut memory = vec![0u64; 512];
    let address = memory.as_mut_ptr().cast();
    let registered = cu!(cuMemHostRegister_v2(address, 4096, 3));
    if registered == 0 {
        ok!(cuMemHostUnregister(address));
    }
    assert_eq!(said, [(registered == 0) as i32; 2]);
    assert!([0, NOT_SUPPORTED].contains(&registered));
    registered == 0
}

fn is_managed(address: u64) -> bool {
    let mut managed = 2u8;
    ok!(cuPointerGetAttribute((&raw mut managed).cast(), About::CU_POINTER_ATTRIBUTE_IS_MANAGED, address));
    managed == 1
}

#[test]
fn without_registration_page_locked_allocations_still_serve_as_words() {
    let said = in_child(&[("SOFTCUDA_NO_REGISTER", "1")], || {
        start();
        assert!(!can_register());
        let (stream, word) = (stream(), Word::new());
        word.written_by(stream, 7);
        ok!(cuStreamSynchronize(stream));
        assert_eq!(word.load(), 7);
        assert!(!is_managed(word.address()));
    });
    assert!(said.contains("cuMemHostRegister_v2: CUDA_ERROR_NOT_SUPPORTED"), "{said}");
}

#[test]
fn in_confidential_computing_page_locked_allocations_are_managed_and_no_words() {
    in_child(&[("SOFTCUDA_CONFIDENTIAL", "1")], || {
        start();
        assert!(!can_register());
        let (stream, word, memory) = (stream(), Word::new(), alloc(8));
        assert!(is_managed(word.address()));
        assert!(!is_managed(memory));
        assert_eq!(cu!(cuStreamWriteValue64_v2(stream, word.address(), 7, 0)), INVALID_VALUE);
        assert_eq!(cu!(cuStreamWaitValue64_v2(stream, word.address(), 7, 0)), INVALID_VALUE);
        // Words in device memory work, and so do copies to page-locked memory.
        ok!(cuStreamWriteValue64_v2(stream, memory, 7, 0));
        ok!(cuMemcpyDtoHAsync_v2(word.host(), memory, 8, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(word.load(), 7);
    });
}

#[test]
fn devices_register_host_memory_unless_they_are_told_not_to() {
    in_child(&[], || {
        start();
        assert!(can_register());
        let word = Word::new();
        assert!(!is_managed(word.address()));
    });
}
