//! Times of ops on CUDA devices, as the recorder records them.

use crate::support::cuda;
use crate::support::software::in_child;
use crate::traces::{events, recording_all, written};
use cudarc::driver::result::memcpy_dtod_async;
use warpline::prelude::*;
use warpline::trace::Recorder;
use warpline::{reads, writes};

/// Returns the name, the stream, and the start and end in microseconds of each op that has both
/// times.
fn spans(recorder: &Recorder) -> Vec<(String, u64, f64, f64)> {
    let trace = written(recorder);
    let ops = events(&trace, "X").into_iter();
    ops.map(|event| {
        let (began, took) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
        (event["name"].as_str().unwrap().to_owned(), event["tid"].as_u64().unwrap(), began, began + took)
    })
    .collect()
}

#[test]
fn every_op_has_its_times_once_the_device_was_synchronized() {
    for completion in ["word", "event"] {
        in_child(&[("WARPLINE_COMPLETION", completion), ("SOFTCUDA_COPY_DELAY_US", "300")], || {
            let (recorder, device) = (recording_all(), cuda(0));
            let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
            let x = a.alloc::<f32>(1000).unwrap();
            for round in 0..40 {
                drop(a.fill(&x, round as f32));
                b.wait_stream(&a);
                drop(b.read(&x));
                a.wait_stream(&b);
            }
            device.synchronize().blocking_wait().unwrap();
            let spans = spans(&recorder);
            let of = |name: &str| spans.iter().filter(|span| span.0 == name).collect::<Vec<_>>();
            let (fills, reads) = (of("fill"), of("read"));
            assert_eq!((fills.len(), reads.len()), (40, 40));
            // Ordered ops ran in that order. Measured times are inexact, so ends are compared with
            // ends and starts with starts.
            for (fill, read) in fills.iter().zip(&reads) {
                assert!(fill.2 <= fill.3 && read.2 <= read.3, "{fill:?} {read:?}");
                assert!(fill.3 <= read.3, "{fill:?} {read:?}");
            }
            assert!(fills.windows(2).all(|pair| pair[0].2 <= pair[1].2));
        });
    }
}

#[test]
fn foreign_work_has_its_times_as_a_whole() {
    for completion in ["word", "event"] {
        in_child(&[("WARPLINE_COMPLETION", completion), ("SOFTCUDA_COPY_DELAY_US", "300")], || {
            let (recorder, device) = (recording_all(), cuda(0));
            let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
            let (x, y) = (stream.alloc::<f32>(64).unwrap(), stream.alloc::<f32>(64).unwrap());
            let z = other.alloc::<f32>(64).unwrap();
            drop(stream.fill(&x, 1.0));
            let copies = |raw: &mut warpline::RawStream| {
                drop(other.fill(&z, 1.0));
                let stream = raw.as_ptr().unwrap().cast();
                for _ in 0..3 {
                    // SAFETY: both buffers live and have 256 bytes, and the copy is declared.
                    unsafe { memcpy_dtod_async(y.device_ptr().0, x.device_ptr().0, 256, stream) }.unwrap();
                }
            };
            let external = |f: &dyn Fn(&mut warpline::RawStream)| {
                // SAFETY: the copies read `x` and write `y`, as declared.
                drop(unsafe { stream.external(reads([&x]), writes([&y]), f) });
            };
            external(&copies);
            let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                external(&|raw| {
                    copies(raw);
                    panic!("of the other code");
                });
            }));
            assert!(unwound.is_err());
            external(&|raw| {
                copies(raw);
                raw.fail("something else");
            });
            drop(stream.read(&y));
            let told = device.synchronize().blocking_wait().unwrap_err();
            assert!(told.to_string().contains("something else"), "{told}");
            let spans = spans(&recorder);
            let of = |name: &str| spans.iter().filter(|span| span.0 == name).cloned().collect::<Vec<_>>();
            let turns = of("external");
            assert_eq!((turns.len(), of("fill").len()), (3, 4));
            // Measured times may be off by a microsecond.
            assert!(turns.iter().all(|turn| turn.3 - turn.2 >= 899.0), "three copies take longer: {turns:?}");
            let first = of("fill").into_iter().find(|fill| fill.1 == turns[0].1).unwrap();
            let all = [&[first][..], &turns].concat();
            assert!(all.windows(2).all(|pair| pair[0].3 <= pair[1].2 + 1.0), "one after the other: {all:?}");
        });
    }
}

#[test]
fn foreign_work_is_waited_for_although_somebody_traces() {
    in_child(&[], || {
        let (_recorder, device) = (recording_all(), cuda(0));
        let stream = device.new_stream().unwrap();
        let x = stream.alloc::<f32>(64).unwrap();
        stream.fill(&x, 0.0).blocking_wait().unwrap();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let none: [&Buffer<f32>; 0] = [];
        // SAFETY: the work touches no device memory.
        let mut done = unsafe {
            stream.external(reads(none), writes([&x]), |raw| {
                // Leaves time for a marker that was written too early to be observed.
                (0..1000).for_each(|_| std::thread::yield_now());
                raw.call(move || released.recv().unwrap());
            })
        };
        assert!(!done.query().unwrap(), "done before it has begun");
        release.send(()).unwrap();
        done.blocking_wait().unwrap();
    });
}
