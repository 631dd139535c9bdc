//! Kernels whose device code is CUDA C++. NVRTC compiles it at the first launch, or when it is
//! checked.

use crate::support::software::in_child;
use crate::support::{refusal, says};
use warpline::prelude::*;
use warpline::testing::check_cuda;
use warpline::{KernelChecks, KernelForm};

warpline::kernel! {
    /// y ← 2·x for `n` elements.
    unsafe fn twice(n: u32, x: &[f32], write y: &mut [f32])
    where n as usize <= x.len(), n as usize <= y.len()
    {
        descriptor: TWICE,
        cuda: "extern \"C\" __global__ void twice(unsigned n, const float* x, float* y) {
            unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) y[i] = 2 * x[i];
        }",
        cpu: |n, x, y| for i in 0..n as usize { y[i] = 2.0 * x[i] },
    }

    /// A kernel that does not compile.
    unsafe fn misspelt(n: u32, write y: &mut [f32])
    where n as usize <= y.len()
    {
        descriptor: MISSPELT,
        cuda: "extern \"C\" __global__ void misspelt(unsigned n, float* y) {\n    y[0] = nn;\n}",
        cpu: |_, _| (),
    }

    /// A kernel whose device code lacks a parameter, which only a compiler can find.
    unsafe fn short_of_one(n: u32, write y: &mut [f32])
    where n as usize <= y.len()
    {
        descriptor: SHORT_OF_ONE,
        cuda: "#define PARAMS float* y\nextern \"C\" __global__ void short_of_one(PARAMS) { y[0] = 1; }",
        cpu: |_, _| (),
    }

    /// A kernel whose device code takes an address as an integer of the same size.
    unsafe fn takes_a_number(write y: &mut [f32]) {
        descriptor: TAKES_A_NUMBER,
        cuda: "extern \"C\" __global__ void takes_a_number(unsigned long long y) {}",
        cpu: |_| (),
    }

    unsafe fn in_ptx(write y: &mut [f32]) {
        descriptor: IN_PTX,
        ptx: ".visible .entry in_ptx(.param .u32 y) { ret; }",
        cpu: |_| (),
    }

    unsafe fn in_an_image(write y: &mut [f32]) {
        descriptor: IN_AN_IMAGE,
        image: b"\x7fELF",
        cpu: |_| (),
    }

    /// Doubles the element of each thread, whether it exists or not, and has no CPU form.
    unsafe fn unguarded(x: &mut [f32]) {
        descriptor: UNGUARDED,
        cuda: "extern \"C\" __global__ void unguarded(float* x) {\n    x[blockIdx.x * blockDim.x + threadIdx.x] *= 2;\n}",
    }

    /// Uses headers of CUDA: numbers of 16 bits, and a barrier of all blocks.
    unsafe fn with_headers(x: &mut [half::f16]) {
        descriptor: WITH_HEADERS,
        cuda: "#include <cooperative_groups.h>
#include <cuda_fp16.h>
extern \"C\" __global__ void with_headers(__half* x) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    __half other = x[n - 1 - i];
    cooperative_groups::this_grid().sync();
    x[i] = __hadd(other, __float2half(1));
}",
    }

    /// Adds up the numbers of a warp by an instruction of a later architecture.
    unsafe fn of_ampere(x: &mut [u32]) {
        descriptor: OF_AMPERE,
        cuda: "extern \"C\" __global__ void of_ampere(unsigned* x) {
#if __CUDA_ARCH__ >= 800
    x[threadIdx.x] = __reduce_add_sync(0xffffffff, threadIdx.x);
#endif
}",
    }

    /// Includes a header that does not exist.
    unsafe fn without_header(x: &mut [f32]) {
        descriptor: WITHOUT_HEADER,
        cuda: "#include <no_such_header.h>\nextern \"C\" __global__ void without_header(float* x) {}",
    }

    /// Includes a header of the user.
    unsafe fn with_own_header(x: &mut [f32]) {
        descriptor: WITH_OWN_HEADER,
        cuda: "#include <warpline_test/scale.h>\nextern \"C\" __global__ void with_own_header(float* x) { *x *= SCALE; }",
    }

    /// Writes numbers of another type.
    unsafe fn writes_doubles(x: &mut [f32]) {
        descriptor: WRITES_DOUBLES,
        cuda: "#include <cuda_fp16.h>\nextern \"C\" __global__ void writes_doubles(double* x) { *x = 1; }",
    }

    unsafe fn on_the_cpu_alone(write y: &mut [f32]) { descriptor: ON_THE_CPU_ALONE, cpu: |_| () }
}

