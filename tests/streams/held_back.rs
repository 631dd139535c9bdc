//! Copies that find no page-locked memory: no call waits for it, and all work keeps its order.
//!
//! The tests use a recording driver whose page-locking succeeds when the test allows it.

mod refused_late;

use crate::support::recording::{Call, Recording};
use crate::support::{refusal, says, within_a_minute};
use std::future::Future;
use std::ops::Deref;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use tokio_test::{assert_pending, assert_ready_ok, task};
use warpline::prelude::*;
use warpline::{OrderMode, kernels, reads, writes};

/// The elements of a buffer of 2 MiB, whose block is never made ahead of need.
const LONG: usize = 1 << 19;
/// The elements of a buffer whose block is made ahead of need.
const SHORT: usize = 64;

/// Two devices of a recording driver with slow page-locking. Dropping them allows the page-locking
/// that still waits.
struct Slow {
    _runtime: Runtime,
    device: Device,
    other: Device,
    driver: Arc<Recording>,
}

impl Slow {
    fn new() -> Self {
        let (runtime, driver) = Recording::runtime_with_slow_pinning(OrderMode::Deny);
        let [device, other] = [0, 1].map(|n| runtime.device(DeviceId::Cuda(n)).unwrap());
        Slow { _runtime: runtime, device, other, driver }
    }

    fn streams<const N: usize>(&self, labels: [&str; N]) -> [Stream; N] {
        labels.map(|label| self.device.stream().label(label).build().unwrap())
    }

    /// Returns a buffer that `stream` has filled. The fill has reached the driver and was observed.
    fn filled(&self, stream: &Stream, len: usize) -> Buffer<f32> {
        let x = stream.alloc::<f32>(len).unwrap();
        let mut filled = task::spawn(stream.fill(&x, 1.0));
        assert_pending!(filled.poll());
        self.driver.reach_markers();
        assert_ready_ok!(filled.poll());
        self.driver.take();
        x
    }

    /// Waits for the result, while the device reaches each marker.
    fn finish<T>(&self, pending: Pending<T>) -> Result<T, Error> {
        let mut pending = task::spawn(pending);
        loop {
            if let std::task::Poll::Ready(result) = pending.poll() {
                return result;
            }
            self.driver.reach_markers();
            std::thread::yield_now();
        }
    }
}

impl Deref for Slow {
    type Target = Recording;
    fn deref(&self) -> &Recording {
        &self.driver
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        // One thread page-locks for all tests of the process, so none may leave it blocked.
        self.driver.allow_pinning(1000);
    }
}

fn submit(stream: &str, ticket: u64, what: &'static str) -> Call {
    Call::Submit { stream: stream.into(), ticket, what }
}

fn signal(stream: &str, ticket: u64) -> Call {
    Call::Signal { stream: stream.into(), ticket }
}

fn record(stream: &str) -> Call {
    Call::Record { stream: stream.into() }
}

#[test]
fn a_read_without_memory_returns_at_once_and_keeps_its_place() {
    let slow = Slow::new();
    let [a] = slow.streams(["a"]);
    let x = slow.filled(&a, LONG);
    let read = a.read(&x);
    let filled = a.fill(&x, 2.0);
    assert_eq!(
        (read.ticket(), filled.ticket(), a.issued()),
        (Some(2), Some(3), 3),
        "tickets are the program's"
    );
    let mut read = task::spawn(read);
    assert_pending!(read.poll());
    assert_eq!(slow.take(), [], "the driver has nothing yet");
    slow.allow_pinning(1);
    assert_eq!(slow.take_when(3), [submit("a", 2, "read"), signal("a", 2), submit("a", 3, "fill")]);
    assert_eq!(slow.pinned_by(), ["warpline-pin"]);
    slow.reach_marker("a");
    assert_eq!(read.into_inner().blocking_wait().unwrap().len(), LONG);
    drop(a.fill(&x, 3.0));
    assert_eq!(slow.take(), [signal("a", 3), submit("a", 4, "fill")], "nothing is held back any more");
    slow.finish(filled).unwrap();
}

