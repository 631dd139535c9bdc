//! Checks a program that uses the default features alone.
//!
//! Packages that are built together share their features, so `ci/check` builds and runs this one
//! alone. Without the feature `ptx`, kernels run their CPU forms, and whatever asks for device code
//! is refused by an error that names the feature.

use std::error::Error;
use warpline::kernel::LaunchConfig;
use warpline::prelude::*;
use warpline::{KernelChecks, KernelForm, RuntimeBuilder};

const DEVICE_CODE: &str = r#"extern "C" __global__ void twice(unsigned n, float* y) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] *= 2.0f;
}"#;

warpline::kernel! {
    unsafe fn twice(n: u32, y: &mut [f32]) where n as usize == y.len() { cuda: DEVICE_CODE }
}

warpline::kernel! {
    unsafe fn add_one(n: u32, y: &mut [f32])
    where n as usize == y.len()
    {
        cpu: |_, y| y.iter_mut().for_each(|y| *y += 1.0),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::builder().build()?;
    let stream = runtime.device(DeviceId::Cpu(0))?.new_stream()?;
    let y = stream.alloc_zeroed::<f32>(4)?;
    let config = LaunchConfig::linear(1, 32);
    stream.launch(add_one(4, &y), config).queued()?;
    assert_eq!(stream.read(&y).blocking_wait()?, [1.0; 4]);
    let total: f32 = stream.enter(|| Tensor::ones([2, 3], &stream.device()).sum().item()).blocking_wait()?;
    assert_eq!(total, 6.0);

    let refused = stream.launch(twice(4, &y), config).queued().map(drop).unwrap_err().to_string();
    assert!(refused.contains("twice") && refused.contains("feature ptx"), "{refused}");
    let settings: [fn(RuntimeBuilder) -> RuntimeBuilder; 4] = [
        |builder| builder.kernel_form(KernelForm::Both),
        |builder| builder.kernel_form(KernelForm::Ptx),
        |builder| builder.kernel_checks(KernelChecks { races: true, ..KernelChecks::default() }),
        // SAFETY: the promise is about device code that runs, and the runtime is not built.
        |builder| unsafe { builder.without_kernel_bounds() },
    ];
    for set in settings {
        let refused = set(Runtime::builder()).build().map(drop).unwrap_err().to_string();
        assert!(refused.contains("feature ptx"), "{refused}");
    }
    println!("without the feature ptx, CPU forms run and device code is refused by name");
    Ok(())
}
