//! Page-locked host memory: blocks of the pool, and memory of the program that is page-locked in
//! place.

use crate::device::{cuda, ramp};
use crate::support::raw::{calls, calls_in};
use crate::support::software::in_child;
use crate::support::{refusal, says};
use cudarc::driver::sys;
use warpline::prelude::*;

const REGISTERED: [&std::ffi::CStr; 2] = [c"cuMemHostRegister_v2", c"cuMemHostUnregister"];

/// Yields until the entry point was called `times` times. Page-locked memory may be released on a
/// background thread.
fn until_called(entry_point: &std::ffi::CStr, times: u64) {
    while calls(entry_point) < times {
        std::thread::yield_now();
    }
}

#[test]
fn a_vector_that_is_pinned_is_copied_from_where_it_is() {
    in_child(&[], || {
        let device = cuda(0);
        let stream = device.new_stream().unwrap();
        let vector = ramp(100_000);
        let address = vector.as_ptr();
        let (calls, host) = calls_in(REGISTERED, || device.pin(vector).unwrap());
        assert_eq!(calls, [1, 0]);
        assert_eq!((host.as_ptr(), host.len()), (address, 100_000));
        assert_eq!(device.pinned_stats().reserved_bytes, 0, "it is none of the pool's");
        let x = stream.alloc::<f32>(100_000).unwrap();
        let (calls, mut host) = calls_in(REGISTERED, || {
            let mut host = host;
            for _ in 0..5 {
                host = stream.copy_into(&x, host).blocking_wait().unwrap();
            }
            host
        });
        assert_eq!(calls, [0, 0]);
        host.fill(0.0);
        assert_eq!(stream.read(&x).blocking_wait().unwrap(), ramp(100_000));
        let (calls, ()) = calls_in(REGISTERED, || drop(host));
        assert_eq!(calls, [0, 1]);
    });
}

#[test]
fn it_stays_page_locked_until_the_last_copy_is_over() {
    in_child(&[], || {
        let device = cuda(0);
        let stream = device.new_stream().unwrap();
        let (x, y) = (stream.alloc::<f32>(50_000).unwrap(), stream.alloc::<f32>(50_000).unwrap());
        let shared = std::sync::Arc::new(device.pin(ramp(50_000)).unwrap());
        let alone = device.pin(ramp(50_000)).unwrap();
        let before = calls(c"cuMemHostUnregister");
        let gate = stream.hold().unwrap();
        // Nothing awaits the copies or keeps the memory.
        drop(stream.copy_from_shared(&x, &shared));
        drop(stream.copy_into(&y, alone));
        drop(shared);
        assert_eq!(calls(c"cuMemHostUnregister"), before);
        gate.open();
        until_called(c"cuMemHostUnregister", before + 2);
        assert_eq!(stream.read(&x).blocking_wait().unwrap(), ramp(50_000));
        assert_eq!(stream.read(&y).blocking_wait().unwrap(), ramp(50_000));
    });
}

#[test]
fn the_end_of_page_locking_does_not_hold_up_wake_ups() {
    in_child(&[], || {
        // The driver may wait for the whole device before it ends a registration. Here that
        // includes the stream that the gate holds.
        let device = cuda(0);
        let (held, stream) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let x = stream.alloc::<f32>(50_000).unwrap();
        let gate = held.hold().unwrap();
        drop(stream.copy_into(&x, device.pin(ramp(50_000)).unwrap()));
        let names = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        struct Owner(std::sync::Arc<std::sync::Mutex<Vec<String>>>);
        impl Drop for Owner {
            fn drop(&mut self) {
                self.0.lock().unwrap().push(std::thread::current().name().unwrap_or_default().to_owned());
            }
        }
        // SAFETY: the memory belongs to `x`, which outlives the use.
        let lent = unsafe { stream.borrow_memory::<f32>(x.device_ptr().0, 8, Owner(names.clone())) }.unwrap();
        let other = stream.hold().unwrap();
        drop(stream.fill(&lent, 1.0));
        drop(lent);
        other.open();
        while names.lock().unwrap().is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(*names.lock().unwrap(), ["warpline-host"], "not the reactor's thread");
        gate.open();
    });
}

#[test]
fn a_vector_of_no_length_is_pinned_without_the_driver() {
    in_child(&[], || {
        let device = cuda(0);
        let stream = device.new_stream().unwrap();
        let (calls, ()) = calls_in(REGISTERED, || {
            let host = device.pin(Vec::<f64>::new()).unwrap();
            assert!(host.is_empty());
            let x = stream.alloc::<f64>(0).unwrap();
            drop(stream.copy_into(&x, host).blocking_wait().unwrap());
        });
        assert_eq!(calls, [0, 0]);
    });
}

#[test]
fn memory_that_is_registered_already_is_refused_and_handed_back() {
    in_child(&[], || {
        let device = cuda(0);
        let mut vector = ramp(10_000);
        let address = vector.as_mut_ptr().cast();
        crate::support::raw::set_current_context(crate::support::raw::primary_context(0));
        // SAFETY: the vector has 40,000 bytes. They stay registered until the process ends, and no
        // work uses them.
        unsafe { sys::cuMemHostRegister_v2(address, 40_000, 0) }.result().unwrap();
        let refused = device.pin(vector).unwrap_err();
        says(
            &refused,
            ErrorKind::Driver,
            &[
                "cuda:0 could not page-lock 39.1 KiB",
                "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
                "use a buffer from pinned() and copy into it",
            ],
        );
        assert!(refused.clone().into_vec::<u32>().is_none(), "it holds f32");
        assert!(Pinned::<f32>::from_error(refused.clone()).is_none(), "it is no pinned buffer");
        let vector = refused.clone().into_vec::<f32>().expect("asking for something else lost nothing");
        assert_eq!((vector.as_ptr().cast_mut().cast(), &vector[..]), (address, &ramp(10_000)[..]));
        assert!(refused.into_vec::<f32>().is_none(), "it is handed back once");
    });
}