#[test]
fn device_code_is_checked_without_a_compiler_where_none_is_needed() {
    for (kernel, kind, text) in [
        (
            &IN_PTX,
            ErrorKind::InvalidArgument,
            "in_ptx: its parameters have [8] bytes in the declaration and [4] in its PTX; make \
            the two agree",
        ),
        (
            &IN_AN_IMAGE,
            ErrorKind::Unsupported,
            "in_an_image: its device code is an image, which does not describe its parameters; \
            give the kernel cuda or ptx",
        ),
        (
            &ON_THE_CPU_ALONE,
            ErrorKind::InvalidArgument,
            "on_the_cpu_alone: it has no device code to check; give it cuda or ptx",
        ),
        (
            &WRITES_DOUBLES,
            ErrorKind::InvalidArgument,
            "writes_doubles: parameter 1 of 1 is \"x: &mut [f32]\" in the declaration and \"double* x\" in its CUDA C++; \
            make the two agree",
        ),
    ] {
        let error = check_cuda(kernel).unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (kind, text.to_owned()));
    }
    check_cuda(&warpline::kernels::SUM).unwrap();
}

#[test]
fn a_check_without_nvrtc_says_where_it_was_looked_for() {
    // Any installed NVRTC is newer than this driver.
    let variables = [("SOFTCUDA_DRIVER_VERSION", "1000"), ("WARPLINE_NVRTC", "/nowhere/libnvrtc.so.12")];
    in_child(&variables, || {
        let parts = [
            "twice: its device code is CUDA C++, and no NVRTC that could compile it was found: /nowhere/libnvrtc.so.12: ",
            "install one (pip install nvidia-cuda-nvrtc-cu12, or a CUDA toolkit), set WARPLINE_NVRTC to its path, or give the \
             kernel ptx or cpu",
        ];
        says(&check_cuda(&TWICE).unwrap_err(), ErrorKind::Unsupported, &parts);
    });
}

#[test]
#[ignore = "needs NVRTC, where WARPLINE_NVRTC says"]
fn cuda_source_is_checked_without_a_device() {
    check_cuda(&TWICE).unwrap();
    for (kernel, parts) in [
        (
            &MISSPELT,
            &[
                "misspelt: NVRTC returned NVRTC_ERROR_COMPILATION",
                "misspelt.cu(2): error: identifier \"nn\" is undefined",
            ][..],
        ),
        (
            &SHORT_OF_ONE,
            &["its parameters have [4, 8] bytes in the declaration and [8] in its PTX; make the \
                two agree"],
        ),
        (
            &TAKES_A_NUMBER,
            &["parameter 1 of 1 is \"write y: &mut [f32]\" in the declaration and \"unsigned long long y\""],
        ),
    ] {
        says(&check_cuda(kernel).unwrap_err(), ErrorKind::InvalidArgument, parts);
    }
}

