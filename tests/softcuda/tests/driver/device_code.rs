//! Kernels without a twin, which run their PTX.

use crate::raw::*;
use crate::support::in_child;
use crate::twins::*;
use cudarc::driver::sys::{CUfunction, CUstream};
use std::ffi::{CStr, c_void};

const MISALIGNED_ADDRESS: u32 = 716;
const ASSERT: u32 = 710;
const LAUNCH_TIMEOUT: u32 = 702;

/// The first lines of a text, with the variables of the tests.
const HEAD: &str = ".version 8.0\n.target sm_70\n.address_size 64
.extern .shared .align 16 .b8 dynamic[];
.visible .global .align 8 .u64 counter = 40;
.visible .global .align 8 .u64 pointer = generic(counter);
.global .align 1 .b8 format[] = {37, 100, 32, 111, 102, 32, 37, 115, 10, 0};
.global .align 1 .b8 word[] = {116, 104, 114, 101, 101, 0};
.extern .func (.param .b32 result) vprintf (.param .b64 format, .param .b64 arguments);
.extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
";

/// Returns the kernel `k` with these parameters and this body.
fn kernel(params: &str, body: &str) -> CUfunction {
    function(&text(params, body), "k").unwrap()
}

fn text(params: &str, body: &str) -> String {
    format!(
        "{HEAD}.visible .entry k({params}) {{ .reg .pred %p<4>; .reg .f32 %f<8>; .reg .b32 %r<8>; .reg .b64 %rd<8>;\n{body}\nret; }}\n"
    )
}

/// Adds `a` to the element of each thread, as the twin of `add` does.
const ADD_BODY: &str = "
    ld.param.u64 %rd1, [x]; ld.param.f32 %f1, [a]; ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.u32 %r2, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r2, %r1; @%p1 ret;
    mul.wide.u32 %rd2, %r2, 4; add.u64 %rd1, %rd1, %rd2;
    ld.global.f32 %f2, [%rd1]; add.f32 %f2, %f2, %f1; st.global.f32 [%rd1], %f2;";
const ADD_LIST: &str = ".param .u64 x, .param .f32 a, .param .u32 n";

/// The size of a launch: blocks, threads, and bytes of dynamic shared memory.
type Size = (u32, u32, u32);

/// Launches a function with one argument of eight bytes.
fn launch_at(function: CUfunction, stream: CUstream, (blocks, threads, shared): Size, mut x: u64) -> u32 {
    let mut args: [*mut c_void; 1] = [(&raw mut x).cast()];
    let none = std::ptr::null_mut();
    cu!(cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared, stream, args.as_mut_ptr(), none))
}

fn launch_add_of(function: CUfunction, stream: CUstream, (x, n): (u64, u32), (blocks, threads): (u32, u32)) {
    let (mut x, mut a, mut n) = (x, 1f32, n);
    let mut args: [*mut c_void; 3] = [(&raw mut x).cast(), (&raw mut a).cast(), (&raw mut n).cast()];
    let none = std::ptr::null_mut();
    ok!(cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, args.as_mut_ptr(), none));
}

#[test]
fn a_kernel_without_a_twin_runs_its_ptx() {
    in_child(&[], || {
        start();
        let (add, stream, x) = (kernel(ADD_LIST, ADD_BODY), stream(), upload(&[1.0; 20_000]));
        launch_add_of(add, stream, (x, 20_000), (79, 256));
        launch_add_of(add, stream, (x, 3), (1, 32));
        ok!(cuStreamSynchronize(stream));
        let values = floats::<20_000>(x);
        assert_eq!(values[..3], [3.0; 3]);
        assert!(values[3..].iter().all(|value| *value == 2.0));
    });
}

#[test]
fn a_kernel_with_a_twin_runs_its_ptx_if_the_setting_says_so() {
    for (setting, expected) in [("ptx", 2.0), ("twins", 1.5)] {
        in_child(&[("SOFTCUDA_KERNELS", setting), ("EXPECTED", &expected.to_string())], || {
            start();
            assert_eq!(register("k", &ADD_PARAMS, 0, add_half), 0);
            let (add, stream, x) = (kernel(ADD_LIST, ADD_BODY), stream(), upload(&[1.0]));
            assert_eq!(launch_add(add, stream, x, 1.0, 1), 0);
            ok!(cuStreamSynchronize(stream));
            assert_eq!(floats::<1>(x)[0].to_string(), std::env::var("EXPECTED").unwrap());
        });
    }
}

