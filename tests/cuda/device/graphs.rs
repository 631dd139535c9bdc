//! Graphs as the driver gets them: the priorities of their nodes, and captures that it refuses.

use crate::device::cuda;
use crate::support::raw::calls_in;
use crate::support::says;
use crate::support::software::in_child;
use warpline::prelude::*;
use warpline::{Priority, kernels};

#[test]
fn kernels_of_a_graph_have_the_priorities_of_the_streams_they_were_captured_on() {
    in_child(&[("WARPLINE_ORDER", "off")], || {
        let device = cuda(0);
        let stream = |priority| device.stream().priority(priority).build().unwrap();
        let (main, low, high) = (stream(Priority::High), stream(Priority::Low), stream(Priority::High));
        let [of_low, of_high, last] = [1.0, 2.0, 0.0].map(|value| {
            let x = main.alloc::<f32>(8).unwrap();
            main.fill(&x, value).blocking_wait().unwrap();
            x
        });
        // Either branch is captured first, because the order of the capture decides between nodes
        // of equal priority.
        for branches in [[(&low, &of_low), (&high, &of_high)], [(&high, &of_high), (&low, &of_low)]] {
            let (graph, ()) = main
                .capture(|s| {
                    branches.iter().try_for_each(|(side, _)| side.wait_stream(s).queued())?;
                    for (side, x) in branches {
                        side.launch(kernels::relu(8, x, &last), LaunchConfig::for_elements(8u32)).queued()?;
                    }
                    branches.iter().try_for_each(|(side, _)| s.wait_stream(side).queued())
                })
                .unwrap();
            let (outer, ()) = main.capture(|s| graph.launch(s)).unwrap();
            for _ in 0..4 {
                for graph in [&graph, &outer] {
                    graph.launch(&main).blocking_wait().unwrap();
                    assert_eq!(main.read(&last).blocking_wait().unwrap(), [1.0; 8], "the low one is later");
                }
            }
        }
    });
}

#[test]
fn a_capture_that_the_driver_refuses_leaves_its_streams_to_the_next() {
    let refused = "cuLaunchKernel:1:701,cuLaunchKernel:2:701,cuLaunchKernel:3:701";
    in_child(&[("SOFTCUDA_FAIL", refused)], || {
        let device = cuda(0);
        let (main, side) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let x = main.alloc::<f32>(8).unwrap();
        main.fill(&x, -1.0).blocking_wait().unwrap();
        let capture = || {
            main.capture(|s| {
                side.wait_stream(s).queued()?;
                side.launch(kernels::relu(8, &x, &x), LaunchConfig::for_elements(8u32)).queued()?;
                s.wait_stream(&side).queued()
            })
        };
        let ([streams], ()) = calls_in([c"cuStreamCreateWithPriority"], || {
            for _ in 0..3 {
                let texts = [
                    "capture on stream",
                    "relu (tests/cuda/device/graphs.rs:",
                    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
                ];
                let error = capture().unwrap_err();
                says(&error, ErrorKind::Driver, &texts);
                assert_eq!(error.cuda_code(), Some(701));
            }
            let (graph, ()) = capture().unwrap();
            graph.launch(&main).blocking_wait().unwrap();
        });
        assert_eq!(main.read(&x).blocking_wait().unwrap(), [0.0; 8]);
        assert_eq!(streams, 2, "one capture's");
    });
}
