//! cudarc's safe API over the software driver.

#[allow(dead_code)]
mod support;
#[path = "support/twins.rs"]
#[allow(dead_code)]
mod twins;

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;
use support::in_child;
use twins::{ADD, ADD_PARAMS, add, register};

#[test]
fn a_kernel_runs_between_two_copies() {
    in_child(&[], || {
        let context = CudaContext::new(0).unwrap();
        assert_eq!(context.name().unwrap(), "software CUDA driver (not a GPU)");
        assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
        let module = context.load_module(Ptx::from_src(ADD)).unwrap();
        let kernel = module.load_function("add").unwrap();

        let stream = context.new_stream().unwrap();
        let mut x = stream.clone_htod(&[1.0f32, 2.0, 3.0]).unwrap();
        let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let start = stream.record_event(timed).unwrap();
        let (a, n) = (0.5f32, 3u32);
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&mut x).arg(&a).arg(&n);
        // SAFETY: the arguments are those of the kernel, and x has n elements.
        unsafe { launch.launch(LaunchConfig::for_num_elems(n)) }.unwrap();
        let end = stream.record_event(timed).unwrap();

        let other = context.new_stream().unwrap();
        other.wait(&end).unwrap();
        let y = other.clone_dtoh(&x).unwrap();
        other.synchronize().unwrap();
        assert_eq!(y, [1.5, 2.5, 3.5]);
        assert!(start.elapsed_ms(&end).unwrap() >= 0.0);
        context.synchronize().unwrap();
    });
}