#[test]
#[ignore = "needs NVRTC, where WARPLINE_NVRTC says"]
fn cuda_source_runs_on_a_cpu_device_and_reports_name_its_lines() {
    let runtime = Runtime::builder().kernel_form(KernelForm::Both).build().unwrap();
    let device = runtime.device(DeviceId::Cpu(0)).unwrap();
    let stream = device.stream().label("s").build().unwrap();
    let (x, y) = (stream.alloc::<f32>(100).unwrap(), stream.alloc::<f32>(100).unwrap());
    drop(stream.fill(&x, 3.0));
    drop(stream.launch(twice(100, &x, &y), LaunchConfig::for_elements(100)));
    assert_eq!(stream.read(&y).blocking_wait().unwrap(), [6.0; 100]);
    says(
        &refusal(stream.launch(misspelt(1, &y), LaunchConfig::linear(1, 1))),
        ErrorKind::Driver,
        &[
            "misspelt cannot be loaded: NVRTC returned NVRTC_ERROR_COMPILATION",
            "misspelt.cu(2): error: identifier",
        ],
    );
    let error = refusal(stream.launch(unguarded(&x), LaunchConfig::linear(4, 32)));
    let parts = [
        "(tests/cuda/nvrtc.rs:",
        "unguarded failed in thread [4, 0, 0] of block [3, 0, 0] (",
        "unguarded.cu:2",
    ];
    says(&error, ErrorKind::Fault, &parts);
    says(&error, ErrorKind::Fault, &["which is element 100 of x, and it has 100 elements; mend the index"]);
}

#[test]
#[ignore = "needs NVRTC and CUDA's headers, where WARPLINE_NVRTC says"]
fn cuda_source_includes_the_headers_of_cuda() {
    check_cuda(&WITH_HEADERS).unwrap();
    let parts = ["without_header: NVRTC returned", "no_such_header.h", "headers were looked up in /"];
    says(&check_cuda(&WITHOUT_HEADER).unwrap_err(), ErrorKind::InvalidArgument, &parts);
    let runtime = Runtime::builder().kernel_checks(KernelChecks::ALL).build().unwrap();
    let stream = runtime.device(DeviceId::Cpu(0)).unwrap().new_stream().unwrap();
    let x: Vec<_> = (0..256u16).map(|x| half::f16::from_f32(x.into())).collect();
    let expected: Vec<_> = x.iter().rev().map(|x| half::f16::from_f32(x.to_f32() + 1.0)).collect();
    let buffer = stream.alloc::<half::f16>(256).unwrap();
    drop(stream.write(&buffer, &x));
    let config = LaunchConfig::linear(4, 64).cooperatively();
    drop(stream.launch(with_headers(&buffer), config));
    assert_eq!(stream.read(&buffer).blocking_wait().unwrap(), expected);
}

#[test]
#[ignore = "needs NVRTC, where WARPLINE_NVRTC says"]
fn own_headers_are_found_and_the_ptx_is_kept() {
    // The child process runs these lines, too.
    let folder = std::env::current_exe().unwrap().with_extension("files");
    let (headers, ptx) = (folder.join("include"), folder.join("of/kernels"));
    std::fs::create_dir_all(headers.join("warpline_test")).unwrap();
    std::fs::write(headers.join("warpline_test/scale.h"), "#define SCALE 3\n").unwrap();
    let include = format!("/:{}", headers.display());
    let variables = [
        ("WARPLINE_NVRTC_INCLUDE", &include[..]),
        ("WARPLINE_KEEP_PTX", ptx.to_str().unwrap()),
        ("SOFTCUDA_DRIVER_VERSION", "13090"),
    ];
    in_child(&variables, || {
        let runtime = Runtime::new().unwrap();
        let stream = runtime.device(DeviceId::Cpu(0)).unwrap().new_stream().unwrap();
        let x = stream.alloc::<f32>(1).unwrap();
        drop(stream.fill(&x, 2.0));
        drop(stream.launch(with_own_header(&x), LaunchConfig::linear(1, 1)));
        assert_eq!(stream.read(&x).blocking_wait().unwrap(), [6.0]);
    });
    let kept = std::fs::read_to_string(ptx.join("with_own_header.ptx")).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(kept.contains(".entry with_own_header") && kept.contains("\"with_own_header.cu\""), "{kept}");
}

