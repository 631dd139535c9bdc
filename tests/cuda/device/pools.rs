//! Streams and events are expensive to create in the driver, so they are pooled and never
//! destroyed.

use crate::device::{cuda, ramp};
use crate::support::raw::{calls, calls_in};
use crate::support::software::in_child;
use cudarc::driver::sys;
use warpline::prelude::*;
use warpline::{Priority, reads, writes};

const STREAM_CALLS: [&std::ffi::CStr; 3] =
    [c"cuStreamCreateWithPriority", c"cuStreamCreate", c"cuStreamDestroy_v2"];
const EVENT_CALLS: [&std::ffi::CStr; 3] = [c"cuEventCreate", c"cuEventRecord", c"cuEventDestroy_v2"];

/// Waits until the closed streams are released, which happens after their waiters were woken.
/// `open` streams stay. The thread that released the last ones returns their places to the driver's
/// pool just after.
fn wait_until_released(device: &Device, open: usize) {
    while device.bookkeeping().live_streams > open {
        std::thread::yield_now();
    }
}

#[test]
fn a_closed_streams_place_at_the_driver_goes_to_the_next_one() {
    in_child(&[], || {
        let device = cuda(0);
        let work = |stream: &Stream| {
            let x = stream.alloc::<f32>(8).unwrap();
            drop(stream.fill(&x, 1.0));
            stream.read(&x).blocking_wait().unwrap()
        };
        let three: [Stream; 3] = std::array::from_fn(|_| device.new_stream().unwrap());
        three.iter().for_each(|stream| drop(work(stream)));
        drop(three);
        wait_until_released(&device, 0);
        let (calls, ()) = calls_in(STREAM_CALLS, || {
            for _ in 0..100 {
                let three: [Stream; 3] = std::array::from_fn(|_| device.new_stream().unwrap());
                for stream in &three {
                    assert_eq!(work(stream), [1.0; 8]);
                }
                drop(three);
                wait_until_released(&device, 0);
            }
        });
        // Only the places of the last three streams may still be on their way to the pool.
        let [made, other, destroyed] = calls;
        assert!(made <= 3 && (other, destroyed) == (0, 0), "{calls:?}");
    });
}

#[test]
fn a_stream_that_is_closed_while_busy_is_reused_when_it_is_idle() {
    in_child(&[], || {
        let device = cuda(0);
        let busy = device.new_stream().unwrap();
        let gate = busy.hold().unwrap();
        let x = busy.alloc::<f32>(8).unwrap();
        drop(busy.fill(&x, 1.0));
        drop(busy);
        let (calls, other) = calls_in(STREAM_CALLS, || device.new_stream().unwrap());
        assert_eq!(calls[0], 1, "the gate still holds the first");
        drop(other.call(|| ()).blocking_wait());
        gate.open();
        device.synchronize().blocking_wait().unwrap();
        drop(x);
        wait_until_released(&device, 1);
        let mut new = Vec::new();
        let reused = loop {
            let (calls, next) = calls_in(STREAM_CALLS, || device.new_stream().unwrap());
            if calls == [0, 0, 0] {
                break next;
            }
            new.push(next);
            assert!(new.len() < 1_000, "none of the new streams got the place of the closed one");
            std::thread::yield_now();
        };
        assert_eq!(reused.call(|| 3).blocking_wait().unwrap(), 3, "a reused stream counts from zero again");
        assert_eq!(reused.issued(), 1);
    });
}

#[test]
fn many_streams_that_close_busy_do_not_make_new_ones_slow() {
    in_child(&[], || {
        let device = cuda(0);
        let head = device.new_stream().unwrap();
        let gate = head.hold().unwrap();
        for _ in 0..300 {
            let stream = device.new_stream().unwrap();
            stream.wait_stream(&head);
        }
        let ([queries], last) = calls_in([c"cuEventQuery"], || device.new_stream().unwrap());
        assert!(queries <= 32, "{queries} streams were asked whether they are idle");
        gate.open();
        last.call(|| ()).blocking_wait().unwrap();
    });
}

