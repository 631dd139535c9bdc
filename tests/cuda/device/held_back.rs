//! Copies that find no page-locked memory. They are held back until it exists, so no caller waits
//! for the driver to make it.

use crate::device::{cuda, ramp};
use crate::support::raw::{calls, primary_context, set_current_context, waits_for_device};
use crate::support::software::in_child;
use crate::support::{says, within_a_minute};
use cudarc::driver::sys;
use std::any::Any;
use std::sync::Mutex;
use warpline::prelude::*;
use warpline::{Tensor, kernels, reads, writes};

/// Makes a call that waits for the device block all other calls on the device.
const ONE_AT_A_TIME: (&str, &str) = ("SOFTCUDA_ONE_AT_A_TIME", "1");
/// Makes page-locking wait for the device.
const ALLOC_WAITS: (&str, &str) = ("SOFTCUDA_ALLOC_WAITS", "1");

/// Returns a stream without work in flight, and a buffer of it that is filled with ones.
fn filled(device: &Device, len: usize) -> (Stream, Buffer<f32>) {
    let stream = device.new_stream().unwrap();
    let x = stream.alloc::<f32>(len).unwrap();
    stream.fill(&x, 1.0).blocking_wait().unwrap();
    (stream, x)
}

/// A thread that is about to free memory, which it has allocated from the driver itself.
struct Busy(std::sync::mpsc::Sender<()>, std::thread::JoinHandle<()>);

impl Busy {
    /// Starts the thread, and waits until it has allocated the memory. The device has to be idle.
    fn prepare() -> Self {
        let (go, wait) = std::sync::mpsc::channel();
        let (is_ready, ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            set_current_context(primary_context(0));
            let mut address = 0;
            // SAFETY: cuMemAlloc_v2 writes an address, here to a live variable.
            unsafe { sys::cuMemAlloc_v2(&raw mut address, 64) }.result().unwrap();
            is_ready.send(()).unwrap();
            wait.recv().unwrap();
            // SAFETY: this thread has allocated the memory, and nothing uses it. The call fails if
            // the device has failed.
            let _ = unsafe { sys::cuMemFree_v2(address) };
        });
        ready.recv().unwrap();
        Busy(go, thread)
    }

    /// Starts the free. Returns the thread once the free waits for the whole device, so that other
    /// calls may wait behind it.
    fn keep_the_driver(self) -> std::thread::JoinHandle<()> {
        let before = waits_for_device();
        self.0.send(()).unwrap();
        while waits_for_device() == before {
            assert!(!self.1.is_finished(), "the device is idle");
            std::thread::yield_now();
        }
        self.1
    }
}

#[test]
fn no_call_waits_for_page_locking_while_a_gate_is_closed() {
    for waits in [ONE_AT_A_TIME, ALLOC_WAITS] {
        in_child(&[waits], || within_a_minute(no_call_waits));
    }
}

fn no_call_waits() {
    let device = cuda(0);
    let ((stream, x), (other, y)) = (filled(&device, 1000), filled(&device, 1000));
    let held = device.new_stream().unwrap();
    device.load([&kernels::RELU]).unwrap();
    let busy = Busy::prepare();
    let gate = held.hold().unwrap();
    let frees = busy.keep_the_driver();
    let read = stream.read(&x);
    let written = stream.write(&x, &ramp(1000));
    let one = stream.read_one(&x.slice(7..8).unwrap());
    let tensor = Tensor::from_buffer(y.clone(), [10, 100]).unwrap();
    let event = stream.record_event();
    other.wait_event(&event);
    let vector = other.enter(|| tensor.to_vec::<f32>());
    let launched = stream.launch(kernels::relu(1000, &x, &x), LaunchConfig::for_elements(1000u32));
    // A query does not wait either.
    stream.query().unwrap();
    gate.open();
    frees.join().unwrap();
    assert_eq!(read.blocking_wait().unwrap(), [1.0; 1000]);
    written.blocking_wait().unwrap();
    assert_eq!(one.blocking_wait().unwrap(), 7.0);
    assert_eq!(vector.blocking_wait().unwrap(), [1.0; 1000]);
    launched.blocking_wait().unwrap();
}