#[test]
#[ignore = "needs NVRTC, where WARPLINE_NVRTC says"]
fn a_folder_of_headers_that_does_not_exist_is_named() {
    let variables = [("WARPLINE_NVRTC_INCLUDE", "/nowhere/include"), ("SOFTCUDA_DRIVER_VERSION", "13090")];
    in_child(&variables, || {
        let text = "twice: WARPLINE_NVRTC_INCLUDE is \"/nowhere/include\", and /nowhere/include is no folder; list \
                    folders with \":\" between";
        assert_eq!(check_cuda(&TWICE).unwrap_err().to_string(), text);
    });
}

#[test]
#[ignore = "needs NVRTC, where WARPLINE_NVRTC says"]
fn ptx_that_cannot_be_kept_is_an_error() {
    let variables = [("WARPLINE_KEEP_PTX", "/dev/null/ptx"), ("SOFTCUDA_DRIVER_VERSION", "13090")];
    in_child(&variables, || {
        let text =
            "twice: WARPLINE_KEEP_PTX is \"/dev/null/ptx\", and /dev/null/ptx/twice.ptx cannot be written: ";
        says(&check_cuda(&TWICE).unwrap_err(), ErrorKind::InvalidArgument, &[text, "; name another folder"]);
    });
}

#[test]
#[ignore = "needs NVRTC, where WARPLINE_NVRTC says"]
fn a_named_folder_is_searched_for_an_nvrtc_that_the_driver_allows() {
    let named = std::path::PathBuf::from(std::env::var_os("WARPLINE_NVRTC").unwrap());
    let folder = if named.is_dir() { named } else { named.with_file_name("") };
    for driver in ["13090", "1000"] {
        let variables = [("WARPLINE_NVRTC", folder.to_str().unwrap()), ("SOFTCUDA_DRIVER_VERSION", driver)];
        in_child(&variables, || {
            if std::env::var("SOFTCUDA_DRIVER_VERSION").unwrap() == "13090" {
                return check_cuda(&TWICE).unwrap();
            }
            let parts = [
                "no NVRTC that could compile it was found: /",
                " belongs to CUDA 1",
                "and the driver is for CUDA 1.0",
            ];
            says(&check_cuda(&TWICE).unwrap_err(), ErrorKind::Unsupported, &parts);
        });
    }
}

#[test]
fn a_named_folder_without_nvrtc_is_named_in_the_error() {
    in_child(&[("WARPLINE_NVRTC", "/"), ("SOFTCUDA_DRIVER_VERSION", "1000")], || {
        let text = "the folder /, which WARPLINE_NVRTC names, has no libnvrtc.so.12 or .13; name the folder that has it, or \
                    the file";
        says(&check_cuda(&TWICE).unwrap_err(), ErrorKind::Unsupported, &[text]);
    });
}

#[test]
#[ignore = "needs NVRTC, where WARPLINE_NVRTC says"]
fn cuda_source_is_compiled_for_the_architecture_that_is_named() {
    in_child(&[("WARPLINE_NVRTC_ARCH", "80")], || {
        let runtime = Runtime::new().unwrap();
        let stream = runtime.device(DeviceId::Cpu(0)).unwrap().new_stream().unwrap();
        let x = stream.alloc::<u32>(32).unwrap();
        drop(stream.fill(&x, 0));
        drop(stream.launch(of_ampere(&x), LaunchConfig::linear(1, 32)));
        assert_eq!(stream.read(&x).blocking_wait().unwrap(), [496; 32]);
    });
}

#[test]
#[ignore = "needs NVRTC, where WARPLINE_NVRTC says"]
fn an_architecture_that_nvrtc_does_not_know_is_refused() {
    in_child(&[("WARPLINE_NVRTC_ARCH", "Ampere")], || {
        let runtime = Runtime::new().unwrap();
        let stream = runtime.device(DeviceId::Cpu(0)).unwrap().new_stream().unwrap();
        let x = stream.alloc::<u32>(32).unwrap();
        drop(stream.fill(&x, 0));
        says(
            &refusal(stream.launch(of_ampere(&x), LaunchConfig::linear(1, 32))),
            ErrorKind::Driver,
            &["WARPLINE_NVRTC_ARCH is \"Ampere\", and NVRTC knows ", "name one of these"],
        );
    });
}

