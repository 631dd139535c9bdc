//! Leases of streams, and room on streams. Both are bounded, granted in order, and never lost.

use crate::support::{block_on, refusal, says, streams, within_a_minute};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio_test::{assert_pending, assert_ready, assert_ready_ok, task};
use warpline::Priority;
use warpline::prelude::*;
use warpline::testing::for_each_seed;

#[test]
fn a_pool_leases_at_most_its_size() {
    let (_runtime, device, []) = streams([]);
    let pool = device.stream_pool(3).unwrap().label("request").priority(Priority::Low);
    assert_eq!((pool.size(), pool.available()), (3, 3));
    let leases: Vec<_> = (0..3).map(|_| block_on(pool.lease()).unwrap()).collect();
    assert_eq!(pool.available(), 0);
    assert!(pool.clone().try_lease().unwrap().is_none(), "a clone is the same pool");
    assert_pending!(task::spawn(pool.lease()).poll());
    assert_eq!((leases[0].label(), leases[0].priority()), ("request", Priority::Low));
    assert_eq!(leases.iter().map(|lease| lease.id()).collect::<HashSet<_>>().len(), 3);
    drop(leases);
    assert_eq!(pool.available(), 3, "nothing was in flight");
    assert!(pool.try_lease().unwrap().is_some());
}

#[test]
fn leases_are_handed_out_in_the_order_in_which_they_were_asked_for() {
    let (_runtime, device, []) = streams([]);
    let pool = device.stream_pool(1).unwrap();
    let mut held = block_on(pool.lease()).unwrap();
    let mut waiting: Vec<_> = (0..5).map(|_| task::spawn(pool.lease())).collect();
    for waiter in &mut waiting {
        assert_pending!(waiter.poll());
    }
    // The third waiter gives up. Only its own place in the queue is lost.
    drop(waiting.remove(2));
    while !waiting.is_empty() {
        drop(held);
        assert!(pool.try_lease().unwrap().is_none(), "nobody overtakes who waits");
        assert!(waiting[0].is_woken() && waiting[1..].iter().all(|waiter| !waiter.is_woken()));
        held = assert_ready_ok!(waiting.remove(0).poll());
    }
    drop(held);
    assert_eq!(pool.available(), 1);
}

#[test]
fn a_lease_that_was_granted_and_never_taken_goes_back() {
    let (_runtime, device, []) = streams([]);
    let pool = device.stream_pool(1).unwrap();
    let held = block_on(pool.lease()).unwrap();
    let mut waiting = task::spawn(pool.lease());
    assert_pending!(waiting.poll());
    drop(held);
    assert!(waiting.is_woken());
    drop(waiting);
    assert_eq!(pool.available(), 1);
}

#[test]
fn what_one_lease_holds_up_does_not_hold_up_another() {
    let (_runtime, device, []) = streams([]);
    let pool = device.stream_pool(2).unwrap();
    let (slow, quick) = (block_on(pool.lease()).unwrap(), block_on(pool.lease()).unwrap());
    let gate = slow.hold().unwrap();
    let mut held = slow.call(|| 1);
    assert_eq!(quick.call(|| 2).blocking_wait().unwrap(), 2);
    assert!(!held.query().unwrap());
    gate.open();
    held.blocking_wait().unwrap();
}

#[test]
fn the_place_of_a_dropped_lease_is_free_once_its_work_has_run_and_dropping_does_not_wait() {
    within_a_minute(|| {
        let (_runtime, device, []) = streams([]);
        let pool = device.stream_pool(1).unwrap();
        let lease = block_on(pool.lease()).unwrap();
        let ran = Arc::new(AtomicU32::new(0));
        let gate = lease.hold().unwrap();
        for _ in 0..10 {
            let ran = ran.clone();
            drop(lease.call(move || ran.fetch_add(1, Ordering::SeqCst)));
        }
        let clone = Stream::clone(&lease);
        drop(lease);
        assert_eq!((pool.available(), ran.load(Ordering::SeqCst)), (0, 0), "the gate is closed");
        assert!(pool.try_lease().unwrap().is_none());
        let mut next = task::spawn(Box::pin(pool.lease()));
        assert_pending!(next.poll());
        gate.open();
        let next = block_on(next.into_inner()).unwrap();
        assert_eq!(ran.load(Ordering::SeqCst), 10, "all of it ran before");
        assert_eq!(refusal(clone.call(|| ())).kind(), ErrorKind::Closed);
        assert_ne!(next.id(), clone.id());
    });
}

