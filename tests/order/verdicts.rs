//! The verdicts of the order check in `deny` mode, one test per verdict.

use crate::support::{finish_unobserved, refusal, runtime, streams, unordered};
use std::sync::{Arc, Barrier, Mutex};
use tracing_subscriber::layer::SubscriberExt;
use warpline::prelude::*;
use warpline::{OrderMode, kernels};

#[test]
fn read_on_another_stream_without_an_edge_is_refused() {
    let (_runtime, _, [writer, side]) = streams(["writer", "side"]);
    let x = writer.alloc::<f32>(100).unwrap();
    writer.fill(&x, 1.0).detach();
    let error = unordered(side.read(&x));
    let [conflict] = error.conflicts() else { panic!("{error}") };
    assert_eq!(conflict.earlier_stream(), "writer");
    let text = error.to_string();
    for part in [
        "read on stream \"side\" (tests/order/verdicts.rs:",
        "reads memory that fill on stream \"writer\" (tests/order/verdicts.rs:",
        "wrote, and no edge orders them; call side.wait_stream(&writer) before it",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[test]
fn a_refusal_names_streams_that_have_no_label_of_their_own() {
    let (_runtime, device, _) = streams([]);
    let (writer, side) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let x = writer.alloc::<f32>(100).unwrap();
    let text = unordered(side.read(&x)).to_string();
    let call = "call wait_stream on stream \"stream 2\" for stream \"stream 1\" before it";
    assert!(text.contains(call), "{text}");
}

#[test]
fn streams_of_one_label_are_told_apart_by_device_and_id() {
    let (_runtime, device, [writer, side]) = streams(["copy", "copy"]);
    let x = writer.alloc::<f32>(100).unwrap();
    let text = unordered(side.read(&x)).to_string();
    let call = format!(
        "call wait_stream on stream \"copy\" (cpu:0, {:?}) for stream \"copy\" (cpu:0, {:?}) before it",
        side.id(),
        writer.id()
    );
    assert!(text.contains(&call), "{text}");

    let pool = device.stream_pool(2).unwrap();
    drop(pool.try_lease().unwrap());
    let [writer, side] = [(); 2].map(|()| pool.try_lease().unwrap().unwrap());
    assert!(format!("{:?}", [writer.id(), side.id()]).ends_with(".1, s3]"), "{writer:?}");
    let x = writer.alloc::<f32>(100).unwrap();
    let text = unordered(side.read(&x)).to_string();
    assert!(text.contains("stream \"lease\" (cpu:0, s3) for stream \"lease\" (cpu:0, s2.1)"), "{text}");
}

#[test]
fn the_default_streams_of_two_devices_are_told_apart() {
    let runtime = runtime(2);
    let [one, two] = [0, 1].map(|n| runtime.device(DeviceId::Cpu(n)).unwrap().default_stream().unwrap());
    let (x, y) = (one.alloc::<f32>(8).unwrap(), two.alloc::<f32>(8).unwrap());
    drop(one.fill(&x, 1.0));
    let text = unordered(two.copy_buffer_peer(&y, &x)).to_string();
    let call = format!(
        "call wait_stream on stream \"default\" (cpu:1, {:?}) for stream \"default\" (cpu:0, {:?}) before it",
        two.id(),
        one.id()
    );
    assert!(text.contains(&call), "{text}");
    two.wait_stream(&one);
    two.copy_buffer_peer(&y, &x).blocking_wait().unwrap();
}

#[test]
fn work_that_was_seen_done_without_observing_it_orders_nothing() {
    let (_runtime, _, [writer, side]) = streams(["writer", "side"]);
    let x = writer.alloc::<f32>(100).unwrap();
    let mut filled = writer.fill(&x, 1.0).unobserved();
    finish_unobserved(&writer);
    assert!(filled.query().unwrap());
    filled.blocking_wait().unwrap();
    unordered(side.read(&x));
    writer.fill(&x, 2.0).blocking_wait().unwrap();
    assert_eq!(side.read(&x).blocking_wait().unwrap(), [2.0; 100]);
}

#[test]
fn a_view_of_work_that_orders_nothing_when_it_is_seen_done_orders_nothing_either() {
    let (_runtime, _, [writer, side]) = streams(["writer", "side"]);
    let x = writer.alloc::<f32>(100).unwrap();
    let filled = writer.fill(&x, 1.0).with(x.clone()).unobserved();
    filled.view_of(|x| Ok(x.slice(..50)?)).blocking_wait().unwrap();
    unordered(side.read(&x));
    let filled = writer.fill(&x, 2.0).with(x.clone());
    filled.view_of(|x| Ok(x.slice(..50)?)).blocking_wait().unwrap();
    assert_eq!(side.read(&x).blocking_wait().unwrap(), [2.0; 100]);
}

#[test]
fn event_recorded_before_the_write_is_refused() {
    let (_runtime, _, [writer, side]) = streams(["writer", "side"]);
    let x = writer.alloc::<f32>(100).unwrap();
    let before = writer.record_event();
    writer.fill(&x, 1.0).detach();
    side.wait_event(&before);
    unordered(side.read(&x));
    side.wait_event(&writer.record_event());
    assert_eq!(side.read(&x).blocking_wait().unwrap(), [1.0; 100]);
}

#[test]
fn write_after_wait_stream_is_accepted() {
    let (_runtime, _, [reader, writer]) = streams(["reader", "writer"]);
    let x = reader.alloc::<f32>(100).unwrap();
    reader.fill(&x, 1.0).detach();
    let first = reader.read(&x);
    writer.wait_stream(&reader);
    writer.fill(&x, 2.0).blocking_wait().unwrap();
    assert_eq!(first.blocking_wait().unwrap(), [1.0; 100]);
}

#[test]
fn edges_through_a_third_stream_are_accepted() {
    let (_runtime, _, [a, b, c]) = streams(["a", "b", "c"]);
    let x = a.alloc::<f32>(10).unwrap();
    a.fill(&x, 3.0).detach();
    b.wait_stream(&a);
    c.wait_stream(&b);
    assert_eq!(c.read(&x).blocking_wait().unwrap(), [3.0; 10]);
}

#[test]
fn two_readers_only_one_ordered_before_the_writer_is_refused_naming_the_other() {
    let (_runtime, _, [a, ordered, other]) = streams(["a", "ordered", "other"]);
    let x = a.alloc::<f32>(10).unwrap();
    a.fill(&x, 3.0).detach();
    for reader in [&ordered, &other] {
        reader.wait_stream(&a);
        reader.read(&x).detach();
    }
    a.wait_stream(&ordered);
    let error = unordered(a.fill(&x, 4.0));
    let [conflict] = error.conflicts() else { panic!("{error}") };
    assert_eq!((conflict.earlier_stream(), conflict.earlier().op()), ("other", "read"));
}

#[test]
fn finished_but_never_observed_is_refused() {
    let (_runtime, _, [writer, side]) = streams(["writer", "side"]);
    let x = writer.alloc::<f32>(10).unwrap();
    writer.fill(&x, 1.0).detach();
    finish_unobserved(&writer);
    let error = unordered(side.read(&x));
    assert_eq!(error.conflicts()[0].observed(), None);
    assert!(writer.query().unwrap(), "it is done, and now it is observed");
    assert_eq!(side.read(&x).blocking_wait().unwrap(), [1.0; 10]);
}

#[test]
fn awaiting_an_op_that_had_itself_waited_its_past_counts() {
    let (_runtime, _, [a, b, c]) = streams(["a", "b", "c"]);
    let x = a.alloc::<f32>(10).unwrap();
    let y = b.alloc::<f32>(10).unwrap();
    a.fill(&x, 1.0).detach();
    b.wait_stream(&a);
    b.fill(&y, 2.0).blocking_wait().unwrap();
    assert_eq!(c.read(&x).blocking_wait().unwrap(), [1.0; 10], "seen through b's wait");
}

#[test]
fn ranges_overlapping_by_one_byte_are_refused() {
    let (_runtime, _, [a, b]) = streams(["a", "b"]);
    let x = a.alloc::<u8>(100).unwrap();
    b.wait_stream(&a);
    a.fill(&x.slice(0..50).unwrap(), 1).detach();
    unordered(b.fill(&x.slice(49..100).unwrap(), 2));
    b.fill(&x.slice(50..100).unwrap(), 2).blocking_wait().unwrap();
}

#[test]
fn disjoint_row_and_column_halves_are_accepted() {
    let (_runtime, _, [a, b]) = streams(["a", "b"]);
    let x = a.alloc::<f32>(6 * 4).unwrap().as_matrix(6).unwrap();
    b.wait_stream(&a);
    let (top, bottom) = (x.rows(..3).unwrap(), x.rows(3..).unwrap());
    a.fill(&top, 1.0).detach();
    b.fill(&bottom, 2.0).blocking_wait().unwrap();
    a.synchronize().blocking_wait().unwrap();
    let (left, right) = (x.columns(..2).unwrap(), x.columns(2..).unwrap());
    a.fill(&left, 3.0).detach();
    b.fill(&right, 4.0).blocking_wait().unwrap();
    unordered(b.fill(&x.columns(1..).unwrap(), 5.0));
    a.synchronize().blocking_wait().unwrap();
    x.accept_contents();
    let all = a.read(&x).blocking_wait().unwrap();
    assert_eq!(all, [3.0, 3.0, 4.0, 4.0].repeat(6));
}

#[test]
fn recycled_block_on_another_stream_is_accepted_and_its_old_use_is_over_before_the_new_one_starts() {
    let (_runtime, device, [a, b]) = streams(["a", "b"]);
    let old = a.alloc::<f32>(3 << 20).unwrap();
    let gate = a.hold().unwrap();
    a.fill(&old, 1.0).detach();
    let last = a.read(&old);
    drop(old);
    let reserved = device.memory_stats().reserved_bytes;
    b.wait_stream(&a);
    let new = b.alloc::<f32>(3 << 20).unwrap();
    assert_eq!(device.memory_stats().reserved_bytes, reserved, "the block was used again");
    let mut filled = b.fill(&new, 2.0);
    assert!(!filled.query().unwrap(), "b's use waits for a's, which the gate holds");
    gate.open();
    filled.blocking_wait().unwrap();
    assert!(last.blocking_wait().unwrap().iter().all(|&x| x == 1.0), "a read what a wrote");
}

#[test]
fn first_use_of_a_fresh_allocation_on_another_stream_is_refused_until_an_edge() {
    let (_runtime, _, [a, b]) = streams(["a", "b"]);
    let x = a.alloc::<f32>(10).unwrap();
    let error = unordered(b.fill(&x, 1.0));
    let text = error.to_string();
    assert!(text.contains("writes memory that alloc on stream \"a\""), "{text}");
    assert!(text.contains("allocated, and no edge orders them"), "{text}");
    b.wait_stream(&a);
    b.fill(&x, 1.0).blocking_wait().unwrap();
}

#[test]
fn one_op_with_ten_conflicts_has_all_ten_in_the_error() {
    let (_runtime, device, [a]) = streams(["a"]);
    let x = a.alloc::<f32>(10).unwrap();
    a.fill(&x, 1.0).blocking_wait().unwrap();
    let readers: Vec<_> =
        (0..10).map(|i| device.stream().label(format!("reader {i}")).build().unwrap()).collect();
    for reader in &readers {
        reader.read(&x).detach();
    }
    let error = unordered(a.fill(&x, 2.0));
    let mut named: Vec<_> =
        error.conflicts().iter().map(|conflict| conflict.earlier_stream().to_owned()).collect();
    named.sort();
    assert_eq!(named, (0..10).map(|i| format!("reader {i}")).collect::<Vec<_>>());
    assert!((0..10).all(|i| error.to_string().contains(&format!("\"reader {i}\""))), "{error}");
}

#[test]
fn ops_of_a_loop_are_told_once() {
    let (_runtime, _, [a, b]) = streams(["a", "b"]);
    let x = a.alloc::<f32>(40).unwrap();
    a.fill(&x, 0.0).blocking_wait().unwrap();
    for part in (0..4).map(|at| x.slice(at * 10..at * 10 + 10).unwrap()) {
        a.fill(&part, 1.0).detach();
    }
    let error = unordered(b.read(&x));
    assert_eq!(error.conflicts().len(), 4);
    let text = error.to_string();
    assert!(text.contains(" (3 more ops of the earlier line conflict too); if you have no handle"), "{text}");
    assert_eq!(text.matches("fill on stream \"a\"").count(), 1, "{text}");
}

#[test]
fn a_refused_op_leaves_history_as_it_was() {
    let (_runtime, _, [a, b]) = streams(["a", "b"]);
    let x = a.alloc::<f32>(10).unwrap();
    a.fill(&x, 1.0).detach();
    unordered(b.fill(&x, 2.0));
    // If the refused write had been recorded, `a` would now conflict with it.
    x.accept_contents();
    assert_eq!(a.read(&x).blocking_wait().unwrap(), [1.0; 10]);
    assert_eq!(b.issued(), 0, "and it took no ticket");
}

#[test]
fn a_refused_op_leaves_the_operands_that_would_have_passed_as_they_were() {
    let (_runtime, _, [a, b, c, d]) = streams(["a", "b", "c", "d"]);
    // The check visits operands in the order of their histories' addresses: some of `mine` before
    // `theirs`, some after it.
    let mut mine: Vec<_> = (0..4).map(|_| d.alloc::<f32>(10).unwrap()).collect();
    let theirs = a.alloc::<f32>(10).unwrap();
    mine.extend((0..4).map(|_| d.alloc::<f32>(10).unwrap()));
    a.fill(&theirs, 1.0).detach();
    let witness = b.alloc::<f32>(10).unwrap();
    b.fill(&witness, 1.0).detach();
    b.wait_stream(&d);
    for mine in &mine {
        let config = LaunchConfig::for_elements(10u32);
        unordered(b.launch(kernels::axpy(10, 1.0, &theirs, mine), config));
        // If `b` had been recorded as a user of `mine`, `c` would be ordered after `b`.
        c.wait_for(mine);
        unordered(c.read(&witness));
        // If the refused launch had been recorded, `c` would not be ordered after it.
        mine.accept_contents();
        c.fill(mine, 2.0).queued().unwrap();
    }
}

#[test]
fn of_two_crossing_ops_enqueued_at_once_from_two_threads_exactly_one_is_accepted() {
    let (_runtime, _, [a, b]) = streams(["a", "b"]);
    let rounds = 2000;
    let barrier = Arc::new(Barrier::new(2));
    for _ in 0..rounds {
        let x = a.alloc::<f32>(4).unwrap();
        let y = a.alloc::<f32>(4).unwrap();
        b.wait_stream(&a);
        let cross = |stream: &Stream, from: &Buffer<f32>, to: &Buffer<f32>| {
            let (stream, from, to, barrier) = (stream.clone(), from.clone(), to.clone(), barrier.clone());
            std::thread::spawn(move || {
                barrier.wait();
                stream.copy_buffer(&to, &from).queued().is_ok()
            })
        };
        let one = cross(&a, &x, &y);
        let two = cross(&b, &y, &x);
        let accepted = [one.join().unwrap(), two.join().unwrap()];
        assert_eq!(accepted.iter().filter(|&&accepted| accepted).count(), 1, "{accepted:?}");
        a.synchronize().blocking_wait().unwrap();
        b.synchronize().blocking_wait().unwrap();
    }
}

#[test]
fn a_wait_taken_between_two_tickets_of_the_waited_stream_orders_only_what_it_saw() {
    let (_runtime, _, [a, b]) = streams(["a", "b"]);
    let x = a.alloc::<f32>(10).unwrap();
    let y = a.alloc::<f32>(10).unwrap();
    a.fill(&x, 1.0).detach();
    b.wait_stream(&a);
    a.fill(&y, 2.0).detach();
    assert_eq!(b.read(&x).blocking_wait().unwrap(), [1.0; 10]);
    unordered(b.read(&y));
}

#[test]
fn add_in_place_is_accepted_and_overlapping_views_in_one_op_are_refused() {
    let (_runtime, _, [s]) = streams(["s"]);
    let a = s.alloc::<f32>(8).unwrap();
    s.fill(&a, 3.0).detach();
    let config = LaunchConfig::for_elements(8_u32);
    s.launch(kernels::add_(8, &a, &a), config).blocking_wait().unwrap();
    assert_eq!(s.read(&a).blocking_wait().unwrap(), [6.0; 8]);
    let (front, back) = (a.slice(..6).unwrap(), a.slice(2..).unwrap());
    let error = refusal(s.launch(kernels::add_(6, &front, &back), config));
    assert_eq!(error.kind(), ErrorKind::Overlap, "{error}");
    let error = refusal(s.copy_buffer(&back, &front));
    assert_eq!(error.kind(), ErrorKind::Overlap, "{error}");
}

#[test]
fn the_same_missing_edge_in_the_other_three_modes() {
    for (mode, accepted) in [(OrderMode::Warn, true), (OrderMode::Wait, true), (OrderMode::Off, true)] {
        let runtime = Runtime::builder().order(mode).build().unwrap();
        let device = runtime.device(DeviceId::Cpu(0)).unwrap();
        let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let x = a.alloc::<f32>(1000).unwrap();
        let gate = a.hold().unwrap();
        a.fill(&x, 1.0).detach();
        let mut seen = b.read(&x);
        if mode == OrderMode::Wait {
            assert!(!seen.query().unwrap(), "the inserted edge holds it");
            gate.open();
            assert_eq!(seen.blocking_wait().unwrap(), [1.0; 1000]);
        } else {
            assert_eq!(seen.blocking_wait().is_ok(), accepted, "nothing holds it");
            gate.open();
        }
        device.synchronize().blocking_wait().unwrap();
    }
}

/// Returns the warnings while `program` runs on two streams, `a` and `b`, in `warn` mode.
fn warnings(program: impl FnOnce(&Stream, &Stream)) -> Vec<String> {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<String>>>);
    impl tracing::field::Visit for Lines {
        fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
    impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Lines {
        fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
            if *event.metadata().level() == tracing::Level::WARN {
                event.record(&mut self.clone());
            }
        }
    }
    let lines = Lines::default();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(lines.clone()), || {
        let runtime = Runtime::builder().order(OrderMode::Warn).build().unwrap();
        let device = runtime.device(DeviceId::Cpu(0)).unwrap();
        let [a, b] = ["a", "b"].map(|label| device.stream().label(label).build().unwrap());
        program(&a, &b);
        device.synchronize().blocking_wait().unwrap();
    });
    std::mem::take(&mut *lines.0.lock().unwrap())
}

