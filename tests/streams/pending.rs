//! `Pending` as a future: which tasks it wakes and when, and what happens when it is dropped,
//! leaked or timed out.

use crate::support::{block_on, streams, within_a_minute};
use futures::FutureExt as _;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio_test::{assert_pending, assert_ready, assert_ready_ok, task};
use warpline::prelude::*;
use warpline::testing::Gate;

/// A waker that counts how often it was woken. Tests also count its handles.
#[derive(Default)]
struct Counting(AtomicU32);

impl Counting {
    fn woken(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll_with<T>(pending: &mut Pending<T>, counting: &Arc<Counting>) -> Poll<warpline::Result<T>> {
    let waker = Waker::from(counting.clone());
    Pin::new(pending).poll(&mut Context::from_waker(&waker))
}

/// Returns once the waiters of everything enqueued so far on `stream` have been woken.
fn everybody_is_woken(stream: &Stream) {
    // An op starts after the waiters of the previous op have been woken.
    stream.call(|| ()).blocking_wait().unwrap();
}

fn held(stream: &Stream) -> (Gate, Pending<u32>) {
    let gate = stream.hold().unwrap();
    (gate, stream.call(|| 7))
}

#[test]
fn a_task_is_woken_once_the_work_is_done_and_not_before() {
    let (_runtime, _, [stream]) = streams(["s"]);
    let (gate, op) = held(&stream);
    let mut task = task::spawn(op);
    assert_pending!(task.poll());
    assert!(!task.is_woken());
    gate.open();
    everybody_is_woken(&stream);
    assert!(task.is_woken());
    assert_eq!(assert_ready_ok!(task.poll()), 7);
}

#[test]
fn spurious_polls_change_nothing() {
    let (_runtime, _, [stream]) = streams(["s"]);
    let (gate, mut op) = held(&stream);
    let counting = Arc::new(Counting::default());
    for _ in 0..100 {
        assert_pending!(poll_with(&mut op, &counting));
    }
    assert_eq!(Arc::strong_count(&counting), 2, "one registration, whatever the number of polls");
    gate.open();
    everybody_is_woken(&stream);
    assert_eq!((counting.woken(), Arc::strong_count(&counting)), (1, 1));
    assert_eq!(assert_ready_ok!(poll_with(&mut op, &counting)), 7);
}

#[test]
fn of_two_tasks_that_polled_it_the_last_one_is_woken() {
    let (_runtime, _, [stream]) = streams(["s"]);
    let (gate, mut op) = held(&stream);
    let (first, last) = (Arc::new(Counting::default()), Arc::new(Counting::default()));
    assert_pending!(poll_with(&mut op, &first));
    assert_pending!(poll_with(&mut op, &last));
    assert_eq!(Arc::strong_count(&first), 1, "the waker of the first is dropped");
    gate.open();
    everybody_is_woken(&stream);
    assert_eq!((first.woken(), last.woken()), (0, 1));
}

#[test]
fn done_before_the_first_poll_is_ready_at_once() {
    let (_runtime, _, [stream]) = streams(["s"]);
    let op = stream.call(|| 7);
    everybody_is_woken(&stream);
    let mut task = task::spawn(op);
    assert_eq!(assert_ready_ok!(task.poll()), 7);
    assert!(!task.is_woken());
}

#[test]
fn a_refused_call_is_ready_at_once() {
    let (_runtime, _, [a, b]) = streams(["a", "b"]);
    let x = a.alloc::<f32>(4).unwrap();
    let mut task = task::spawn(b.fill(&x, 1.0));
    let error = assert_ready!(task.poll()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unordered);
}

#[test]
fn a_dropped_pending_deregisters_its_waker() {
    let (_runtime, _, [stream]) = streams(["s"]);
    let (gate, mut op) = held(&stream);
    let counting = Arc::new(Counting::default());
    assert_pending!(poll_with(&mut op, &counting));
    assert_eq!(Arc::strong_count(&counting), 2);
    drop(op);
    assert_eq!(Arc::strong_count(&counting), 1);
    gate.open();
    everybody_is_woken(&stream);
    assert_eq!(counting.woken(), 0);
}

#[test]
fn a_synchronize_of_a_device_with_many_streams_waits_for_one_at_a_time() {
    let (_runtime, device, _) = streams::<0>([]);
    let streams: Vec<_> = (0..50).map(|_| device.new_stream().unwrap()).collect();
    let gates: Vec<_> = streams.iter().map(|stream| stream.hold().unwrap()).collect();
    let mut all = device.synchronize();
    let counting = Arc::new(Counting::default());
    for (gate, stream) in gates.into_iter().zip(&streams) {
        assert_pending!(poll_with(&mut all, &counting));
        assert_eq!(Arc::strong_count(&counting), 2, "one registration, whatever the number of streams");
        gate.open();
        everybody_is_woken(stream);
    }
    assert!(counting.woken() >= 1);
    assert_ready_ok!(poll_with(&mut all, &counting));
    assert_eq!(Arc::strong_count(&counting), 1);
}

#[test]
fn a_synchronize_of_the_device_takes_one_error_and_leaves_the_others_with_their_streams() {
    let (_runtime, device, [a, b, c]) = streams(["a", "b", "c"]);
    let held = a.hold().unwrap();
    let (x, y) = (a.alloc::<f32>(4).unwrap(), a.alloc::<f32>(4).unwrap());
    for (stream, buffer) in [(&b, &x), (&c, &y)] {
        // Dropped without a look at its error.
        drop(stream.fill(buffer, 1.0));
    }
    let mut given_up = task::spawn(device.synchronize());
    assert_pending!(given_up.poll());
    drop(given_up);
    let mut all = task::spawn(device.synchronize());
    assert_pending!(all.poll());
    held.open();
    everybody_is_woken(&a);
    let first = assert_ready!(all.poll()).unwrap_err();
    assert_eq!(first.kind(), ErrorKind::Unordered);
    let of_each = [&b, &c].map(|stream| stream.synchronize().blocking_wait());
    assert_eq!(of_each.iter().filter(|of_it| of_it.is_err()).count(), 1, "{first} and {of_each:?}");
    assert!(device.synchronize().blocking_wait().is_ok(), "each is told of once");
}

#[test]
fn a_synchronize_of_the_device_wakes_for_its_last_stream() {
    let (_runtime, device, [a, b]) = streams(["a", "b"]);
    let gates = [a.hold().unwrap(), b.hold().unwrap()];
    let mut task = task::spawn(device.synchronize());
    assert_pending!(task.poll());
    for (gate, stream) in gates.into_iter().zip([&a, &b]) {
        assert_pending!(task.poll());
        gate.open();
        everybody_is_woken(stream);
    }
    assert!(task.is_woken());
    assert_ready_ok!(task.poll());
}

#[test]
fn a_panicking_waker_keeps_nobody_else_asleep() {
    struct Panicking;
    impl Wake for Panicking {
        fn wake(self: Arc<Self>) {
            panic!("a waker that panics, on purpose");
        }
    }
    within_a_minute(|| {
        let (_runtime, device, [stream]) = streams(["s"]);
        let gate = stream.hold().unwrap();
        let waker = Waker::from(Arc::new(Panicking));
        let counting = Arc::new(Counting::default());
        let mut waiters: Vec<_> = (0..20).map(|_| stream.synchronize()).collect();
        for (at, waiter) in waiters.iter_mut().enumerate() {
            if at % 2 == 0 {
                assert_pending!(Pin::new(waiter).poll(&mut Context::from_waker(&waker)));
            } else {
                assert_pending!(poll_with(waiter, &counting));
            }
        }
        gate.open();
        everybody_is_woken(&stream);
        assert_eq!(counting.woken(), 10);
        assert!(device.fault().is_none());
        for waiter in waiters {
            waiter.blocking_wait().unwrap();
        }
    });
}

#[test]
fn a_waker_may_enqueue_and_drop_other_waiters() {
    // Wakers are called without a lock, so this one may use the stream and the waiting list that it
    // was called from.
    struct Enqueuing(Stream, std::sync::Mutex<Option<Pending<u32>>>, std::sync::mpsc::Sender<Pending<u32>>);
    impl Wake for Enqueuing {
        fn wake(self: Arc<Self>) {
            drop(self.1.lock().unwrap().take());
            self.2.send(self.0.call(|| 8)).unwrap();
        }
    }
    let (_runtime, _, [stream]) = streams(["s"]);
    let (gate, mut op) = held(&stream);
    let mut other = stream.call(|| 9);
    assert_pending!(poll_with(&mut other, &Arc::default()));
    let (sender, enqueued) = std::sync::mpsc::channel();
    let waker = Waker::from(Arc::new(Enqueuing(stream.clone(), Some(other).into(), sender)));
    assert_pending!(Pin::new(&mut op).poll(&mut Context::from_waker(&waker)));
    gate.open();
    let enqueued = within_a_minute(move || enqueued.recv().unwrap());
    assert_eq!(enqueued.blocking_wait().unwrap(), 8);
    op.blocking_wait().unwrap();
}

#[test]
#[should_panic(expected = "`Pending` polled after it has resolved")]
fn polling_after_completion_panics() {
    let (_runtime, _, [stream]) = streams(["s"]);
    let mut op = stream.call(|| 1);
    block_on(&mut op).unwrap();
    let _ = block_on(&mut op);
}

#[test]
fn select_takes_the_first_and_leaves_the_other_usable() {
    let (_runtime, _, [a, b]) = streams(["a", "b"]);
    let (gate, mut slow) = held(&a);
    let mut quick = b.call(|| 1);
    block_on(async {
        futures::select! {
            _ = (&mut slow).fuse() => panic!("a gate holds it"),
            one = (&mut quick).fuse() => assert_eq!(one.unwrap(), 1),
        }
        gate.open();
        assert_eq!(slow.await.unwrap(), 7);
    });
    let (gate, slow) = held(&a);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        tokio::select! {
            _ = slow => panic!("a gate holds it"),
            one = b.call(|| 1) => assert_eq!(one.unwrap(), 1),
        }
    });
    gate.open();
    a.synchronize().blocking_wait().unwrap();
}

