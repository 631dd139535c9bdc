//! Markers that fail, completion words whose writes are lost, and devices without completion words.

use crate::faults::{add_one, cuda, four, query_until_done, stream};
use crate::support::software::in_child;
use crate::support::{refusal, says, within_a_minute};
use futures::FutureExt as _;
use std::future::Future;
use warpline::prelude::*;

#[test]
fn a_lost_marker_gives_its_stream_up_and_lets_go_of_what_it_kept() {
    for completion in ["word", "event"] {
        // The first write is that of the self-test.
        let plan = if completion == "word" { "cuStreamWriteValue64_v2:2:1" } else { "cuEventRecord:1:1" };
        in_child(&[("SOFTCUDA_FAIL", plan), ("WARPLINE_COMPLETION", completion)], || {
            let (_runtime, device) = cuda();
            let (work, other) = (stream(&device, "work"), stream(&device, "other"));
            let x = work.alloc::<f32>(4).unwrap();
            let gate = work.hold().unwrap();
            let host = device.blocking_pinned::<f32>(4).unwrap();
            let sent = work.copy_into(&x, host);
            let text = [
                "stream \"work\" of cuda:0 was abandoned at ticket 2: its completion marker could \
                not be enqueued: cu",
                "CUDA_ERROR_INVALID_VALUE",
                "use another stream",
            ];
            says(&refusal(sent), ErrorKind::Driver, &text);
            says(&refusal(work.fill(&x, 1.0)), ErrorKind::Driver, &text);
            says(&refusal(work.synchronize()), ErrorKind::Driver, &text);
            assert_eq!(device.pinned_stats().allocated_bytes, 4096, "the copy has not run");
            let y = four(&other, 3.0);
            assert_eq!(other.read(&y).blocking_wait().unwrap(), [3.0; 4]);
            drop(work);
            gate.open();
            drop((x, y));
            within_a_minute(move || {
                while device.pinned_stats().allocated_bytes > 0 || device.bookkeeping().live_streams > 1 {
                    std::thread::yield_now();
                }
                assert!(device.empty_cache() > 0, "its memory is finished with");
                assert_eq!(device.memory_stats().reserved_bytes, 0);
            });
        });
    }
}

#[test]
fn lost_writes_hold_nobody_up() {
    for nth in 1..=4 {
        for query in ["0", "1"] {
            in_child(&[("SOFTCUDA_LOSE_WRITE", &nth.to_string()), ("WARPLINE_TEST_QUERY", query)], || {
                let queries = std::env::var("WARPLINE_TEST_QUERY").unwrap() == "1";
                let (_runtime, device) = cuda();
                let [a, b] = ["a", "b"].map(|label| stream(&device, label));
                for round in 0..4 {
                    let x = four(&a, round as f32);
                    let one = four(&a, 1.0);
                    drop(add_one(&a, &one, &x));
                    b.wait_stream(&a);
                    let (read, sum) = (b.read(&x), a.call(move || round));
                    if queries {
                        query_until_done(b.synchronize()).unwrap();
                    }
                    assert_eq!(read.blocking_wait().unwrap(), [round as f32 + 1.0; 4]);
                    assert_eq!(sum.blocking_wait().unwrap(), round);
                }
            });
        }
    }
}

#[test]
fn without_memory_operations_events_are_asked() {
    in_child(&[("SOFTCUDA_NO_MEMOPS", "1")], || {
        let (_runtime, device) = cuda();
        assert!(!device.properties().completion_words);
        let work = stream(&device, "work");
        let (x, y) = (four(&work, 1.0), four(&work, 1.0));
        let gate = work.hold().unwrap();
        let mut done = add_one(&work, &x, &y);
        assert!(!done.query().unwrap());
        gate.open();
        done.blocking_wait().unwrap();
        assert_eq!(work.read(&y).blocking_wait().unwrap(), [2.0; 4]);
    });
}

