//! The driver calls that the runtime makes. The recording driver reaches its markers when the test
//! says so.

use crate::support::block_on;
use crate::support::recording::{Call, Recording};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio_test::{assert_pending, assert_ready_ok, task};
use warpline::prelude::*;
use warpline::{OrderMode, kernels};

/// Returns a runtime over a recording driver, its device, the driver, and streams.
fn recorded<const N: usize>(labels: [&str; N]) -> (Runtime, Device, Arc<Recording>, [Stream; N]) {
    let (runtime, driver) = Recording::runtime(OrderMode::Deny);
    let device = runtime.best_device().unwrap();
    let streams = labels.map(|label| device.stream().label(label).build().unwrap());
    driver.take();
    (runtime, device, driver, streams)
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

fn signals(calls: &[Call]) -> usize {
    calls.iter().filter(|call| matches!(call, Call::Signal { .. })).count()
}

#[test]
fn ten_launches_awaited_at_their_end_cost_ten_submits_and_one_signal() {
    let (_runtime, _, driver, [s]) = recorded(["s"]);
    let x = s.alloc::<f32>(64).unwrap();
    driver.take();
    let config = LaunchConfig::for_elements(64u32);
    for _ in 0..9 {
        drop(s.launch(kernels::relu(64, &x, &x), config));
    }
    let mut last = task::spawn(s.launch(kernels::relu(64, &x, &x), config));
    assert_pending!(last.poll());
    assert_pending!(last.poll());
    let expected: Vec<_> = (1..=10).map(|n| submit("s", n, "relu")).chain([signal("s", 10)]).collect();
    assert_eq!(driver.take(), expected);
    assert!(!last.is_woken());
    driver.reach_markers();
    assert!(last.is_woken());
    assert_ready_ok!(last.poll());
    assert_eq!(driver.take(), []);
}

#[test]
fn a_chain_of_tensor_ops_awaited_at_its_end_costs_one_signal() {
    let (_runtime, device, driver, [s]) = recorded(["s"]);
    let x = s.enter(|| Tensor::ones([8, 8], &device)).queued().unwrap();
    driver.take();
    let y = s.enter(|| x.matmul(&x).add(&x).relu().mul(2.0).t().contiguous());
    let mut y = task::spawn(y);
    assert_pending!(y.poll());
    let calls = driver.take();
    let submitted = calls.iter().filter(|call| matches!(call, Call::Submit { .. })).count();
    assert_eq!((submitted, signals(&calls)), (5, 1), "{calls:?}");
    driver.reach_markers();
    assert_ready_ok!(y.poll());
}

#[test]
fn the_first_wait_costs_a_record_and_a_wait_and_an_implied_one_nothing() {
    let (_runtime, _, driver, [a, b, c]) = recorded(["a", "b", "c"]);
    let x = a.alloc::<f32>(64).unwrap();
    drop(a.fill(&x, 1.0));
    driver.take();
    b.wait_stream(&a);
    assert_eq!(driver.take(), [record("a"), submit("b", 1, "wait")]);

    b.wait_stream(&a);
    b.wait_for(&x);
    b.wait_stream(&b);
    assert_eq!(driver.take(), [], "the same again");
    assert_eq!(b.issued(), 1);

    c.wait_stream(&b);
    assert_eq!(driver.take(), [record("b"), submit("c", 1, "wait")]);
    c.wait_stream(&a);
    assert_eq!(driver.take(), [], "b's wait carries it");
    drop(c.read(&x));
    let calls = driver.take();
    assert_eq!(calls[0], submit("c", 2, "read"));
}

#[test]
fn a_wait_for_what_the_host_knows_to_be_done_makes_no_call() {
    let (_runtime, _, driver, [a, b]) = recorded(["a", "b"]);
    let x = a.alloc::<f32>(64).unwrap();
    let mut filled = a.fill(&x, 1.0);
    assert!(!filled.query().unwrap());
    driver.reach_markers();
    driver.take();
    b.wait_stream(&a);
    assert_eq!(driver.take(), []);
    assert!(filled.query().unwrap());
    drop(b.fill(&x, 2.0));
    assert_eq!(driver.take(), [submit("b", 2, "fill")], "the wait took a ticket");
}

#[test]
fn an_event_is_recorded_once_for_all_who_wait() {
    let (_runtime, _, driver, [a, b, c]) = recorded(["a", "b", "c"]);
    let x = a.alloc::<f32>(64).unwrap();
    drop(a.fill(&x, 1.0));
    let event = a.record_event();
    driver.take();
    b.wait_event(&event);
    c.wait_event(&event);
    c.wait_event(&event);
    assert_eq!(driver.take(), [submit("b", 1, "wait"), submit("c", 1, "wait")]);
}

#[test]
fn a_dropped_copy_of_pinned_memory_still_gets_its_marker() {
    let (_runtime, device, driver, [s]) = recorded(["s"]);
    let x = s.alloc::<f32>(64).unwrap();
    let host = device.blocking_pinned::<f32>(64).unwrap();
    driver.take();
    drop(s.copy_into(&x, host));
    assert_eq!(driver.take(), [submit("s", 1, "copy_into"), signal("s", 1)]);
    assert!(device.pinned_stats().allocated_bytes > 0);
    driver.reach_markers();
    assert_eq!(device.pinned_stats().allocated_bytes, 0, "nobody polled, and the buffer is back");
    drop(s.write(&x, &[0.0; 64]));
    drop(s.read(&x));
    let expected = [submit("s", 2, "write"), signal("s", 2), submit("s", 3, "read"), signal("s", 3)];
    assert_eq!(driver.take(), expected);
}

#[test]
fn a_held_pending_about_to_be_overtaken_gets_a_marker() {
    let (_runtime, _, driver, [s]) = recorded(["s"]);
    let x = s.alloc::<f32>(64).unwrap();
    driver.take();
    let mut held = s.fill(&x, 1.0);
    assert_eq!(driver.take(), [submit("s", 1, "fill")], "not yet");
    drop(s.fill(&x, 2.0));
    assert_eq!(driver.take(), [signal("s", 1), submit("s", 2, "fill")]);
    driver.reach_markers();
    assert!(held.query().unwrap(), "without a further marker");
    assert_eq!(driver.take(), []);
}

#[test]
fn a_view_takes_no_marker_away() {
    let (_runtime, _, driver, [s]) = recorded(["s"]);
    let x = s.alloc::<f32>(64).unwrap();
    driver.take();
    let old = s.fill(&x, 1.0).with(x.clone());
    drop(old.view_of(|x| Ok(x.clone())));
    let new = s.fill(&x, 2.0);
    let view = old.view_of(|x| Ok(x.clone()));
    drop(s.fill(&x, 3.0));
    let expected = [
        submit("s", 1, "fill"),
        signal("s", 1),
        submit("s", 2, "fill"),
        signal("s", 2),
        submit("s", 3, "fill"),
    ];
    assert_eq!(driver.take(), expected);
    drop((new, view));
}

#[test]
fn a_pending_that_was_dropped_or_consumed_gets_none() {
    let (_runtime, _, driver, [s]) = recorded(["s"]);
    let x = s.alloc::<f32>(64).unwrap();
    driver.take();
    drop(s.fill(&x, 1.0));
    s.fill(&x, 2.0).queued().unwrap();
    drop(s.fill(&x, 3.0));
    let submits: Vec<_> = (1..=3).map(|n| submit("s", n, "fill")).collect();
    assert_eq!(driver.take(), submits);
}

#[test]
fn a_marker_is_written_at_the_latest_every_64_ops() {
    let (_runtime, _, driver, [s]) = recorded(["s"]);
    let x = s.alloc::<f32>(64).unwrap();
    driver.take();
    for _ in 0..640 {
        drop(s.fill(&x, 1.0));
    }
    let calls = driver.take();
    let marked: Vec<_> = calls
        .iter()
        .filter_map(|call| match call {
            Call::Signal { ticket, .. } => Some(*ticket),
            _ => None,
        })
        .collect();
    assert_eq!(marked, (1..=10).map(|n| n * 64).collect::<Vec<_>>());
}

#[test]
fn freeing_memory_that_another_stream_used_last_asks_that_stream_for_a_marker() {
    let (_runtime, _, driver, [owner, user]) = recorded(["owner", "user"]);
    let x = owner.alloc::<f32>(64).unwrap();
    drop(owner.fill(&x, 1.0));
    user.wait_stream(&owner);
    drop(user.fill(&x, 2.0));
    driver.take();
    drop(x);
    assert_eq!(driver.take(), [signal("user", 2)]);
    let y = owner.alloc::<f32>(64).unwrap();
    drop(owner.fill(&y, 1.0));
    driver.take();
    drop(y);
    assert_eq!(driver.take(), [], "used by its own stream alone");
}

#[test]
fn a_closing_lease_gets_a_marker_and_is_free_when_that_is_reached() {
    let (_runtime, device, driver, []) = recorded([]);
    let pool = device.stream_pool(1).unwrap();
    let lease = block_on(pool.lease()).unwrap();
    let x = lease.alloc::<f32>(64).unwrap();
    drop(lease.fill(&x, 1.0));
    driver.take();
    drop(lease);
    assert_eq!(driver.take(), [signal("lease", 1)]);
    assert_eq!(pool.available(), 0);
    driver.reach_markers();
    assert_eq!(pool.available(), 1);
}

#[test]
fn who_asks_for_room_gets_a_marker() {
    let (_runtime, device, driver, []) = recorded([]);
    let s = device.stream().label("s").max_in_flight(2).build().unwrap();
    let x = s.alloc::<f32>(64).unwrap();
    drop(s.fill(&x, 1.0));
    drop(s.fill(&x, 2.0));
    driver.take();
    let mut room = task::spawn(s.room());
    assert_pending!(room.poll());
    assert!(driver.take().len() <= 1, "the permits' own markers, or one for who asks");
    driver.reach_markers();
    assert!(room.is_woken());
    let permit = assert_ready_ok!(room.poll());
    permit.enter(|| s.fill(&x, 3.0)).queued().unwrap();
}

#[test]
fn memory_that_is_freed_and_allocated_again_makes_no_driver_call() {
    let (_runtime, _, driver, [s]) = recorded(["s"]);
    for len in [1, 64, 1 << 20, 5 << 20] {
        drop(s.alloc::<f32>(len).unwrap());
        driver.take();
        for _ in 0..100 {
            drop(s.alloc::<f32>(len).unwrap());
        }
        assert_eq!(driver.take(), [], "{len} elements");
    }
}

#[test]
fn a_training_loop_that_drops_every_pending_keeps_its_memory_bounded() {
    let (_runtime, device, driver, [copy, compute]) = recorded(["copy", "compute"]);
    let config = LaunchConfig::for_elements(1000u32);
    let model = compute.alloc::<f32>(1000).unwrap();
    drop(compute.fill(&model, 0.0));
    let mut after_warm_up = None;
    for step in 0..2000 {
        let host = block_on(device.pinned::<f32>(1000)).unwrap();
        let (batch, sent) = copy.copy_to_device(host).unwrap();
        drop(sent);
        compute.wait_for(&batch);
        drop(compute.launch(kernels::axpy(1000, 0.1, &batch, &model), config));
        // The device is a few steps behind, until it reaches the newest markers here.
        if step % 4 == 3 {
            driver.reach_markers();
        }
        let held = (device.memory_stats().reserved_bytes, device.pinned_stats().reserved_bytes);
        if step == 200 {
            after_warm_up = Some(held);
        } else if let Some(before) = after_warm_up {
            assert_eq!(held, before, "at step {step}");
        }
    }
    driver.reach_markers();
    assert_eq!(device.pinned_stats().allocated_bytes, 0);
}

#[test]
fn every_ticket_becomes_complete_by_markers_alone() {
    // Awaits, drops and waits are mixed at random. An awaited op resolves when the device reaches
    // the markers that were written for it.
    let (_runtime, _, driver, streams) = recorded(["a", "b", "c"]);
    let x = streams[0].alloc::<f32>(64).unwrap();
    let mut draw = 1u64;
    let mut held: BTreeMap<u64, task::Spawn<Pending<()>>> = BTreeMap::new();
    for step in 0..3000u64 {
        draw = draw.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let stream = &streams[(draw >> 33) as usize % 3];
        stream.wait_for(&x);
        let op = stream.fill(&x, step as f32);
        match (draw >> 40) % 4 {
            0 => drop(op),
            1 => op.queued().unwrap(),
            2 => drop(held.insert(step, task::spawn(op))),
            _ => {
                let mut op = task::spawn(op);
                assert_pending!(op.poll());
                held.insert(step, op);
            }
        }
        if (draw >> 50).is_multiple_of(8) {
            held.values_mut().for_each(|op| drop(op.poll()));
            driver.reach_markers();
            for (_, mut op) in std::mem::take(&mut held) {
                assert_ready_ok!(op.poll());
            }
        }
    }
    let calls = driver.take();
    assert!(signals(&calls) < 3000, "{} markers", signals(&calls));
}

#[test]
fn a_refused_op_makes_no_driver_call() {
    let (_runtime, _, driver, [a, b]) = recorded(["a", "b"]);
    let x = a.alloc::<f32>(64).unwrap();
    drop(a.fill(&x, 1.0));
    driver.take();
    drop(b.fill(&x, 1.0));
    drop(b.write(&x, &[0.0; 3]));
    drop(b.launch(kernels::relu(65, &x, &x), LaunchConfig::for_elements(64u32)));
    assert_eq!(driver.take(), []);
    assert_eq!(b.issued(), 0);
}

#[test]
fn an_op_after_a_failed_driver_call_takes_the_ticket_that_was_not_used() {
    let (_runtime, device, driver, [s]) = recorded(["s"]);
    let x = s.alloc::<f32>(64).unwrap();
    driver.take();
    drop(s.fill(&x, 1.0));
    driver.refuse_next();
    assert!(s.fill(&x, 2.0).queued().is_err());
    driver.refuse_next();
    let host = device.blocking_pinned::<f32>(64).unwrap();
    assert!(s.copy_into(&x, host).query().is_err());
    assert_eq!(device.pinned_stats().allocated_bytes, 0, "nothing is kept for an op that never was");
    x.accept_contents();
    drop(s.fill(&x, 3.0));
    assert_eq!(driver.take(), [submit("s", 1, "fill"), submit("s", 2, "fill")]);
}

#[test]
fn a_synchronize_of_the_device_asks_for_all_markers_at_once() {
    let (_runtime, device, driver, [a, b, idle]) = recorded(["a", "b", "idle"]);
    let (x, y) = (a.alloc::<f32>(64).unwrap(), b.alloc::<f32>(64).unwrap());
    drop((a.fill(&x, 1.0), b.fill(&y, 1.0)));
    driver.take();
    let mut all = tokio_test::task::spawn(device.synchronize());
    assert!(all.poll().is_pending());
    assert!(all.poll().is_pending());
    let mut asked = driver.take();
    asked.sort_by_key(|call| format!("{call:?}"));
    assert_eq!(asked, [signal("a", 1), signal("b", 1)], "and nothing of a stream with no work");
    driver.reach_markers();
    assert!(all.is_woken() && all.poll().is_ready());
    assert_eq!(driver.take(), []);
    drop(idle);
}

#[test]
fn memory_of_unfinished_work_is_not_given_back_to_the_driver() {
    let (_runtime, device, driver, [s, other]) = recorded(["s", "other"]);
    let x = s.alloc::<f32>(8 << 20).unwrap();
    drop(s.fill(&x, 1.0));
    other.wait_stream(&s);
    drop(other.fill(&x, 1.0));
    drop(x);
    driver.take();
    assert_eq!(device.empty_cache(), 0, "the work is not finished");
    let mut all = device.synchronize();
    assert!(!all.query().unwrap());
    driver.reach_markers();
    driver.take();
    assert_eq!(device.empty_cache(), 32 << 20);
    assert_eq!(driver.take(), [Call::Free { len_bytes: 32 << 20 }]);
}

#[test]
fn a_block_whose_edge_was_refused_is_still_in_use_elsewhere() {
    const LARGE: usize = 12 << 20;
    let (_runtime, _, driver, [s, v]) = recorded(["s", "v"]);
    let y = s.alloc::<u8>(64).unwrap();
    let cached = [(); 2].map(|()| v.alloc::<u8>(LARGE).unwrap());
    cached.iter().for_each(|x| drop(v.fill(x, 7)));
    drop(cached);
    let x = s.alloc::<u8>(LARGE).unwrap();
    drop(s.fill(&y, 1));
    driver.refuse_next();
    assert_eq!(s.fill(&x, 1).blocking_wait().unwrap_err().kind(), ErrorKind::Driver, "the edge was refused");
    drop(x);
    let x = s.alloc::<u8>(LARGE).unwrap();
    driver.take();
    drop(s.fill(&x, 2));
    let calls = driver.take();
    let is_edge = |call: &Call| matches!(call, Call::Submit { what: "edge", .. });
    assert!(calls.iter().any(is_edge), "v still writes there: {calls:?}");
}