/// Values that are never dropped. They are in a static, where a leak checker finds them.
static NEVER_DROPPED: Mutex<Vec<Box<dyn Any + Send>>> = Mutex::new(Vec::new());

fn never_drop(value: impl Any + Send) {
    NEVER_DROPPED.lock().unwrap().push(Box::new(value));
}

#[test]
fn a_process_may_end_while_copies_are_held_back() {
    in_child(&[ONE_AT_A_TIME], || {
        let device = cuda(0);
        let (stream, x) = filled(&device, 1000);
        let (held, busy) = (device.new_stream().unwrap(), Busy::prepare());
        // Dropping the stream would write a marker, which is a driver call.
        never_drop((held.hold().unwrap(), held));
        drop(busy.keep_the_driver());
        never_drop((stream.read(&x), stream.write(&x, &ramp(1000)), x));
    });
}

#[test]
fn a_runtime_may_be_dropped_while_copies_are_held_back() {
    in_child(&[], || {
        for _ in 0..50 {
            let runtime = Runtime::new().unwrap();
            let device = runtime.device(DeviceId::Cuda(0)).unwrap();
            let (stream, x) = filled(&device, 1000);
            device.empty_cache();
            let written = stream.write(&x, &ramp(1000));
            let read = stream.read(&x);
            drop((stream, x, device, runtime));
            written.blocking_wait().unwrap();
            assert_eq!(read.blocking_wait().unwrap(), ramp(1000));
        }
    });
}

#[test]
fn values_are_right_where_every_copy_is_held_back() {
    for completion in ["word", "event"] {
        in_child(&[("WARPLINE_COMPLETION", completion)], || {
            let device = cuda(0);
            let [a, b, c] = [0, 1, 2].map(|_| device.new_stream().unwrap());
            let [x, y, z] = [0, 1, 2].map(|_| a.alloc::<f32>(5000).unwrap());
            for round in 0..100 {
                let value = |i: usize| (i * (round + 1)) as f32;
                // Otherwise this round would use the cached blocks of the last one.
                device.empty_cache();
                let host: Vec<f32> = (0..5000).map(value).collect();
                let written = a.write(&x, &host);
                drop(a.fill(&y, -1.0));
                b.wait_stream(&a);
                drop(b.copy_buffer(&y, &x));
                let first = b.read(&y);
                c.wait_event(&b.record_event());
                drop(c.launch(kernels::relu(5000, &y, &z), LaunchConfig::for_elements(5000u32)));
                drop(c.write(&y, &ramp(5000)));
                let (second, third) = (c.read(&z), c.read(&y));
                a.wait_stream(&c);
                assert_eq!(first.blocking_wait().unwrap(), host);
                assert_eq!(second.blocking_wait().unwrap(), host);
                assert_eq!(third.blocking_wait().unwrap(), ramp(5000));
                written.blocking_wait().unwrap();
            }
        });
    }
}

#[test]
fn threads_that_share_streams_and_find_no_memory_all_get_their_values() {
    in_child(&[], || {
        let device = cuda(0);
        let streams = [0, 1, 2].map(|_| device.new_stream().unwrap());
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (device, streams) = (&device, &streams);
                scope.spawn(move || {
                    for round in 0..60 {
                        let [a, b] = [thread % 3, (thread + round) % 3].map(|n| &streams[n]);
                        if thread == 0 {
                            device.empty_cache();
                        }
                        let x = a.alloc::<f32>(3000).unwrap();
                        let value = (thread * 100 + round) as f32;
                        let written = a.write(&x, &vec![value; 3000]);
                        b.wait_for(&x);
                        drop(b.launch(kernels::relu(3000, &x, &x), LaunchConfig::for_elements(3000u32)));
                        let read = b.read(&x);
                        if round % 7 == 0 {
                            drop(written);
                        }
                        assert_eq!(read.blocking_wait().unwrap(), [value; 3000]);
                    }
                });
            }
        });
        device.synchronize().blocking_wait().unwrap();
    });
}

