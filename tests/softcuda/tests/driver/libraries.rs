//! Libraries, links, and the lookup of entry points: how NVIDIA's Python packages load kernels.

use crate::raw::*;
use crate::support::in_child;
use cudarc::driver::sys::{self, CUfunction, CUkernel, CUlibrary, CUlinkState};
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::null_mut;

const NOT_SUPPORTED: u32 = 801;
const HEAD: &str = ".version 8.0\n.target sm_70\n.address_size 64\n";
/// Calls a function of another text.
const CALLS: &str = "
.extern .func (.param .b32 r) twice(.param .b32 a);
.visible .entry k(.param .u64 x) {
    .reg .b32 %r<4>; .reg .b64 %rd<4>; .param .b32 a; .param .b32 r;
    ld.param.u64 %rd1, [x]; ld.global.u32 %r1, [%rd1];
    st.param.b32 [a], %r1; call (r), twice, (a); ld.param.b32 %r2, [r];
    st.global.u32 [%rd1], %r2; ret; }";
const CALLED: &str = "
.visible .func (.param .b32 r) twice(.param .b32 a) {
    .reg .b32 %r<3>; ld.param.b32 %r1, [a]; add.u32 %r1, %r1, %r1; st.param.b32 [r], %r1; ret; }";

fn text(body: &str) -> CString {
    CString::new(format!("{HEAD}{body}\n")).unwrap()
}

fn library(code: *const c_char) -> CUlibrary {
    let mut library = null_mut();
    ok!(cuLibraryLoadData(&mut library, code.cast(), null_mut(), null_mut(), 0, null_mut(), null_mut(), 0));
    library
}

fn kernel_of(library: CUlibrary, name: &CStr) -> CUkernel {
    let mut kernel = null_mut();
    ok!(cuLibraryGetKernel(&mut kernel, library, name.as_ptr()));
    kernel
}

/// Launches one thread on the null stream.
fn launch_one(function: CUfunction, mut x: u64) -> u32 {
    let mut args: [*mut c_void; 1] = [(&raw mut x).cast()];
    cu!(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, null_mut(), args.as_mut_ptr(), null_mut()))
}

fn add_data(link: CUlinkState, kind: sys::CUjitInputType, data: &CStr, name: &CStr) -> u32 {
    let bytes = data.to_bytes_with_nul();
    cu!(cuLinkAddData_v2(
        link,
        kind,
        bytes.as_ptr().cast_mut().cast(),
        bytes.len(),
        name.as_ptr(),
        0,
        null_mut(),
        null_mut()
    ))
}

#[test]
fn a_library_is_loaded_into_each_context_that_uses_it() {
    in_child(&[("SOFTCUDA_DEVICES", "2")], || {
        start();
        let library = library(
            text(&format!(
                "{CALLED}{}",
                CALLS.replace(".extern .func (.param .b32 r) twice(.param .b32 a);", "")
            ))
            .as_ptr(),
        );
        let kernel = kernel_of(library, c"k");
        assert_eq!(kernel_of(library, c"k"), kernel);
        let mut none = null_mut();
        assert_eq!(cu!(cuLibraryGetKernel(&mut none, library, c"other".as_ptr())), NOT_FOUND);
        let mut functions = Vec::new();
        for device in 0..2 {
            start_on(device);
            let mut function = null_mut();
            ok!(cuKernelGetFunction(&mut function, kernel));
            functions.push(function);
            for (times, function) in [(2.0, function), (4.0, kernel.cast())] {
                let x = upload(&[f32::from_bits(7)]);
                assert_eq!(launch_one(function, x), 0);
                if times == 4.0 {
                    assert_eq!(launch_one(function, x), 0);
                }
                assert_eq!(floats::<1>(x)[0].to_bits(), (7.0 * times) as u32);
            }
        }
        assert_ne!(functions[0], functions[1]);
        ok!(cuLibraryUnload(library));
        assert_eq!(launch_one(kernel.cast(), 0), INVALID_HANDLE);
        assert_eq!(launch_one(functions[1], 0), INVALID_HANDLE);
    });
}

#[test]
fn a_link_joins_texts_and_its_image_can_be_loaded() {
    in_child(&[], || {
        start();
        let mut link = null_mut();
        ok!(cuLinkCreate_v2(0, null_mut(), null_mut(), &mut link));
        let ptx = sys::CUjitInputType::CU_JIT_INPUT_PTX;
        assert_eq!(add_data(link, ptx, &text(CALLS), c"calls"), 0);
        assert_eq!(add_data(link, ptx, &text(CALLED), c"called"), 0);
        let (mut image, mut bytes) = (null_mut(), 0);
        ok!(cuLinkComplete(link, &mut image, &mut bytes));
        let library = library(image.cast_const().cast());
        ok!(cuLinkDestroy(link));
        assert_eq!(cu!(cuLinkDestroy(link)), INVALID_HANDLE);
        let x = upload(&[f32::from_bits(21)]);
        assert_eq!(launch_one(kernel_of(library, c"k").cast(), x), 0);
        assert_eq!(floats::<1>(x)[0].to_bits(), 42);
    });
}

