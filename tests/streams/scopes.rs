//! The current device and stream: how they are selected, and that they neither leak nor get lost.

use crate::support::{block_on, refusal, runtime, says, streams};
use futures::FutureExt as _;
use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use tokio_test::{assert_pending, assert_ready, task};
use warpline::ops;
use warpline::prelude::*;

/// Returns the label of the current stream of `device`.
fn current(device: &Device) -> String {
    Stream::current(device).unwrap().label().to_owned()
}

/// Returns `Poll::Pending` from `times` polls, and wakes nothing.
async fn pending(times: usize) {
    for _ in 0..times {
        let mut polled = false;
        std::future::poll_fn(|_| {
            if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

#[test]
fn enter_nests_and_restores() {
    let (_runtime, device, [a, b]) = streams(["a", "b"]);
    assert_eq!(current(&device), "default");
    let inner = a.enter(|| {
        assert_eq!(current(&device), "a");
        let inner = b.enter(|| current(&device));
        assert_eq!(current(&device), "a");
        a.enter(|| assert_eq!(current(&device), "a"));
        assert_eq!(current(&device), "a");
        inner
    });
    assert_eq!((inner.as_str(), current(&device).as_str()), ("b", "default"));
}

#[test]
fn enter_restores_after_a_panic() {
    let (_runtime, device, [a, b]) = streams(["a", "b"]);
    a.enter(|| {
        let panicked = catch_unwind(AssertUnwindSafe(|| b.enter(|| device.enter(|| panic!("on purpose")))));
        assert!(panicked.is_err());
        assert_eq!(current(&device), "a");
    });
    assert_eq!(current(&device), "default");
}

#[test]
fn a_scope_restores_after_a_panic_in_its_future_and_in_its_closure() {
    let (_runtime, device, [a]) = streams(["a"]);
    let panics = a.scope(|| async { panic!("on purpose") });
    assert!(catch_unwind(AssertUnwindSafe(|| block_on(panics))).is_err());
    assert_eq!(current(&device), "default");
    let mut panics = pin!(a.scope(|| -> std::future::Ready<()> { panic!("on purpose") }));
    for _ in 0..2 {
        let poll =
            AssertUnwindSafe(|| panics.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert!(catch_unwind(poll).is_err());
        assert_eq!(current(&device), "default");
    }
}

#[test]
fn scopes_nest_with_each_other_and_with_enter() {
    let (_runtime, device, [a, b]) = streams(["a", "b"]);
    block_on(a.scope(|| async {
        woken_at_once().await;
        assert_eq!(current(&device), "a");
        b.scope(|| async {
            woken_at_once().await;
            assert_eq!(current(&device), "b");
            a.enter(|| assert_eq!(current(&device), "a"));
            assert_eq!(current(&device), "b");
        })
        .await;
        assert_eq!(current(&device), "a");
    }));
    assert_eq!(current(&device), "default");
}

/// Returns `Poll::Pending` once, and wakes the task immediately.
async fn woken_at_once() {
    let mut polled = false;
    std::future::poll_fn(|cx| {
        cx.waker().wake_by_ref();
        if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[test]
fn a_scope_survives_every_await_on_a_work_stealing_runtime() {
    let (_runtime, device, []) = streams([]);
    let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let threads_seen = executor.block_on(async {
        let tasks: Vec<_> = (0..200)
            .map(|n| {
                let (maker, device) = (&device, device.clone());
                let body = async move {
                    let mut threads = std::collections::HashSet::new();
                    let expected = if n % 4 == 0 { "default".to_owned() } else { format!("task {n}") };
                    for round in 0..20 {
                        threads.insert(std::thread::current().id());
                        assert_eq!(current(&device), expected, "round {round} of task {n}");
                        match round % 3 {
                            0 => tokio::task::yield_now().await,
                            1 => assert_eq!(
                                Stream::current(&device).unwrap().call(move || n).await.unwrap(),
                                n
                            ),
                            _ => drop(tokio::spawn(tokio::task::yield_now()).await),
                        }
                    }
                    assert_eq!(current(&device), expected);
                    threads
                };
                if n % 4 == 0 {
                    tokio::spawn(body)
                } else {
                    let stream = maker.stream().label(format!("task {n}")).build().unwrap();
                    tokio::spawn(stream.scope(move || body))
                }
            })
            .collect();
        let mut seen = std::collections::HashSet::new();
        for task in tasks {
            seen.extend(task.await.unwrap());
        }
        seen
    });
    assert!(!threads_seen.is_empty());
    assert_eq!(current(&device), "default");
}

#[test]
fn a_scope_survives_select() {
    let (_runtime, device, [a, b]) = streams(["a", "b"]);
    block_on(a.scope(|| async {
        let (gate, gated) = (b.hold().unwrap(), b.synchronize());
        let mut other = Box::pin(
            b.scope(|| async {
                gated.await.unwrap();
                current(&device)
            })
            .fuse(),
        );
        for _ in 0..3 {
            let mut mine = pin!(a.call(|| 1).fuse());
            futures::select! {
                _ = other => panic!("a gate holds it"),
                one = mine => assert_eq!(one.unwrap(), 1),
            }
            assert_eq!(current(&device), "a");
        }
        gate.open();
        assert_eq!(other.await, "b");
        assert_eq!(current(&device), "a");
    }));
}

#[test]
fn spawn_starts_with_nothing_and_in_current_stream_takes_the_scope_along() {
    let (_runtime, device, [a]) = streams(["a"]);
    let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let name = |device: &Device| {
        let device = device.clone();
        async move {
            tokio::task::yield_now().await;
            current(&device)
        }
    };
    executor.block_on(a.scope(|| async {
        assert_eq!(tokio::spawn(name(&device)).await.unwrap(), "default");
        assert_eq!(tokio::spawn(name(&device).in_current_stream()).await.unwrap(), "a");
        let on_device =
            device.scope(|| async { tokio::spawn(name(&device).in_current_stream()).await.unwrap() });
        assert_eq!(on_device.await, "a");
    }));
    assert_eq!(executor.block_on(name(&device).in_current_stream()), "default");
}

#[test]
fn in_current_stream_takes_both_the_stream_and_the_device_along() {
    let runtime = runtime(2);
    let [zero, one] = [0, 1].map(|n| runtime.device(DeviceId::Cpu(n)).unwrap());
    let side = zero.stream().label("side").build().unwrap();
    let both = || (current(&zero), Device::current().unwrap());
    assert_eq!(side.enter(|| one.enter(both)), ("side".to_owned(), one.clone()));
    let carried = side.enter(|| one.enter(|| Box::pin(async { both() }.in_current_stream())));
    assert_eq!(block_on(carried), ("side".to_owned(), one.clone()));
    let there = one.stream().label("there").build().unwrap();
    let carried = side
        .enter(|| there.enter(|| Box::pin(async { (current(&zero), current(&one)) }.in_current_stream())));
    assert_eq!(block_on(carried), ("side".to_owned(), "there".to_owned()));
    assert_eq!(both().0, "default");
}

#[test]
fn the_closure_is_called_at_the_first_poll_inside_the_scope() {
    let (_runtime, device, [a]) = streams(["a"]);
    let called = Cell::new(0);
    let mut scope = task::spawn(a.scope(|| {
        called.set(called.get() + 1);
        assert_eq!(current(&device), "a");
        pending(2)
    }));
    assert_eq!(called.get(), 0);
    assert_pending!(scope.poll());
    assert_pending!(scope.poll());
    assert_ready!(scope.poll());
    assert_eq!(called.get(), 1);
    drop(a.scope(|| {
        called.set(100);
        pending(0)
    }));
    assert_eq!(called.get(), 1, "never polled, never called");
}

#[test]
fn nothing_ambient_stays_on_a_thread_between_polls() {
    let (_runtime, device, [a]) = streams(["a"]);
    let inner = device.clone();
    let mut scope: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(a.scope(move || async move {
        for _ in 0..4 {
            assert_eq!(current(&inner), "a");
            pending(1).await;
        }
        assert_eq!(current(&inner), "a");
    }));
    for round in 0..5 {
        // Each poll is on a thread of its own.
        let device = device.clone();
        let (back, done) = std::thread::spawn(move || {
            assert_eq!(current(&device), "default");
            let done = scope.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
            assert_eq!(current(&device), "default");
            (scope, done)
        })
        .join()
        .unwrap();
        assert_eq!(done, round == 4);
        scope = back;
    }
}

#[test]
fn two_scopes_polled_in_turns_on_one_thread_do_not_mix() {
    let (_runtime, device, [a, b]) = streams(["a", "b"]);
    let of = |stream: &Stream, label: &'static str| {
        let device = device.clone();
        task::spawn(stream.scope(move || async move {
            for _ in 0..10 {
                assert_eq!(current(&device), label);
                pending(1).await;
            }
        }))
    };
    let (mut one, mut two) = (of(&a, "a"), of(&b, "b"));
    for _ in 0..10 {
        assert_pending!(one.poll());
        assert_pending!(two.poll());
        assert_eq!(current(&device), "default");
    }
    assert_ready!(one.poll());
    assert_ready!(two.poll());
}

#[test]
fn a_scope_keeps_its_stream() {
    let (_runtime, device, [a]) = streams(["a"]);
    let id = a.id();
    let scope = a.scope(|| async { Stream::current(&device).unwrap() });
    drop(a);
    let stream = block_on(scope);
    assert_eq!(stream.id(), id);
    assert_eq!(stream.call(|| 5).blocking_wait().unwrap(), 5, "it was not closed meanwhile");
}

// The selected device, as in the example of PyTorch's notes on CUDA semantics.

fn three_devices() -> (Runtime, [Device; 3]) {
    let runtime = runtime(3);
    let devices = [0, 1, 2].map(|n| runtime.device(DeviceId::Cpu(n)).unwrap());
    (runtime, devices)
}

fn selected() -> u32 {
    Device::current().unwrap().ordinal()
}

#[test]
fn the_selected_device_is_0_then_1_then_0() {
    let (_runtime, [zero, one, _]) = three_devices();
    assert_eq!(selected(), 0, "outside every scope it is the best device of the default runtime");
    zero.enter(|| {
        let mut printed = vec![selected()];
        one.enter(|| printed.push(selected()));
        printed.push(selected());
        assert_eq!(printed, [0, 1, 0]);
    });
    block_on(zero.scope(|| async {
        let mut printed = vec![selected()];
        one.scope(|| async {
            woken_at_once().await;
            printed.push(selected());
        })
        .await;
        printed.push(selected());
        assert_eq!(printed, [0, 1, 0]);
    }));
}

#[test]
fn device_scopes_nest_and_restore_whatever_happens_inside() {
    let (_runtime, [zero, one, two]) = three_devices();
    zero.enter(|| {
        one.enter(|| {
            two.enter(|| assert_eq!(selected(), 2));
            assert_eq!(selected(), 1);
            let on_zero = zero.new_stream().unwrap();
            on_zero.enter(|| assert_eq!(selected(), 0, "a stream's scope selects its device"));
            assert_eq!(selected(), 1);
            assert!(catch_unwind(AssertUnwindSafe(|| two.enter(|| panic!("on purpose")))).is_err());
            assert_eq!(selected(), 1);
        });
        assert_eq!(selected(), 0);
    });
}

#[test]
fn selecting_a_device_leaves_the_current_stream_of_the_others() {
    let (_runtime, [zero, one, _]) = three_devices();
    let side = zero.stream().label("side").build().unwrap();
    side.enter(|| {
        one.enter(|| {
            assert_eq!(selected(), 1);
            assert_eq!((current(&zero).as_str(), current(&one).as_str()), ("side", "default"));
        });
        assert_eq!(current(&zero), "side");
    });
}

#[test]
fn ops_run_where_their_operands_are_whatever_device_is_selected() {
    let (_runtime, [zero, one, two]) = three_devices();
    let x = zero.alloc::<f32>(4).unwrap();
    drop(ops::fill_(&x, 1.0));
    let y = one.enter(|| {
        let y = zero.alloc::<f32>(4).unwrap();
        drop(ops::fill_(&y, 2.0));
        drop(ops::add_(&y, &x));
        y
    });
    assert_eq!(y.device(), zero);
    let total = two.enter(|| ops::sum(&y)).blocking_wait().unwrap();
    assert_eq!(total, 12.0);
    assert_eq!((one.bookkeeping().live_streams, zero.default_stream().unwrap().issued()), (1, 5));
}

#[test]
fn ops_across_devices_are_refused_when_they_are_called() {
    let (_runtime, [zero, one, _]) = three_devices();
    let (x, y) = (zero.alloc::<f32>(4).unwrap(), one.alloc::<f32>(4).unwrap());
    drop(ops::fill_(&x, 1.0));
    drop(ops::fill_(&y, 1.0));
    let text = "an operand is on cpu:1; move a tensor with to, or a buffer with copy_buffer_peer";
    says(
        &refusal(ops::add_(&x, &y)),
        ErrorKind::DeviceMismatch,
        &["add_ on stream \"default\" (tests/streams/scopes.rs:", text],
    );
    says(&one.enter(|| refusal(ops::copy_(&y, &x))), ErrorKind::DeviceMismatch, &[text]);
}

#[test]
fn a_scope_on_one_runtime_says_nothing_about_another() {
    let (_one, mine, [side]) = streams(["side"]);
    let (_two, theirs, []) = streams([]);
    side.enter(|| assert_eq!((current(&mine).as_str(), current(&theirs).as_str()), ("side", "default")));
}

/// Notes the label of the current stream when it is dropped.
struct NotesWhereItDrops<'a>(&'a Device, &'a Cell<String>);

impl Drop for NotesWhereItDrops<'_> {
    fn drop(&mut self) {
        self.1.set(current(self.0));
    }
}

#[test]
fn a_cancelled_scope_drops_its_future_in_the_scope() {
    let (_runtime, device, [a]) = streams(["a"]);
    let dropped_on = Cell::new(String::new());
    let guard = || NotesWhereItDrops(&device, &dropped_on);
    let never_ends = |guard| async move {
        let _guard: NotesWhereItDrops<'_> = guard;
        pending(usize::MAX).await;
    };
    let mut polled = task::spawn(a.scope(|| never_ends(guard())));
    assert_pending!(polled.poll());
    drop(polled);
    assert_eq!(dropped_on.take(), "a");
    let unpolled = guard();
    drop(a.scope(|| never_ends(unpolled)));
    assert_eq!(dropped_on.take(), "a");
    let mut inherited = a.enter(|| Box::pin(never_ends(guard()).in_current_stream()));
    assert!(inherited.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(inherited);
    assert_eq!(dropped_on.take(), "a");
    assert_eq!(current(&device), "default");
}
