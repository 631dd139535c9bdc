//! Launches of the kernels of the crate and of kernels declared here.

use crate::support::says;
use crate::{contract, refused};
use warpline::kernels;
use warpline::prelude::*;

warpline::kernel! {
    /// Computes y ← a·x² + y for `n` elements.
    pub(crate) unsafe fn add_squares(n: u32, a: f32, x: &[f32], y: &mut [f32])
    where n as usize <= x.len(), n as usize <= y.len()
    {
        cuda: "extern \"C\" __global__ void add_squares(unsigned n, float a, const float* x, float* y) {
            unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) y[i] += a * (x[i] * x[i]);
        }",
        cpu: |n, a, x, y| for i in 0..n as usize { y[i] += a * (x[i] * x[i]) },
    }

    /// Lacks a parameter in device code.
    unsafe fn one_parameter_less(n: u32, y: &mut [f32]) {
        descriptor: ONE_PARAMETER_LESS,
        ptx: TWO_ENTRIES,
        cpu: |n, y| y[0] = n as f32,
    }

    /// Takes a number of another size in device code.
    unsafe fn another_size(n: u64, y: &mut [f32]) {
        ptx: TWO_ENTRIES,
        cpu: |n, y| y[0] = n as f32,
    }

    /// Differs in name from its device code.
    unsafe fn misnamed(y: &mut [f32]) {
        ptx: TWO_ENTRIES,
        cpu: |y| y[0] = 1.0,
    }

    /// Takes its parameters in another order in CUDA C++.
    unsafe fn in_another_order(n: u64, y: &mut [f32]) {
        cuda: "extern \"C\" __global__ void in_another_order(float* y, unsigned long long n) {}",
        cpu: |n, y| y[0] = n as f32,
    }

    /// Differs in name from its CUDA C++.
    unsafe fn misnamed_in_cuda(y: &mut [f32]) {
        cuda: "extern \"C\" __global__ void misnomer(float* y) {}",
        cpu: |y| y[0] = 1.0,
    }

    /// Lacks a kernel in its device code.
    unsafe fn without_entry(y: &mut [f32]) {
        ptx: ".version 8.1\n.target sm_70\n.address_size 64\n",
        cpu: |y| y[0] = 1.0,
    }
}

const TWO_ENTRIES: &str = ".version 8.1
.target sm_70
.address_size 64
.visible .entry one_parameter_less(.param .u64 y) { ret; }
.visible .entry another_size(.param .u32 n, .param .u64 y) { ret; }
";

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