#[test]
fn warn_tells_of_the_operands_in_their_order() {
    let lines = warnings(|a, b| {
        let (x, y) = (a.alloc::<f32>(8).unwrap(), a.alloc::<f32>(8).unwrap());
        a.fill(&x, 1.0).detach();
        a.write(&y, &[1.0; 8]).detach();
        let z = b.alloc::<f32>(8).unwrap();
        // Wherever the memory lies, one of the two launches has its operands in the opposite order.
        b.launch(kernels::add(8, 8, &x, &y, &z), LaunchConfig::for_elements(8u32)).detach();
        b.launch(kernels::add(8, 8, &y, &x, &z), LaunchConfig::for_elements(8u32)).detach();
    });
    assert_eq!(lines.len(), 4, "{lines:?}");
    for (line, earlier) in lines.iter().zip(["fill", "write", "write", "fill"]) {
        assert!(line.contains(&format!("reads memory that {earlier} on stream")), "{lines:?}");
    }
}

#[test]
fn warn_does_not_forget_what_an_op_was_let_pass() {
    let lines = warnings(|a, b| {
        let x = a.alloc::<f32>(8).unwrap();
        a.fill(&x, 1.0).detach();
        b.wait_stream(a);
        let read = b.read(&x);
        // Each of these fills may overwrite what is being read, so each is reported.
        a.fill(&x, 2.0).detach();
        a.fill(&x, 3.0).detach();
        drop(read);
    });
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines.iter().all(|line| line.contains("writes memory that read on stream \"b\"")), "{lines:?}");
}