#[test]
fn cuda_source_without_nvrtc_runs_the_cpu_form_or_is_refused_on_a_cpu_device() {
    // Any installed NVRTC is newer than this driver.
    let variables = [
        ("SOFTCUDA_DRIVER_VERSION", "1000"),
        ("WARPLINE_NVRTC", "/nowhere/libnvrtc.so.12"),
        ("WARPLINE_KERNELS", "ptx"),
    ];
    in_child(&variables, || {
        let runtime = Runtime::new().unwrap();
        let stream = runtime.device(DeviceId::Cpu(0)).unwrap().new_stream().unwrap();
        let (x, y) = (stream.alloc::<f32>(4).unwrap(), stream.alloc::<f32>(4).unwrap());
        drop(stream.fill(&x, 3.0));
        drop(stream.launch(twice(4, &x, &y), LaunchConfig::for_elements(4)));
        assert_eq!(stream.read(&y).blocking_wait().unwrap(), [6.0; 4]);
        let parts = [
            "unguarded cannot be loaded: its device code is CUDA C++, and no NVRTC that could compile it was found: ",
            "install one (pip install nvidia-cuda-nvrtc-cu12, or a CUDA toolkit), set WARPLINE_NVRTC to its path, or give the \
             kernel ptx or cpu",
        ];
        says(&refusal(stream.launch(unguarded(&x), LaunchConfig::linear(1, 4))), ErrorKind::Driver, &parts);
        x.accept_contents();
    });
}

#[test]
#[ignore = "needs NVRTC, where WARPLINE_NVRTC says"]
fn cuda_source_is_compiled_and_what_is_wrong_with_it_is_told() {
    // No NVRTC is newer than this driver.
    in_child(&[("SOFTCUDA_DRIVER_VERSION", "13090")], || {
        let runtime = Runtime::new().unwrap();
        let device = runtime.device(DeviceId::Cuda(0)).unwrap();
        let stream = device.new_stream().unwrap();
        let (x, y) = (stream.alloc::<f32>(100).unwrap(), stream.alloc::<f32>(100).unwrap());
        let config = LaunchConfig::for_elements(100);
        drop(stream.fill(&x, 3.0));
        drop(stream.launch(twice(100, &x, &y), config));
        assert_eq!(stream.read(&y).blocking_wait().unwrap(), [6.0; 100]);
        says(
            &refusal(stream.launch(misspelt(1, &y), config)),
            ErrorKind::Driver,
            &[
                "misspelt on stream",
                "(tests/cuda/nvrtc.rs:",
                "misspelt cannot be loaded: NVRTC returned NVRTC_ERROR_COMPILATION",
                "misspelt.cu(2): error: identifier \"nn\" is undefined",
            ],
        );
        says(
            &refusal(stream.launch(short_of_one(1, &y), config)),
            ErrorKind::Driver,
            &["its parameters have [4, 8] bytes in the declaration and [8] in its PTX; make the \
                two agree"],
        );
    });
}

#[test]
#[ignore = "needs NVRTC, where WARPLINE_NVRTC says"]
fn an_nvrtc_that_is_newer_than_the_driver_is_passed_over_unless_it_is_named() {
    let named = std::env::var("WARPLINE_NVRTC").unwrap();
    // In this path the loader finds the named NVRTC, too.
    let folders =
        [warpline_softcuda::library_dir().unwrap(), std::path::Path::new(&named).with_file_name("")];
    let path = std::env::join_paths(folders).unwrap();
    // The child process runs this line, too. There another NVRTC may be named, or none.
    let fits = std::env::var_os("TEST_COMPILED").is_none() && nvrtc_version() == (12, 0);
    for (driver, name, compiles) in [("12000", "", fits), ("13090", "", true), ("12000", &named[..], true)] {
        let compiled = if compiles { "1" } else { "0" };
        let variables = [
            ("LD_LIBRARY_PATH", path.to_str().unwrap()),
            ("SOFTCUDA_DRIVER_VERSION", driver),
            ("WARPLINE_NVRTC", name),
            ("TEST_COMPILED", compiled),
        ];
        in_child(&variables, || {
            let stream = crate::support::cuda(0).new_stream().unwrap();
            let y = stream.alloc::<f32>(1).unwrap();
            // Without a compiler the software CUDA driver accepts the kernel unchecked.
            let outcome = stream.launch(misspelt(1, &y), LaunchConfig::for_elements(1)).blocking_wait();
            assert_eq!(outcome.is_err(), std::env::var("TEST_COMPILED").unwrap() == "1", "{outcome:?}");
        });
    }
}