#[test]
fn after_a_timeout_the_work_goes_on_and_can_be_awaited_again() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let (_runtime, _, [stream]) = streams(["s"]);
    runtime.block_on(async {
        let (gate, mut op) = held(&stream);
        let deadline = Duration::from_secs(3600);
        assert!(tokio::time::timeout(deadline, &mut op).await.is_err(), "paused time passes when all wait");
        gate.open();
        assert_eq!(op.await.unwrap(), 7);
    });
}

async fn a_join_of_many(device: Device) {
    let streams: Vec<_> = (0..8).map(|_| device.new_stream().unwrap()).collect();
    let ops = (0..400usize).map(|n| streams[n % 8].call(move || n));
    let joined = futures::future::try_join_all(ops).await.unwrap();
    assert_eq!(joined, (0..400).collect::<Vec<_>>());
    let (a, b, c) = futures::join!(streams[0].call(|| 1), streams[1].call(|| "two"), device.synchronize());
    assert_eq!((a.unwrap(), b.unwrap()), (1, "two"));
    c.unwrap();
}

#[test]
fn joins_resolve_on_the_current_thread_runtime() {
    let (_runtime, device, []) = streams([]);
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(a_join_of_many(device));
}

#[test]
fn joins_resolve_on_the_multi_thread_runtime() {
    let (_runtime, device, []) = streams([]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..4).map(|_| tokio::spawn(a_join_of_many(device.clone()))).collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// Returns a runtime with one thread, and a counter that a task on it increments whenever it runs.
fn with_a_sibling() -> (tokio::runtime::Runtime, Arc<AtomicU32>) {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ran = Arc::new(AtomicU32::new(0));
    let counted = ran.clone();
    tokio.spawn(async move {
        loop {
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
        }
    });
    (tokio, ran)
}

#[test]
fn awaits_of_what_is_done_let_other_tasks_run() {
    let (_runtime, _, [stream]) = streams(["s"]);
    let (tokio, ran) = with_a_sibling();
    within_a_minute(move || {
        tokio.block_on(async {
            for _ in 0..10_000 {
                stream.synchronize().await.unwrap();
            }
        });
        assert!(ran.load(Ordering::SeqCst) > 3, "of 10 000 awaits, each ready at once");
    });
}

#[test]
fn blocking_inside_a_task_goes_on_where_its_budget_is_used_up() {
    let (_runtime, _, [stream]) = streams(["s"]);
    let (tokio, _ran) = with_a_sibling();
    within_a_minute(move || {
        tokio.block_on(async {
            for _ in 0..3_000 {
                stream.synchronize().blocking_wait().unwrap();
                block_on(async { stream.synchronize().await }).unwrap();
            }
        });
    });
}

#[test]
fn joins_resolve_on_the_futures_executor() {
    let (_runtime, device, []) = streams([]);
    block_on(a_join_of_many(device));
}

/// Compiles only if the futures can be spawned.
#[test]
fn what_a_task_holds_across_an_await_is_send_and_static() {
    fn can_be_spawned<T: Send + 'static>() {}
    fn this_can_be_spawned<T: Send + 'static>(_: &T) {}
    fn can_be_shared<T: Send + Sync + 'static>() {}
    can_be_spawned::<Pending<()>>();
    can_be_spawned::<Pending<Vec<f32>>>();
    can_be_spawned::<Pending<Pinned<f32>>>();
    can_be_spawned::<Pending<Buffer<f32>>>();
    can_be_spawned::<Pinned<f32>>();
    can_be_spawned::<Gate>();
    can_be_spawned::<warpline::Permit>();
    can_be_shared::<Stream>();
    can_be_shared::<StreamLease>();
    can_be_shared::<StreamPool>();
    can_be_shared::<Device>();
    can_be_shared::<Event>();
    can_be_shared::<Buffer<f32>>();
    can_be_shared::<Runtime>();
    can_be_shared::<Error>();
    let (_runtime, device, [stream]) = streams(["s"]);
    let x = stream.alloc::<f32>(4).unwrap();
    let pool = device.stream_pool(1).unwrap();
    let inner = stream.clone();
    this_can_be_spawned(&stream.scope(move || async move { inner.read(&x).await }));
    this_can_be_spawned(&device.scope(|| async { Device::current() }));
    this_can_be_spawned(&stream.call(|| 1).in_current_stream());
    this_can_be_spawned(&async move {
        let lease = pool.lease().await?;
        let host = lease.device().pinned::<f32>(4).await?;
        let (_x, sent) = lease.copy_to_device(host)?;
        let _permit = lease.room().await;
        sent.await
    });
}

#[test]
fn dropping_detaches_the_work() {
    let (_runtime, _, [stream]) = streams(["s"]);
    let ran = Arc::new(AtomicU32::new(0));
    let gate = stream.hold().unwrap();
    for _ in 0..10 {
        let ran = ran.clone();
        drop(stream.call(move || ran.fetch_add(1, Ordering::SeqCst)));
    }
    gate.open();
    stream.synchronize().blocking_wait().unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 10);
}

