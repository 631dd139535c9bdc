//! Order within a stream and between streams, and how the host waits.

use crate::support::says;
use crate::{contract, refused};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use warpline::prelude::*;
use warpline::{Priority, reads, writes};

/// A list to which host functions append when they run.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<u32>>>);

impl Diary {
    fn note(&self, stream: &Stream, what: u32) {
        let diary = self.0.clone();
        drop(stream.call(move || diary.lock().unwrap().push(what)));
    }

    fn entries(&self) -> Vec<u32> {
        self.0.lock().unwrap().clone()
    }
}

contract! {
    /// Nothing is counted twice or forgotten when streams end.
    async fn op_stats_count_ops_and_refusals([device]) {
        let [stream, other] = [device.new_stream()?, device.new_stream()?];
        let before = device.op_stats();
        let x = stream.alloc::<f32>(100)?;
        let gate = stream.hold()?;
        let fills: Vec<_> = (0..10).map(|_| stream.fill(&x, 1.0)).collect();
        let held = device.op_stats();
        // The gate is an op on some devices.
        let gates = held.enqueued - before.enqueued - 10;
        assert!(gates <= 1, "{held:?}");
        assert_eq!(held.in_flight, held.enqueued - before.enqueued + before.in_flight);
        gate.open();

        // Refused at the call: the order check, and a host slice of another length.
        assert_eq!(refused(other.fill(&x, 2.0)).await.kind(), ErrorKind::Unordered);
        assert_eq!(refused(stream.write(&x, &[1.0])).await.kind(), ErrorKind::Shape);
        assert_eq!(stream.alloc::<u8>(1 << 60).unwrap_err().kind(), ErrorKind::OutOfMemory);
        for kind in [ErrorKind::Unordered, ErrorKind::Shape, ErrorKind::OutOfMemory] {
            let count = |stats: &warpline::OpStats| stats.refused.get(&kind).copied().unwrap_or(0);
            assert_eq!(count(&device.op_stats()), count(&before) + 1, "{kind:?}");
        }
        assert_eq!(device.op_stats().enqueued, held.enqueued, "a refused op does not count");
        // A refusal that becomes that of a call on several pieces of memory counts once.
        let refused = device.op_stats().refused;
        let none: [&Buffer<f32>; 0] = [];
        let error = stream.alloc::<u8>(1 << 60).unwrap_err();
        let _ = stream.refuse_writes(error, writes(none));
        let count = |refused: &BTreeMap<_, u64>| refused.values().sum::<u64>();
        assert_eq!(count(&device.op_stats().refused), count(&refused) + 1);
        // More than can be addressed, and foreign work within foreign work.
        assert!(stream.alloc::<u64>(usize::MAX / 4).is_err());
        let inner = || {
            // SAFETY: nothing is enqueued.
            drop(unsafe { stream.external(reads(none), writes(none), |_| ()) });
        };
        // SAFETY: nothing is enqueued here either.
        let outer = unsafe { stream.external(reads(none), writes(none), |_| inner()) };
        outer.await?;
        assert_eq!(count(&device.op_stats().refused), count(&refused) + 3);
        let enqueued = device.op_stats().enqueued;

        for fill in fills {
            fill.await?;
        }
        drop((stream, other));
        device.synchronize().await?;
        let after = device.op_stats();
        assert_eq!((after.enqueued, after.in_flight), (enqueued, 0));
    }

    async fn work_of_one_stream_runs_in_the_order_of_the_calls([device]) {
        let stream = device.new_stream()?;
        let diary = Diary::default();
        (0..200).for_each(|n| diary.note(&stream, n));
        stream.synchronize().await?;
        assert_eq!(diary.entries(), (0..200).collect::<Vec<_>>());
    }

    async fn tickets_count_up_from_one_and_completion_follows([device]) {
        let stream = device.new_stream()?;
        assert_eq!((stream.issued(), stream.completed()), (0, 0));
        let tickets: Vec<_> = (0..3).map(|_| stream.call(|| ()).ticket()).collect();
        assert_eq!(tickets, [Some(1), Some(2), Some(3)]);
        assert_eq!(stream.issued(), 3);
        stream.synchronize().await?;
        assert_eq!(stream.completed(), 3);
    }

    async fn a_stream_has_the_label_and_priority_it_was_built_with([device]) {
        let named = device.stream().label("copies").priority(Priority::High).build()?;
        assert_eq!((named.label(), named.priority()), ("copies", Priority::High));
        let plain = device.new_stream()?;
        assert_eq!(plain.priority(), Priority::Normal);
        let number = |stream: &Stream| stream.label().strip_prefix("stream ").map(str::parse::<u32>);
        let (Some(Ok(one)), Some(Ok(next))) = (number(&plain), number(&device.new_stream()?)) else {
            panic!("{plain:?}")
        };
        assert!(0 < one && one < next, "{one}, {next}");
        assert_eq!((named.device(), plain.device()), (device.clone(), device.clone()));
    }

    async fn every_stream_has_an_id_of_its_own_also_after_others_are_gone([device]) {
        let mut ids = Vec::new();
        for _ in 0..50 {
            let stream = device.new_stream()?;
            assert_eq!(stream.clone(), stream);
            assert_eq!(stream.clone().id(), stream.id());
            ids.push(stream.id());
        }
        let mut distinct = ids.clone();
        distinct.dedup();
        assert_eq!(ids.iter().collect::<std::collections::BTreeSet<_>>().len(), 50);
    }

    async fn the_default_stream_is_always_the_same_and_current_outside_scopes([device]) {
        let default = device.default_stream()?;
        assert_eq!((default.label(), device.default_stream()?), ("default", default.clone()));
        assert_eq!(Stream::current(&device)?, default);
        let x = device.alloc::<f32>(4)?;
        default.fill(&x, 1.0).await?;
    }

    async fn wait_stream_covers_what_was_enqueued_before_it_and_nothing_later([device]) {
        let (a, b) = (device.new_stream()?, device.new_stream()?);
        let diary = Diary::default();
        let first = a.hold()?;
        diary.note(&a, 1);
        b.wait_stream(&a);
        diary.note(&b, 2);
        let second = a.hold()?;
        diary.note(&a, 3);
        assert!(!b.synchronize().query()?, "b waits for a");
        first.open();
        b.synchronize().await?;
        assert_eq!(diary.entries(), [1, 2], "b did not wait for what came later");
        second.open();
        a.synchronize().await?;
        assert_eq!(diary.entries(), [1, 2, 3]);
    }

    async fn what_wait_stream_returns_resolves_when_the_waiting_stream_has_passed_the_wait([device]) {
        let (a, b) = (device.new_stream()?, device.new_stream()?);
        let gate = a.hold()?;
        let mut passed = b.wait_stream(&a).into_future();
        assert!(!passed.query()?);
        gate.open();
        passed.await?;
        b.wait_stream(&b).await?;
    }

    async fn wait_event_covers_what_came_before_the_record_and_nothing_later([device]) {
        let (a, b) = (device.new_stream()?, device.new_stream()?);
        let diary = Diary::default();
        let first = a.hold()?;
        diary.note(&a, 1);
        let event = a.record_event();
        let second = a.hold()?;
        diary.note(&a, 3);
        b.wait_event(&event);
        diary.note(&b, 2);
        assert!(!b.synchronize().query()?);
        first.open();
        b.synchronize().await?;
        assert_eq!(diary.entries(), [1, 2]);
        second.open();
        a.synchronize().await?;
    }

    async fn wait_for_orders_a_stream_after_every_user_of_the_memory([device]) {
        let [writer, one, two, last] = [(); 4].map(|()| device.new_stream().unwrap());
        let x = writer.alloc::<f32>(8)?;
        drop(writer.fill(&x, 2.0));
        let gates = [one.hold()?, two.hold()?];
        let mut seen = Vec::new();
        for reader in [&one, &two] {
            reader.wait_stream(&writer);
            seen.push(reader.read(&x));
        }
        last.wait_for(&x);
        let mut filled = last.fill(&x, 3.0);
        for gate in gates {
            assert!(!filled.query()?);
            gate.open();
        }
        filled.await?;
        for seen in seen {
            assert_eq!(seen.await?, [2.0; 8]);
        }
    }

    async fn query_is_false_while_work_is_ahead_and_true_after([device]) {
        let stream = device.new_stream()?;
        assert!(stream.query()?, "nothing was enqueued");
        let gate = stream.hold()?;
        let mut op = stream.call(|| 5);
        let event = stream.record_event();
        assert!(!stream.query()? && !op.query()? && !event.query()?);
        gate.open();
        stream.synchronize().await?;
        assert!(stream.query()? && op.query()? && event.query()?);
        assert_eq!(op.await?, 5);
    }

    async fn in_flight_counts_what_is_not_done_and_falls_without_an_await([device]) {
        let stream = device.new_stream()?;
        assert_eq!(stream.in_flight(), 0);
        let gate = stream.hold()?;
        for _ in 0..3 {
            drop(stream.call(|| ()));
        }
        assert_eq!(stream.in_flight(), 4, "the gate and three calls");
        assert_eq!(stream.issued() - stream.completed(), 4);
        gate.open();
        while stream.in_flight() > 0 {
            std::thread::yield_now();
        }
    }

    async fn in_flight_is_no_observation([device]) {
        let (a, b) = (device.new_stream()?, device.new_stream()?);
        let x = a.alloc::<f32>(8)?;
        drop(a.fill(&x, 1.0));
        while a.in_flight() > 0 {
            std::thread::yield_now();
        }
        says(&refused(b.read(&x)).await, ErrorKind::Unordered, &["no edge orders them"]);
    }

    async fn a_true_query_orders_like_an_await([device]) {
        let (a, b) = (device.new_stream()?, device.new_stream()?);
        let x = a.alloc::<f32>(8)?;
        let event = {
            drop(a.fill(&x, 1.0));
            a.record_event()
        };
        says(&refused(b.read(&x)).await, ErrorKind::Unordered, &["no edge orders them"]);
        while !event.query()? {
            std::thread::yield_now();
        }
        assert_eq!(b.read(&x).await?, [1.0; 8]);
    }

    async fn synchronize_of_a_stream_covers_exactly_what_was_enqueued_before([device]) {
        let stream = device.new_stream()?;
        let first = stream.hold()?;
        let mut before = stream.synchronize();
        let second = stream.hold()?;
        let mut after = stream.synchronize();
        assert!(!before.query()?);
        first.open();
        before.await?;
        assert!(!after.query()?);
        second.open();
        after.await?;
    }

    async fn an_event_is_a_future_of_its_place([device]) {
        let stream = device.new_stream()?;
        let empty = stream.record_event();
        let first = stream.hold()?;
        let before = stream.record_event();
        let second = stream.hold()?;
        (&empty).await?;
        first.open();
        (&before).await?;
        before.clone().synchronize().await?;
        let mut all = stream.synchronize();
        assert!(!all.query()?, "the event did not stand for what came after it");
        second.open();
        all.await?;
        before.await?;
    }

    async fn synchronize_of_a_device_covers_exactly_what_its_streams_had_before([device]) {
        let streams = [device.new_stream()?, device.new_stream()?];
        let gates = [streams[0].hold()?, streams[1].hold()?];
        let mut before = device.synchronize();
        let later = [streams[0].hold()?, streams[1].hold()?];
        let mut after = device.synchronize();
        for gate in gates {
            assert!(!before.query()?);
            gate.open();
        }
        before.await?;
        for gate in later {
            assert!(!after.query()?);
            gate.open();
        }
        after.await?;
    }

    async fn synchronize_of_a_device_covers_streams_whose_handle_is_gone([device]) {
        let stream = device.new_stream()?;
        let gate = stream.hold()?;
        let diary = Diary::default();
        diary.note(&stream, 1);
        drop(stream);
        let mut all = device.synchronize();
        assert!(!all.query()?);
        gate.open();
        all.await?;
        assert_eq!(diary.entries(), [1]);
    }

    async fn clones_of_a_lease_are_refused_as_closed_once_it_has_ended([device]) {
        let pool = device.stream_pool(1)?.label("request");
        let lease = pool.lease().await?;
        let clone = Stream::clone(&lease);
        let x = lease.alloc::<f32>(4)?;
        drop(lease);
        let place = "on stream \"request\" (tests/contract/streams.rs:";
        let what = "the stream is closed, its lease has ended; lease another";
        for (op, error) in [
            ("fill", refused(clone.fill(&x, 1.0)).await),
            ("call", refused(clone.call(|| ())).await),
            ("read", refused(clone.read(&x)).await),
            ("wait_stream", refused(clone.wait_stream(&device.default_stream()?)).await),
            ("hold", clone.hold().unwrap_err()),
        ] {
            says(&error, ErrorKind::Closed, &[&format!("{op} {place}"), what]);
        }
        clone.synchronize().await?;
    }

    async fn recording_again_makes_another_event([device]) {
        let (a, b) = (device.new_stream()?, device.new_stream()?);
        let x = a.alloc::<f32>(4)?;
        b.wait_stream(&a);
        let early = a.record_event();
        drop(a.fill(&x, 1.0));
        let late = a.record_event();
        assert!(early.ticket() < late.ticket());
        b.wait_event(&early);
        says(&refused(b.read(&x)).await, ErrorKind::Unordered, &["read"]);
        b.wait_event(&late);
        assert_eq!(b.read(&x).await?, [1.0; 4]);
    }

    async fn timed_events_tell_the_time_between_them([device]) {
        let stream = device.new_stream()?;
        let start = stream.record_timed_event()?;
        drop(stream.call(|| ()));
        let end = stream.record_timed_event()?;
        (&end).await?;
        let took = end.elapsed_since(&start)?;
        assert_eq!(start.elapsed_since(&start)?, std::time::Duration::ZERO);
        match start.elapsed_since(&end) {
            Ok(backwards) => assert_eq!((took, backwards), Default::default(), "at the same time"),
            Err(error) => says(&error, ErrorKind::InvalidArgument, &["`earlier` was reached", "swap the two"]),
        }
    }

    async fn an_event_without_time_or_not_passed_yet_has_no_elapsed_time([device]) {
        let stream = device.stream().label("timed").build()?;
        let start = stream.record_timed_event()?;
        let plain = stream.record_event();
        (&start).await?;
        says(
            &start.elapsed_since(&plain).unwrap_err(),
            ErrorKind::InvalidArgument,
            &["the earlier event has no time; record it with record_timed_event"],
        );
        says(
            &plain.elapsed_since(&start).unwrap_err(),
            ErrorKind::InvalidArgument,
            &["the later event has no time"],
        );
        let gate = stream.hold()?;
        let end = stream.record_timed_event()?;
        says(
            &end.elapsed_since(&start).unwrap_err(),
            ErrorKind::InvalidArgument,
            &["stream \"timed\" has not passed the later event: it is at ticket 1 of 3; await the event first"],
        );
        gate.open();
        (&end).await?;
        end.elapsed_since(&start)?;
    }

    async fn work_of_a_dropped_stream_still_runs([device]) {
        let diary = Diary::default();
        let stream = device.new_stream()?;
        let gate = stream.hold()?;
        diary.note(&stream, 7);
        let done = stream.call(|| ());
        drop(stream);
        gate.open();
        done.await?;
        assert_eq!(diary.entries(), [7]);
    }
}
