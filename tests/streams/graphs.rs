//! Graphs compared with running the same calls: the same verdicts, and the same bytes at every
//! launch. Also tests that only the CPU device or a recording driver allows.

use crate::support::programs::{LEN, Step, enqueue, first_value, program, streams_and_buffers};
use crate::support::recording::{Call, Recording};
use crate::support::{refusal, says, streams, within_a_minute};
use std::collections::BTreeSet;
use warpline::prelude::*;
use warpline::testing::{for_each_seed, for_each_seed_on};
use warpline::{OrderMode, Result, kernels, ops};
use warpline_test_counts::count;

/// Enqueues a program on the streams without awaiting anything, and returns a verdict for each op:
/// true if it was accepted.
///
/// All streams begin after the first one and are joined to it at the end.
fn enqueue_all(streams: &[Stream], buffers: &mut [Buffer<f32>], steps: &[Step]) -> Result<Vec<bool>> {
    let (first, others) = streams.split_first().unwrap();
    for (at, buffer) in buffers.iter().enumerate() {
        first.fill(buffer, first_value(at)).queued()?;
    }
    for stream in others {
        stream.wait_stream(first).queued()?;
    }
    let mut accepted = Vec::new();
    let mut events = Vec::new();
    for &step in steps {
        let Some((_, op)) = enqueue(step, streams, buffers, &mut events)? else { continue };
        let verdict = op.queued();
        accepted.push(verdict.is_ok());
        if let Err(error) = verdict {
            assert_eq!(error.kind(), ErrorKind::Unordered, "{error}");
        }
    }
    for stream in others {
        first.wait_stream(stream).queued()?;
    }
    Ok(accepted)
}

/// Verdicts, and the final contents of the buffers.
type Outcome = (Vec<bool>, Vec<Vec<f32>>);

async fn contents(stream: &Stream, buffers: &[Buffer<f32>]) -> Result<Vec<Vec<f32>>> {
    let mut all = Vec::new();
    for buffer in buffers {
        buffer.accept_contents();
        all.push(stream.read(buffer).await?);
    }
    Ok(all)
}

async fn run(device: Device, steps: &[Step]) -> Result<Outcome> {
    let (streams, mut buffers) = streams_and_buffers(&device)?;
    let accepted = enqueue_all(&streams, &mut buffers, steps)?;
    Ok((accepted, contents(&streams[0], &buffers).await?))
}

/// Like [`run`], but captures the program and launches it three times. Each launch is on another
/// stream, and other work on the device's memory comes before it.
async fn capture(device: Device, steps: &[Step]) -> Result<Outcome> {
    let (streams, mut buffers) = streams_and_buffers(&device)?;
    let (graph, accepted) = streams[0].capture(|_| enqueue_all(&streams, &mut buffers, steps))?;
    let mut outcomes = Vec::new();
    for stream in &streams[..3] {
        let other = stream.alloc::<f32>(LEN)?;
        stream.fill(&other, -1.0).queued()?;
        graph.launch(stream).queued()?;
        outcomes.push(contents(stream, &buffers).await?);
    }
    assert!(outcomes.windows(2).all(|two| two[0] == two[1]), "launches differ: {outcomes:?}");
    Ok((accepted, outcomes.remove(0)))
}