#[test]
fn foreign_work_is_behind_copies_that_were_held_back() {
    in_child(&[], || {
        let device = cuda(0);
        let (stream, x) = filled(&device, 1000);
        for round in 0..50 {
            device.empty_cache();
            drop(stream.write(&x, &vec![round as f32; 1000]));
            let address = x.device_ptr().0;
            // SAFETY: the copy and the fill are enqueued on the stream. They read and write only
            // `x`, which is declared as written and lives.
            let copied = unsafe {
                stream.external(reads::<f32>([]), writes([&x]), |raw| {
                    let raw = raw.as_ptr().unwrap().cast();
                    sys::cuMemcpyDtoDAsync_v2(address + 4, address, 4, raw).result().unwrap();
                    sys::cuMemsetD32Async(address, 7, 1, raw).result().unwrap();
                })
            };
            copied.blocking_wait().unwrap();
            let values = stream.read(&x).blocking_wait().unwrap();
            assert_eq!((values[0].to_bits(), values[1], values[999]), (7, round as f32, round as f32));
        }
    });
}

#[test]
fn a_device_that_dies_fails_what_is_held_back() {
    in_child(&[("SOFTCUDA_POISON_LAUNCH", "1"), ONE_AT_A_TIME], || {
        within_a_minute(|| {
            let [device, second] = [cuda(0), cuda(1)];
            let (stream, x) = filled(&device, 1000);
            let (other, y) = filled(&second, 1000);
            let far = second.new_stream().unwrap();
            far.wait_stream(&other);
            let dies = device.new_stream().unwrap();
            let z = dies.alloc::<f32>(1000).unwrap();
            dies.fill(&z, 1.0).blocking_wait().unwrap();
            device.load([&kernels::RELU]).unwrap();
            let busy = Busy::prepare();
            let gate = dies.hold().unwrap();
            let poisoned = dies.launch(kernels::relu(1000, &z, &z), LaunchConfig::for_elements(1000u32));
            let frees = busy.keep_the_driver();
            let (read, written) = (stream.read(&x), stream.write(&x, &ramp(1000)));
            far.wait_stream(&stream);
            let kept = other.alloc::<f32>(8).unwrap();
            far.wait_stream(&other);
            drop(far.fill(&kept, 2.0));
            let behind = far.fill(&y, 2.0);
            gate.open();
            for error in [
                poisoned.blocking_wait().unwrap_err(),
                read.blocking_wait().unwrap_err(),
                written.blocking_wait().unwrap_err(),
            ] {
                says(&error, ErrorKind::Fault, &["cuda:0"]);
            }
            // The work that `far` waits for never runs. Nothing has requested a marker so far;
            // dropping `y` requests one, for the ops that used its memory.
            while far.call(|| ()).queued().is_ok() {
                std::thread::yield_now();
            }
            drop(y);
            set_current_context(primary_context(1));
            // SAFETY: the current context lives as long as the process.
            unsafe { sys::cuCtxSynchronize() }.result().unwrap();
            assert!(behind.blocking_wait().is_err(), "it was never enqueued");
            // Nor does the memory of `kept` count as written once the stream is closed.
            let streams = second.bookkeeping().live_streams;
            drop(far);
            while second.bookkeeping().live_streams == streams {
                std::thread::yield_now();
            }
            says(
                &other.read(&kept).blocking_wait().unwrap_err(),
                ErrorKind::Driver,
                &["reads memory that was not written", "was abandoned"],
            );
            drop(frees);
        });
    });
}

