//! Driver calls that fail while the device is still usable.

use crate::device::found::Lines;
use crate::faults::{FOUR, add_one, cuda, four, stream};
use crate::support::raw::calls;
use crate::support::software::in_child;
use crate::support::{block_on, refusal, says, within_a_minute};
use tracing_subscriber::layer::SubscriberExt;
use warpline::prelude::*;

#[test]
fn a_launch_that_the_driver_refuses_leaves_ticket_and_history_as_they_were() {
    in_child(&[("SOFTCUDA_FAIL", "cuLaunchKernel:2:701")], || {
        let (_runtime, device) = cuda();
        let (work, other) = (stream(&device, "work"), stream(&device, "other"));
        let (x, y) = (four(&work, 1.0), four(&work, 1.0));
        add_one(&work, &x, &y).blocking_wait().unwrap();
        let issued = work.issued();
        let failed = add_one(&work, &x, &y);
        let inherited = refusal(work.read(&y));
        assert!(inherited.is_inherited(), "what it would have written is marked: {inherited}");
        let error = refusal(failed);
        says(&inherited, ErrorKind::Driver, &["read on stream \"work\"", &error.to_string()]);
        says(
            &error,
            ErrorKind::Driver,
            &[
                "axpy on stream \"work\" (tests/cuda/faults/calls.rs:",
                "failed on cuda:0: cuLaunchKernel returned CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
                "the device is still usable",
            ],
        );
        assert_eq!((error.cuda_code(), inherited.cuda_code()), (Some(701), Some(701)));
        let source = std::error::Error::source(&error).expect("the driver's failure").to_string();
        assert!(source.starts_with("cuLaunchKernel returned CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"), "{source}");
        assert_eq!(work.issued(), issued);
        assert_eq!(
            work.read(&y).blocking_wait().unwrap(),
            [2.0; 4],
            "until somebody has looked at the error"
        );
        assert_eq!(
            other.read(&x).blocking_wait().unwrap(),
            [1.0; 4],
            "and what it would have read is not in use"
        );
        other.fill(&y, 4.0).blocking_wait().unwrap();
        assert_eq!(other.read(&y).blocking_wait().unwrap(), [4.0; 4]);
        add_one(&work, &x, &y).blocking_wait().unwrap();
        assert_eq!(work.issued(), issued + 2);
        assert!(device.fault().is_none());
    });
}

#[test]
fn memory_whose_zeroing_is_refused_is_not_handed_out() {
    in_child(&[("SOFTCUDA_FAIL", "cuMemsetD8Async:2:1")], || {
        let runtime = Runtime::builder().zero_on_free(true).build().unwrap();
        let device = runtime.device(DeviceId::Cuda(0)).unwrap();
        let stream = stream(&device, "work");
        let secret = stream.alloc::<f32>(100).unwrap();
        stream.fill(&secret, 5.0).blocking_wait().unwrap();
        drop(secret);
        says(
            &stream.alloc::<f32>(100).unwrap_err(),
            ErrorKind::Driver,
            &[
                "alloc on stream \"work\" (tests/cuda/faults/calls.rs:",
                "cuMemsetD8Async returned",
                "still usable",
            ],
        );
        assert_eq!(device.memory_stats().allocated_bytes, 0);
        let fresh = stream.alloc::<f32>(100).unwrap();
        assert_eq!(stream.read(&fresh).blocking_wait().unwrap(), [0.0; 100]);
    });
}

#[test]
fn a_fill_that_stops_halfway_keeps_its_ticket_and_its_memory() {
    in_child(&[("SOFTCUDA_FAIL", "cuMemsetD2D32Async:2:1")], || {
        let (_runtime, device) = cuda();
        let (work, other) = (stream(&device, "work"), stream(&device, "other"));
        let x = work.alloc::<u64>(1000).unwrap();
        let gate = work.hold().unwrap();
        says(
            &refusal(work.fill(&x, 1 << 40)),
            ErrorKind::Driver,
            &["cuMemsetD2D32Async returned", "the device is still usable"],
        );
        assert_eq!(work.issued(), 2, "half of it is on its way");
        assert_eq!(refusal(work.read(&x)).kind(), ErrorKind::Driver);
        drop(x);
        // `x` is freed before that half has run. Until it has, no other stream gets the memory.
        let y = other.alloc::<u64>(1000).unwrap();
        other.fill(&y, 7).blocking_wait().unwrap();
        gate.open();
        work.synchronize().blocking_wait().unwrap();
        assert_eq!(other.read(&y).blocking_wait().unwrap(), [7; 1000]);
        work.fill(&work.alloc::<u64>(10).unwrap(), 1 << 40).blocking_wait().unwrap();
    });
}

