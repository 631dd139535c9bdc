//! cudarc's safe API over the software driver.

#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "each test binary uses a part")]
mod support;
#[path = "support/twins.rs"]
#[allow(dead_code, reason = "each test binary uses a part")]
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

#[test]
fn what_is_dropped_is_given_back() {
    in_child(&[("SOFTCUDA_MEMORY", "1048576")], || {
        for _ in 0..3 {
            let context = CudaContext::new(0).unwrap();
            assert_eq!(context.mem_get_info().unwrap(), (1 << 20, 1 << 20));
            let stream = context.default_stream();
            let zeros = stream.alloc_zeros::<u32>(128 << 10).unwrap();
            let copy = stream.clone_dtod(&zeros).unwrap();
            let refused = stream.alloc_zeros::<u8>(1).unwrap_err();
            assert_eq!(refused.0, sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
            assert!(stream.clone_dtoh(&copy).unwrap().iter().all(|value| *value == 0));
            drop((zeros, copy));
            stream.synchronize().unwrap();
            assert_eq!(context.mem_get_info().unwrap().0, 1 << 20);
        }
    });
}

#[test]
fn streams_of_one_context_are_forked_and_joined() {
    in_child(&[], || {
        let context = CudaContext::new(0).unwrap();
        assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
        let kernel = context.load_module(Ptx::from_src(ADD)).unwrap().load_function("add").unwrap();
        let (main, n) = (context.new_stream().unwrap(), 1000u32);
        let mut x = main.clone_htod(&vec![0f32; n as usize]).unwrap();
        for round in 0..20 {
            let side = main.fork().unwrap();
            let a = round as f32;
            let mut launch = side.launch_builder(&kernel);
            launch.arg(&mut x).arg(&a).arg(&n);
            // SAFETY: the arguments are those of the kernel, and x has n elements.
            unsafe { launch.launch(LaunchConfig::for_num_elems(n)) }.unwrap();
            main.join(&side).unwrap();
        }
        assert!(main.clone_dtoh(&x).unwrap().iter().all(|value| *value == 190.0));
    });
}