#[test]
fn a_kernel_whose_ptx_does_nothing_runs_its_twin_in_any_case() {
    in_child(&[("SOFTCUDA_KERNELS", "ptx")], || {
        start();
        assert_eq!(register("k", &ADD_PARAMS, 0, add_half), 0);
        let (add, stream, x) = (kernel(ADD_LIST, ""), stream(), upload(&[1.0]));
        assert_eq!(launch_add(add, stream, x, 1.0, 1), 0);
        ok!(cuStreamSynchronize(stream));
        assert_eq!(floats::<1>(x), [1.5]);
    });
}

extern "C" fn add_half(params: *const *const c_void, _: *const c_void, _: *const c_void) -> std::ffi::c_int {
    // SAFETY: the driver passes a pointer to the float that the test allocated.
    unsafe { *(*params).cast::<*mut f32>().read() += 0.5 };
    0
}

#[test]
fn the_arguments_may_be_in_one_buffer() {
    in_child(&[], || {
        start();
        let (add, stream, x) = (kernel(ADD_LIST, ADD_BODY), stream(), upload(&[1.0, 1.0]));
        let mut buffer = [0u8; 16];
        buffer[..8].copy_from_slice(&x.to_ne_bytes());
        buffer[8..12].copy_from_slice(&2f32.to_ne_bytes());
        buffer[12..].copy_from_slice(&1u32.to_ne_bytes());
        let none = std::ptr::null_mut();
        let with_size = |size: usize| {
            let mut size = size;
            let (buffer, size) =
                (buffer.as_ptr().cast_mut().cast::<c_void>(), (&raw mut size).cast::<c_void>());
            let key = std::ptr::without_provenance_mut::<c_void>;
            let mut extra = [key(1), buffer, key(2), size, none];
            cu!(cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, stream, std::ptr::null_mut(), extra.as_mut_ptr()))
        };
        assert_eq!(with_size(16), 0);
        assert_eq!(with_size(15), INVALID_VALUE, "the last parameter is not in the buffer");
        ok!(cuStreamSynchronize(stream));
        assert_eq!(floats::<2>(x), [3.0, 1.0]);
        assert_eq!(register("k", &ADD_PARAMS, 0, add_half), 0);
        assert_eq!(with_size(16), 0, "a twin takes them from there too");
        ok!(cuStreamSynchronize(stream));
        assert_eq!(floats::<2>(x), [3.5, 1.0]);
    });
}

#[test]
fn an_access_out_of_bounds_is_an_illegal_address_and_names_the_allocation() {
    let said = in_child(&[], || {
        start();
        let (add, stream, x) = (kernel(ADD_LIST, ADD_BODY), stream(), upload(&[1.0; 100]));
        launch_add_of(add, stream, (x, 101), (1, 128));
        assert_eq!(cu!(cuStreamSynchronize(stream)), ILLEGAL_ADDRESS);
        let mut address = 0;
        assert_eq!(cu!(cuMemAlloc_v2(&mut address, 8)), ILLEGAL_ADDRESS, "the context is lost");
    });
    let place = "k failed in thread [100, 0, 0] of block [0, 0, 0]";
    assert!(said.contains(place), "{said}");
    assert!(said.contains("it reads 4 bytes at 0x"), "{said}");
    assert!(said.contains("which is element 100 of the allocation of parameter 0, at 0x"), "{said}");
    assert!(said.contains("and it has 100 elements; mend the index"), "{said}");
}

#[test]
fn freed_memory_is_out_of_bounds() {
    in_child(&[], || {
        start();
        let (add, stream, x) = (kernel(ADD_LIST, ADD_BODY), stream(), upload(&[1.0]));
        ok!(cuMemFree_v2(x));
        launch_add_of(add, stream, (x, 1), (1, 1));
        assert_eq!(cu!(cuStreamSynchronize(stream)), ILLEGAL_ADDRESS);
    });
}