#[test]
fn a_synchronize_of_the_device_has_all_streams_looked_after_from_the_first_poll_on() {
    in_child(&[("WARPLINE_COMPLETION", "event")], || {
        let (_runtime, device) = cuda();
        let streams = ["a", "b", "c"].map(|label| stream(&device, label));
        let gate = streams[0].hold().unwrap();
        for behind in &streams[1..] {
            behind.wait_stream(&streams[0]);
        }
        streams.iter().for_each(|stream| drop(stream.call(|| ())));
        let mut all = device.synchronize();
        assert!((&mut all).now_or_never().is_none());
        gate.open();
        within_a_minute(move || {
            while streams.iter().any(|stream| stream.completed() < stream.issued()) {
                std::thread::yield_now();
            }
            all.blocking_wait().unwrap();
        });
    });
}

#[test]
fn short_work_is_awaited_again_and_again_beside_long_work() {
    in_child(&[("SOFTCUDA_COPY_DELAY_US", "200000")], || {
        let (_runtime, device) = cuda();
        let (long, short) = (stream(&device, "long"), stream(&device, "short"));
        let x = four(&long, 1.0);
        let read = long.read(&x);
        let finished = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let tells = finished.clone();
        let waiter = std::thread::spawn(move || {
            assert_eq!(read.blocking_wait().unwrap(), [1.0; 4]);
            tells.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        let mut before = 0;
        while !finished.load(std::sync::atomic::Ordering::SeqCst) {
            short.call(|| ()).blocking_wait().unwrap();
            before += 1;
        }
        assert!(before >= 10, "{before} short awaits ended before the long one");
        waiter.join().unwrap();
    });
}

/// A subscriber that panics at warnings and errors, and a waker that panics.
struct Panicking;

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Panicking {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        assert!(*event.metadata().level() > tracing::Level::WARN, "a subscriber that panics, on purpose");
    }
}

impl std::task::Wake for Panicking {
    fn wake(self: std::sync::Arc<Self>) {
        panic!("a waker that panics, on purpose");
    }
}

#[test]
fn a_subscriber_that_panics_on_the_reactor_ends_nothing() {
    in_child(&[("SOFTCUDA_LOSE_WRITE", "3")], || {
        use tracing_subscriber::layer::SubscriberExt;
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Panicking)).unwrap();
        let (_runtime, device) = cuda();
        let work = stream(&device, "work");
        let gate = work.hold().unwrap();
        let mut op = work.call(|| 3);
        let waker = std::task::Waker::from(std::sync::Arc::new(Panicking));
        let polled = std::pin::Pin::new(&mut op).poll(&mut std::task::Context::from_waker(&waker));
        assert!(polled.is_pending());
        gate.open();
        while work.completed() < 2 {
            std::thread::yield_now();
        }
        // The write of its word is lost, and a warning reports that, too.
        assert_eq!(work.call(|| 4).blocking_wait().unwrap(), 4);
        assert_eq!(work.call(|| 5).blocking_wait().unwrap(), 5);
        assert_eq!(op.blocking_wait().unwrap(), 3);
    });
}

/// A bound for what is left of 10 000 streams. Threads of the runtime return them, and may be late
/// on a busy machine.
const FEW: usize = 2_000;

#[test]
fn ten_thousand_streams_leave_nothing_behind() {
    let said = in_child(&[("SOFTCUDA_COUNTS", "1")], || {
        let (_runtime, device) = cuda();
        let mut most = [0; 3];
        for n in 0..10_000 {
            let stream = device.new_stream().unwrap();
            let done = stream.call(move || n);
            if n % 2 == 0 {
                assert_eq!(done.blocking_wait().unwrap(), n);
            }
            let books = device.bookkeeping();
            let now = [books.live_streams, books.watched_timelines, books.driver_streams];
            most = std::array::from_fn(|i| most[i].max(now[i]));
        }
        assert!(most.iter().all(|most| *most < FEW), "{most:?}");
    });
    let calls = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        line.unwrap_or(0)
    };
    assert!(calls("cuStreamCreateWithPriority") < FEW as u64, "{said}");
    assert!(calls("cuMemHostRegister_v2") < 20, "{said}");
    assert!(calls("cuEventCreate") < FEW as u64, "{said}");
}