#[test]
fn a_graph_accepts_and_does_what_the_calls_themselves_do() {
    let (mut ops, mut refused) = (0, 0);
    for number in 0..count(50, 150) {
        let steps = program(number);
        let (_runtime, device, []) = streams([]);
        let expected = crate::support::block_on(run(device.clone(), &steps)).unwrap();
        let captured = crate::support::block_on(capture(device, &steps)).unwrap();
        assert_eq!(expected, captured, "program {number}: {steps:?}");
        ops += expected.0.len();
        refused += expected.0.iter().filter(|&&accepted| !accepted).count();
        for_each_seed(20 * number..20 * (number + 1), |device| {
            let (steps, expected) = (&steps, &expected);
            async move {
                assert_eq!(&capture(device, steps).await?, expected, "program {number}: {steps:?}");
                Ok(())
            }
        });
    }
    assert!(
        ops / 5 < refused && refused < ops / 5 * 4,
        "{refused} of {ops} refused: the programs say little"
    );
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_graph_does_on_cuda_what_the_calls_themselves_do_on_the_cpu() {
    let runtime = Runtime::new().unwrap();
    let cuda = runtime.device(DeviceId::Cuda(0)).unwrap();
    for number in 0..100 {
        let steps = program(number);
        let (_runtime, device, []) = streams([]);
        let expected = crate::support::block_on(run(device, &steps)).unwrap();
        let captured = crate::support::block_on(capture(cuda.clone(), &steps)).unwrap();
        assert_eq!(expected, captured, "program {number}: {steps:?}");
    }
}

#[test]
fn and_so_it_does_on_the_software_cuda_driver() {
    crate::support::software::run_cuda_tests("graphs::", &[]);
}

#[test]
fn a_forgotten_edge_in_a_graph_shows_for_some_seed() {
    let mut seen = BTreeSet::new();
    let seen_ref = std::sync::Mutex::new(&mut seen);
    for_each_seed_on(Runtime::builder().order(OrderMode::Off), 0..40, |devices| {
        let (device, seen) = (devices[0].clone(), &seen_ref);
        async move {
            let (stream, side) = (device.new_stream()?, device.new_stream()?);
            let x = stream.alloc::<u32>(1)?;
            let (graph, ()) = stream.capture(|s| {
                side.wait_stream(s).queued()?;
                s.fill(&x, 1).queued()?;
                side.fill(&x, 2).queued()?;
                s.wait_stream(&side).queued()
            })?;
            for _ in 0..4 {
                graph.launch(&stream).queued()?;
                let value = stream.read_one(&x).await?;
                seen.lock().unwrap().insert(value);
            }
            Ok(())
        }
    });
    assert_eq!(seen, [1, 2].into());
}

#[test]
fn of_two_threads_that_capture_one_stream_at_once_each_has_all_or_nothing() {
    within_a_minute(|| {
        let (_runtime, _device, [stream]) = streams(["stream"]);
        let x = stream.alloc::<f32>(8).unwrap();
        for _ in 0..1000 {
            let (issued, ready) = (stream.issued(), std::sync::Barrier::new(2));
            let capture = || {
                ready.wait();
                let captured = stream.capture(|s| {
                    std::thread::yield_now();
                    s.fill(&x, 1.0)
                });
                match captured {
                    Ok((graph, ())) => assert_eq!(graph.len(), 1),
                    Err(error) => {
                        says(&error, ErrorKind::Captured, &["capture on stream", "by another thread"])
                    }
                }
            };
            std::thread::scope(|scope| {
                scope.spawn(capture);
                capture();
            });
            assert_eq!(stream.issued(), issued, "an op that was to be captured ran");
        }
    });
}

#[test]
fn unordered_launches_of_one_graph_keep_apart_where_nothing_is_checked() {
    within_a_minute(|| {
        let runtime = Runtime::builder().order(OrderMode::Off).build().unwrap();
        let device = runtime.best_device().unwrap();
        let streams = [(); 4].map(|()| device.new_stream().unwrap());
        let x = streams[0].alloc::<f32>(1 << 12).unwrap();
        let capture = |s: &Stream| {
            let y = s.alloc::<f32>(1 << 12)?;
            for _ in 0..4 {
                s.copy_buffer(&y, &x).queued()?;
                s.enter(|| ops::add_(&y, &x)).queued()?;
            }
            Ok(y)
        };
        let (graph, y) = streams[0].capture(capture).unwrap();
        streams[0].fill(&x, 1.0).blocking_wait().unwrap();
        for _ in 0..50 {
            streams.iter().for_each(|stream| drop(graph.launch(stream)));
        }
        device.synchronize().blocking_wait().unwrap();
        assert_eq!(streams[0].read(&y).blocking_wait().unwrap(), vec![2.0; 1 << 12]);
    });
}

#[test]
fn a_subscriber_may_use_a_captured_stream_and_its_memory() {
    /// A subscriber layer that uses and drops what it holds, at the first warning.
    struct Uses(std::sync::Mutex<Option<(Stream, Buffer<f32>)>>);

    impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for &'static Uses {
        fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
            let warns = *event.metadata().level() == tracing::Level::WARN;
            if let Some((stream, buffer)) = warns.then(|| self.0.lock().unwrap().take()).flatten() {
                stream.fill(&buffer, 4.0).queued().unwrap();
                stream.alloc::<f32>(8).unwrap();
            }
        }
    }

    within_a_minute(|| {
        use tracing_subscriber::layer::SubscriberExt;
        let uses: &'static Uses = Box::leak(Box::new(Uses(Default::default())));
        let subscriber = tracing_subscriber::registry().with(uses);
        let runtime = Runtime::builder().order(OrderMode::Warn).build().unwrap();
        let device = runtime.best_device().unwrap();
        let (stream, side) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let x = stream.alloc::<f32>(8).unwrap();
        let capture = |s: &Stream| {
            *uses.0.lock().unwrap() = Some((s.clone(), s.alloc::<f32>(8)?));
            side.wait_stream(s).queued()?;
            s.fill(&x, 1.0).queued()?;
            side.fill(&x, 2.0).queued()?;
            s.wait_stream(&side).queued()
        };
        let (graph, ()) = tracing::subscriber::with_default(subscriber, || stream.capture(capture)).unwrap();
        assert_eq!(graph.len(), 3, "it was not warned");
    });
}