#[test]
fn device_code_reads_and_writes_mapped_and_managed_memory() {
    in_child(&[], || {
        start();
        let (add, stream) = (kernel(ADD_LIST, ADD_BODY), stream());
        let mut managed = 0;
        ok!(cuMemAllocManaged(&mut managed, 8, 1));
        for memory in [pinned(8) as u64, managed] {
            launch_add_of(add, stream, (memory, 2), (1, 32));
            ok!(cuStreamSynchronize(stream));
            // SAFETY: the memory has two floats, and the kernel that wrote them has ended.
            assert_eq!(unsafe { *(memory as *const [f32; 2]) }, [1.0, 1.0]);
        }
        let heap = Box::new([0f32; 2]);
        launch_add_of(add, stream, (heap.as_ptr() as u64, 2), (1, 32));
        assert_eq!(cu!(cuStreamSynchronize(stream)), ILLEGAL_ADDRESS, "pageable memory is the host's alone");
        drop(heap);
    });
}

#[test]
fn faults_of_device_code_have_the_codes_of_the_driver() {
    let assert = "
        .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
        mov.u64 %rd1, word; cvta.global.u64 %rd1, %rd1; mov.u64 %rd2, 1; mov.u32 %r1, 12;
        st.param.b64 [a], %rd1; st.param.b64 [b], %rd1; st.param.b32 [c], %r1;
        st.param.b64 [d], %rd1; st.param.b64 [e], %rd2;
        call.uni __assertfail, (a, b, c, d, e);";
    let misaligned = "ld.param.u64 %rd1, [x]; ld.global.u32 %r1, [%rd1+2]; st.global.u32 [%rd1], %r1;";
    let stuck = "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; @%p1 bar.sync 0; @!%p1 bar.sync 1;";
    let cases = [
        ("trap;", LAUNCH_FAILED, "it executed trap"),
        (assert, ASSERT, "assertion failed: three in three (three:12)"),
        (misaligned, MISALIGNED_ADDRESS, "is not a multiple of 4"),
        (stuck, LAUNCH_TIMEOUT, "no thread of the block can go on"),
    ];
    for (case, (_, _, report)) in cases.iter().enumerate() {
        let said = in_child(&[("CASE", &case.to_string())], || {
            let case: usize = std::env::var("CASE").unwrap().parse().unwrap();
            start();
            let (kernel, stream, x) = (kernel(".param .u64 x", cases[case].0), stream(), upload(&[0.0; 4]));
            assert_eq!(launch_at(kernel, stream, (1, 32, 0), x), 0);
            assert_eq!(cu!(cuStreamSynchronize(stream)), cases[case].1);
            assert_eq!(cu!(cuCtxSynchronize()), cases[case].1, "it stays");
        });
        assert!(said.contains(report), "{report}: {said}");
    }
}

#[test]
fn a_fault_may_be_delayed() {
    in_child(&[("SOFTCUDA_FAULT_DELAY_US", "100000000")], || {
        start();
        let (kernel, stream, x) = (kernel(".param .u64 x", "trap;"), stream(), upload(&[0.0; 4]));
        assert_eq!(launch_at(kernel, stream, (1, 32, 0), x), 0);
        assert_eq!(cu!(cuStreamQuery(stream)), NOT_READY);
    });
}

/// Returns the address of a variable of a module.
fn variable(module: cudarc::driver::sys::CUmodule, name: &CStr) -> u64 {
    let (mut address, mut bytes) = (0, 0);
    ok!(cuModuleGetGlobal_v2(&mut address, &mut bytes, module, name.as_ptr()));
    assert_eq!(bytes, 8);
    address
}