#[test]
fn a_refusal_of_page_locked_memory_is_the_copys_error_and_the_stream_goes_on() {
    // The pool asks the driver again after it has freed its cached blocks, so two calls fail.
    in_child(&[("SOFTCUDA_FAIL", "cuMemHostAlloc:1:2,cuMemHostAlloc:2:2")], || {
        let device = cuda(0);
        let (stream, x) = filled(&device, 1000);
        let written = stream.write(&x, &ramp(1000));
        let filled = stream.fill(&x, 3.0);
        says(
            &written.blocking_wait().unwrap_err(),
            ErrorKind::OutOfMemory,
            &["write on stream", "cuda:0 could not allocate pinned memory: 3.9 KiB asked", "out of memory"],
        );
        filled.blocking_wait().unwrap();
        assert_eq!(stream.read(&x).blocking_wait().unwrap(), [3.0; 1000]);
    });
}

#[test]
fn blocks_are_made_ahead_by_a_thread_of_the_runtime() {
    in_child(&[], || {
        let device = cuda(0);
        let (stream, x) = filled(&device, 1000);
        // Kept alive, because a block that returns to the pool would make a second one unnecessary.
        let first = stream.copy_to_host(&x).blocking_wait().unwrap();
        while device.pinned_stats().peak_reserved_bytes < 8 << 10 {
            std::thread::yield_now();
        }
        let locked = calls(c"cuMemHostAlloc");
        assert_eq!(locked, 2, "the one that was needed, and one ahead");
        drop(first);
        for _ in 0..100 {
            assert_eq!(stream.read(&x).blocking_wait().unwrap(), [1.0; 1000]);
        }
        assert_eq!(calls(c"cuMemHostAlloc"), locked);
    });
}

#[test]
fn a_gate_of_one_device_holds_up_no_copy_of_another() {
    in_child(&[ALLOC_WAITS], || {
        let devices = [0, 1].map(cuda);
        let [(here, x), (there, y)] = devices.each_ref().map(|device| filled(device, 1000));
        let gate = devices[0].new_stream().unwrap().hold().unwrap();
        // This copy finds no page-locked memory, and the driver makes none before the gate opens.
        let held_back = here.read(&x);
        within_a_minute(move || there.read(&y).blocking_wait()).unwrap();
        gate.open();
        held_back.blocking_wait().unwrap();
    });
}

#[test]
fn a_copy_whose_memory_is_refused_with_a_fault_fails_and_nothing_panics() {
    for read in ["0", "1"] {
        in_child(&[("SOFTCUDA_FAIL", "cuMemHostAlloc:1:700:sticky"), ("WARPLINE_TEST_READ", read)], || {
            let device = cuda(0);
            let (stream, x) = filled(&device, 8);
            let error = if std::env::var("WARPLINE_TEST_READ").unwrap() == "1" {
                stream.read(&x).blocking_wait().unwrap_err()
            } else {
                stream.write(&x, &[5.0; 8]).blocking_wait().unwrap_err()
            };
            assert_eq!(error.kind(), ErrorKind::Fault, "{error}");
        });
    }
}

#[test]
fn an_op_of_several_launches_fails_whole_when_its_source_was_not_written() {
    // The temporaries of the op have no handle by the time that the copy is refused.
    for dtype in ["f32", "f16"].repeat(4) {
        let fails = "cuMemHostAlloc:1:2,cuMemHostAlloc:2:2";
        in_child(&[("SOFTCUDA_FAIL", fails), ("WARPLINE_TEST_DTYPE", dtype)], || {
            let device = cuda(0);
            let half = std::env::var("WARPLINE_TEST_DTYPE").is_ok_and(|dtype| dtype == "f16");
            let dtype = if half { DType::F16 } else { DType::F32 };
            let x = Tensor::ones([2, 2], (dtype, &device)).blocking_wait().unwrap();
            let column = Tensor::from_host(&[1.0_f32, 2.0], [2, 1], &device).queued().unwrap();
            let error = x.add_(&column).blocking_wait().expect_err("no memory could be page-locked");
            assert!(error.is_inherited(), "{error}");
            assert_eq!(x.to(DType::F32).to_vec::<f32>().blocking_wait().unwrap(), [1.0; 4]);
        });
    }
}