#[test]
fn what_a_thread_drops_at_its_end_may_wait_for_memory() {
    struct Waits(Stream, Buffer<f32>);

    impl Drop for Waits {
        fn drop(&mut self) {
            self.0.wait_for(&self.1).queued().unwrap();
        }
    }

    thread_local! {
        static LAST: std::cell::RefCell<Option<Waits>> = const { std::cell::RefCell::new(None) };
    }

    let (_runtime, _device, [stream, side]) = streams(["stream", "side"]);
    let x = stream.alloc::<f32>(8).unwrap();
    let thread = std::thread::spawn(move || {
        LAST.set(Some(Waits(side, x.clone())));
        // The thread-local variable of the capture is initialized later than `LAST`, so it is
        // destroyed earlier.
        stream.capture(|s| s.fill(&x, 1.0)).unwrap();
    });
    thread.join().unwrap();
}

#[test]
fn memory_of_a_graph_is_kept_for_work_that_used_it_outside_the_capture() {
    let runtime = Runtime::builder().order(OrderMode::Off).build().unwrap();
    let device = runtime.best_device().unwrap();
    let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let gate = other.hold().unwrap();
    let (graph, ()) = stream
        .capture(|s| {
            let x = s.alloc::<f32>(1 << 20)?;
            s.fill(&x, 1.0).queued()?;
            // This op runs, because `other` is not captured.
            other.fill(&x, 2.0).queued()
        })
        .unwrap();
    drop(graph);
    assert!(device.empty_cache() < 4 << 20, "memory of work in flight was given back");
    gate.open();
    other.synchronize().blocking_wait().unwrap();
    assert!(device.empty_cache() >= 4 << 20);
    assert_eq!(device.memory_stats().graph_bytes, 0);
}

#[test]
fn slices_of_one_buffer_are_one_piece_of_memory_and_too_many_pieces_are_refused() {
    let (_runtime, _, [s, other]) = streams(["s", "other"]);
    let x = s.alloc::<u8>(1 << 17).unwrap();
    let fill = |s: &Stream, each: usize, of: usize| {
        (0..of).try_for_each(|n| s.fill(&x.slice(2 * n..2 * n + each)?, 1).queued())
    };
    let (graph, ()) = s.capture(|s| fill(s, 2, 1000)).unwrap();
    s.fill(&x, 0).blocking_wait().unwrap();
    drop(graph.launch(&s));
    let refused = graph.launch(&other).blocking_wait().unwrap_err();
    assert_eq!(refused.conflicts().len(), 2, "the graph's own memory, and the slices: {refused}");
    x.accept_contents();
    assert_eq!(s.read(&x).blocking_wait().unwrap()[..2001], [[1; 2000].as_slice(), &[0]].concat());
    let buffers: Vec<_> = (0..65_535).map(|_| s.alloc::<u8>(1).unwrap()).collect();
    let error = s.capture(|s| buffers.iter().try_for_each(|buffer| s.fill(buffer, 1).queued())).unwrap_err();
    let texts = ["it touches 65535 ranges of memory, and a graph holds at most 65534; capture it \
        in parts"];
    says(&error, ErrorKind::InvalidArgument, &texts);
}