contract! {
    async fn launches_run_in_stream_order_on_their_operands([device]) {
        let stream = device.new_stream()?;
        let (x, y) = (stream.alloc::<f32>(1000)?, stream.alloc::<f32>(1000)?);
        let config = LaunchConfig::for_elements(1000u32);
        drop(stream.write(&x, &ramp(1000)));
        drop(stream.fill(&y, 1.0));
        drop(stream.launch(kernels::axpy(1000, 2.0, &x, &y), config));
        drop(stream.launch(kernels::add_(1000, &y, &x), config));
        let expected: Vec<f32> = (0..1000).map(|i| 1.0 + 3.0 * i as f32).collect();
        assert_eq!(stream.read(&y).await?, expected);
    }

    async fn relu_writes_another_buffer_or_its_own([device]) {
        let stream = device.new_stream()?;
        let (x, y) = (stream.alloc::<f32>(3)?, stream.alloc::<f32>(3)?);
        let config = LaunchConfig::for_elements(3u32);
        drop(stream.write(&x, &[-1.0, 0.0, 2.0]));
        drop(stream.launch(kernels::relu(3, &x, &y), config));
        assert_eq!(stream.read(&y).await?, [0.0, 0.0, 2.0]);
        drop(stream.launch(kernels::relu(3, &x, &x), config));
        assert_eq!(stream.read(&x).await?, [0.0, 0.0, 2.0]);
    }

    async fn ops_run_on_the_current_stream_of_their_operands([device]) {
        let stream = device.new_stream()?;
        let x = stream.alloc::<f32>(1000)?;
        drop(stream.fill(&x, 0.5));
        assert_eq!(stream.enter(|| warpline::ops::sum(&x)).await?, 500.0);
    }

    async fn a_kernel_declared_here_is_launched_like_any_other([device]) {
        let stream = device.new_stream()?;
        let (x, y) = (stream.alloc::<f32>(8)?, stream.alloc::<f32>(10)?);
        drop(stream.write(&x, &ramp(8)));
        drop(stream.fill(&y, 1.0));
        stream.launch(add_squares(8, 2.0, &x, &y), LaunchConfig::for_elements(8u32)).await?;
        let expected: Vec<f32> = (0..8).map(|i| 1.0 + 2.0 * (i * i) as f32).chain([1.0, 1.0]).collect();
        assert_eq!(stream.read(&y).await?, expected);
    }

    async fn a_launch_whose_where_does_not_hold_is_refused_with_the_numbers([device]) {
        let stream = device.new_stream()?;
        let (x, y) = (stream.alloc::<f32>(8)?, stream.alloc::<f32>(4)?);
        let call = add_squares(8, 2.0, &x, &y);
        let error = refused(stream.launch(call, LaunchConfig::for_elements(8u32))).await;
        let text = "\"n as usize <= y.len()\" does not hold: n = 8, a = 2.0, x.len() = 8, y.len() = 4; \
                    pass arguments that satisfy it";
        says(&error, ErrorKind::Shape, &[text]);
        assert_eq!(stream.issued(), 0);
    }

    async fn a_strided_operand_is_refused_with_its_shape([device]) {
        let stream = device.new_stream()?;
        let x = stream.alloc::<f32>(12)?.as_matrix(4)?;
        let y = stream.alloc::<f32>(8)?;
        let error =
            refused(stream.launch(kernels::axpy(8, 1.0, &x.columns(..2)?, &y), LaunchConfig::for_elements(8u32))).await;
        let text = "operand x is a strided view of 4 rows of 2 elements, and the kernel takes contiguous memory; copy it first";
        says(&error, ErrorKind::Shape, &[text]);
        y.accept_contents();
        let whole_rows = x.rows(1..3)?;
        drop(stream.fill(&x, 1.0));
        drop(stream.fill(&y, 1.0));
        stream.launch(kernels::axpy(6, 1.0, &whole_rows, &y.slice(..6)?), LaunchConfig::for_elements(6u32)).await?;
    }

    async fn a_configuration_no_gpu_takes_is_refused_everywhere([device]) {
        let stream = device.stream().label("wide").build()?;
        let (x, y) = (stream.alloc::<f32>(8)?, stream.alloc::<f32>(8)?);
        let error = refused(stream.launch(kernels::axpy(8, 1.0, &x, &y), LaunchConfig::linear(1, 2000))).await;
        says(
            &error,
            ErrorKind::InvalidArgument,
            &["axpy on stream \"wide\" (tests/contract/kernels.rs:", "block [2000, 1, 1] has 2000 \
                in x, expected 1 to 1024; change the launch configuration"],
        );
    }

    async fn an_operand_of_another_device_is_refused_with_both_names([one, two]) {
        let stream = one.stream().label("mine").build()?;
        let (x, y) = (two.new_stream()?.alloc::<f32>(8)?, stream.alloc::<f32>(8)?);
        let place = "on stream \"mine\" (tests/contract/kernels.rs:";
        let devices = format!("the stream is on {one} and an operand is on {two}; move a tensor with to, or a buffer with copy_buffer_peer");
        let config = LaunchConfig::for_elements(8u32);
        for (op, error) in [
            ("axpy", refused(stream.launch(kernels::axpy(8, 1.0, &x, &y), config)).await),
            ("fill", refused(stream.fill(&x, 1.0)).await),
            ("copy_buffer", refused(stream.copy_buffer(&x, &y)).await),
            ("write", refused(stream.write(&x, &[0.0; 8])).await),
        ] {
            says(&error, ErrorKind::DeviceMismatch, &[&format!("{op} {place}"), &devices]);
        }
        assert_eq!(stream.issued(), 0);
    }

    async fn a_kernel_whose_device_code_differs_from_its_declaration_is_refused_everywhere([device]) {
        let stream = device.stream().label("s").build()?;
        let y = stream.alloc::<f32>(8)?;
        let config = LaunchConfig::for_elements(8u32);
        for (call, text) in [
            (
                one_parameter_less(1, &y),
                "one_parameter_less on stream \"s\" (tests/contract/kernels.rs:LINE): its \
                parameters have [4, 8] bytes in the declaration and [8] in its PTX; make the two \
                agree",
            ),
            (
                another_size(1, &y),
                "another_size on stream \"s\" (tests/contract/kernels.rs:LINE): its parameters \
                have [8, 8] bytes in the declaration and [4, 8] in its PTX; make the two agree",
            ),
            (
                misnamed(&y),
                "misnamed on stream \"s\" (tests/contract/kernels.rs:LINE): its PTX has no entry misnamed, only \
                 one_parameter_less, another_size; give both the same name, and declare the one in device code extern \"C\"",
            ),
            (
                without_entry(&y),
                "without_entry on stream \"s\" (tests/contract/kernels.rs:LINE): its PTX has no entry; declare the kernel \
                 extern \"C\" and __global__",
            ),
            (
                in_another_order(1, &y),
                "in_another_order on stream \"s\" (tests/contract/kernels.rs:LINE): parameter 1 \
                of 2 is \"n: u64\" in the declaration and \"float* y\" in its CUDA C++; make the \
                two agree",
            ),
            (
                misnamed_in_cuda(&y),
                "misnamed_in_cuda on stream \"s\" (tests/contract/kernels.rs:LINE): its CUDA C++ has no kernel \
                 misnamed_in_cuda, only misnomer; give both the same name",
            ),
        ] {
            let line = line!() + 1;
            let error = refused(stream.launch(call, config)).await;
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert_eq!(error.to_string(), text.replace("LINE", &line.to_string()));
            y.accept_contents();
        }
        says(
            &refused(stream.launch(one_parameter_less(1, &y), config)).await,
            ErrorKind::InvalidArgument,
            &["make the two agree"],
        );
        assert_eq!(stream.issued(), 0);
    }

    async fn a_kernel_whose_ptx_differs_from_its_declaration_is_not_loaded([device]) {
        let text = "its parameters have [4, 8] bytes in the declaration and [8] in its PTX; make \
            the two agree";
        let error = device.load([&kernels::AXPY, &ONE_PARAMETER_LESS]).unwrap_err();
        says(&error, ErrorKind::InvalidArgument, &["one_parameter_less: ", text]);
        if matches!(device.id(), DeviceId::Cuda(_)) {
            let error = device.suggest_config(&ONE_PARAMETER_LESS, 8, 0).unwrap_err();
            says(&error, ErrorKind::Driver, &["one_parameter_less cannot be loaded: ", text]);
        }
    }
}