#[test]
#[ignore = "needs NVRTC, where WARPLINE_NVRTC says"]
fn what_an_nvrtc_newer_than_the_driver_makes_is_refused_with_both_versions() {
    in_child(&[("SOFTCUDA_DRIVER_VERSION", "12000")], || {
        let stream = crate::support::cuda(0).new_stream().unwrap();
        let (x, y) = (stream.alloc::<f32>(4).unwrap(), stream.alloc::<f32>(4).unwrap());
        drop(stream.fill(&x, 1.0));
        let done = stream.launch(twice(4, &x, &y), LaunchConfig::for_elements(4)).blocking_wait();
        if nvrtc_version() == (12, 0) {
            done.unwrap();
            return;
        }
        let parts = [
            "twice cannot be loaded: its PTX is of version ",
            "and this one is for CUDA 12.0; update the driver, or compile it with CUDA 12.0 or older",
            "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        ];
        says(&done.unwrap_err(), ErrorKind::Driver, &parts);
    });
}

#[test]
#[ignore = "needs NVRTC, where WARPLINE_NVRTC says"]
fn a_device_that_nvrtc_no_longer_knows_is_named_with_its_capability() {
    let variables = [("SOFTCUDA_DRIVER_VERSION", "13090"), ("SOFTCUDA_CAPABILITY", "6.1")];
    in_child(&variables, || {
        let stream = crate::support::cuda(0).new_stream().unwrap();
        let (x, y) = (stream.alloc::<f32>(4).unwrap(), stream.alloc::<f32>(4).unwrap());
        drop(stream.fill(&x, 1.0));
        let done = stream.launch(twice(4, &x, &y), LaunchConfig::for_elements(4)).blocking_wait();
        if nvrtc_version().0 < 13 {
            done.unwrap();
            return;
        }
        let parts = [
            "twice cannot be loaded: NVRTC 13.",
            " compiles for compute capability 7.5 and newer, and cuda:0 (software CUDA driver (not a GPU)) has 6.1; set \
             WARPLINE_NVRTC to an older one, or give the kernel ptx",
        ];
        says(&done.unwrap_err(), ErrorKind::Driver, &parts);
    });
}

/// Returns the version of the NVRTC that `WARPLINE_NVRTC` names.
fn nvrtc_version() -> (i32, i32) {
    let path = std::ffi::CString::new(std::env::var("WARPLINE_NVRTC").unwrap()).unwrap();
    // SAFETY: `dlopen` runs the initialisers of the library, here NVRTC's own.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY) };
    assert!(!library.is_null(), "{path:?} is no library");
    // SAFETY: the library is open, and the name ends with a NUL.
    let function = unsafe { libc::dlsym(library, c"nvrtcVersion".as_ptr()) };
    assert!(!function.is_null(), "{path:?} is no NVRTC");
    type Version = unsafe extern "C" fn(*mut i32, *mut i32) -> i32;
    // SAFETY: nvrtcVersion has this type (nvrtc.h).
    let version = unsafe { std::mem::transmute::<*mut libc::c_void, Version>(function) };
    let (mut major, mut minor) = (0, 0);
    // SAFETY: nvrtcVersion writes two ints, here to live variables.
    unsafe { version(&raw mut major, &raw mut minor) };
    (major, minor)
}
