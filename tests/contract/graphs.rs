//! Graphs, which are captured once and launched any number of times, each time as one op.

use crate::support::says;
use crate::{contract, pinned, refused};
use std::panic::{AssertUnwindSafe, catch_unwind};
use warpline::kernels::{add_, axpy};
use warpline::prelude::*;

/// Enqueues y ← a·x + y on `stream`.
fn scale_add(stream: &Stream, a: f32, x: &Buffer<f32>, y: &Buffer<f32>) -> Pending<()> {
    stream.launch(axpy(y.len() as u64, a, x, y), LaunchConfig::for_elements(y.len() as u32))
}

/// Enqueues y ← y + x on `stream`.
fn add(stream: &Stream, x: &Buffer<f32>, y: &Buffer<f32>) -> Pending<()> {
    stream.launch(add_(y.len() as u64, y, x), LaunchConfig::for_elements(y.len() as u32))
}

contract! {
    async fn a_launch_does_to_the_same_memory_what_was_captured([device]) {
        let stream = device.new_stream()?;
        let (x, y) = (stream.alloc::<f32>(1000)?, stream.alloc::<f32>(1000)?);
        let (graph, ()) = stream.capture(|s| {
            drop(s.fill(&y, 1.0));
            drop(scale_add(s, 2.0, &x, &y));
            drop(s.copy_buffer(&x, &y));
        })?;
        assert_eq!((graph.len(), graph.streams(), graph.device()), (3, 1, device));
        drop(stream.fill(&x, 1.0));
        for expected in [3.0, 7.0, 15.0] {
            graph.launch(&stream).await?;
            assert_eq!(stream.read(&x).await?, [expected; 1000]);
        }
    }

    async fn nothing_runs_while_it_is_captured_and_nothing_can_be_awaited([device]) {
        let stream = device.stream().label("compute").build()?;
        let x = stream.alloc::<f32>(8)?;
        stream.fill(&x, 1.0).await?;
        let issued = stream.issued();
        let mut inside = None;
        let (graph, event) = stream.capture(|s| {
            inside = Some(s.fill(&x, 2.0));
            Ok(s.record_event())
        })?;
        assert_eq!(stream.issued(), issued, "tickets were taken");
        let mut inside = inside.unwrap();
        let why = "on stream \"compute\" (tests/contract/graphs.rs:";
        says(&inside.query().unwrap_err(), ErrorKind::Captured, &["fill ", why, "was captured into a graph and has not run"]);
        says(&refused(inside).await, ErrorKind::Captured, &["launch the graph and await that"]);
        says(&refused(event.synchronize()).await, ErrorKind::Captured, &["has not run"]);
        says(&refused(stream.wait_event(&event)).await, ErrorKind::Captured, &["a capture that has ended"]);
        assert_eq!(stream.read(&x).await?, [1.0; 8]);
        graph.launch(&stream).await?;
        assert_eq!(stream.read(&x).await?, [2.0; 8]);
    }

    async fn a_pending_born_inside_gives_its_value_to_what_is_captured_next([device]) {
        let stream = device.new_stream()?;
        let x = stream.enter(|| Tensor::ones([4], &device)).queued()?;
        let (graph, y) = stream.capture(|_| x.add(&x).relu())?;
        let (both, (sum, product)) = stream.capture(|_| (x.sum(), x.mul(&y)))?;
        drop((graph.launch(&stream), both.launch(&stream)));
        stream.synchronize().await?;
        let read = |t: Tensor| stream.enter(|| t.to_vec::<f32>());
        assert_eq!((read(y).await?, read(sum).await?, read(product).await?), (vec![2.0; 4], vec![4.0], vec![2.0; 4]));
    }

    async fn a_graph_keeps_what_its_ops_touch([device]) {
        let stream = device.new_stream()?;
        let (x, y) = (stream.alloc::<f32>(1 << 16)?, stream.alloc::<f32>(1 << 16)?);
        drop((stream.fill(&x, 3.0), stream.fill(&y, 0.0)));
        let (graph, ()) = stream.capture(|s| drop(add(s, &x, &y)))?;
        drop(x);
        // If the block of `x` were free, this allocation would get it.
        let other = stream.alloc::<f32>(1 << 16)?;
        drop(stream.fill(&other, 100.0));
        graph.launch(&stream).await?;
        assert_eq!(stream.read(&y).await?, vec![3.0; 1 << 16]);
    }

    async fn what_a_capture_allocates_is_the_graphs_until_it_and_its_outputs_are_gone([device]) {
        let stream = device.new_stream()?;
        let x = stream.alloc::<f32>(1000)?;
        drop(stream.fill(&x, 1.0));
        device.empty_cache();
        let before = device.memory_stats();
        let (graph, y) = stream.capture(|s| {
            // Each `z` is dropped in the capture, so the second one gets the block of the first.
            for _ in 0..2 {
                let z = s.alloc::<f32>(1000)?;
                s.copy_buffer(&z, &x).queued()?;
                add(s, &z, &x).queued()?;
            }
            let y = s.alloc::<f32>(1000)?;
            s.copy_buffer(&y, &x).queued()?;
            Ok(y)
        })?;
        let held = device.memory_stats();
        assert_eq!((held.graph_bytes, graph.memory_bytes()), (2 << 20, 2 << 20));
        assert_eq!(held.live_blocks - before.live_blocks, 2, "the output, and what stands for the graph's own");
        // No other allocation gets the graph's free memory, and `empty_cache` does not release it.
        let others: Vec<_> = (0..100).map(|_| stream.alloc::<f32>(1000)).collect::<Result<_, _>>()?;
        others.iter().for_each(|other| drop(stream.fill(other, 100.0)));
        device.empty_cache();
        for expected in [4.0, 16.0] {
            graph.launch(&stream).await?;
            assert_eq!(stream.read(&y).await?, [expected; 1000]);
        }
        drop(others);
        drop(graph);
        assert_eq!(device.memory_stats().graph_bytes, 2 << 20, "the output is there");
        assert_eq!(stream.read(&y).await?, [16.0; 1000]);
        drop(y);
        assert_eq!(device.memory_stats().graph_bytes, 0);
        // Between launches nothing in this graph's memory is in use, but the graph keeps it.
        let (graph, ()) = stream.capture(|s| {
            let z = s.alloc::<f32>(1000)?;
            s.fill(&z, 5.0).queued()?;
            s.copy_buffer(&x, &z).queued()
        })?;
        device.empty_cache();
        assert_eq!(device.memory_stats().graph_bytes, 2 << 20);
        graph.launch(&stream).queued()?;
        assert_eq!(stream.read(&x).await?, [5.0; 1000]);
        drop((graph, x));
        stream.synchronize().await?;
        device.empty_cache();
        assert!(device.memory_stats().reserved_bytes <= before.reserved_bytes);
    }

    async fn a_launch_writes_what_was_allocated_in_the_capture_though_no_op_of_it_does([device]) {
        let [a, b] = ["a", "b"].map(|label| device.stream().label(label).build());
        let (a, b) = (a?, b?);
        let (graph, y) = a.capture(|s| {
            let z = s.alloc::<f32>(256)?;
            s.fill(&z, 1.0).queued()?;
            drop(z);
            // Gets the block that `z` had.
            s.alloc::<f32>(256)
        })?;
        let gate = a.hold()?;
        drop(graph.launch(&a));
        let error = refused(b.fill(&y, 5.0)).await;
        says(&error, ErrorKind::Unordered, &["fill on stream \"b\"", "writes memory that graph on stream \"a\"", "wrote"]);
        gate.open();
        b.wait_stream(&a);
        drop(b.fill(&y, 5.0));
        assert_eq!(b.read(&y).await?, [5.0; 256]);
    }

    async fn a_graph_that_is_dropped_in_flight_runs_to_its_end([device]) {
        let stream = device.new_stream()?;
        let x = stream.alloc::<f32>(100)?;
        drop(stream.fill(&x, 1.0));
        let (graph, y) = stream.capture(|s| {
            let y = s.alloc::<f32>(100)?;
            s.copy_buffer(&y, &x).queued()?;
            add(s, &x, &y).queued()?;
            Ok(y)
        })?;
        let gate = stream.hold()?;
        drop(graph.launch(&stream));
        drop(graph);
        let result = stream.read(&y);
        drop((x, y));
        gate.open();
        assert_eq!(result.await?, [2.0; 100]);
    }

    async fn a_side_stream_comes_in_by_a_wait_and_is_joined([device]) {
        let stream = device.stream().label("compute").build()?;
        let side = device.stream().label("side").build()?;
        let (x, y, z) = (stream.alloc::<f32>(64)?, stream.alloc::<f32>(64)?, stream.alloc::<f32>(64)?);
        drop(stream.fill(&x, 1.0));
        let (graph, ()) = stream.capture(|s| {
            s.copy_buffer(&y, &x).queued()?;
            let forked = s.record_event();
            side.wait_event(&forked);
            side.copy_buffer(&z, &x).queued()?;
            add(&side, &z, &z).queued()?;
            add(s, &y, &y).queued()?;
            s.wait_stream(&side);
            add(s, &z, &y).queued()
        })?;
        assert_eq!((graph.len(), graph.streams()), (5, 2));
        for factor in [1.0, 2.0] {
            drop(stream.fill(&x, factor));
            drop(graph.launch(&stream));
            assert_eq!(stream.read(&y).await?, [4.0 * factor; 64]);
        }
        assert_eq!(side.issued(), 0, "the side stream itself had nothing to do");
        side.fill(&z, 0.0).await.expect("its use in the graph was observed");
    }

    async fn wait_for_finds_uses_in_the_capture([device]) {
        let (stream, side) = (device.new_stream()?, device.new_stream()?);
        let x = stream.alloc::<f32>(8)?;
        let (graph, y) = stream.capture(|s| {
            let y = s.alloc::<f32>(8)?;
            s.fill(&x, 1.0).queued()?;
            side.wait_for(&x);
            side.copy_buffer(&y, &x).queued()?;
            s.wait_for(&y);
            add(s, &x, &y).queued()?;
            Ok(y)
        })?;
        assert_eq!(graph.streams(), 2);
        drop(graph.launch(&stream));
        assert_eq!(stream.read(&y).await?, [2.0; 8]);
    }

    async fn wait_for_leaves_a_captured_stream_to_its_capture([device]) {
        let [a, b] = ["a", "b"].map(|label| device.stream().label(label).build());
        let (a, b) = (a?, b?);
        let (x, y) = (a.alloc::<f32>(8)?, a.alloc::<f32>(8)?);
        let issued = a.issued();
        let (graph, error) = a.capture(|a| {
            // In a nested capture by this thread, then in a capture by another thread.
            let (inner, ()) = b.capture(|b| {
                b.fill(&x, 2.0).queued()?;
                a.wait_for(&x).queued()
            })?;
            assert_eq!((inner.len(), inner.streams()), (1, 1));
            let error = std::thread::scope(|scope| {
                let capture = || b.capture(|b| {
                    b.fill(&x, 3.0).queued()?;
                    Ok(a.wait_for(&x).blocking_wait().unwrap_err())
                });
                scope.spawn(capture).join().unwrap()
            })?.1;
            a.fill(&y, 1.0).queued()?;
            Ok(error)
        })?;
        says(&error, ErrorKind::Captured, &["wait_for on stream \"a\"", "captured into a graph by another thread"]);
        assert_eq!((graph.len(), a.issued()), (1, issued), "its op went elsewhere");
        graph.launch(&a).await?;
        assert_eq!(a.read(&y).await?, [1.0; 8]);
    }

    async fn a_forgotten_edge_between_captured_streams_is_refused_with_both_lines([device]) {
        let stream = device.stream().label("compute").build()?;
        let side = device.stream().label("side").build()?;
        let (x, y) = (stream.alloc::<f32>(8)?, stream.alloc::<f32>(8)?);
        let error = stream.capture(|s| {
            side.wait_stream(s);
            s.fill(&x, 1.0).queued()?;
            side.copy_buffer(&y, &x).queued()
        }).unwrap_err();
        says(&error, ErrorKind::Unordered, &[
            "copy_buffer on stream \"side\" (tests/contract/graphs.rs:",
            "reads memory that fill on stream \"compute\" (tests/contract/graphs.rs:",
            "wrote, and no edge orders them; call side.wait_stream(&compute) before it (both are being captured)",
        ]);
        assert_eq!(error.conflicts()[0].earlier_stream_id(), stream.id());
        // The failed capture leaves the streams and the memory as they were.
        drop(stream.fill(&x, 3.0));
        side.wait_stream(&stream);
        assert_eq!(side.read(&x).await?, [3.0; 8]);
    }

    async fn a_stream_that_was_not_joined_is_named_with_its_last_op([device]) {
        let stream = device.stream().label("compute").build()?;
        let side = device.stream().label("side").build()?;
        let x = stream.alloc::<f32>(8)?;
        let error = stream.capture(|s| {
            side.wait_stream(s);
            drop(side.fill(&x, 1.0));
            s.wait_stream(&side);
            drop(side.fill(&x, 2.0));
        }).unwrap_err();
        says(&error, ErrorKind::Captured, &[
            "capture on stream \"compute\" (tests/contract/graphs.rs:",
            "stream \"side\" joined the capture and was not joined back, and its last op is fill \
            (tests/contract/graphs.rs:",
            "call compute.wait_stream(&side) after that",
        ]);
    }

    async fn a_stream_that_was_not_joined_is_told_apart_from_one_of_its_label([device]) {
        let [stream, side] = ["copy", "copy"].map(|label| device.stream().label(label).build());
        let (stream, side) = (stream?, side?);
        let x = stream.alloc::<f32>(8)?;
        let error = stream.capture(|s| {
            side.wait_stream(s);
            drop(side.fill(&x, 1.0));
        }).unwrap_err();
        let [first, other] = [stream.id(), side.id()].map(|id| format!("stream \"copy\" ({device}, {id:?})"));
        says(&error, ErrorKind::Captured, &[&format!("; call wait_stream on {first} for {other} after that")]);
    }

    async fn a_launch_is_checked_as_one_op_with_all_that_it_touches([device]) {
        let [a, b] = ["a", "b"].map(|label| device.stream().label(label).build());
        let (a, b) = (a?, b?);
        let (x, y) = (a.alloc::<f32>(8)?, a.alloc::<f32>(8)?);
        drop((a.fill(&x, 1.0), a.fill(&y, 0.0)));
        let (graph, out) = a.capture(|s| {
            add(s, &x, &y).queued()?;
            let out = s.alloc::<f32>(8)?;
            s.copy_buffer(&out, &y).queued()?;
            Ok(out)
        })?;
        let launched = graph.launch(&b);
        let follows = refused(b.read(&out)).await;
        assert!(follows.is_inherited(), "{follows}");
        let error = refused(launched).await;
        says(&follows, ErrorKind::Unordered, &["read on stream \"b\" (", &error.to_string()]);
        says(&error, ErrorKind::Unordered, &[
            "graph on stream \"b\" (tests/contract/graphs.rs:",
            "memory that fill on stream \"a\" (tests/contract/graphs.rs:",
            "call b.wait_stream(&a) before it",
        ]);
        assert_eq!(error.conflicts().len(), 2, "{error}");
        b.wait_stream(&a);
        graph.launch(&b).queued()?;
        let error = refused(graph.launch(&a)).await;
        says(&error, ErrorKind::Unordered, &["graph on stream \"a\"", "memory that graph on stream \"b\"", "call a.wait_stream(&b)"]);
        let error = refused(a.read(&out)).await;
        assert_eq!(error.kind(), ErrorKind::Unordered);
        assert_eq!(b.read(&out).await?, [1.0; 8]);
        graph.launch(&a).await?;
        assert_eq!(a.read(&out).await?, [2.0; 8]);
    }

    async fn what_a_graph_cannot_hold_is_refused([device]) {
        let stream = device.stream().label("compute").build()?;
        let other = device.stream().label("other").build()?;
        let x = stream.alloc::<f32>(8)?;
        drop(stream.fill(&x, 1.0));
        let mut errors = Vec::new();
        let (graph, ()) = stream.capture(|s| {
            let mut note = |error: Option<Error>| errors.push(error.expect("refused"));
            note(s.call(|| ()).blocking_wait().err());
            note(s.read(&x).blocking_wait().err());
            note(s.record_timed_event().err());
            note(s.query().err());
            note(s.synchronize().blocking_wait().err());
            note(s.hold().err());
            note(s.wait_stream(&other).blocking_wait().err());
            note(s.wait_event(&other.record_event()).blocking_wait().err());
            note(s.capture(|_| ()).err());
            let none: [&Buffer<f32>; 0] = [];
            // SAFETY: nothing is enqueued.
            let foreign = unsafe { s.external(warpline::reads([&x]), warpline::writes(none), |_| ()) };
            note(foreign.blocking_wait().err());
            s.fill(&x, 2.0).queued().map(drop)
        })?;
        let texts = [
            "call on stream \"compute\" (tests/contract/graphs.rs:",
            "the host would not see the result of each launch; read after a launch",
            "an event has one time, and a graph runs many times; time its launches",
            "query on stream \"compute\"",
            "none of its ops runs; await a launch of the graph",
            "it waits for work outside the graph; wait before a launch",
            "a graph cannot wait for work outside it; make the stream that launches it wait \
            before the launch",
            "wait_event on stream \"compute\"",
            "the stream is already being captured; end that capture first",
            "a capture cannot see what foreign work enqueues; do it between launches",
        ];
        for (error, text) in errors.iter().zip(texts) {
            says(error, ErrorKind::Captured, &[text]);
        }
        assert_eq!((errors.len(), graph.len()), (texts.len(), 1));
        graph.launch(&stream).await?;
        assert_eq!(stream.read(&x).await?, [2.0; 8]);
    }

    async fn a_refusal_that_nobody_looks_at_fails_the_capture([device]) {
        let stream = device.new_stream()?;
        let (x, y) = (stream.alloc::<f32>(8)?, stream.alloc::<f32>(4)?);
        let error = stream.capture(|s| drop(s.copy_buffer(&y, &x))).unwrap_err();
        says(&error, ErrorKind::Shape, &["the source has 8 elements and the destination 4"]);
        stream.synchronize().await?;
        let error = stream.capture(|s| {
            drop(s.fill(&y, 1.0));
            s.copy_buffer(&y, &x).queued()
        }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape);
        drop(stream.fill(&y, 5.0));
        assert_eq!(stream.read(&y).await?, [5.0; 4], "what was refused in a capture marks nothing outside");
    }

    async fn a_refused_step_fails_the_capture_unless_somebody_looks_at_it([device]) {
        let (stream, side) = (device.new_stream()?, device.new_stream()?);
        let x = stream.alloc::<f32>(8)?;
        drop(stream.fill(&x, 3.0));
        // `s` has no edge from `side` when it fills `x`, so that fill is refused.
        let branch = |s: &Stream| {
            drop((side.wait_stream(s), side.fill(&x, 1.0)));
            let refused = s.fill(&x, 2.0);
            s.wait_stream(&side);
            refused
        };
        let error = stream.capture(|s| {
            drop(branch(s));
            add(s, &x, &x).queued()
        }).unwrap_err();
        says(&error, ErrorKind::Unordered, &["fill on stream", "(both are being captured)"]);
        let (graph, ()) = stream.capture(|s| {
            assert_eq!(branch(s).queued().unwrap_err().kind(), ErrorKind::Unordered);
            add(s, &x, &x).queued()
        })?;
        graph.launch(&stream).await?;
        assert_eq!(stream.read(&x).await?, [2.0; 8]);
    }

    async fn a_lease_that_ends_in_a_capture_takes_no_more([device]) {
        let stream = device.new_stream()?;
        let pool = device.stream_pool(1)?;
        let x = stream.alloc::<f32>(8)?;
        let (graph, errors) = stream.capture(|s| {
            let lease = pool.try_lease()?.expect("nobody has one");
            let side = Stream::clone(&lease);
            side.wait_stream(s).queued()?;
            side.fill(&x, 1.0).queued()?;
            drop(lease);
            let errors = [side.fill(&x, 2.0), side.wait_stream(s).into_future()].map(|call| call.blocking_wait().unwrap_err());
            x.accept_contents();
            s.wait_stream(&side).queued()?;
            Ok(errors)
        })?;
        for error in errors {
            says(&error, ErrorKind::Closed, &["the stream is closed, its lease has ended"]);
        }
        assert_eq!((graph.len(), pool.available()), (1, 1));
        graph.launch(&stream).await?;
        assert_eq!(stream.read(&x).await?, [1.0; 8]);
    }

    async fn a_capture_whose_closure_panics_leaves_the_streams_as_they_were([device]) {
        let (stream, side) = (device.new_stream()?, device.new_stream()?);
        let x = stream.alloc::<f32>(8)?;
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            stream.capture(|s| -> Pending<()> {
                let y = s.alloc::<f32>(8).unwrap();
                drop(s.copy_buffer(&y, &x));
                side.wait_stream(s);
                panic!("in the closure");
            })
        }));
        assert!(panicked.is_err());
        assert_eq!(device.memory_stats().graph_bytes, 0);
        drop(stream.fill(&x, 1.0));
        side.wait_stream(&stream);
        assert_eq!(side.read(&x).await?, [1.0; 8]);
        let (graph, ()) = stream.capture(|s| s.fill(&x, 2.0))?;
        graph.launch(&stream).await?;
    }

    async fn other_threads_cannot_use_a_captured_stream([device]) {
        let stream = device.stream().label("compute").build()?;
        let other = device.new_stream()?;
        let x = stream.alloc::<f32>(8)?;
        let (graph, errors) = stream.capture(|s| {
            drop(s.fill(&x, 1.0));
            let event = s.record_event();
            let calls = || vec![
                s.fill(&x, 2.0).blocking_wait().err(),
                s.alloc::<f32>(8).err(),
                s.wait_stream(&other).blocking_wait().err(),
                other.wait_stream(s).blocking_wait().err(),
                other.wait_event(&event).blocking_wait().err(),
                s.capture(|_| ()).err(),
            ];
            let errors = std::thread::scope(|scope| scope.spawn(calls).join().unwrap());
            std::thread::scope(|scope| scope.spawn(|| s.query()).join().unwrap()).expect("of what is on it");
            x.accept_contents();
            Ok(errors)
        })?;
        for error in errors {
            let error = error.expect("refused");
            says(&error, ErrorKind::Captured, &["captured", "by another thread"]);
        }
        assert_eq!(graph.len(), 1);
        graph.launch(&stream).await?;
        assert_eq!(stream.read(&x).await?, [1.0; 8]);
    }

    async fn what_another_thread_is_refused_does_not_fail_the_capture([device]) {
        let stream = device.stream().label("compute").build()?;
        let (x, y) = (stream.alloc::<f32>(8)?, stream.alloc::<f32>(8)?);
        let (graph, ()) = stream.capture(|s| {
            std::thread::scope(|scope| scope.spawn(|| drop(s.fill(&y, 2.0))).join().unwrap());
            s.fill(&x, 1.0)
        })?;
        assert_eq!(graph.len(), 1);
        says(&refused(stream.synchronize()).await, ErrorKind::Captured, &["fill on stream", "by another thread"]);
    }

    async fn a_copy_from_the_host_brings_what_was_in_its_buffer([device]) {
        let stream = device.new_stream()?;
        let x = stream.alloc::<f32>(4)?;
        let host = pinned(&device, &[1.0, 2.0, 3.0, 4.0]).await?;
        let shared = std::sync::Arc::new(pinned(&device, &[10.0; 4]).await?);
        let (graph, ()) = stream.capture(|s| {
            drop(s.copy_into(&x, host));
            drop(add(s, &x, &x));
        })?;
        let (other, ()) = stream.capture(|s| {
            drop(s.copy_from_shared(&x, &shared));
            drop(s.write(&x.slice(..2)?, &[0.5, 0.25]));
            Ok(())
        })?;
        drop(shared);
        for _ in 0..2 {
            graph.launch(&stream).queued()?;
            assert_eq!(stream.read(&x).await?, [2.0, 4.0, 6.0, 8.0]);
            other.launch(&stream).queued()?;
            assert_eq!(stream.read(&x).await?, [0.5, 0.25, 10.0, 10.0]);
        }
    }

    async fn a_graph_with_branches_is_its_steps_where_it_is_part_of_another([device]) {
        let (stream, side, other) = (device.new_stream()?, device.new_stream()?, device.new_stream()?);
        let (x, y) = (stream.alloc::<f32>(64)?, stream.alloc::<f32>(64)?);
        let (inner, z) = stream.capture(|s| {
            let z = s.alloc::<f32>(64)?;
            side.wait_stream(s).queued()?;
            side.copy_buffer(&z, &x).queued()?;
            add(s, &x, &y).queued()?;
            s.wait_stream(&side).queued()?;
            add(s, &z, &y).queued()?;
            Ok(z)
        })?;
        let (many, ()) = stream.capture(|s| (0..20).try_for_each(|_| inner.launch(s).queued()))?;
        assert_eq!((many.len(), many.streams()), (60, 2), "branches take turns on the same streams");
        drop(stream.fill(&x, 1.0));
        drop(stream.fill(&y, 0.0));
        drop(many.launch(&stream));
        assert_eq!(stream.read(&y).await?, [40.0; 64]);
        let (outer, ()) = stream.capture(|s| {
            s.fill(&x, 1.0).queued()?;
            other.wait_stream(s).queued()?;
            other.fill(&y, 0.0).queued()?;
            inner.launch(&other).queued()?;
            inner.launch(&other).queued()?;
            s.wait_stream(&other).queued()?;
            add(s, &z, &y).queued()
        })?;
        assert_eq!((inner.len(), outer.len(), outer.streams()), (3, 9, 3));
        drop(inner);
        for _ in 0..3 {
            drop(outer.launch(&stream));
            assert_eq!(stream.read(&y).await?, [5.0; 64]);
        }
    }

    async fn a_refused_launch_leaves_the_graph_as_it_was([device]) {
        let (stream, other) = (device.new_stream()?, device.new_stream()?);
        let x = stream.alloc::<f32>(64)?;
        let (graph, ()) = stream.capture(|s| {
            // The first op reads and writes it, and nothing outside the graph holds it.
            let scratch = s.alloc::<f32>(64)?;
            add(s, &scratch, &scratch).queued()?;
            s.fill(&scratch, 3.0).queued()?;
            s.copy_buffer(&x, &scratch).queued()
        })?;
        graph.launch(&stream).queued()?;
        assert_eq!(refused(graph.launch(&other)).await.kind(), ErrorKind::Unordered);
        graph.launch(&stream).await?;
        assert_eq!(stream.read(&x).await?, [3.0; 64]);
    }

    async fn a_side_stream_of_another_device_fails_the_capture([one, two]) {
        let (stream, foreign) = (one.new_stream()?, two.new_stream()?);
        let x = stream.alloc::<f32>(8)?;
        let error = stream.capture(|s| {
            foreign.wait_stream(s);
            s.fill(&x, 1.0).queued()
        }).unwrap_err();
        says(&error, ErrorKind::Captured, &["wait_stream on stream", "a graph runs on one device"]);
        foreign.synchronize().await?;
    }

    async fn wait_for_memory_that_is_not_captured_waits_for_its_real_uses([device]) {
        let (stream, side) = (device.new_stream()?, device.new_stream()?);
        let (x, y) = (stream.alloc::<f32>(8)?, stream.alloc::<f32>(8)?);
        let gate = stream.hold()?;
        drop(stream.fill(&x, 7.0));
        let (graph, read) = stream.capture(|s| {
            s.fill(&y, 1.0).queued()?;
            side.wait_for(&x).queued()?;
            Ok(side.read(&x))
        })?;
        assert_eq!((graph.streams(), graph.len()), (1, 1));
        gate.open();
        assert_eq!(read.await?, [7.0; 8]);
    }

    async fn a_refusal_that_is_still_held_at_the_end_fails_the_capture([device]) {
        let stream = device.new_stream()?;
        let (x, y) = (stream.alloc::<f32>(8)?, stream.alloc::<f32>(4)?);
        let before = stream.copy_buffer(&y, &x);
        let mut held = None;
        let error = stream.capture(|s| {
            drop(before);
            held = Some(s.copy_buffer(&y, &x));
            s.fill(&x, 1.0).queued()
        }).unwrap_err();
        says(&error, ErrorKind::Shape, &["the source has 8 elements and the destination 4"]);
        assert!(refused(held.unwrap()).await.to_string() == error.to_string());
        // The refusal from before the capture is reported by the stream.
        assert_eq!(stream.synchronize().await.unwrap_err().kind(), ErrorKind::Shape);
        let error = stream.capture(|s| {
            drop(s.copy_buffer(&y, &x));
            Err::<(), _>(Error::new(ErrorKind::Data, "of another kind"))
        }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data);
        assert_eq!(stream.synchronize().await.unwrap_err().kind(), ErrorKind::Shape, "nor is that lost");
    }

    async fn a_refused_view_that_is_dropped_fails_the_capture_or_is_told_of_on_its_stream([device]) {
        let stream = device.new_stream()?;
        let fill = |s: &Stream| s.alloc::<f32>(4).map(|x| s.fill(&x, 1.0).with(x));
        let error = stream.capture(|s| fill(s).map(|x| drop(x.view(|x| Ok(x.slice(..5)?))))).unwrap_err();
        says(&error, ErrorKind::Shape, &["0..5 is not within 0..4"]);
        stream.synchronize().await?;
        let error = stream.capture(|s| fill(s).map(|x| drop(x.view_of(|x| Ok(x.slice(..6)?))))).unwrap_err();
        says(&error, ErrorKind::Shape, &["0..6 is not within 0..4"]);
        // A value of a capture that has ended.
        let mut kept = None;
        let (_graph, ()) = stream.capture(|s| fill(s).map(|x| kept = Some(x)))?;
        drop(kept.unwrap().view(|x| Ok(x.slice(..7)?)));
        says(&refused(stream.synchronize()).await, ErrorKind::Shape, &["0..7 is not within 0..4"]);
    }

    async fn an_event_of_a_capture_keeps_no_memory([device]) {
        let (stream, other) = (device.new_stream()?, device.new_stream()?);
        let (graph, event) = stream.capture(|s| {
            let x = s.alloc::<f32>(8)?;
            s.fill(&x, 1.0).queued()?;
            Ok(s.record_event())
        })?;
        drop(graph);
        assert_eq!(device.memory_stats().graph_bytes, 0);
        let text = "the event was recorded in a capture that has ended; record one after a launch";
        says(&refused(other.wait_event(&event)).await, ErrorKind::Captured, &[text]);
        let error = stream.capture(|s| s.wait_event(&event)).unwrap_err();
        says(&error, ErrorKind::Captured, &[text]);
    }

    async fn a_graph_can_be_part_of_another([device]) {
        let stream = device.new_stream()?;
        let x = stream.alloc::<f32>(4)?;
        let (twice, ()) = stream.capture(|s| add(s, &x, &x))?;
        let (outer, ()) = stream.capture(|s| {
            drop((twice.launch(s), twice.launch(s)));
        })?;
        drop(twice);
        drop(stream.fill(&x, 1.0));
        drop(outer.launch(&stream));
        outer.launch(&stream).await?;
        assert_eq!(stream.read(&x).await?, [16.0; 4]);
    }

    async fn an_empty_graph_and_one_of_nothing_but_waits_can_be_launched([device]) {
        let (stream, side) = (device.new_stream()?, device.new_stream()?);
        let (nothing, ()) = stream.capture(|_| ())?;
        let (waits, ()) = stream.capture(|s| drop(side.wait_stream(s)))?;
        assert!(nothing.is_empty() && waits.is_empty());
        drop((nothing.launch(&stream), waits.launch(&stream)));
        stream.synchronize().await?;
    }

    async fn strided_and_eight_byte_work_is_captured_like_any_other([device]) {
        let stream = device.new_stream()?;
        let matrix = stream.alloc::<i64>(12)?.as_matrix(3)?;
        let column = stream.alloc::<i64>(3)?;
        drop(stream.fill(&matrix, 7));
        let (graph, ()) = stream.capture(|s| {
            drop(s.fill(&matrix.columns(1..3)?, 0x0102_0304_0506_0708));
            drop(s.copy_buffer(&column, &matrix.columns(1..2)?));
            drop(s.fill(&matrix.rows(0..0)?, 1));
            Ok(())
        })?;
        graph.launch(&stream).await?;
        let big = 0x0102_0304_0506_0708;
        assert_eq!(stream.read(&column).await?, [big; 3]);
        assert_eq!(stream.read(&matrix).await?, [7, big, big, 7].repeat(3));
    }

    async fn a_graph_belongs_to_its_device([one, two]) {
        let (here, there) = (one.stream().label("here").build()?, two.stream().label("there").build()?);
        let (x, y) = (here.alloc::<f32>(4)?, there.alloc::<f32>(4)?);
        let (graph, error) = here.capture(|s| {
            drop(s.fill(&x, 1.0));
            Ok([s.copy_buffer_peer(&y, &x).blocking_wait().unwrap_err(), there.wait_stream(s).blocking_wait().unwrap_err()])
        })?;
        says(&error[0], ErrorKind::Captured, &["a graph runs on one device; copy between devices \
            before or after a launch"]);
        says(&error[1], ErrorKind::Captured, &[&format!("a stream on {two} to a capture on {one}")]);
        let error = refused(graph.launch(&there)).await;
        let text = format!("the graph was captured on {one} and the stream is on {two}; launch it on a stream of the device");
        says(&error, ErrorKind::DeviceMismatch, &[&text]);
        graph.launch(&here).await?;
    }

    async fn launches_of_many_tensors_are_checked_and_run([device]) {
        let stream = device.new_stream()?;
        let buffers: Vec<_> = (0..400).map(|_| stream.alloc::<f32>(4)).collect::<Result<_, _>>()?;
        let (graph, ()) = stream.capture(|s| {
            buffers.iter().try_for_each(|buffer| s.fill(buffer, 1.0).queued())?;
            buffers.windows(2).try_for_each(|two| add(s, &two[0], &two[1]).queued())
        })?;
        graph.launch(&stream).await?;
        assert_eq!(stream.read(&buffers[399]).await?, [400.0; 4]);
        let other = device.new_stream()?;
        drop(graph.launch(&stream));
        assert_eq!(refused(graph.launch(&other)).await.conflicts().len(), 401);
        buffers.iter().for_each(Buffer::accept_contents);
    }
}