#[test]
fn the_host_sets_and_reads_the_variables_of_device_code() {
    in_child(&[], || {
        start();
        // Adds 1 to the variable and to what the pointer points to, which is the variable.
        let body = "
            ld.global.u64 %rd1, [counter]; add.u64 %rd1, %rd1, 1; st.global.u64 [counter], %rd1;
            ld.global.u64 %rd2, [pointer]; ld.u64 %rd1, [%rd2]; add.u64 %rd1, %rd1, 1; st.u64 [%rd2], %rd1;";
        let (mut module, mut kernel) = (std::ptr::null_mut(), std::ptr::null_mut());
        let image = std::ffi::CString::new(text("", body)).unwrap();
        ok!(cuModuleLoadData(&mut module, image.as_ptr().cast()));
        ok!(cuModuleGetFunction(&mut kernel, module, c"k".as_ptr()));
        let (counter, stream) = (variable(module, c"counter"), stream());
        let mut value = 0u64;
        let mut read_after_launch = || {
            assert_eq!(launch(kernel, stream, &mut []), 0);
            ok!(cuStreamSynchronize(stream));
            ok!(cuMemcpyDtoH_v2((&raw mut value).cast(), counter, 8));
            value
        };
        assert_eq!(read_after_launch(), 42);
        let fresh = 100u64;
        ok!(cuMemcpyHtoD_v2(counter, (&raw const fresh).cast(), 8));
        assert_eq!(read_after_launch(), 102);
        ok!(cuMemcpyDtoH_v2((&raw mut value).cast(), variable(module, c"pointer"), 8));
        assert_eq!(value, counter, "an initial value may be an address");
    });
}

#[test]
fn what_device_code_prints_is_on_standard_output_once_the_stream_is_done() {
    in_child(&[], || {
        start();
        let body = "
            .local .align 8 .b8 arguments[16]; .param .b64 a; .param .b64 b; .param .b32 r;
            ld.param.u64 %rd4, [x];
            mov.u64 %rd1, arguments; cvta.local.u64 %rd2, %rd1;
            mov.u64 %rd3, word; cvta.global.u64 %rd3, %rd3;
            st.local.u32 [arguments], %rd4; st.local.u64 [arguments+8], %rd3;
            mov.u64 %rd5, format; cvta.global.u64 %rd5, %rd5;
            st.param.b64 [a], %rd5; st.param.b64 [b], %rd2;
            call.uni (r), vprintf, (a, b);";
        let (kernel, stream) = (kernel(".param .u64 x", body), stream());
        let printed = std::env::temp_dir().join(format!("softcuda-printed-{}", std::process::id()));
        let file = std::fs::File::create(&printed).unwrap();
        // SAFETY: both are open files of this process, whose test writes nothing else meanwhile.
        let before = unsafe {
            let before = libc::dup(1);
            assert!(before >= 0 && libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&file), 1) == 1);
            before
        };
        for number in 1..=3 {
            assert_eq!(launch_at(kernel, stream, (1, 1, 0), number), 0);
        }
        ok!(cuStreamSynchronize(stream));
        // SAFETY: `before` is the file that standard output was.
        assert_eq!(unsafe { libc::dup2(before, 1) }, 1);
        let text = std::fs::read_to_string(&printed).unwrap();
        std::fs::remove_file(&printed).unwrap();
        assert_eq!(text, "1 of three\n2 of three\n3 of three\n");
    });
}

#[test]
fn dynamic_shared_memory_is_as_large_as_the_launch_says() {
    let said = in_child(&[], || {
        start();
        // Thread i writes its number, and reads that of the thread which counts from the other end.
        let body = "
            ld.param.u64 %rd1, [x]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ntid.x;
            mov.u32 %r5, dynamic; shl.b32 %r3, %r1, 2; add.u32 %r3, %r5, %r3; st.shared.u32 [%r3], %r1;
            bar.sync 0;
            sub.u32 %r4, %r2, %r1; sub.u32 %r4, %r4, 1; shl.b32 %r4, %r4, 2; add.u32 %r4, %r5, %r4;
            ld.shared.u32 %r6, [%r4]; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd1, %rd1, %rd2;
            cvt.rn.f32.u32 %f1, %r6; st.global.f32 [%rd1], %f1;";
        let (kernel, stream, x) = (kernel(".param .u64 x", body), stream(), upload(&[0.0; 100]));
        assert_eq!(launch_at(kernel, stream, (1, 100, 400), x), 0);
        ok!(cuStreamSynchronize(stream));
        assert!(floats::<100>(x).iter().enumerate().all(|(at, value)| *value == (99 - at) as f32));
        assert_eq!(launch_at(kernel, stream, (1, 100, 396), x), 0);
        assert_eq!(cu!(cuStreamSynchronize(stream)), ILLEGAL_ADDRESS);
    });
    assert!(
        said.contains("it writes 4 bytes at offset 396 of shared memory, and the block has 396"),
        "{said}"
    );
}