#[test]
fn out_of_memory_says_the_numbers_and_the_device_goes_on() {
    in_child(&[("SOFTCUDA_MEMORY", "16777216")], || {
        let (_runtime, device) = cuda();
        let work = stream(&device, "work");
        let held = work.alloc::<f32>(1 << 20).unwrap();
        let error = work.alloc::<f32>(8 << 20).unwrap_err();
        says(
            &error,
            ErrorKind::OutOfMemory,
            &[
                "cuda:0 is out of memory: 32.0 MiB asked, ",
                " free of 16.0 MiB",
                "4.0 MiB in use",
                "tests/cuda/faults/calls.rs:",
            ],
        );
        work.fill(&held, 1.0).blocking_wait().unwrap();
        assert!(device.fault().is_none());
    });
}

#[test]
fn memory_that_the_driver_does_not_give_is_asked_for_again_later() {
    for plan in ["cuMemCreate:1:2,cuMemAlloc_v2:1:2", "cuMemHostAlloc:1:2,cuMemHostAlloc:2:2"] {
        in_child(&[("SOFTCUDA_FAIL", plan)], || {
            let (_runtime, device) = cuda();
            let work = stream(&device, "work");
            let error = if std::env::var("SOFTCUDA_FAIL").unwrap().contains("Host") {
                block_on(device.pinned::<f32>(4)).unwrap_err()
            } else {
                work.alloc::<f32>(1 << 20).unwrap_err()
            };
            let numbers =
                if error.to_string().contains("pinned") { "16 B asked, 0 B in use" } else { " free of 8" };
            says(&error, ErrorKind::OutOfMemory, &["cuda:0", numbers]);
            let x = four(&work, 2.0);
            assert_eq!(work.read(&x).blocking_wait().unwrap(), [2.0; 4]);
        });
    }
}

#[test]
fn a_wait_whose_event_cannot_be_made_recorded_or_waited_for_is_refused() {
    for plan in ["cuEventCreate:2:304", "cuEventRecord:1:1", "cuStreamWaitEvent:1:1"] {
        in_child(&[("SOFTCUDA_FAIL", plan)], || {
            let (_runtime, device) = cuda();
            let (a, b) = (stream(&device, "a"), stream(&device, "b"));
            let x = four(&a, 1.0);
            let gate = a.hold().unwrap();
            drop(a.fill(&x, 2.0));
            let error = refusal(b.wait_stream(&a));
            says(
                &error,
                ErrorKind::Driver,
                &["wait_stream on stream \"b\"", "failed on cuda:0: cu", "the device is still usable"],
            );
            assert_eq!(refusal(b.read(&x)).kind(), ErrorKind::Unordered, "there is no edge");
            b.wait_stream(&a);
            let read = b.read(&x);
            gate.open();
            assert_eq!(read.blocking_wait().unwrap(), [2.0; 4]);
        });
    }
}

#[test]
fn a_module_that_does_not_load_is_tried_again_with_the_next_launch() {
    for plan in ["cuModuleLoadDataEx:1:304", "cuModuleGetFunction:1:304"] {
        in_child(&[("SOFTCUDA_FAIL", plan)], || {
            let (_runtime, device) = cuda();
            let work = stream(&device, "work");
            let (x, y) = (four(&work, 1.0), four(&work, 1.0));
            let error = refusal(add_one(&work, &x, &y));
            says(
                &error,
                ErrorKind::Driver,
                &["axpy cannot be loaded: cuModule", "the device is still usable"],
            );
            let plan = std::env::var("SOFTCUDA_FAIL").unwrap();
            assert_eq!(error.cuda_code().map(|code| code.to_string()).as_deref(), plan.split(':').nth(2));
            let source = std::error::Error::source(&error).expect("the driver's failure").to_string();
            assert!(source.starts_with("axpy cannot be loaded: cuModule"), "{source}");
            work.fill(&y, 1.0).blocking_wait().unwrap();
            add_one(&work, &x, &y).blocking_wait().unwrap();
            assert_eq!(work.read(&y).blocking_wait().unwrap(), [2.0; 4]);
        });
    }
}