#[test]
fn a_capture_gets_memory_that_is_cached_and_finished_with() {
    let runtime = Runtime::builder().memory_limit(8 << 20).build().unwrap();
    let device = runtime.best_device().unwrap();
    let (s, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    for stream in [&s, &other] {
        let x = stream.alloc::<u8>(3 << 20).unwrap();
        stream.fill(&x, 1).blocking_wait().unwrap();
    }
    let reserved = device.memory_stats().reserved_bytes;
    assert_eq!(reserved, 4 << 20, "all of it cached");
    let (graph, x) = s
        .capture(|s| {
            let x = s.alloc::<u8>(6 << 20)?;
            s.fill(&x, 2).queued()?;
            Ok(x)
        })
        .unwrap();
    graph.launch(&s).blocking_wait().unwrap();
    assert_eq!(s.read_one(&x.slice(7..8).unwrap()).blocking_wait().unwrap(), 2);
    let error = s.capture(|s| s.alloc::<u8>(7 << 20)).unwrap_err();
    says(
        &error,
        ErrorKind::OutOfMemory,
        &["alloc on stream \"stream 1\" (tests/streams/graphs.rs:", "free of the limit of 8.0 MiB", "in use"],
    );
    assert!(!error.to_string().contains("not finished with"), "{error}");
}

#[test]
fn captures_one_after_the_other_take_no_more_memory_than_one() {
    let (_runtime, device, [s]) = streams(["s"]);
    let x = s.alloc::<f32>(8).unwrap();
    let mut reserved = Vec::new();
    for round in 0..5 {
        let (graph, y) = s
            .capture(|s| {
                let y = s.alloc::<f32>(1 << 20)?;
                s.fill(&y, round as f32).queued()?;
                s.copy_buffer(&x, &y.slice(..8)?).queued()?;
                Ok(y)
            })
            .unwrap();
        graph.launch(&s).blocking_wait().unwrap();
        assert_eq!(s.read(&x).blocking_wait().unwrap(), [round as f32; 8]);
        reserved.push(device.memory_stats().reserved_bytes);
        drop((graph, y));
    }
    assert!(reserved.iter().all(|bytes| *bytes == reserved[0]), "{reserved:?}");
}

#[test]
fn a_panic_in_a_graph_names_the_op_in_it() {
    let runtime = Runtime::builder().panic_in_twin(3).build().unwrap();
    let device = runtime.best_device().unwrap();
    let stream = device.stream().label("compute").build().unwrap();
    let x = stream.alloc::<f32>(8).unwrap();
    let config = LaunchConfig::for_elements(8u32);
    let (graph, ()) = stream
        .capture(|s| {
            drop(s.launch(kernels::add_(8, &x, &x), config));
            drop(s.launch(kernels::relu(8, &x, &x), config));
        })
        .unwrap();
    stream.fill(&x, 1.0).blocking_wait().unwrap();
    graph.launch(&stream).blocking_wait().unwrap();
    let error = graph.launch(&stream).blocking_wait().unwrap_err();
    let texts = [
        "graph failed on stream \"compute\" at ticket 3 (tests/streams/graphs.rs:",
        "): add_ (tests/streams/graphs.rs:",
        ") in it panicked: the fault plan asked for it",
    ];
    says(&error, ErrorKind::Fault, &texts);
}

#[test]
fn a_graph_is_one_submission_and_no_wait_in_it_is_elided() {
    let (runtime, driver) = Recording::runtime(OrderMode::Deny);
    let device = runtime.best_device().unwrap();
    let [s, side] = ["s", "side"].map(|label| device.stream().label(label).build().unwrap());
    let x = s.alloc::<f32>(64).unwrap();
    drop(s.fill(&x, 1.0));
    driver.take();
    let (graph, ()) = s
        .capture(|s| {
            s.fill(&x, 2.0).queued()?;
            let event = s.record_event();
            for _ in 0..2 {
                side.wait_event(&event).queued()?;
            }
            side.enter(|| ops::relu_into(&x, &x)).queued()?;
            s.wait_stream(&side).queued()?;
            s.wait_stream(&side).queued()?;
            s.fill(&x, 3.0).queued()
        })
        .unwrap();
    let plan = [
        "0.1 fill",
        "1.1 wait for 0.1",
        "1.2 wait for 0.1",
        "1.3 relu",
        "0.2 wait for 1.3",
        "0.3 wait for 1.3",
        "0.4 fill",
    ];
    assert_eq!(driver.plans(), [plan]);
    assert!(driver.take().iter().all(|call| matches!(call, Call::Alloc { .. })), "nothing else was called");
    drop(graph.launch(&s));
    let launch = |ticket| Call::Submit { stream: "s".into(), ticket, what: "graph" };
    let signal = |ticket| Call::Signal { stream: "s".into(), ticket };
    assert_eq!(driver.take(), [launch(2), signal(2)], "the graph is kept until its ticket is reached");
    driver.refuse_next();
    let error = graph.launch(&s).blocking_wait().unwrap_err();
    says(
        &error,
        ErrorKind::Driver,
        &["graph on stream \"s\" (tests/streams/graphs.rs:", "CUDA_ERROR_INVALID_VALUE"],
    );
    driver.refuse_graphs();
    let error = s.capture(|s| drop(s.fill(&x, 2.0))).unwrap_err();
    says(
        &error,
        ErrorKind::Driver,
        &["capture on stream \"s\" (tests/streams/graphs.rs:", "CUDA_ERROR_NOT_SUPPORTED"],
    );
}

#[test]
fn a_host_function_that_a_poll_runs_in_a_capture_puts_nothing_into_the_graph() {
    within_a_minute(|| {
        let runtime = Runtime::builder().schedule(Schedule::Seeded(1)).build().unwrap();
        let device = runtime.device(DeviceId::Cpu(0)).unwrap();
        let [stream, other, side] = [(); 3].map(|()| device.new_stream().unwrap());
        let x = stream.alloc::<f32>(4).unwrap();
        let (captured, joined) = (stream.clone(), side.clone());
        let mut called = other.call(move || {
            [captured.fill(&x, 1.0).queued(), joined.wait_stream(&captured).queued()].map(Result::unwrap_err)
        });
        let (graph, ()) = stream
            .capture(|s| {
                side.wait_stream(s).queued()?;
                while !called.query()? {}
                s.wait_stream(&side).queued()
            })
            .unwrap();
        assert!(graph.is_empty());
        assert_eq!(called.blocking_wait().unwrap().map(|error| error.kind()), [ErrorKind::Reentrant; 2]);
    });
}

#[test]
fn what_a_graph_cannot_hold_is_told_first_and_keeps_no_memory() {
    let runtime = Runtime::builder().build().unwrap();
    let device = runtime.device(DeviceId::Cpu(0)).unwrap();
    let [first, side] = [(); 2].map(|()| device.new_stream().unwrap());
    let x = first.alloc::<f32>(1 << 20).unwrap();
    let y = first.alloc::<f32>(1 << 20).unwrap();
    first
        .capture(|first| {
            side.wait_stream(first);
            side.fill(&x, 1.0).queued().unwrap();
            // No edge orders this read, but an edge would not help it either.
            says(&refusal(first.read(&x)), ErrorKind::Captured, &["the host would not see the result"]);
            let before = device.memory_stats().allocated_bytes;
            says(&refusal(first.read(&y)), ErrorKind::Captured, &["the host would not see the result"]);
            drop(y);
            assert!(device.memory_stats().allocated_bytes < before, "the capture holds what it refused");
            first.wait_stream(&side);
        })
        .unwrap();
}