#[test]
fn what_is_written_is_copied_when_the_call_returns() {
    let slow = Slow::new();
    let [a] = slow.streams(["a"]);
    let x = slow.filled(&a, LONG);
    let mut host = vec![5.0f32; LONG];
    let written = a.write(&x, &host);
    host.fill(-1.0);
    drop(host);
    assert_eq!(slow.take(), []);
    slow.allow_pinning(1);
    assert_eq!(slow.take_when(2), [submit("a", 2, "write"), signal("a", 2)]);
    slow.finish(written).unwrap();
    assert_eq!(slow.device.pinned_stats().allocated_bytes, 0, "the memory is back in its pool");
    // Recycled memory still holds what was copied into it.
    assert_eq!(slow.device.blocking_pinned::<f32>(LONG).unwrap()[LONG - 1], 5.0);
}

#[test]
fn what_is_before_a_held_back_copy_does_not_wait_for_it() {
    let slow = Slow::new();
    let [a] = slow.streams(["a"]);
    let x = slow.filled(&a, LONG);
    let mut filled = task::spawn(a.fill(&x, 2.0));
    let read = a.read(&x);
    assert_pending!(filled.poll());
    assert_eq!(slow.take(), [submit("a", 2, "fill"), signal("a", 2)]);
    slow.reach_marker("a");
    assert_ready_ok!(filled.poll());
    slow.allow_pinning(1);
    slow.finish(read).unwrap();
}

#[test]
fn a_stream_that_waits_for_a_held_back_copy_is_held_back_on_the_host() {
    let slow = Slow::new();
    let [a, b, c] = slow.streams(["a", "b", "c"]);
    let (x, y) = (slow.filled(&a, LONG), slow.filled(&b, SHORT));
    let written = a.write(&x, &vec![1.0; LONG]);
    b.wait_stream(&a);
    drop(b.launch(
        kernels::relu(SHORT as u64, &x.slice(..SHORT).unwrap(), &y),
        LaunchConfig::for_elements(64u32),
    ));
    c.wait_stream(&b);
    let on_c = c.fill(&y, 3.0);
    // A stream that waits for nothing is not held back.
    let [d] = slow.streams(["d"]);
    let z = slow_alloc(&d);
    drop(d.fill(&z, 1.0));
    assert_eq!(slow.take_when(1), [submit("d", 1, "fill")]);
    slow.allow_pinning(1);
    let calls = slow.take_when(8);
    let of = |label: &str| -> Vec<&Call> {
        let is_of = |call: &&Call| match call {
            Call::Submit { stream, .. } | Call::Signal { stream, .. } | Call::Record { stream } => {
                stream == label
            }
            _ => false,
        };
        calls.iter().filter(is_of).collect()
    };
    assert_eq!(of("a"), [&submit("a", 2, "write"), &signal("a", 2), &record("a")]);
    assert_eq!(of("b"), [&submit("b", 2, "wait"), &submit("b", 3, "relu"), &record("b")]);
    assert_eq!(of("c")[..2], [&submit("c", 1, "wait"), &submit("c", 2, "fill")]);
    let at = |call: &Call| calls.iter().position(|other| other == call).unwrap();
    assert!(at(&record("a")) < at(&submit("b", 2, "wait")) && at(&record("b")) < at(&submit("c", 1, "wait")));
    slow.finish(on_c).unwrap();
    slow.finish(written).unwrap();
}

fn slow_alloc(stream: &Stream) -> Buffer<f32> {
    stream.alloc::<f32>(SHORT).unwrap()
}

fn refusal_of<T: std::fmt::Debug>(slow: &Slow, pending: Pending<T>) -> Error {
    slow.finish(pending).expect_err("it was refused")
}

#[test]
fn an_event_recorded_behind_a_held_back_copy_stands_behind_it() {
    let slow = Slow::new();
    let [a, b, c] = slow.streams(["a", "b", "c"]);
    let x = slow.filled(&a, LONG);
    let read = a.read(&x);
    let event = a.record_event();
    assert_eq!(event.ticket(), 2);
    let mut passed = task::spawn(event.synchronize());
    assert_pending!(passed.poll());
    b.wait_event(&event);
    assert_eq!(slow.take(), []);
    slow.allow_pinning(1);
    let calls = slow.take_when(4);
    assert_eq!(calls, [submit("a", 2, "read"), signal("a", 2), record("a"), submit("b", 1, "wait")]);
    // By now it is an event like any other.
    c.wait_event(&event);
    assert_eq!(slow.take(), [submit("c", 1, "wait")]);
    slow.reach_markers();
    assert_ready_ok!(passed.poll());
    slow.finish(read).unwrap();
}