#[test]
fn pinned_memory_that_the_driver_refuses_has_its_code() {
    in_child(&[("SOFTCUDA_FAIL", "cuMemHostAlloc:1:1,cuMemHostRegister_v2:2:801")], || {
        let (_runtime, device) = cuda();
        let allocated = block_on(device.pinned::<f32>(4)).unwrap_err();
        says(&allocated, ErrorKind::Driver, &["could not allocate pinned memory", "cuMemHostAlloc returned"]);
        let registered = device.pin(vec![1.0f32; 4]).unwrap_err();
        says(&registered, ErrorKind::Driver, &["could not page-lock", "cuMemHostRegister_v2 returned"]);
        assert_eq!((allocated.cuda_code(), registered.cuda_code()), (Some(1), Some(801)));
    });
}

#[test]
fn a_fault_is_believed_from_a_call_that_touches_one_device_and_from_no_other() {
    for (call, code, is_dead) in [
        ("cuMemcpyHtoDAsync_v2", 700, true),
        ("cuMemcpyHtoDAsync_v2", 911, true),
        ("cuMemcpyHtoDAsync_v2", 709, false),
        ("cuMemcpyHtoDAsync_v2", 4711, false),
        ("cuMemcpyPeerAsync", 700, false),
    ] {
        let (plan, is_dead) = (format!("{call}:1:{code}"), if is_dead { "1" } else { "0" });
        in_child(&[("SOFTCUDA_FAIL", &plan), ("WARPLINE_TEST_IS_DEAD", is_dead)], || {
            let (runtime, device) = cuda();
            let next = runtime.device(DeviceId::Cuda(1)).unwrap();
            let work = stream(&device, "work");
            crate::support::cache_pinned(&device);
            let (x, y) = (four(&work, 1.0), four(&work, 1.0));
            let z = four(&stream(&next, "next"), 1.0);
            let errors =
                [work.write(&x, &[2.0; 4]), work.copy_buffer_peer(&z, &y)].map(Pending::blocking_wait);
            if std::env::var("WARPLINE_TEST_IS_DEAD").unwrap() == "1" {
                for error in errors.map(Result::unwrap_err) {
                    assert_eq!(error.kind(), ErrorKind::Fault, "{error}");
                }
                assert!(device.fault().is_some());
            } else {
                let errors: Vec<_> = errors.into_iter().filter_map(Result::err).collect();
                assert!(matches!(&errors[..], [error] if error.kind() == ErrorKind::Driver), "{errors:?}");
                work.write(&x, &[3.0; 4]).blocking_wait().unwrap();
                assert_eq!(work.read(&x).blocking_wait().unwrap(), [3.0; 4]);
            }
            assert!(next.fault().is_none());
        });
    }
}

#[test]
fn a_call_that_finds_the_context_dead_says_so_everywhere() {
    for plan in [
        "cuMemCreate:1:700:sticky",
        "cuMemSetAccess:1:700:sticky",
        "cuMemHostAlloc:1:700:sticky",
        "cuModuleLoadDataEx:1:700:sticky",
        "cuStreamWriteValue64_v2:2:700:sticky",
        "cuEventRecord:1:700:sticky",
    ] {
        in_child(&[("SOFTCUDA_FAIL", plan)], || {
            let (_runtime, device) = cuda();
            let (a, b) = (stream(&device, "a"), stream(&device, "b"));
            let pending = a.call(|| ());
            let event = a.record_event();
            b.wait_event(&event);
            let x = a.alloc::<f32>(4).map(|x| {
                drop(a.write(&x, &[1.0; 4]));
                drop(a.launch(warpline::kernels::axpy(4, 1.0, &x, &four_more(&a)), FOUR));
            });
            drop((pending, x));
            says(&refusal(a.synchronize()), ErrorKind::Fault, &["CUDA_ERROR_ILLEGAL_ADDRESS"]);
            says(&refusal(b.call(|| ())), ErrorKind::Fault, &["cuda:0 accepts no more work in this process"]);
            assert!(device.fault().is_some());
        });
    }
}

fn four_more(stream: &Stream) -> Buffer<f32> {
    stream.alloc::<f32>(4).unwrap_or_else(|error| {
        says(&error, ErrorKind::Fault, &["CUDA_ERROR_ILLEGAL_ADDRESS"]);
        std::process::exit(0)
    })
}

