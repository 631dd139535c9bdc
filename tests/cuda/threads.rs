//! Threads that must not call the CUDA driver, or must not block in it: those of host functions and
//! the reactor. Other threads release what these threads drop.

use crate::support::software::in_child;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use warpline::prelude::*;

fn cuda(ordinal: u32) -> (Runtime, Device) {
    let runtime = Runtime::new().unwrap();
    let device = runtime.device(DeviceId::Cuda(ordinal)).unwrap();
    (runtime, device)
}

#[test]
fn a_host_function_may_drop_memory_that_several_streams_used() {
    in_child(&[], || {
        let (_runtime, device) = cuda(0);
        let (a, b, c) =
            (device.new_stream().unwrap(), device.new_stream().unwrap(), device.new_stream().unwrap());
        for _ in 0..20 {
            let x = a.alloc::<f32>(100).unwrap();
            drop(a.fill(&x, 1.0));
            b.wait_stream(&a);
            let gate = b.hold().unwrap();
            drop(b.fill(&x, 2.0));
            // This drops the last handle of `x`. The allocator then has to learn when `b` has
            // finished with it.
            c.call(move || drop(x)).blocking_wait().unwrap();
            gate.open();
        }
        device.synchronize().blocking_wait().unwrap();
        assert_eq!(device.memory_stats().allocated_bytes, 0);
        assert!(device.fault().is_none());
        assert_eq!(device.empty_cache(), 2 << 20, "b is known to be through with all of them");
    });
}

#[test]
fn a_host_function_may_drop_page_locked_memory_and_streams() {
    in_child(&[], || {
        let (_runtime, device) = cuda(0);
        let stream = device.new_stream().unwrap();
        let pinned = device.pin(vec![1.0f32; 1000]).unwrap();
        let other = device.new_stream().unwrap();
        let gate = other.hold().unwrap();
        drop(other.call(|| ()));
        stream.call(move || drop((pinned, other))).blocking_wait().unwrap();
        gate.open();
        device.synchronize().blocking_wait().unwrap();
        assert!(device.fault().is_none());
    });
}

#[test]
fn work_enqueued_from_a_host_function_is_refused_and_harms_nobody() {
    in_child(&[], || {
        let (_runtime, device) = cuda(0);
        let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let inner = b.clone();
        let refused = a.call(move || inner.call(|| ()).blocking_wait()).blocking_wait().unwrap().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Reentrant, "{refused}");
        assert!(refused.to_string().contains("a host function called it"), "{refused}");
        assert_eq!(b.call(|| 5).blocking_wait().unwrap(), 5);
    });
}

#[test]
fn the_last_holder_of_a_device_may_be_let_go_by_the_reactor() {
    in_child(&[], || {
        let dropped = Arc::new(AtomicU32::new(0));
        // A gate of another runtime holds a stream of the same context. Freeing memory would wait
        // for it.
        let (_busy_runtime, busy) = cuda(0);
        let busy_stream = busy.new_stream().unwrap();
        let held = busy_stream.hold().unwrap();
        let gates: Vec<_> = (0..3)
            .map(|_| {
                let (runtime, device) = cuda(0);
                let stream = device.new_stream().unwrap();
                let x = stream.alloc::<f32>(1 << 20).unwrap();
                let gate = stream.hold().unwrap();
                drop(stream.fill(&x, 1.0));
                let count = dropped.clone();
                drop(stream.call(move || count.fetch_add(1, Ordering::SeqCst)));
                drop((x, stream));
                // A runtime that is dropped while a gate is closed fails its work. So the gate is
                // opened first.
                gate.open();
                drop(device);
                runtime
            })
            .collect();
        drop(gates);
        held.open();
        let mut others = busy_stream.call(|| ());
        while !others.query().unwrap() {
            std::thread::yield_now();
        }
        while dropped.load(Ordering::SeqCst) < 3 {
            std::thread::yield_now();
        }
    });
}

/// A value that queries a stream when it is dropped. The query takes the stream's lock.
struct AsksWhenDropped(Stream, std::sync::mpsc::Sender<()>);

impl Drop for AsksWhenDropped {
    fn drop(&mut self) {
        let _ = self.0.query();
        let _ = self.1.send(());
    }
}

