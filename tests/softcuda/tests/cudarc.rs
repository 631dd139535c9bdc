//! cudarc's safe API on the software CUDA driver.

#![cfg(target_os = "linux")]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a sequence of raw driver calls rests on one promise"
)]

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
        // SAFETY: the arguments are those of the kernel, and `x` has `n` elements.
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
            // SAFETY: the arguments are those of the kernel, and `x` has `n` elements.
            unsafe { launch.launch(LaunchConfig::for_num_elems(n)) }.unwrap();
            main.join(&side).unwrap();
        }
        assert!(main.clone_dtoh(&x).unwrap().iter().all(|value| *value == 190.0));
    });
}

#[test]
fn a_graph_is_captured_and_launched() {
    in_child(&[], || {
        let context = CudaContext::new(0).unwrap();
        // With event tracking, cudarc would wait for work outside the capture.
        // SAFETY: the test orders its streams itself.
        unsafe { context.disable_event_tracking() };
        assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
        let kernel = context.load_module(Ptx::from_src(ADD)).unwrap().load_function("add").unwrap();
        let (main, side) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let n = 1000u32;
        let mut x = main.clone_htod(&vec![0f32; n as usize]).unwrap();
        let mut y = main.clone_htod(&vec![0f32; n as usize]).unwrap();
        main.synchronize().unwrap();

        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        main.begin_capture(mode).unwrap();
        let capturing = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
        assert_eq!(main.capture_status().unwrap(), capturing);
        side.join(&main).unwrap();
        for (stream, values, a) in [(&main, &mut x, 1f32), (&side, &mut y, 2.0)] {
            let mut launch = stream.launch_builder(&kernel);
            launch.arg(values).arg(&a).arg(&n);
            // SAFETY: the arguments are those of the kernel, and both slices have `n` elements.
            unsafe { launch.launch(LaunchConfig::for_num_elems(n)) }.unwrap();
        }
        main.join(&side).unwrap();
        main.memcpy_dtod(&y.slice(..1), &mut x.slice_mut(..1)).unwrap();
        let graph = main.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap().expect("a graph");

        graph.upload().unwrap();
        for round in 1..=5 {
            graph.launch().unwrap();
            let values = main.clone_dtoh(&x).unwrap();
            main.synchronize().unwrap();
            assert_eq!(values[0], 2.0 * round as f32);
            assert!(values[1..].iter().all(|value| *value == round as f32));
        }
        drop(graph);
        context.check_err().unwrap();
    });
}

#[test]
fn a_graph_that_cannot_be_instantiated_is_an_error() {
    in_child(&[], || {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
            | sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH;
        let refused = stream.end_capture(flags).err().expect("no graph has both flags");
        assert_eq!(refused.0, sys::CUresult::CUDA_ERROR_INVALID_VALUE);
        context.check_err().unwrap();
    });
}