#[test]
fn what_the_driver_does_not_free_is_reported() {
    let plans =
        ["cuMemFree_v2:1:1", "cuMemFreeHost:1:1", "cuMemHostUnregister:1:1", "cuGraphExecDestroy:1:1"];
    for plan in plans {
        // Where each op is waited for, no page-locked memory is made ahead of need.
        let fixed = ("SOFTCUDA_VIRTUAL_MEMORY", "0");
        in_child(&[("SOFTCUDA_FAIL", plan), ("CUDA_LAUNCH_BLOCKING", "1"), fixed], || {
            let plan = std::env::var("SOFTCUDA_FAIL").unwrap();
            let lines = Lines::default();
            let subscriber = tracing_subscriber::registry().with(lines.clone());
            tracing::subscriber::set_global_default(subscriber).unwrap();
            let (_runtime, device) = cuda();
            let work = stream(&device, "work");
            let x = four(&work, 1.0);
            let (graph, ()) = work.capture(|s| drop(s.fill(&x, 2.0))).unwrap();
            let pinned = device.pin(vec![0u8; 4096]);
            if pinned.is_err() && plan.starts_with("cuMemHostUnregister") {
                // The driver registers no memory (`SOFTCUDA_NO_REGISTER`).
                return;
            }
            drop((graph, x, pinned, device.blocking_pinned::<u8>(4096).unwrap()));
            block_on(work.synchronize()).unwrap();
            let reserved = device.memory_stats().reserved_bytes + device.pinned_stats().reserved_bytes;
            let returned = device.empty_cache();
            // Other threads free what was dropped.
            let text = "the driver did not free memory or a graph, or did not unlock memory";
            within_a_minute(move || {
                while !lines.0.lock().unwrap().iter().any(|line| line.contains(text)) {
                    std::thread::yield_now();
                }
            });
            assert!(device.fault().is_none());
            // It does not count as returned, and the limits count it.
            let (memory, pinned) = (device.memory_stats(), device.pinned_stats());
            let not_freed = memory.not_freed_bytes + pinned.not_freed_bytes;
            assert_eq!(memory.not_freed_bytes > 0, plan.starts_with("cuMemFree_"), "{plan}");
            assert_eq!(pinned.not_freed_bytes > 0, plan.starts_with("cuMemFreeHost"), "{plan}");
            assert_eq!(returned, reserved - not_freed, "{plan}");
            let summary = device.memory_summary();
            assert_eq!(summary.contains("not freed"), not_freed > 0, "{summary}");
        });
    }
}

#[test]
fn a_piece_that_the_driver_does_not_unmap_stays_in_use() {
    // More calls than the allocation makes before it gives up.
    let plan: Vec<String> = (1..10).map(|call| format!("cuMemUnmap:{call}:1")).collect();
    let plan = plan.join(",");
    in_child(&[("SOFTCUDA_FAIL", &plan)], || {
        let runtime = Runtime::builder().memory_limit(16 << 20).build().unwrap();
        let device = runtime.device(DeviceId::Cuda(0)).unwrap();
        let (first, second) = (device.alloc::<u8>(6 << 20).unwrap(), device.alloc::<u8>(8 << 20).unwrap());
        drop(first);
        // The cached block is too short, so its pieces are to be unmapped.
        let error = device.alloc::<u8>(8 << 20).unwrap_err();
        says(&error, ErrorKind::OutOfMemory, &["2.0 MiB free of the limit of 16.0 MiB", "6.0 MiB cached"]);
        let stats = device.memory_stats();
        assert_eq!((stats.not_freed_bytes, stats.reserved_bytes), (0, 14 << 20));
        let stream = stream(&device, "work");
        let first = stream.alloc::<u8>(6 << 20).unwrap();
        stream.fill(&first, 1).blocking_wait().unwrap();
        drop((first, second));
        while calls(c"cuMemUnmap") < 10 {
            device.empty_cache();
        }
        assert_eq!(device.alloc::<u8>(16 << 20).unwrap().len(), 16 << 20);
        assert!(device.fault().is_none());
    });
}

#[test]
fn a_limit_counts_what_the_driver_did_not_free() {
    let fixed = ("SOFTCUDA_VIRTUAL_MEMORY", "0");
    in_child(&[("SOFTCUDA_FAIL", "cuMemFree_v2:1:1"), fixed], || {
        let runtime = Runtime::builder().memory_limit(16 << 20).build().unwrap();
        let device = runtime.device(DeviceId::Cuda(0)).unwrap();
        drop(device.alloc::<u8>(10 << 20).unwrap());
        // The cached block is too small, so it is freed to make room, which fails.
        let error = device.alloc::<u8>(12 << 20).unwrap_err();
        says(
            &error,
            ErrorKind::OutOfMemory,
            &["6.0 MiB free of the limit of 16.0 MiB", "10.0 MiB that the driver did not free"],
        );
        assert_eq!(error.out_of_memory().unwrap().not_freed_bytes, 10 << 20);
        let stats = device.memory_stats();
        assert_eq!((stats.not_freed_bytes, stats.reserved_bytes), (10 << 20, 0));
        drop(device.alloc::<u8>(6 << 20).unwrap());
        assert!(device.fault().is_none());
    });
}
