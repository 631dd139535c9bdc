//! Freeing memory waits in the driver for the whole device, and calls of other threads may wait for
//! it. A held stream must not block drops on other streams. A drop must not block the thread that
//! opens the gate.

use crate::support::block_on;
use crate::support::raw::{calls, waits_for_device};
use crate::support::software::in_child;
use warpline::prelude::*;

/// The setting under which memory comes in segments of fixed length. Unmapping a piece does not
/// wait for the device, so only they show what a free waits for.
const NO_VIRTUAL_MEMORY: (&str, &str) = ("SOFTCUDA_VIRTUAL_MEMORY", "0");

/// Returns a new runtime and its `cuda:0`.
fn cuda() -> (Runtime, Device) {
    let runtime = Runtime::new().unwrap();
    let device = runtime.device(DeviceId::Cuda(0)).unwrap();
    (runtime, device)
}

#[test]
fn a_device_may_be_dropped_while_a_stream_of_another_runtime_is_held() {
    for (calls_come_one_at_a_time, maps) in [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")] {
        let plan = [("SOFTCUDA_ONE_AT_A_TIME", calls_come_one_at_a_time), ("SOFTCUDA_VIRTUAL_MEMORY", maps)];
        in_child(&plan, || {
            let maps = std::env::var("SOFTCUDA_VIRTUAL_MEMORY").unwrap() == "1";
            let free = if maps { c"cuMemUnmap" } else { c"cuMemFree_v2" };
            let freed = || [free, c"cuMemFreeHost"].map(calls);
            let (_runtime, device) = cuda();
            let (held, longer) = (device.new_stream().unwrap(), device.new_stream().unwrap());
            let x = held.alloc::<f32>(4).unwrap();
            let (runtime, ending) = cuda();
            let stream = ending.new_stream().unwrap();
            drop((stream.alloc::<f32>(4).unwrap(), ending.blocking_pinned::<f32>(4).unwrap()));
            stream.synchronize().blocking_wait().unwrap();
            drop(stream);
            let (gate, last) = (held.hold().unwrap(), longer.hold().unwrap());
            let before = freed();
            drop((runtime, ending));
            // A free inside that drop would have waited for the gates.
            let filled = held.fill(&x, 1.0);
            gate.open();
            filled.blocking_wait().unwrap();
            assert_eq!(freed(), before, "one is closed yet");
            last.open();
            while freed().iter().zip(before).any(|(now, before)| *now == before) {
                std::thread::yield_now();
            }
            assert_eq!(held.read(&x).blocking_wait().unwrap(), [1.0; 4]);
        });
    }
}

#[test]
fn an_allocation_that_must_free_memory_leaves_the_thread_that_opens_the_gate_alone() {
    for maps in ["0", "1"] {
        let plan = [("SOFTCUDA_ONE_AT_A_TIME", "1"), ("SOFTCUDA_VIRTUAL_MEMORY", maps)];
        in_child(&plan, || {
            let limited = Runtime::builder().memory_limit(16 << 20).build().unwrap();
            let limited = limited.device(DeviceId::Cuda(0)).unwrap();
            let freed = limited.alloc::<u8>(10 << 20).unwrap();
            // The freed memory cannot grow in place.
            let _kept = limited.alloc::<u8>(2 << 20).unwrap();
            drop(freed);
            let (_runtime, device) = cuda();
            let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
            let x = other.alloc::<u8>(1).unwrap();
            let gate = stream.hold().unwrap();
            let (asks, asking) = std::sync::mpsc::channel();
            let larger = std::thread::spawn(move || {
                asks.send(()).unwrap();
                limited.alloc::<u8>(12 << 20).map(drop)
            });
            asking.recv().unwrap();
            // Each is a call of the driver. One that frees memory would keep them waiting.
            (0..200).for_each(|value| drop(other.fill(&x, value)));
            gate.open();
            larger.join().unwrap().unwrap();
        });
    }
}

#[test]
fn a_gate_closes_although_an_allocation_frees_memory_behind_what_the_host_holds() {
    in_child(&[NO_VIRTUAL_MEMORY], || {
        let limited = Runtime::builder().memory_limit(16 << 20).build().unwrap();
        let limited = limited.device(DeviceId::Cuda(0)).unwrap();
        drop(limited.alloc::<u8>(10 << 20).unwrap());
        let (_runtime, device) = cuda();
        let (called, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
        let call = called.call(move || goes_on.recv().unwrap());
        let before = waits_for_device();
        let larger = std::thread::spawn(move || limited.alloc::<u8>(12 << 20).map(drop));
        while waits_for_device() == before {
            std::thread::yield_now();
        }
        let gate = other.hold().unwrap();
        go_on.send(()).unwrap();
        gate.open();
        call.blocking_wait().unwrap();
        larger.join().unwrap().unwrap();
    });
}

#[test]
fn nothing_is_page_locked_ahead_of_need_while_a_stream_is_held() {
    in_child(&[], || {
        let (_runtime, device) = cuda();
        let held = device.new_stream().unwrap();
        let page_locked = || calls(c"cuMemHostAlloc");
        // The thread that page-locks ahead of need also makes this block, after those requested
        // before.
        let ask_for = |bytes: usize| drop(block_on(device.pinned::<u8>(bytes)).unwrap());
        let first = device.blocking_pinned::<u8>(4096).unwrap();
        ask_for(8 << 20);
        drop(first);
        let gate = held.hold().unwrap();
        let before = page_locked();
        let cached = [(); 2].map(|()| device.blocking_pinned::<u8>(4096).unwrap());
        ask_for(16 << 20);
        assert_eq!(page_locked() - before, 1, "those that somebody asked for");
        gate.open();
        held.synchronize().blocking_wait().unwrap();
        drop(cached);
    });
}

#[test]
fn a_cache_is_emptied_when_no_gate_is_closed() {
    in_child(&[("SOFTCUDA_ONE_AT_A_TIME", "1"), NO_VIRTUAL_MEMORY], || {
        let (_runtime, device) = cuda();
        let (held, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        drop(other.alloc::<f32>(4).unwrap());
        let free_bytes = || device.free_bytes().unwrap();
        let full = free_bytes();
        let gate = held.hold().unwrap();
        let given = device.empty_cache();
        assert!(given > 0);
        let y = other.alloc::<f32>(4).unwrap();
        drop(other.fill(&y, 1.0));
        gate.open();
        held.synchronize().blocking_wait().unwrap();
        while free_bytes() < full {
            std::thread::yield_now();
        }
        assert_eq!(other.read(&y).blocking_wait().unwrap(), [1.0; 4]);
    });
}

#[test]
fn no_piece_is_unmapped_while_a_gate_is_closed() {
    in_child(&[], || {
        let (_runtime, device) = cuda();
        let (held, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        drop(other.alloc::<f32>(4).unwrap());
        let full = device.free_bytes().unwrap();
        let gate = held.hold().unwrap();
        assert_eq!(device.empty_cache(), 0);
        let y = other.alloc::<f32>(4).unwrap();
        drop(other.fill(&y, 1.0));
        assert_eq!(device.free_bytes().unwrap(), full, "the piece serves again");
        gate.open();
        held.synchronize().blocking_wait().unwrap();
        assert_eq!(other.read(&y).blocking_wait().unwrap(), [1.0; 4]);
        drop(y);
        assert!(device.empty_cache() >= 2 << 20);
        assert_eq!(device.free_bytes().unwrap(), full + (2 << 20));
    });
}