#[test]
fn dropped_pending_keeps_the_pinned_buffer_until_the_copy_ends() {
    let (_runtime, device, [stream]) = streams(["s"]);
    let in_use = || device.pinned_stats().allocated_bytes;
    let x = stream.alloc::<f32>(100_000).unwrap();
    let mut host = device.blocking_pinned::<f32>(100_000).unwrap();
    host.fill(3.0);
    let (address, bytes) = (host.as_ptr(), in_use());
    assert!(bytes > 0);
    let gate = stream.hold().unwrap();
    let mut sent = stream.copy_into(&x, host);
    assert_pending!(poll_with(&mut sent, &Arc::default()));
    drop(sent);
    assert_eq!(in_use(), bytes, "the copy has not ended");
    let other = device.blocking_pinned::<f32>(100_000).unwrap();
    assert_ne!(other.as_ptr(), address, "nobody else gets it meanwhile");
    drop(other);
    gate.open();
    everybody_is_woken(&stream);
    assert_eq!(in_use(), 0);
    assert_eq!(stream.read(&x).blocking_wait().unwrap(), vec![3.0; 100_000]);
}

#[test]
fn a_forgotten_pending_leaks_and_nothing_else() {
    let (_runtime, device, [stream]) = streams(["s"]);
    let x = stream.alloc::<f32>(1000).unwrap();
    let mut forgotten = Vec::new();
    for n in 0..4 {
        let mut host = device.blocking_pinned::<f32>(1000).unwrap();
        host.fill(n as f32);
        let gate = stream.hold().unwrap();
        let mut sent = stream.copy_into(&x, host);
        let mut read = stream.copy_to_host(&x);
        let counting = Arc::new(Counting::default());
        assert_pending!(poll_with(&mut sent, &counting));
        assert_pending!(poll_with(&mut read, &counting));
        // The runtime cannot tell these from forgotten ones. They are dropped at the end for the
        // leak checker.
        forgotten.push(std::mem::ManuallyDrop::new((sent, read)));
        let fresh = device.blocking_pinned::<f32>(1000).unwrap();
        gate.open();
        everybody_is_woken(&stream);
        assert_eq!(counting.woken(), 2, "a spurious wake for a task that may be gone");
        drop(fresh);
        assert_eq!(stream.read(&x).blocking_wait().unwrap(), [n as f32; 1000]);
    }
    let mut all: Vec<_> = (0..8).map(|_| device.blocking_pinned::<f32>(1000).unwrap().as_ptr()).collect();
    all.dedup();
    assert_eq!(all.len(), 1, "what was not leaked goes round");
    forgotten.into_iter().map(std::mem::ManuallyDrop::into_inner).for_each(drop);
}