#[test]
fn a_link_refuses_machine_code_and_says_so_in_its_log() {
    in_child(&[], || {
        start();
        let mut log = [0u8; 200];
        let mut options = [
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values = [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(log.len())];
        let mut link = null_mut();
        ok!(cuLinkCreate_v2(2, options.as_mut_ptr(), values.as_mut_ptr(), &mut link));
        let cubin = sys::CUjitInputType::CU_JIT_INPUT_CUBIN;
        assert_eq!(add_data(link, cubin, c"\x7fELF", c"a.cubin"), NOT_SUPPORTED);
        let log = CStr::from_bytes_until_nul(&log).unwrap().to_str().unwrap();
        assert_eq!(log, "a.cubin is of kind 0, and this driver links PTX alone, kind 1");
        let (mut image, mut bytes) = (null_mut(), 0);
        assert_eq!(cu!(cuLinkComplete(link, &mut image, &mut bytes)), INVALID_VALUE);
    });
}

/// Stores a new piece of 64 bytes, and one of 1 GiB, behind `x`.
const ALLOCATES: &str = "
.extern .func (.param .b64 r) malloc(.param .b64 a);
.extern .func free(.param .b64 a);
.visible .entry allocate(.param .u64 x) {
    .reg .b64 %rd<4>; .param .b64 a; .param .b64 r;
    ld.param.u64 %rd1, [x];
    st.param.b64 [a], 64; call (r), malloc, (a); ld.param.b64 %rd2, [r];
    st.global.u64 [%rd2+56], 5; st.global.u64 [%rd1], %rd2;
    st.param.b64 [a], 1073741824; call (r), malloc, (a); ld.param.b64 %rd2, [r];
    st.global.u64 [%rd1+8], %rd2; ret; }
.visible .entry release(.param .u64 x) {
    .reg .b64 %rd<4>; .param .b64 a;
    ld.param.u64 %rd1, [x]; ld.global.u64 %rd2, [%rd1]; ld.global.u64 %rd3, [%rd2+56];
    st.global.u64 [%rd1+8], %rd3; st.param.b64 [a], %rd2; call free, (a); ret; }";

#[test]
fn kernels_allocate_from_the_heap_of_their_context() {
    in_child(&[], || {
        start();
        let library = library(text(ALLOCATES).as_ptr());
        let (allocate, release) = (kernel_of(library, c"allocate"), kernel_of(library, c"release"));
        let x = upload(&[1.0; 4]);
        let words = || {
            let words = floats::<4>(x).map(|word| u64::from(word.to_bits()));
            [words[0] | words[1] << 32, words[2] | words[3] << 32]
        };
        assert_eq!(launch_one(allocate.cast(), x), 0);
        let [piece, too_large] = words();
        assert!(piece != 0 && piece.is_multiple_of(16), "{piece:#x}");
        assert_eq!(too_large, 0, "the heap has 8 MiB");
        assert_eq!(launch_one(release.cast(), x), 0);
        assert_eq!(words(), [piece, 5]);
        // Freed twice: the piece is gone.
        assert_eq!(launch_one(release.cast(), x), 0);
        assert_eq!(cu!(cuCtxSynchronize()), ILLEGAL_ADDRESS);
    });
}

#[test]
fn entry_points_are_found_by_base_name_and_version() {
    in_child(&[("SOFTCUDA_DRIVER_VERSION", "12040")], || {
        start();
        let find = |name: &CStr, version| {
            let (mut address, mut status) =
                (null_mut(), sys::CUdriverProcAddressQueryResult_enum::CU_GET_PROC_ADDRESS_SUCCESS);
            let code = cu!(cuGetProcAddress_v2(name.as_ptr(), &mut address, version, 0, &mut status));
            (code, !address.is_null(), status as u32)
        };
        assert_eq!(find(c"cuMemAlloc", 12_000), (0, true, 0));
        assert_eq!(find(c"cuMemAlloc", 3_000), (0, false, 2));
        assert_eq!(find(c"cuNothing", 12_000), (0, false, 1));
        assert_eq!(find(c"cuMemAlloc", 12_050).0, INVALID_VALUE);
    });
}

#[test]
fn a_fill_of_page_locked_memory_has_ended_when_the_call_returns() {
    in_child(&[], || {
        start();
        let memory = pinned(64 << 20).cast::<u8>();
        ok!(cuMemsetD8_v2(memory.expose_provenance() as u64, 7, 64 << 20));
        // SAFETY: the byte is the last one of the page-locked memory.
        assert_eq!(unsafe { memory.add((64 << 20) - 1).read() }, 7);
    });
}

unsafe extern "C" fn set(_: sys::CUstream, code: sys::CUresult, word: *mut c_void) {
    let word = Word::at(word);
    word.store(100 + code as u64);
}

#[test]
fn a_callback_runs_once_in_the_order_of_its_stream() {
    in_child(&[], || {
        start();
        let (stream, word) = (stream(), Word::new());
        let gate = Gate::on(stream);
        ok!(cuStreamAddCallback(stream, Some(set), word.host(), 0));
        assert_eq!(word.load(), 0);
        gate.open();
        ok!(cuStreamSynchronize(stream));
        assert_eq!(word.load(), 100);
        assert_eq!(cu!(cuStreamAddCallback(stream, None, null_mut(), 0)), INVALID_VALUE);
    });
}
