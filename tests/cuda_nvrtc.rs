//! Kernels whose device code is CUDA C++: compiled when they are first launched, where there is NVRTC.

mod support;

use support::software::in_child;
use support::{refusal, says};
use warpline::prelude::*;

warpline::kernel! {
    /// y ← 2·x for `n` elements.
    unsafe fn twice(n: u32, x: &[f32], write y: &mut [f32])
    where n as usize <= x.len(), n as usize <= y.len()
    {
        cuda: "extern \"C\" __global__ void twice(unsigned n, const float* x, float* y) {
            unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) y[i] = 2 * x[i];
        }",
        cpu: |n, x, y| for i in 0..n as usize { y[i] = 2.0 * x[i] },
    }

    /// Does not compile.
    unsafe fn misspelt(n: u32, write y: &mut [f32])
    where n as usize <= y.len()
    {
        cuda: "extern \"C\" __global__ void misspelt(unsigned n, float* y) {\n    y[0] = nn;\n}",
        cpu: |_, _| (),
    }

    /// Lacks a parameter on the device, as only a compiler sees.
    unsafe fn short_of_one(n: u32, write y: &mut [f32])
    where n as usize <= y.len()
    {
        cuda: "#define PARAMS float* y\nextern \"C\" __global__ void short_of_one(PARAMS) { y[0] = 1; }",
        cpu: |_, _| (),
    }
}

#[test]
#[ignore = "needs NVRTC, where WARPLINE_NVRTC says"]
fn cuda_source_is_compiled_and_what_is_wrong_with_it_is_told() {
    in_child(&[], || {
        let runtime = Runtime::new().unwrap();
        let device = runtime.device(DeviceId::Cuda(0)).unwrap();
        let stream = device.new_stream().unwrap();
        let (x, y) = (stream.alloc::<f32>(100).unwrap(), stream.alloc::<f32>(100).unwrap());
        let config = LaunchConfig::for_elements(100);
        drop(stream.fill(&x, 3.0));
        drop(stream.launch(twice(100, &x, &y), config));
        assert_eq!(stream.read(&y).wait().unwrap(), [6.0; 100]);
        says(
            &refusal(stream.launch(misspelt(1, &y), config)),
            ErrorKind::Driver,
            &[
                "misspelt on stream",
                "(tests/cuda_nvrtc.rs:",
                "misspelt cannot be loaded: NVRTC answered NVRTC_ERROR_COMPILATION",
                "misspelt.cu(2): error: identifier \"nn\" is undefined",
            ],
        );
        says(
            &refusal(stream.launch(short_of_one(1, &y), config)),
            ErrorKind::Driver,
            &[
                "it is declared with 2 parameters of [4, 8] bytes and its PTX has 1 of [8]; make them the same",
            ],
        );
    });
}

#[test]
#[ignore = "needs NVRTC, where WARPLINE_NVRTC says"]
fn an_nvrtc_that_is_newer_than_the_driver_is_passed_over_unless_it_is_named() {
    let named = std::env::var("WARPLINE_NVRTC").unwrap();
    // Where the loader finds it too.
    let folders =
        [warpline_softcuda::library_dir().unwrap(), std::path::Path::new(&named).with_file_name("")];
    let path = std::env::join_paths(folders).unwrap();
    for (driver, name, compiles) in [("12000", "", false), ("13090", "", true), ("12000", &named[..], true)] {
        let compiled = if compiles { "1" } else { "0" };
        let variables = [
            ("LD_LIBRARY_PATH", path.to_str().unwrap()),
            ("SOFTCUDA_DRIVER_VERSION", driver),
            ("WARPLINE_NVRTC", name),
            ("TEST_COMPILED", compiled),
        ];
        in_child(&variables, || {
            let stream = support::cuda(0).new_stream().unwrap();
            let y = stream.alloc::<f32>(1).unwrap();
            // Without a compiler the software driver takes a kernel at its word.
            let outcome = stream.launch(misspelt(1, &y), LaunchConfig::for_elements(1)).wait();
            assert_eq!(outcome.is_err(), std::env::var("TEST_COMPILED").unwrap() == "1", "{outcome:?}");
        });
    }
}