/// A pipeline that sends five gates through `at`. After each one it awaits work that the gate
/// holds, until the receiver drops the gate.
async fn pipeline(device: Device, at: tokio::sync::mpsc::UnboundedSender<Gate>) -> warpline::Result<()> {
    let hold = |stream: &Stream| at.send(stream.hold().unwrap()).unwrap();
    let (copy, compute) = (device.new_stream()?, device.new_stream()?);
    let mut host = device.pinned::<f32>(5000).await?;
    host.fill(1.0);
    hold(&copy);
    let (x, sent) = copy.copy_to_device(host)?;
    sent.await?;
    hold(&compute);
    compute.fill(&x, 2.0).await?;
    hold(&compute);
    let host = compute.copy_to_host(&x).await?;
    let event = compute.record_event();
    hold(&compute);
    compute.synchronize().await?;
    event.await?;
    hold(&copy);
    copy.copy_into(&x, host).await?;
    Ok(())
}

#[test]
fn a_task_aborted_at_any_await_loses_nothing() {
    let (_runtime, device, []) = streams([]);
    let in_use = || (device.memory_stats().allocated_bytes, device.pinned_stats().allocated_bytes);
    let before = in_use();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    for point in 0..=5 {
        runtime.block_on(async {
            let (sender, mut gates) = tokio::sync::mpsc::unbounded_channel();
            let task = tokio::spawn(pipeline(device.clone(), sender));
            let mut held = None;
            for _ in 0..=point {
                // Dropping the previous gate lets the pipeline continue to the next one.
                drop(held.take());
                held = gates.recv().await;
            }
            task.abort();
            let outcome = task.await;
            assert_eq!(outcome.is_err(), point < 5, "the pipeline has five gates");
            drop(held);
            device.synchronize().await.unwrap();
        });
        assert_eq!(in_use(), before, "aborted at gate {point}");
    }
}

