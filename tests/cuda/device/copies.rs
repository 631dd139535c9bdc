//! Copies and fills, compared with those of the CPU device over random shapes.

use crate::device::{cuda, ramp};
use crate::support::raw::{calls, calls_in};
use crate::support::software::in_child;
use warpline::prelude::*;
use warpline::{Element, Tensor, TensorOps};

/// A deterministic generator of pseudorandom numbers.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    fn below(&mut self, end: usize) -> usize {
        self.next() as usize % end
    }

    /// Returns a range in `0..end` that is not empty.
    fn range(&mut self, end: usize) -> std::ops::Range<usize> {
        let start = self.below(end);
        start..start + 1 + self.below(end - start)
    }
}

/// Returns a CUDA device, and a CPU device with its runtime to compare it with.
fn both() -> (Runtime, [Device; 2]) {
    let runtime = Runtime::builder().build().unwrap();
    let cpu = runtime.device(DeviceId::Cpu(0)).unwrap();
    (runtime, [cuda(0), cpu])
}

fn fills_like_the_cpu<T: Element + PartialEq + std::fmt::Debug>(
    numbers: &mut Numbers,
    value: impl Fn(u64) -> T,
) {
    let (_runtime, devices) = both();
    for _ in 0..60 {
        let (rows, width) = (1 + numbers.below(40), 1 + numbers.below(40));
        let (within, columns, flat) =
            (numbers.range(rows), numbers.range(width), numbers.range(rows * width));
        let [a, b, c] = [value(1), value(numbers.next()), value(numbers.next() << 40 | numbers.next())];
        let [cuda, cpu] = devices.each_ref().map(|device| {
            let stream = device.new_stream().unwrap();
            let x = stream.alloc::<T>(rows * width).unwrap();
            drop(stream.fill(&x, a));
            drop(stream.fill(&x.slice(flat.clone()).unwrap(), c));
            let part =
                x.as_matrix(rows).unwrap().rows(within.clone()).unwrap().columns(columns.clone()).unwrap();
            drop(stream.fill(&part, b));
            stream.read(&x).blocking_wait().unwrap()
        });
        assert!(
            cuda == cpu,
            "{rows} rows of {width}, {within:?} and {columns:?} of them, {flat:?}: {cuda:?}"
        );
    }
}