#[test]
fn many_tasks_share_few_leases_and_each_has_its_own() {
    within_a_minute(|| {
        let (_runtime, device, []) = streams([]);
        let pool = device.stream_pool(3).unwrap();
        let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        let in_use = Arc::new(AtomicU32::new(0));
        executor.block_on(async {
            let tasks: Vec<_> = (0..300)
                .map(|n| {
                    let (pool, in_use) = (pool.clone(), in_use.clone());
                    tokio::spawn(async move {
                        let lease = pool.lease().await?;
                        assert!(in_use.fetch_add(1, Ordering::SeqCst) < 3);
                        let x = lease.alloc::<f32>(64)?;
                        drop(lease.fill(&x, n as f32));
                        let read = lease.read(&x);
                        assert_eq!(lease.issued(), 2, "nobody else is on it");
                        assert_eq!(read.await?, [n as f32; 64]);
                        in_use.fetch_sub(1, Ordering::SeqCst);
                        if n % 2 == 0 {
                            // Detached work at the end of a lease.
                            drop(lease.fill(&x, 0.0));
                        }
                        Ok::<(), Error>(())
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap().unwrap();
            }
            device.synchronize().await.unwrap();
        });
        while pool.available() < 3 {
            std::thread::yield_now();
        }
        assert_eq!(device.memory_stats().allocated_bytes, 0);
    });
}

// Room.

fn small(device: &Device, most: usize) -> Stream {
    device.stream().label("small").max_in_flight(most).build().unwrap()
}

#[test]
fn room_is_what_the_limit_leaves_and_comes_back_with_each_completion() {
    within_a_minute(|| {
        let (_runtime, device, []) = streams([]);
        let stream = small(&device, 3);
        let gates: Vec<_> = (0..3).map(|_| stream.hold().unwrap()).collect();
        assert_eq!(refusal(stream.call(|| ())).kind(), ErrorKind::Full);
        assert_eq!(stream.issued(), 3);
        let mut room = task::spawn(Box::pin(stream.room()));
        assert_pending!(room.poll());
        for gate in gates {
            gate.open();
        }
        let permit = block_on(room.into_inner()).unwrap();
        assert_eq!(permit.stream(), &stream);
        permit.enter(|| stream.call(|| ())).blocking_wait().unwrap();
        for n in 0..50 {
            let permit = block_on(stream.room()).unwrap();
            assert_eq!(permit.enter(|| stream.call(move || n)).blocking_wait().unwrap(), n);
        }
    });
}

#[test]
fn a_permit_is_for_one_op_on_its_own_stream() {
    let (_runtime, device, [other]) = streams(["other"]);
    let stream = small(&device, 2);
    let first = stream.hold().unwrap();
    let permit = block_on(stream.room()).unwrap();
    assert_eq!(refusal(stream.call(|| ())).kind(), ErrorKind::Full, "the permit has reserved the last room");
    let (elsewhere, one, two) = permit.enter(|| (other.call(|| 1), stream.call(|| 2), stream.call(|| 3)));
    assert_eq!(elsewhere.blocking_wait().unwrap(), 1);
    assert_eq!(refusal(two).kind(), ErrorKind::Full, "the first op took it");
    first.open();
    assert_eq!(one.blocking_wait().unwrap(), 2);
}

#[test]
fn an_unused_permit_gives_its_room_back() {
    let (_runtime, device, []) = streams([]);
    let stream = small(&device, 1);
    drop(block_on(stream.room()).unwrap());
    block_on(stream.room()).unwrap().enter(|| ());
    stream.call(|| ()).blocking_wait().unwrap();
}

#[test]
fn a_refused_op_gives_its_room_back() {
    let (_runtime, device, [owner]) = streams(["owner"]);
    let stream = small(&device, 1);
    let x = owner.alloc::<f32>(4).unwrap();
    drop(owner.fill(&x, 1.0));
    for _ in 0..5 {
        let permit = block_on(stream.room()).unwrap();
        assert_eq!(refusal(permit.enter(|| stream.read(&x))).kind(), ErrorKind::Unordered);
        let permit = block_on(stream.room()).unwrap();
        assert_eq!(refusal(permit.enter(|| stream.write(&x, &[0.0]))).kind(), ErrorKind::Shape);
        x.accept_contents();
    }
    stream.call(|| ()).blocking_wait().unwrap();
}

#[test]
fn room_is_handed_out_in_turn() {
    within_a_minute(|| {
        let (_runtime, device, []) = streams([]);
        let stream = small(&device, 1);
        let gate = stream.hold().unwrap();
        let mut waiting: Vec<_> = (0..4).map(|_| task::spawn(Box::pin(stream.room()))).collect();
        for waiter in &mut waiting {
            assert_pending!(waiter.poll());
        }
        drop(waiting.remove(1));
        gate.open();
        for (n, waiter) in waiting.into_iter().enumerate() {
            let permit = block_on(waiter.into_inner()).unwrap();
            assert_eq!(permit.enter(|| stream.call(move || n)).blocking_wait().unwrap(), n);
        }
    });
}

#[test]
fn a_producer_within_its_permits_never_has_more_in_flight() {
    async fn produce(device: Device) -> warpline::Result<()> {
        let stream = small(&device, 4);
        let mut last = None;
        for n in 0..200u64 {
            let permit = stream.room().await?;
            last = Some(permit.enter(|| stream.call(move || n)));
            let in_flight = stream.issued() - stream.completed();
            assert!(in_flight <= 4, "{in_flight} in flight");
        }
        assert_eq!(last.expect("200 of them").await?, 199);
        Ok(())
    }
    within_a_minute(|| {
        let (_runtime, device, []) = streams([]);
        block_on(produce(device)).unwrap();
        for_each_seed(0..20, produce);
    });
}

#[test]
fn a_full_stream_says_so_and_the_device_goes_on() {
    let (_runtime, device, [other]) = streams(["other"]);
    let stream = small(&device, 1);
    let gate = stream.hold().unwrap();
    drop(stream.call(|| ()));
    other.call(|| ()).blocking_wait().unwrap();
    gate.open();
    says(
        &refusal(stream.synchronize()),
        ErrorKind::Full,
        &["call on stream \"small\"", "allows 1 ops in flight and has 1"],
    );
    stream.synchronize().blocking_wait().unwrap();
}

#[test]
fn ten_thousand_streams_live_side_by_side_and_leave_nothing_behind() {
    within_a_minute(|| {
        let (_runtime, device, [first]) = streams(["first"]);
        let before = device.bookkeeping();
        let gate = first.hold().unwrap();
        let ran = Arc::new(AtomicU32::new(0));
        let streams: Vec<_> = (0..10_000).map(|_| device.new_stream().unwrap()).collect();
        for stream in &streams {
            stream.wait_stream(&first);
            let ran = ran.clone();
            drop(stream.call(move || ran.fetch_add(1, Ordering::SeqCst)));
        }
        assert_eq!(device.bookkeeping().live_streams, before.live_streams + 10_000);
        assert_eq!(ran.load(Ordering::SeqCst), 0, "all of them wait");
        gate.open();
        device.synchronize().blocking_wait().unwrap();
        assert_eq!(ran.load(Ordering::SeqCst), 10_000);
        drop(streams);
        let slots = device.bookkeeping().stream_slots;
        for _ in 0..20_000 {
            device.new_stream().unwrap().call(|| ()).blocking_wait().unwrap();
        }
        // A stream may still be retiring when the next one is made.
        assert!(
            device.bookkeeping().stream_slots <= slots + 64,
            "{} and {slots}",
            device.bookkeeping().stream_slots
        );
        while device.bookkeeping().live_streams > before.live_streams {
            std::thread::yield_now();
        }
    });
}

#[test]
fn who_waits_for_a_lease_learns_of_the_shutdown() {
    within_a_minute(|| {
        let (runtime, device, []) = streams([]);
        let pool = device.stream_pool(1).unwrap();
        let lease = block_on(pool.lease()).unwrap();
        let mut next = task::spawn(pool.lease());
        assert_pending!(next.poll());
        // Nothing is in flight, so nothing else wakes it.
        block_on(runtime.shut_down()).unwrap();
        assert!(next.is_woken());
        let error = assert_ready!(next.poll()).expect_err("the device accepts no more work");
        assert_eq!(error.kind(), ErrorKind::ShutDown, "{error}");
        drop(lease);
    });
}

#[test]
fn waiting_for_a_lease_takes_turns_where_nothing_else_does() {
    within_a_minute(|| {
        let runtime = Runtime::builder().schedule(Schedule::Seeded(3)).build().unwrap();
        let device = runtime.device(DeviceId::Cpu(0)).unwrap();
        let pool = device.stream_pool(1).unwrap();
        let lease = pool.try_lease().unwrap().unwrap();
        let gate = lease.hold().unwrap();
        drop(lease.call(|| ()));
        drop(lease);
        let waiting = std::thread::spawn(move || futures::executor::block_on(pool.lease()).map(drop));
        gate.open();
        waiting.join().unwrap().unwrap();
    });
}