#[test]
fn a_host_function_and_a_synchronize_can_be_queued_before_they_are_over() {
    let runtime = Runtime::new().unwrap();
    let stream = runtime.device(DeviceId::Cpu(0)).unwrap().new_stream().unwrap();
    let gate = stream.hold().unwrap();
    stream.call(|| ()).queued().unwrap();
    stream.synchronize().queued().unwrap();
    gate.open();
    stream.synchronize().blocking_wait().unwrap();
}

/// Polls until it resolves, and returns the number of polls. The work has to be done before.
fn polled<T: std::fmt::Debug>(pending: Pending<T>) -> (u32, T) {
    let mut task = task::spawn(pending);
    for polls in 1.. {
        match task.poll() {
            Poll::Ready(value) => return (polls, value.unwrap()),
            Poll::Pending => assert!(task.is_woken(), "the next piece can be copied"),
        }
    }
    unreachable!()
}

#[test]
fn a_long_read_lets_other_tasks_run_between_its_pieces() {
    const LEN: usize = 5 << 20;
    let (_runtime, _, [stream]) = streams(["s"]);
    let x = stream.alloc::<u8>(LEN).unwrap();
    stream.fill(&x, 7).detach();
    let tensor = Tensor::from_buffer(x.slice(..3 << 20).unwrap(), [3 << 20]).unwrap();
    let read = stream.read(&x);
    let length = stream.read(&x).map(|read| read.len());
    let joined = Pending::join_all([stream.read(&x), stream.read(&x)]);
    let half = stream.read(&x);
    let lengths = || stream.read(&x).map(|read| read.len());
    let mapped = Pending::join_all([lengths(), lengths()]);
    let short = stream.read(&x.slice(..8).unwrap()).map(drop);
    let halves = Pending::join_all([short, stream.read(&x).map(drop)]);
    let replaced = stream.read(&x).map(drop).with(5);
    let values = stream.enter(|| tensor.to_vec::<u8>());
    let one = stream.read_one(&x.slice(..1).unwrap());
    stream.synchronize().blocking_wait().unwrap();
    assert_eq!(polled(read), (5, vec![7; LEN]));
    assert_eq!(polled(length), (5, LEN));
    assert_eq!(polled(joined), (1, ()), "nobody wants the values");
    assert_eq!(polled(mapped), (10, ()));
    assert_eq!(polled(replaced), (5, 5));
    // Its work is done, and a part of the value is made.
    let mut begun = task::spawn(half.map(drop));
    assert_pending!(begun.poll());
    begun.into_inner().view(|&()| Ok(())).blocking_wait().unwrap();
    let mut begun = task::spawn(halves);
    assert_pending!(begun.poll());
    assert_pending!(begun.poll());
    begun.into_inner().view_of(|&()| Ok(())).blocking_wait().unwrap();
    assert_eq!(polled(values), (3, vec![7; 3 << 20]));
    assert_eq!(polled(one), (1, 7));
}
