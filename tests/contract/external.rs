//! Foreign work, which other code enqueues on a stream.

use crate::support::says;
use crate::{contract, refused};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use warpline::prelude::*;
use warpline::{reads, writes};

const NOTHING: [&Buffer<f32>; 0] = [];

contract! {
    async fn foreign_work_runs_in_stream_order([device]) {
        let stream = device.new_stream()?;
        let x = stream.alloc::<f32>(4)?;
        let count = Arc::new(AtomicU32::new(0));
        let (first, second, seen) = (count.clone(), count.clone(), count.clone());
        let gate = stream.hold()?;
        drop(stream.fill(&x, 1.0));
        // SAFETY: the work touches no device memory.
        let mut done = unsafe {
            stream.external(reads([&x]), writes(NOTHING), |raw| {
                raw.call(move || first.store(1, Ordering::SeqCst));
                raw.call(move || assert_eq!(second.fetch_add(1, Ordering::SeqCst), 1));
            })
        };
        let after = stream.call(move || seen.load(Ordering::SeqCst));
        assert!(!done.query()?);
        assert_eq!(count.load(Ordering::SeqCst), 0);
        gate.open();
        done.await?;
        assert_eq!(after.await?, 2);
    }

    async fn what_it_declares_is_checked_and_if_refused_it_is_not_called([device]) {
        let (owner, other) = (device.stream().label("owner").build()?, device.stream().label("other").build()?);
        let (x, y) = (owner.alloc::<f32>(4)?, owner.alloc::<u8>(4)?);
        drop(owner.fill(&x, 1.0));
        let called = AtomicBool::new(false);
        let try_it = || {
            // SAFETY: the closure enqueues nothing.
            unsafe { other.external(reads([&x]), writes([&y]), |_| called.store(true, Ordering::SeqCst)) }
        };
        let error = refused(try_it()).await;
        says(
            &error,
            ErrorKind::Unordered,
            &["external on stream \"other\" (tests/contract/external.rs:", "fill on stream \"owner\""],
        );
        assert_eq!(error.conflicts().len(), 2, "the write to y is not after its allocation either: {error}");
        assert!(!called.load(Ordering::SeqCst));
        other.wait_stream(&owner);
        y.accept_contents();
        try_it().await?;
        assert!(called.load(Ordering::SeqCst));
    }

    async fn what_it_declares_counts_for_those_who_come_later([device]) {
        let (stream, other) = (device.new_stream()?, device.new_stream()?);
        let (x, y) = (stream.alloc::<f32>(4)?, stream.alloc::<f32>(4)?);
        drop(stream.fill(&x, 1.0));
        other.wait_stream(&stream);
        // SAFETY: the closure enqueues nothing.
        drop(unsafe { stream.external(reads([&x]), writes([&y]), |_| ()) });
        says(&refused(other.read(&y)).await, ErrorKind::Unordered, &["memory that external on stream"]);
        says(&refused(other.fill(&x, 2.0)).await, ErrorKind::Unordered, &["external on stream", "read"]);
        x.accept_contents();
        assert_eq!(other.read(&x).await?, [1.0; 4]);
    }

    async fn its_own_thread_coming_back_is_refused_as_reentrant([device]) {
        let stream = device.stream().label("turn").build()?;
        let other = device.new_stream()?;
        let mut inner = None;
        // SAFETY: nothing is enqueued through the raw stream.
        let done = unsafe {
            stream.external(reads(NOTHING), writes(NOTHING), |_| {
                inner = Some((stream.call(|| ()), other.call(|| 3)));
            })
        };
        let (refusal, elsewhere) = inner.expect("the closure was called");
        says(
            &refused(refusal).await,
            ErrorKind::Reentrant,
            &["call on stream \"turn\" (tests/contract/external.rs:", "this thread is inside foreign work on the stream"],
        );
        assert_eq!(elsewhere.await?, 3, "another stream is none of its business");
        done.await?;
        assert_eq!(stream.call(|| 4).await?, 4, "the turn has ended");
    }

    async fn what_is_marked_during_the_turn_stands_before_the_work([device]) {
        let (stream, side) = (device.new_stream()?, device.new_stream()?);
        let (x, y) = (stream.alloc::<f32>(4)?, stream.alloc::<f32>(4)?);
        drop(stream.fill(&x, 1.0));
        drop(stream.fill(&y, 1.0));
        let before = stream.issued();
        let mut event = None;
        // SAFETY: the closure enqueues nothing.
        let done = unsafe {
            stream.external(reads(NOTHING), writes([&y]), |_| {
                event = Some(stream.record_event());
                side.wait_stream(&stream);
            })
        };
        let event = event.expect("the closure was called");
        assert_eq!(event.ticket(), before);
        event.await?;
        assert_eq!(side.read(&x).await?, [1.0; 4], "what was there before the turn is before the wait");
        says(&refused(side.read(&y)).await, ErrorKind::Unordered, &["memory that external on stream"]);
        done.await?;
        assert_eq!(side.read(&y).await?, [1.0; 4]);
    }

    async fn other_streams_may_be_awaited_during_the_turn([device]) {
        if device.runs_in_turns() {
            return Ok(());
        }
        let (stream, side) = (device.new_stream()?, device.new_stream()?);
        let x = stream.alloc::<f32>(4)?;
        drop(stream.fill(&x, 1.0));
        let mut seen = None;
        // SAFETY: the closure enqueues nothing.
        let done = unsafe {
            stream.external(reads([&x]), writes(NOTHING), |_| {
                side.wait_stream(&stream);
                seen = Some(side.read(&x).blocking_wait());
            })
        };
        assert_eq!(seen.expect("the closure was called")?, [1.0; 4]);
        done.await?;
    }

    async fn work_that_could_not_be_enqueued_fails_its_readers([device]) {
        let stream = device.stream().label("turn").build()?;
        let (x, y) = (stream.alloc::<f32>(4)?, stream.alloc::<f32>(4)?);
        drop(stream.fill(&x, 1.0));
        drop(stream.fill(&y, 1.0));
        let ran = Arc::new(AtomicBool::new(false));
        let runs = ran.clone();
        // SAFETY: the work touches no device memory.
        let done = unsafe {
            stream.external(reads([&x]), writes([&y]), |raw| {
                assert_eq!(raw.device(), device.id());
                raw.call(move || runs.store(true, Ordering::SeqCst));
                raw.fail("gemm returned 13");
                raw.fail("and another");
            })
        };
        let text = format!("failed on {device}: gemm returned 13; the device is still usable");
        says(&refused(done).await, ErrorKind::Driver, &["external on stream \"turn\"", &text]);
        says(&refused(stream.read(&y)).await, ErrorKind::Driver, &["gemm returned 13"]);
        assert_eq!(stream.read(&x).await?, [1.0; 4]);
        assert!(ran.load(Ordering::SeqCst), "what was enqueued before runs");
        drop(stream.fill(&y, 2.0));
        assert_eq!(stream.read(&y).await?, [2.0; 4]);
    }

    async fn a_panic_in_the_closure_ends_the_turn([device]) {
        let stream = device.new_stream()?;
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // SAFETY: nothing is enqueued.
            drop(unsafe { stream.external(reads(NOTHING), writes(NOTHING), |_| panic!("on purpose")) });
        }));
        assert!(panicked.is_err());
        assert_eq!(stream.call(|| 5).await?, 5);
    }
}

#[test]
fn other_threads_queue_behind_the_turn() {
    crate::support::within_a_minute(|| {
        let (_runtime, _, [stream]) = crate::support::streams(["turn"]);
        let (inside, entered) = std::sync::mpsc::channel();
        let (enqueue, is_enqueuing) = std::sync::mpsc::channel();
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let other = {
            let (stream, order) = (stream.clone(), order.clone());
            std::thread::spawn(move || {
                entered.recv().unwrap();
                enqueue.send(()).unwrap();
                stream.call(move || order.lock().unwrap().push("other")).blocking_wait().unwrap();
            })
        };
        let first = order.clone();
        // SAFETY: the work touches no device memory.
        let done = unsafe {
            stream.external(reads(NOTHING), writes(NOTHING), |raw| {
                inside.send(()).unwrap();
                is_enqueuing.recv().unwrap();
                assert_eq!(stream.issued(), 1);
                raw.call(move || first.lock().unwrap().push("foreign"));
            })
        };
        done.blocking_wait().unwrap();
        other.join().unwrap();
        assert_eq!(*order.lock().unwrap(), ["foreign", "other"]);
    });
}