#[test]
fn whether_a_wait_was_elided_changes_no_verdict() {
    for finished in [true, false] {
        let (_runtime, _, [s, t, u]) = streams(["s", "t", "u"]);
        let gate = u.hold().unwrap();
        if finished {
            gate.open();
            finish_unobserved(&u);
            t.wait_stream(&s);
            s.wait_stream(&u);
            unordered(t.fill(&s.alloc::<f32>(10).unwrap(), 1.0));
        } else {
            t.wait_stream(&s);
            s.wait_stream(&u);
            unordered(t.fill(&s.alloc::<f32>(10).unwrap(), 1.0));
            gate.open();
        }
    }
}

#[test]
fn ops_of_several_steps_are_refused_with_the_error_of_the_step() {
    let (_runtime, device, [side]) = streams(["side"]);
    for n in [100, 100_000] {
        let x = Tensor::zeros([n], &device).queued().unwrap();
        let rows = Tensor::zeros([n / 10, 10], &device).queued().unwrap();
        let labels = Tensor::full([n / 10], 0, &device).queued().unwrap();
        side.enter(|| {
            let buffer = x.buffer::<f32>().unwrap();
            for error in [
                refusal(warpline::ops::sum(buffer)),
                refusal(x.sum()),
                refusal(x.mean()),
                refusal(rows.cross_entropy(&labels)),
            ] {
                assert_eq!(error.kind(), ErrorKind::Unordered);
                assert!(!error.is_inherited(), "{error}");
            }
        });
    }
    side.synchronize().blocking_wait().expect("nothing was dropped unseen");
}