#[test]
fn the_blocks_of_a_cooperative_launch_wait_for_each_other() {
    in_child(&[], || {
        start();
        // Each block arrives at a counter, and waits until all blocks have.
        let body = "
            ld.param.u64 %rd1, [x]; mov.u32 %r1, %nctaid.x;
            atom.global.add.u32 %r2, [%rd1], 1;
            again: ld.volatile.global.u32 %r3, [%rd1]; setp.lt.u32 %p1, %r3, %r1; @%p1 bra again;";
        let (kernel, stream) = (kernel(".param .u64 x", body), stream());
        for blocks in [2u32, 20] {
            let mut x = upload(&[0.0]);
            let mut args: [*mut c_void; 1] = [(&raw mut x).cast()];
            ok!(cuLaunchCooperativeKernel(kernel, blocks, 1, 1, 1, 1, 1, 0, stream, args.as_mut_ptr()));
            ok!(cuStreamSynchronize(stream));
            assert_eq!(floats::<1>(x)[0].to_bits(), blocks);
        }
    });
}

#[test]
fn an_array_in_the_parameters_is_read_by_an_index() {
    in_child(&[], || {
        start();
        let params = ".param .u64 x, .param .align 8 .b8 array[64]";
        let body = "
            ld.param.u64 %rd1, [x]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 8;
            mov.b64 %rd3, array; add.u64 %rd3, %rd3, %rd2; ld.param.u64 %rd4, [%rd3];
            add.u64 %rd1, %rd1, %rd2; st.global.u64 [%rd1], %rd4;";
        let (kernel, stream, mut x) = (kernel(params, body), stream(), alloc(64));
        let mut array: [u64; 8] = std::array::from_fn(|at| at as u64 * 1000);
        let mut args: [*mut c_void; 2] = [(&raw mut x).cast(), (&raw mut array).cast()];
        let none = std::ptr::null_mut();
        ok!(cuLaunchKernel(kernel, 1, 1, 1, 8, 1, 1, 0, stream, args.as_mut_ptr(), none));
        ok!(cuStreamSynchronize(stream));
        let mut read = [0u64; 8];
        ok!(cuMemcpyDtoH_v2((&raw mut read).cast(), x, 64));
        assert_eq!(read, array);
    });
}

#[test]
fn a_launch_of_an_unsupported_instruction_is_refused() {
    let said = in_child(&[], || {
        start();
        let body = "{ .reg .b32 %d<5>; wgmma.fence.sync.aligned; }";
        let (kernel, stream) = (kernel(".param .u64 x", body), stream());
        assert_eq!(launch_at(kernel, stream, (1, 1, 0), 0), NOT_SUPPORTED);
        ok!(cuStreamSynchronize(stream));
    });
    assert!(said.contains("the PTX of kernel k cannot run: line "), "{said}");
    assert!(said.contains("wgmma.fence.sync.aligned is not supported"), "{said}");
}

#[test]
fn a_graph_of_device_code_runs_and_knows_its_memory() {
    in_child(&[], || {
        start();
        let (add, stream, x) = (kernel(ADD_LIST, ADD_BODY), stream(), upload(&[1.0]));
        let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mode = cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        ok!(cuStreamBeginCapture_v2(stream, mode));
        launch_add_of(add, stream, (x, 1), (1, 1));
        launch_add_of(add, stream, (x, 1), (1, 1));
        ok!(cuStreamEndCapture(stream, &mut graph));
        ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        ok!(cuGraphLaunch(exec, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(floats::<1>(x), [3.0]);
        ok!(cuMemFree_v2(x));
        assert_eq!(upload(&[1.0]), x, "other memory is at that address now");
        ok!(cuGraphLaunch(exec, stream));
        assert_eq!(cu!(cuStreamSynchronize(stream)), ILLEGAL_ADDRESS);
    });
}