#[test]
fn fills_of_every_width_write_what_the_cpu_device_writes() {
    in_child(&[], || {
        let mut numbers = Numbers(1);
        fills_like_the_cpu::<u8>(&mut numbers, |bits| bits as u8);
        fills_like_the_cpu::<i16>(&mut numbers, |bits| bits as i16);
        fills_like_the_cpu::<f32>(&mut numbers, |bits| bits as f32);
        fills_like_the_cpu::<u64>(&mut numbers, |bits| bits.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        fills_like_the_cpu::<i64>(&mut numbers, |bits| -((bits & 1) as i64));
        fills_like_the_cpu::<f64>(&mut numbers, |bits| bits as f64 / 3.0);
    });
}

#[test]
fn a_fill_is_one_call_and_one_of_eight_bytes_at_most_two() {
    in_child(&[], || {
        let stream = cuda(0).new_stream().unwrap();
        let (x, y) = (stream.alloc::<f64>(1000).unwrap(), stream.alloc::<u16>(1000).unwrap());
        let fills = [c"cuMemsetD8Async", c"cuMemsetD16Async", c"cuMemsetD32Async", c"cuMemsetD2D32Async"];
        let made = |f: &dyn Fn() -> Pending<()>| {
            let (calls, done) = calls_in(fills, f);
            done.blocking_wait().unwrap();
            calls
        };
        assert_eq!(made(&|| stream.fill(&x, 0.0)), [0, 0, 1, 0]);
        assert_eq!(made(&|| stream.fill(&x, 0.1)), [0, 0, 0, 2]);
        assert_eq!(made(&|| stream.fill(&y, 7)), [0, 1, 0, 0]);
    });
}

#[test]
fn rows_and_columns_go_each_way_as_on_the_cpu_device() {
    in_child(&[], || {
        let (_runtime, devices) = both();
        let mut numbers = Numbers(2);
        for _ in 0..60 {
            let (rows, width) = (1 + numbers.below(30), 1 + numbers.below(30));
            let (within, columns) = (numbers.range(rows), numbers.range(width));
            let taken = within.len() * columns.len();
            let [cuda, cpu] = devices.each_ref().map(|device| {
                let stream = device.new_stream().unwrap();
                let part = |x: &Buffer<f32>| {
                    let x = x.as_matrix(rows).unwrap();
                    x.rows(within.clone()).unwrap().columns(columns.clone()).unwrap()
                };
                let [x, y, z] = [0, 1, 2].map(|_| {
                    let buffer = stream.alloc::<f32>(rows * width).unwrap();
                    drop(stream.fill(&buffer, -1.0));
                    buffer
                });
                // Copies from pinned memory to a part of `x`, from there to a part of `y`, and from
                // there to pinned memory. Then copies a part of `z` from and to pageable memory.
                let mut host = device.blocking_pinned::<f32>(taken).unwrap();
                host.copy_from_slice(&ramp(taken));
                drop(stream.copy_into(&part(&x), host));
                drop(stream.copy_buffer(&part(&y), &part(&x)));
                let back = stream.copy_to_host(&part(&y)).blocking_wait().unwrap();
                assert_eq!(*back, ramp(taken));
                drop(stream.write(&part(&z), &ramp(taken)));
                assert_eq!(stream.read(&part(&z)).blocking_wait().unwrap(), ramp(taken));
                [&x, &y, &z].map(|buffer| stream.read(buffer).blocking_wait().unwrap())
            });
            assert!(cuda == cpu, "{rows} rows of {width}, {within:?} and {columns:?} of them: {cuda:?}");
        }
    });
}

fn matrices_between_devices() {
    let [one, two] = [cuda(0), cuda(1)];
    let (a, b) = (one.new_stream().unwrap(), two.new_stream().unwrap());
    let mut numbers = Numbers(3);
    for _ in 0..40 {
        let (rows, width) = (1 + numbers.below(30), 1 + numbers.below(30));
        let (within, columns) = (numbers.range(rows), numbers.range(width));
        let part = |x: &Buffer<f32>| {
            let x = x.as_matrix(rows).unwrap();
            x.rows(within.clone()).unwrap().columns(columns.clone()).unwrap()
        };
        let (x, y) = (a.alloc::<f32>(rows * width).unwrap(), b.alloc::<f32>(rows * width).unwrap());
        drop(a.write(&x, &ramp(rows * width)));
        drop(b.fill(&y, -1.0));
        a.wait_stream(&b);
        drop(a.copy_buffer_peer(&part(&y), &part(&x)));
        b.wait_stream(&a);
        let expected: Vec<f32> = (0..rows * width)
            .map(|i| {
                if within.contains(&(i / width)) && columns.contains(&(i % width)) { i as f32 } else { -1.0 }
            })
            .collect();
        assert_eq!(
            b.read(&y).blocking_wait().unwrap(),
            expected,
            "{rows} rows of {width}, {within:?} and {columns:?}"
        );
        // The whole buffer, in the other direction.
        drop(b.copy_buffer_peer(&x, &y));
        a.wait_stream(&b);
        assert_eq!(a.read(&x).blocking_wait().unwrap(), expected);
        b.wait_stream(&a);
    }
}

#[test]
fn matrices_cross_devices_that_reach_each_other_and_access_is_enabled_once() {
    in_child(&[], || {
        matrices_between_devices();
        assert_eq!(calls(c"cuCtxEnablePeerAccess"), 2, "once each way");
        assert_eq!(calls(c"cuDeviceCanAccessPeer"), 2);
        assert!(calls(c"cuMemcpyPeerAsync") > 0 && calls(c"cuMemcpy3DPeerAsync") > 0);
    });
}

#[test]
fn matrices_cross_devices_that_do_not_reach_each_other() {
    in_child(&[("SOFTCUDA_PEER", "0")], || {
        matrices_between_devices();
        assert_eq!(calls(c"cuCtxEnablePeerAccess"), 0);
        assert_eq!(calls(c"cuDeviceCanAccessPeer"), 2);
    });
}

#[test]
fn a_copy_holds_the_devices_that_are_not_its_streams() {
    in_child(&[("SOFTCUDA_DEVICES", "3")], || {
        for (from, to) in [(0, 2), (1, 2), (1, 1)] {
            let runtime = Runtime::new().unwrap();
            let [on, from, to] = [0, from, to].map(|n| runtime.device(DeviceId::Cuda(n)).unwrap());
            let stream = on.new_stream().unwrap();
            let (source, destination) = (from.new_stream().unwrap(), to.new_stream().unwrap());
            let (x, y) = (source.alloc::<f32>(1 << 20).unwrap(), destination.alloc::<f32>(1 << 20).unwrap());
            source.fill(&x, 2.0).blocking_wait().unwrap();
            destination.fill(&y, 0.0).blocking_wait().unwrap();
            let (open, opened) = std::sync::mpsc::channel();
            drop(stream.call(move || opened.recv()));
            let copied = stream.copy_buffer_peer(&y, &x);
            let freed = calls(c"cuMemFree_v2");
            drop((x, y, source, destination, from, to, on, runtime));
            assert_eq!(calls(c"cuMemFree_v2"), freed, "the copy has not run");
            open.send(()).unwrap();
            copied.blocking_wait().unwrap();
            drop(stream);
            // Another thread may free the memory, after the copy has finished.
            while calls(c"cuMemFree_v2") < calls(c"cuMemAlloc_v2") {
                std::thread::yield_now();
            }
        }
    });
}

#[test]
fn access_that_somebody_else_enabled_is_no_error() {
    in_child(&[], || {
        let [one, two] = [cuda(0), cuda(1)];
        crate::support::raw::set_current_context(crate::support::raw::primary_context(0));
        let peer = crate::support::raw::primary_context(1);
        // SAFETY: `peer` is a live context, and another one is current.
        unsafe { cudarc::driver::sys::cuCtxEnablePeerAccess(peer, 0) }.result().unwrap();
        let (a, b) = (one.new_stream().unwrap(), two.new_stream().unwrap());
        let (x, y) = (a.alloc::<f32>(10).unwrap(), b.alloc::<f32>(10).unwrap());
        drop(a.fill(&x, 4.0));
        a.wait_stream(&b);
        a.copy_buffer_peer(&y, &x).blocking_wait().unwrap();
        assert_eq!(b.read(&y).blocking_wait().unwrap(), [4.0; 10]);
    });
}

#[test]
fn pageable_memory_is_staged_when_the_call_returns() {
    in_child(&[], || {
        let stream = cuda(0).new_stream().unwrap();
        let x = stream.alloc::<f32>(1 << 18).unwrap();
        let gate = stream.hold().unwrap();
        let mut host = ramp(1 << 18);
        let sent = stream.write(&x, &host);
        host.fill(-1.0);
        drop(host);
        let got = stream.read(&x);
        gate.open();
        sent.blocking_wait().unwrap();
        assert_eq!(got.blocking_wait().unwrap(), ramp(1 << 18));
        assert_eq!(calls(c"cuMemHostRegister_v2"), 1, "the page of the completion words alone");
    });
}

#[test]
fn nothing_relies_on_what_fresh_or_recycled_memory_holds() {
    in_child(&[], || {
        let device = cuda(0);
        let stream = device.default_stream().unwrap();
        let fresh = stream.alloc::<u8>(1 << 20).unwrap();
        assert_eq!(
            stream.read(&fresh).blocking_wait().unwrap()[..4096],
            [0xcd; 4096],
            "the software driver's junk"
        );
        for poison in [0xff, 0x7f, 0xcd] {
            let sizes = [64, 4096, 1 << 20, 8 << 20];
            let junk: Vec<_> = sizes.iter().map(|&bytes| stream.alloc::<u8>(bytes).unwrap()).collect();
            junk.iter().for_each(|junk| drop(stream.fill(junk, poison)));
            drop(junk);
            let x = Tensor::zeros([100, 70], &device).queued().unwrap();
            let w = Tensor::ones([70, 30], &device).queued().unwrap();
            let y = x.add(1.0).matmul(&w).relu().queued().unwrap();
            assert_eq!(y.sum().item::<f32>().blocking_wait().unwrap(), 70.0 * 3000.0);
            let columns = stream.alloc::<f32>(30).unwrap();
            drop(columns);
        }
    });
}