#[test]
fn copies_of_one_stream_wait_for_their_memory_in_order() {
    let slow = Slow::new();
    let [a] = slow.streams(["a"]);
    let x = slow.filled(&a, LONG);
    let reads = [a.read(&x), a.read(&x), a.read(&x)];
    slow.allow_pinning(2);
    assert_eq!(
        slow.take_when(4),
        [submit("a", 2, "read"), signal("a", 2), submit("a", 3, "read"), signal("a", 3)]
    );
    slow.allow_pinning(1);
    assert_eq!(slow.take_when(2), [submit("a", 4, "read"), signal("a", 4)]);
    for read in reads {
        slow.finish(read).unwrap();
    }
}

#[test]
fn a_read_that_gets_no_memory_fails_alone() {
    let slow = Slow::new();
    let [a] = slow.streams(["a"]);
    let x = slow.filled(&a, LONG);
    let read = a.read(&x);
    let filled = a.fill(&x, 2.0);
    slow.refuse_pinning();
    let error = slow.finish(read).unwrap_err();
    says(
        &error,
        ErrorKind::OutOfMemory,
        &["read on stream \"a\"", "cuda:0 could not allocate pinned memory: 2.0 MiB asked"],
    );
    assert_eq!(error.site().unwrap().op(), "read");
    slow.finish(filled).unwrap();
    let submitted: Vec<_> =
        slow.take().into_iter().filter(|call| matches!(call, Call::Submit { .. })).collect();
    assert_eq!(submitted, [submit("a", 3, "fill")]);
    assert_eq!(slow.device.pinned_stats().reserved_bytes, 0);
    slow.allow_pinning(1);
    slow.finish(a.read(&x)).unwrap();
    slow.finish(a.synchronize()).unwrap();
}

#[test]
fn the_owner_of_lent_memory_may_wait_for_what_is_held_back() {
    struct Waits(Arc<Mutex<Option<Pending<Vec<f32>>>>>, Sender<usize>);
    impl Drop for Waits {
        fn drop(&mut self) {
            let read = self.0.lock().unwrap().take().expect("a read");
            self.1.send(read.blocking_wait().unwrap().len()).unwrap();
        }
    }
    let slow = Slow::new();
    let [a, b] = slow.streams(["a", "b"]);
    let x = slow.filled(&a, LONG);
    let (sender, len) = channel();
    let read = Arc::<Mutex<_>>::default();
    // SAFETY: `x` has that length, outlives the lent buffer, and is not used while that exists. The
    // recording driver touches no memory.
    let lent = unsafe { a.borrow_memory(x.device_ptr().0, LONG, Waits(read.clone(), sender)) }.unwrap();
    drop(a.write(&lent, &vec![1.0_f32; LONG]));
    let y = slow.filled(&b, LONG);
    *read.lock().unwrap() = Some(b.read(&y));
    drop(lent);
    // The write fails, and the lent memory is released with it.
    slow.refuse_pinning();
    slow.allow_pinning(1);
    let len = within_a_minute(move || {
        loop {
            if let Ok(len) = len.try_recv() {
                return len;
            }
            slow.reach_markers();
            std::thread::yield_now();
        }
    });
    assert_eq!(len, LONG);
}

#[test]
fn a_dropped_pending_gives_its_memory_back_when_the_copy_is_over() {
    let slow = Slow::new();
    let [a] = slow.streams(["a"]);
    let x = slow.filled(&a, LONG);
    drop(a.read(&x));
    drop(a.write(&x, &vec![1.0; LONG]));
    slow.allow_pinning(2);
    let calls = slow.take_when(4);
    assert_eq!(calls[..2], [submit("a", 2, "read"), signal("a", 2)]);
    assert_eq!(slow.device.pinned_stats().allocated_bytes, 4 << 20, "the device has both");
    slow.reach_markers();
    assert_eq!(slow.device.pinned_stats().allocated_bytes, 0);
}