#[test]
fn priorities_are_the_drivers_range() {
    in_child(&[], || {
        let device = cuda(0);
        let priority = |priority: Priority| {
            let stream = device.stream().priority(priority).build().unwrap();
            let mut number = 1;
            // SAFETY: the closure only queries the stream, and enqueues nothing.
            let done = unsafe {
                stream.external(reads::<f32>([]), writes::<f32>([]), |raw| {
                    let raw = raw.as_ptr().unwrap().cast();
                    sys::cuStreamGetPriority(raw, &raw mut number).result().unwrap();
                    let mut flags = 0;
                    sys::cuStreamGetFlags(raw, &raw mut flags).result().unwrap();
                    assert_eq!(flags, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32);
                })
            };
            done.blocking_wait().unwrap();
            number
        };
        // A closed stream is not reused for a stream of another priority.
        for _ in 0..2 {
            assert_eq!(priority(Priority::Low), 0);
            assert_eq!(priority(Priority::Normal), 0, "that of everybody else's streams");
            assert_eq!(priority(Priority::High), -5);
        }
    });
}

#[test]
fn edges_between_streams_make_no_events_once_the_pool_has_some() {
    in_child(&[], || {
        let device = cuda(0);
        let [a, b] = [device.new_stream().unwrap(), device.new_stream().unwrap()];
        let x = a.alloc::<f32>(64).unwrap();
        let round = || {
            let gate = a.hold().unwrap();
            drop(a.fill(&x, 1.0));
            b.wait_stream(&a);
            drop(b.fill(&x, 2.0));
            let passed = b.record_event();
            a.wait_event(&passed);
            gate.open();
            a.synchronize().blocking_wait().unwrap();
        };
        (0..3).for_each(|_| round());
        let ([made, recorded, destroyed], ()) = calls_in(EVENT_CALLS, || (0..50).for_each(|_| round()));
        assert!(made == 0 && recorded >= 100 && destroyed == 0, "{made}, {recorded}, {destroyed}");
    });
}

#[test]
fn work_on_one_stream_needs_no_events_at_all() {
    in_child(&[], || {
        let device = cuda(0);
        let stream = device.new_stream().unwrap();
        let x = stream.alloc::<f32>(64).unwrap();
        let (calls, reads) = calls_in(EVENT_CALLS, || {
            let round = |_| {
                drop(stream.write(&x, &ramp(64)));
                drop(stream.fill(&x, 1.0));
                stream.read(&x)
            };
            (0..100).map(round).collect::<Vec<_>>()
        });
        assert_eq!(calls, [0, 0, 0]);
        reads.into_iter().for_each(|read| assert_eq!(read.blocking_wait().unwrap(), [1.0; 64]));
    });
}

#[test]
fn times_are_taken_where_they_are_asked_for_alone() {
    in_child(&[], || {
        let stream = cuda(0).new_stream().unwrap();
        let timed = || {
            let start = stream.record_timed_event().unwrap();
            let gate = stream.hold().unwrap();
            let end = stream.record_timed_event().unwrap();
            crate::support::says(
                &end.elapsed_since(&start).unwrap_err(),
                ErrorKind::InvalidArgument,
                &["passed"],
            );
            gate.open();
            end.synchronize().blocking_wait().unwrap();
            assert!(!end.elapsed_since(&start).unwrap().is_zero());
            crate::support::says(
                &start.elapsed_since(&end).unwrap_err(),
                ErrorKind::InvalidArgument,
                &["elapsed_since: `earlier` was reached"],
            );
        };
        timed();
        let ([made, _, destroyed], ()) = calls_in(EVENT_CALLS, || (0..20).for_each(|_| timed()));
        assert!(made <= 1 && destroyed == 0, "events with time stamps are pooled too: {made}, {destroyed}");
        let plain = [stream.record_event(), stream.record_event()];
        plain[1].synchronize().blocking_wait().unwrap();
        crate::support::says(
            &plain[1].elapsed_since(&plain[0]).unwrap_err(),
            ErrorKind::InvalidArgument,
            &["the later event has no time; record it with record_timed_event"],
        );
    });
}

#[test]
fn words_for_streams_are_page_locked_before_they_are_needed() {
    in_child(&[], || {
        let device = cuda(0);
        let registered = || calls(c"cuMemHostRegister_v2");
        let before = registered();
        assert_eq!(before, 1, "with the device");
        let mut streams: Vec<_> = (0..400).map(|_| device.new_stream().unwrap()).collect();
        assert_eq!(registered(), before);
        streams.extend((400..500).map(|_| device.new_stream().unwrap()));
        // A background thread registers more words while this thread makes no further request.
        while registered() == before {
            std::thread::yield_now();
        }
        streams.extend((500..900).map(|_| device.new_stream().unwrap()));
        let gates: Vec<_> = streams.iter().map(|stream| stream.hold().unwrap()).collect();
        drop(gates);
        for stream in &streams {
            assert_eq!(stream.call(|| 1).blocking_wait().unwrap(), 1);
        }
    });
}
