//! Allocations that wait for memory which unfinished work still uses, and those that must not.

use crate::support::says;
use crate::{contract, with_settings};
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use warpline::SyncMode;
use warpline::prelude::*;

const MIB: usize = 1 << 20;

/// Returns a block of 24 MiB, and a short one that keeps it from growing in place.
fn beside_live_memory(stream: &Stream) -> warpline::Result<(Buffer<u8>, Buffer<u8>)> {
    Ok((stream.alloc(24 * MIB)?, stream.alloc(2 * MIB)?))
}

contract! {
    async fn memory_that_grows_step_by_step_waits_for_the_work_of_the_steps_before([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(64 * MIB))?;
        let stream = device.new_stream()?;
        let mut last = None;
        for step in 1..=8 {
            let block = stream.alloc::<u8>(step * 6 * MIB)?;
            last = Some(stream.fill(&block, step as u8));
        }
        last.expect("there were steps").await?;
        assert!(device.memory_stats().peak_reserved_bytes <= 64 * MIB);
    }

    async fn a_stream_waits_for_the_work_of_others([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(64 * MIB))?;
        let streams = [device.new_stream()?, device.new_stream()?, device.new_stream()?];
        for round in 0..4 {
            for (at, stream) in streams.iter().enumerate() {
                let block = stream.alloc::<u8>((16 + 2 * at + 4 * round) * MIB)?;
                stream.fill(&block, 1).queued()?;
            }
        }
        device.synchronize().await?;
    }

    async fn memory_behind_a_gate_is_refused_at_once_and_the_error_names_the_gate([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(32 * MIB))?;
        let stream = device.new_stream()?;
        let (block, _kept) = beside_live_memory(&stream)?;
        let (gate, line) = (stream.hold()?, line!());
        stream.fill(&block, 1).queued()?;
        drop(block);
        let error = stream.alloc::<u8>(28 * MIB).unwrap_err();
        let code = format!("a closed gate: hold (tests/contract/waiting.rs:{line})");
        let text = format!("24.0 MiB of it behind unfinished work, which waits for {code}");
        says(&error, ErrorKind::OutOfMemory, &[&text]);
        assert_eq!(error.out_of_memory().expect("figures").held_up_by, Some(code));
        assert!(stream.alloc_async::<u8>(28 * MIB).await.is_err(), "without a thread, too");
        gate.open();
        let block = stream.alloc::<u8>(28 * MIB)?;
        stream.fill(&block, 2).await?;
    }

    async fn memory_behind_a_host_function_is_refused_at_once([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(32 * MIB))?;
        let stream = device.new_stream()?;
        let (block, _kept) = beside_live_memory(&stream)?;
        let (sender, receiver) = mpsc::channel::<()>();
        let in_turns = device.runs_in_turns();
        // In turns, a poll runs it, and it must not wait for this task.
        let called = stream.call(move || if !in_turns { let _ = receiver.recv(); });
        stream.fill(&block, 1).queued()?;
        drop(block);
        let error = stream.alloc::<u8>(28 * MIB).unwrap_err();
        says(&error, ErrorKind::OutOfMemory, &["which waits for a host function: call (tests/contract/waiting.rs:"]);
        drop(sender);
        called.await?;
        stream.alloc::<u8>(28 * MIB)?;
    }

    async fn what_live_memory_leaves_no_room_for_is_refused_at_once([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(48 * MIB))?;
        let stream = device.new_stream()?;
        let (kept, freed) = (stream.alloc::<u8>(24 * MIB)?, stream.alloc::<u8>(24 * MIB)?);
        stream.fill(&kept, 1).queued()?;
        stream.fill(&freed, 1).queued()?;
        drop(freed);
        for error in [stream.alloc::<u8>(26 * MIB).unwrap_err(), stream.alloc_async::<u8>(26 * MIB).await.unwrap_err()] {
            let details = error.out_of_memory().expect("figures");
            assert_eq!((details.allocated_bytes, &details.held_up_by), (24 * MIB, &None));
        }
        drop(kept);
        stream.alloc::<u8>(26 * MIB)?;
    }

    async fn tasks_that_wait_are_all_served([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(112 * MIB))?;
        let task = |bytes: usize| {
            let device = device.clone();
            async move {
                let stream = device.new_stream()?;
                for round in 0..3 {
                    let block = stream.alloc_async::<u8>(bytes + round * 2 * MIB).await?;
                    stream.fill(&block, 1).queued()?;
                }
                Ok::<_, warpline::Error>(())
            }
        };
        let done = futures::join!(task(20 * MIB), task(22 * MIB), task(24 * MIB), task(26 * MIB));
        done.0.and(done.1).and(done.2).and(done.3)?;
    }

    async fn a_future_that_is_dropped_leaves_the_queue([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(32 * MIB))?;
        let stream = device.new_stream()?;
        let (block, _kept) = beside_live_memory(&stream)?;
        for value in 0..8 {
            stream.fill(&block, value).queued()?;
        }
        drop(block);
        {
            let mut first = std::pin::pin!(stream.alloc_async::<u8>(28 * MIB));
            let polled = first.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if device.runs_in_turns() {
                assert!(matches!(polled, Poll::Pending));
                let waiters = device.memory_snapshot().waiters.expect("one waits");
                assert_eq!((waiters.requests, waiters.bytes, waiters.first_bytes), (1, 28 * MIB, 28 * MIB));
                assert!(device.memory_summary().contains(" for 28.0 MiB: alloc_async (tests/contract/waiting.rs:"));
            }
        }
        assert_eq!(device.memory_snapshot().waiters, None);
        stream.fill(&stream.alloc::<u8>(28 * MIB)?, 1).await?;
    }

    async fn a_grant_for_a_stream_that_was_closed_meanwhile_is_returned([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(32 * MIB))?;
        let lease = device.stream_pool(1)?.try_lease()?.expect("no stream is leased");
        let stream = Stream::clone(&lease);
        let (block, kept) = beside_live_memory(&stream)?;
        for value in 0..8 {
            stream.fill(&block, value).queued()?;
        }
        drop(block);
        let mut waits = std::pin::pin!(stream.alloc_async::<u8>(28 * MIB));
        let polled = waits.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let waits_on = polled.is_pending();
        drop((lease, polled));
        if waits_on {
            says(&waits.await.unwrap_err(), ErrorKind::Closed, &["the stream is closed"]);
        }
        drop(kept);
        assert_eq!(device.memory_stats().allocated_bytes, 0);
    }

    async fn a_task_that_may_not_block_is_refused_only_where_it_would_wait([device]) {
        let strict = |builder: warpline::RuntimeBuilder| builder.memory_limit(32 * MIB).sync(SyncMode::Error);
        let (_runtime, device) = with_settings(&device, strict)?;
        let stream = device.new_stream()?;
        let (block, _kept) = beside_live_memory(&stream)?;
        stream.fill(&block, 1).queued()?;
        drop(block);
        if device.runs_in_turns() {
            let error = stream.alloc::<u8>(28 * MIB).unwrap_err();
            says(&error, ErrorKind::Reentrant, &["alloc (tests/contract/waiting.rs:", "; await alloc_async(len) instead"]);
        }
        let block = stream.alloc_async::<u8>(28 * MIB).await?;
        stream.fill(&block, 1).await?;
    }

    async fn work_outside_a_capture_may_end_its_wait([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(32 * MIB))?;
        let stream = device.new_stream()?;
        let block = stream.alloc::<u8>(24 * MIB)?;
        stream.fill(&block, 1).queued()?;
        drop(block);
        let (graph, memory) = stream.capture(|s| {
            let memory = s.alloc::<u8>(28 * MIB)?;
            s.fill(&memory, 7).queued()?;
            Ok(memory)
        })?;
        graph.launch(&stream).await?;
        assert_eq!(stream.read(&memory.slice(0..4)?).await?, [7; 4]);
    }
}