#[test]
fn at_the_cap_a_copy_waits_for_the_memory_of_those_before_it() {
    let slow = Slow::new();
    let [a] = slow.streams(["a"]);
    let x = slow.filled(&a, LONG);
    let most = slow.device.pinned_stats().cap_bytes / (LONG * 4);
    let reads: Vec<_> = (0..most).map(|_| a.read(&x)).collect();
    assert_eq!(slow.device.pinned_stats().reserved_bytes, slow.device.pinned_stats().cap_bytes);
    let last = a.read(&x);
    let waiters = slow.device.memory_snapshot().pinned_waiters.expect("the last one waits");
    assert_eq!((waiters.requests, waiters.bytes, waiters.first_bytes), (1, LONG * 4, LONG * 4));
    let summary = slow.device.memory_summary();
    assert!(summary.contains("requests for pinned memory"), "{summary}");
    let error = slow.device.try_pinned::<f32>(LONG).unwrap_err();
    let text = "; one request waits before it; copies in flight return the rest";
    says(&error, ErrorKind::OutOfMemory, &["the pinned memory of cuda:0 is at its cap", text]);
    for _ in 0..most {
        slow.refuse_pinning();
    }
    slow.allow_pinning(1);
    for read in reads {
        says(&refusal_of(&slow, read), ErrorKind::OutOfMemory, &["could not allocate pinned memory"]);
    }
    slow.finish(last).unwrap();
    assert_eq!(slow.device.pinned_stats().reserved_bytes, LONG * 4);
}

#[test]
fn a_stream_that_is_closed_meanwhile_runs_what_it_holds_back() {
    let slow = Slow::new();
    let [a, b] = slow.streams(["a", "b"]);
    let x = slow.filled(&a, LONG);
    let live = slow.device.bookkeeping().live_streams;
    let read = a.read(&x);
    drop(a);
    // The closed stream's work comes before everything that touches its memory from now on.
    let filled = b.fill(&x, 2.0);
    assert_eq!(slow.take(), []);
    slow.allow_pinning(1);
    let calls = slow.take_when(5);
    assert_eq!(calls[..3], [submit("a", 2, "read"), signal("a", 2), record("a")]);
    assert_eq!(calls[3..5], [submit("b", 1, "edge"), submit("b", 1, "fill")]);
    slow.finish(read).unwrap();
    slow.finish(filled).unwrap();
    assert_eq!(slow.device.bookkeeping().live_streams, live - 1, "it has retired");
}

#[test]
fn a_capture_takes_no_part_in_it() {
    let slow = Slow::new();
    let [a] = slow.streams(["a"]);
    let x = slow.filled(&a, LONG);
    let read = a.read(&x);
    slow.allow_pinning(1);
    slow.finish(read).unwrap();
    slow.device.empty_cache();
    slow.allow_pinning(1);
    let name = std::thread::current().name().unwrap().to_owned();
    let (graph, ()) = a.capture(|a| drop(a.write(&x, &vec![1.0; LONG]))).unwrap();
    assert_eq!(slow.pinned_by()[1], name, "what is captured is there when the capture ends");
    // A launch is held back like any other op.
    slow.take();
    let read = a.read(&x);
    let launched = graph.launch(&a);
    assert_eq!(slow.take(), []);
    slow.allow_pinning(1);
    assert_eq!(slow.take_when(3)[2], submit("a", 4, "graph"));
    slow.finish(launched).unwrap();
    slow.finish(read).unwrap();
}

#[test]
fn foreign_work_waits_until_what_is_before_it_is_at_the_driver() {
    within_a_minute(|| {
        let slow = Slow::new();
        let [a] = slow.streams(["a"]);
        let x = slow.filled(&a, LONG);
        let read = a.read(&x);
        let driver = slow.driver.clone();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: the closure enqueues nothing.
                let done = unsafe {
                    a.external(reads::<f32>([]), writes([&x]), |_| {
                        assert_eq!(driver.take()[..2], [submit("a", 2, "read"), signal("a", 2)]);
                    })
                };
                slow.finish(done).unwrap();
            });
            slow.allow_pinning(1);
        });
        slow.finish(read).unwrap();
    });
}