#[test]
fn the_cpu_device_pins_vectors_as_they_are() {
    let (_runtime, device, [stream]) = crate::support::streams(["host"]);
    let host = device.pin(ramp(100)).unwrap();
    let x = stream.alloc::<f32>(100).unwrap();
    let host = stream.copy_into(&x, host).blocking_wait().unwrap();
    assert_eq!((stream.read(&x).blocking_wait().unwrap(), host.len()), (ramp(100), 100));
}

#[test]
fn pinned_memory_of_the_pool_is_asked_for_once() {
    in_child(&[], || {
        let device = cuda(0);
        let stream = device.new_stream().unwrap();
        let x = stream.alloc::<f32>(1000).unwrap();
        let round = || {
            let mut host = device.blocking_pinned::<f32>(1000).unwrap();
            host.copy_from_slice(&ramp(1000));
            drop(stream.copy_into(&x, host).blocking_wait().unwrap());
            assert_eq!(*stream.copy_to_host(&x).blocking_wait().unwrap(), ramp(1000));
        };
        round();
        let ([made, freed, allocated], ()) =
            calls_in([c"cuMemHostAlloc", c"cuMemFreeHost", c"cuMemAlloc_v2"], || {
                (0..50).for_each(|_| round())
            });
        // The block that is made ahead of need may have been in progress.
        assert!(made <= 1 && freed == 0 && allocated == 0, "{made}, {freed}, {allocated}");
    });
}

#[test]
fn memory_of_a_cpu_device_is_refused_by_copies_on_cuda_and_handed_back() {
    in_child(&[], || {
        let runtime = Runtime::builder().build().unwrap();
        let cpu = runtime.device(DeviceId::Cpu(0)).unwrap();
        let device = cuda(0);
        let stream = device.new_stream().unwrap();
        let x = stream.alloc::<f32>(1000).unwrap();
        stream.fill(&x, 7.0).blocking_wait().unwrap();
        let (issued, in_use) = (stream.issued(), device.memory_stats().allocated_bytes);
        let parts = [
            "on stream \"stream 1\"",
            "the pinned buffer belongs to cpu:0 and is not page-locked",
            "cuda:0 copies only from and to page-locked memory",
            "get it from pinned() of a CUDA device, or stage it with write()",
        ];
        let back = |error: &Error, address: *const f32| {
            says(error, ErrorKind::DeviceMismatch, &parts);
            let host = Pinned::<f32>::from_error(error.clone()).expect("the buffer is inside");
            assert_eq!(host.as_ptr(), address);
            host
        };
        for mut host in [cpu.blocking_pinned::<f32>(1000).unwrap(), cpu.pin(vec![0.0; 1000]).unwrap()] {
            host.copy_from_slice(&ramp(1000));
            let address = host.as_ptr();
            let host = back(&refusal(stream.copy_into(&x, host)), address);
            let host = back(&stream.copy_to_device(host).unwrap_err(), address);
            let host = back(&warpline::Tensor::from_pinned(host, [10, 100], &stream).unwrap_err(), address);
            assert_eq!(*host, ramp(1000));
            let shared = std::sync::Arc::new(host);
            says(&refusal(stream.copy_from_shared(&x, &shared)), ErrorKind::DeviceMismatch, &parts);
        }
        assert_eq!((stream.issued(), device.memory_stats().allocated_bytes), (issued, in_use));
        assert_eq!(
            stream.read(&x).blocking_wait().unwrap(),
            [7.0; 1000],
            "an error of the arguments leaves it alone"
        );
        let host = cpu.blocking_pinned::<f32>(1000).unwrap();
        let captured = stream.capture(|stream| {
            says(&refusal(stream.copy_into(&x, host)), ErrorKind::DeviceMismatch, &parts);
        });
        captured.unwrap();
    });
}

#[test]
fn page_locked_memory_of_one_gpu_serves_the_other_and_the_cpu_device() {
    in_child(&[], || {
        let runtime = Runtime::builder().build().unwrap();
        let cpu = runtime.device(DeviceId::Cpu(0)).unwrap();
        let [one, two] = [cuda(0), cuda(1)];
        let mut host = one.blocking_pinned::<f32>(1000).unwrap();
        host.copy_from_slice(&ramp(1000));
        for mut host in [host, one.pin(ramp(1000)).unwrap()] {
            for device in [&two, &cpu] {
                let stream = device.new_stream().unwrap();
                let x = stream.alloc::<f32>(1000).unwrap();
                let gate = stream.hold().unwrap();
                // The call returns although the stream is held.
                let sent = stream.copy_into(&x, host);
                gate.open();
                host = sent.blocking_wait().unwrap();
                assert_eq!(stream.read(&x).blocking_wait().unwrap(), ramp(1000));
            }
        }
    });
}
