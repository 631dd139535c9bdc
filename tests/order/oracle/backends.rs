//! Random programs on devices of two backends.

use super::{Run, on_random_programs};
use warpline::prelude::*;
use warpline_outside_driver::{BACKEND, ThreadDevice};
use warpline_test_counts::count;

#[test]
fn verdicts_are_the_same_between_the_cpu_and_an_outside_driver() {
    on_random_programs(count(300, 2_000), || {
        let builder = Runtime::builder().driver(|health| Ok(ThreadDevice::open(0, health)));
        let outside = DeviceId::Other { backend: BACKEND, ordinal: 0 };
        Run::real(builder.build().unwrap(), [DeviceId::Cpu(0), outside])
    });
}

#[test]
fn verdicts_are_the_same_between_the_cpu_and_the_software_cuda_driver() {
    crate::support::software::in_child(&[], || {
        on_random_programs(count(100, 500), || {
            Run::real(Runtime::new().unwrap(), [DeviceId::Cpu(0), DeviceId::Cuda(0)])
        });
    });
}