#[test]
fn a_waker_does_not_wait_for_memory() {
    struct Enqueues(Stream, Buffer<f32>, std::sync::Mutex<Option<Error>>);
    impl std::task::Wake for Enqueues {
        fn wake(self: Arc<Self>) {
            // SAFETY: the closure enqueues nothing.
            let done = unsafe { self.0.external(reads::<f32>([]), writes([&self.1]), |_| ()) };
            *self.2.lock().unwrap() = Some(refusal(done));
        }
    }
    let slow = Slow::new();
    let [a, b] = slow.streams(["a", "b"]);
    let (x, y) = (slow.filled(&a, LONG), slow.filled(&b, SHORT));
    let read = a.read(&x);
    let enqueues = Arc::new(Enqueues(a.clone(), x.clone(), std::sync::Mutex::default()));
    let waker = enqueues.clone().into();
    let mut filled = b.fill(&y, 1.0);
    assert!(std::pin::Pin::new(&mut filled).poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    slow.reach_marker("b");
    let error = enqueues.2.lock().unwrap().take().expect("the waker was called");
    says(
        &error,
        ErrorKind::Reentrant,
        &["waits on the host, for page-locked memory", "a waker must not wait for that"],
    );
    slow.allow_pinning(1);
    slow.finish(read).unwrap();
}

#[test]
fn a_borrowed_stream_has_everything_when_the_call_returns() {
    let slow = Slow::new();
    let [a] = slow.streams(["a"]);
    let x = slow.filled(&a, LONG);
    let raw = std::ptr::dangling_mut::<u64>().cast();
    // SAFETY: the recording driver does nothing with the raw stream.
    let borrowed = unsafe { slow.device.stream().label("lent").borrow_raw(raw) }.build().unwrap();
    slow.allow_pinning(1);
    let read = borrowed.read(&x);
    assert_eq!(slow.take(), [submit("lent", 1, "read"), signal("lent", 1)]);
    assert_ne!(slow.pinned_by(), ["warpline-pin"], "its owner may use it as soon as the call has returned");
    slow.finish(read).unwrap();
    slow.device.empty_cache();
    slow.take();
    // A wait for work that is held back elsewhere has reached the driver too when its call returns.
    let held = a.write(&x, &vec![1.0; LONG]);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| drop(borrowed.wait_stream(&a)));
        slow.allow_pinning(1);
        waits.join().unwrap();
    });
    let calls = slow.take();
    assert_eq!(calls, [submit("a", 2, "write"), signal("a", 2), record("a"), submit("lent", 2, "wait")]);
    slow.finish(held).unwrap();
}

#[test]
fn a_copy_from_another_device_waits_for_what_is_held_back_there() {
    let slow = Slow::new();
    let [a] = slow.streams(["a"]);
    let b = slow.other.stream().label("b").build().unwrap();
    let (x, y) = (slow.filled(&a, LONG), b.alloc::<f32>(LONG).unwrap());
    let written = a.write(&x, &vec![1.0; LONG]);
    b.wait_stream(&a);
    let copied = b.copy_buffer_peer(&y, &x);
    slow.take();
    slow.refuse_pinning();
    drop(refusal_of(&slow, written));
    assert!(refusal_of(&slow, copied).is_inherited());
}

#[test]
fn a_block_is_made_ahead_whenever_the_last_one_is_taken() {
    let slow = Slow::new();
    let [a] = slow.streams(["a"]);
    let x = slow.filled(&a, SHORT);
    slow.allow_pinning(2);
    // The host buffer is kept, because a block that returns to the pool would serve as well as a
    // new one.
    let first = slow.finish(a.copy_to_host(&x)).unwrap();
    let until_reserved = |bytes| {
        while slow.device.pinned_stats().peak_reserved_bytes < bytes {
            std::thread::yield_now();
        }
    };
    until_reserved(8 << 10);
    slow.take();
    let second = a.copy_to_host(&x);
    assert_eq!(slow.take(), [submit("a", 3, "copy_to_host"), signal("a", 3)], "it is not held back");
    slow.allow_pinning(1);
    until_reserved(12 << 10);
    drop((first, slow.finish(second).unwrap()));
    for _ in 0..20 {
        slow.finish(a.read(&x)).unwrap();
    }
    assert_eq!(slow.pinned_by(), ["warpline-pin"; 3], "one more than were ever in use at once");
}