#[test]
fn a_refused_host_function_is_dropped_at_no_desk() {
    in_child(&[("SOFTCUDA_FAIL", "cuLaunchHostFunc:1:1")], || {
        let (_runtime, device) = cuda(0);
        let stream = device.new_stream().unwrap();
        let (dropped, was_dropped) = std::sync::mpsc::channel();
        let owned = AsksWhenDropped(stream.clone(), dropped);
        let refused = stream.call(move || drop(owned)).blocking_wait().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Driver, "{refused}");
        was_dropped.recv().unwrap();
        assert_eq!(stream.call(|| 1).blocking_wait().unwrap(), 1);
    });
}

/// Returns the cores of the thread with that number; 0 is the calling thread.
fn cores_of(thread: libc::pid_t) -> Vec<usize> {
    // SAFETY: an all-zero CPU set is a valid, empty set.
    let mut cores: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: sched_getaffinity writes a CPU set of that size.
    let asked = unsafe { libc::sched_getaffinity(thread, size_of_val(&cores), &raw mut cores) };
    assert_eq!(asked, 0);
    // SAFETY: each core is below the set's size.
    (0..libc::CPU_SETSIZE as usize).filter(|core| unsafe { libc::CPU_ISSET(*core, &cores) }).collect()
}

fn pin(thread: libc::pid_t, core: usize) {
    // SAFETY: an all-zero CPU set is a valid, empty set.
    let mut cores: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the core is below the set's size.
    unsafe { libc::CPU_SET(core, &mut cores) };
    // SAFETY: sched_setaffinity reads a CPU set of that size.
    assert_eq!(unsafe { libc::sched_setaffinity(thread, size_of_val(&cores), &raw const cores) }, 0);
}

/// Returns the names and the cores of Warpline's threads.
fn our_threads() -> Vec<(String, Vec<usize>)> {
    let mut ours = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap();
        if name.starts_with("warpline") {
            let number = task.file_name().to_str().unwrap().parse().unwrap();
            ours.push((name.trim().to_owned(), cores_of(number)));
        }
    }
    ours
}

#[test]
fn threads_run_on_the_cores_of_the_main_thread() {
    in_child(&[], || {
        let main = std::process::id() as libc::pid_t;
        let all = cores_of(main);
        let [first, .., last] = all[..] else { return println!("one core: nothing to tell apart") };
        let parallel = std::thread::available_parallelism().unwrap().get();
        // Tests run on threads of their own. This one is pinned, the main thread is not.
        pin(0, first);
        let (runtime, gpu) = cuda(0);
        let cpu = runtime.device(DeviceId::Cpu(0)).unwrap();
        assert_eq!(cpu.properties().multiprocessors as usize, parallel);
        for device in [&gpu, &cpu] {
            let stream = device.new_stream().unwrap();
            stream.call(|| ()).blocking_wait().unwrap();
            stream.fill(&stream.alloc::<u8>(8).unwrap(), 1).blocking_wait().unwrap();
        }
        let threads = our_threads();
        for name in ["warpline-reacto", "warpline-cuda0", "warpline-cpu-0", "warpline-call-0"] {
            let found = threads.iter().find(|(thread, _)| thread == name);
            let (_, cores) = found.unwrap_or_else(|| panic!("{name} is not in {threads:?}"));
            assert_eq!(*cores, all, "{name}");
        }
        // As under `taskset`. Earlier threads stay where they are, but each runtime has its own
        // workers.
        pin(main, last);
        pin(0, first);
        let runtime = Runtime::builder().build().unwrap();
        let cpu = runtime.device(DeviceId::Cpu(0)).unwrap();
        assert_eq!(cpu.properties().multiprocessors, 1);
        let stream = cpu.new_stream().unwrap();
        assert_eq!(stream.call(|| cores_of(0)).blocking_wait().unwrap(), [last]);
        stream.fill(&stream.alloc::<u8>(8).unwrap(), 1).blocking_wait().unwrap();
        let threads = our_threads();
        assert!(threads.iter().any(|thread| *thread == ("warpline-cpu-0".into(), vec![last])), "{threads:?}");
    });
}
