//! Work that is refused after its call returned, and the ops that depend on it.

use super::{LONG, SHORT, Slow, refusal_of, slow_alloc};
use crate::support::recording::{AnyDriver, Recording};
use crate::support::{refusal, says, within_a_minute};
use std::sync::Arc;
use tokio_test::task;
use warpline::backend::Health;
use warpline::kernels;
use warpline::prelude::*;
use warpline_outside_driver::{BACKEND, ThreadDevice};

#[test]
fn what_reads_a_write_that_got_no_memory_fails_with_it() {
    let slow = Slow::new();
    let [a, b] = slow.streams(["a", "b"]);
    let (x, y) = (slow.filled(&a, LONG), slow.filled(&a, SHORT));
    let part = x.slice(..SHORT).unwrap();
    let relu = |stream: &Stream, from: &Buffer<f32>, to: &Buffer<f32>| {
        stream.launch(kernels::relu(SHORT as u64, from, to), LaunchConfig::for_elements(64u32))
    };
    let written = a.write(&x, &vec![1.0; LONG]);
    // `direct` reads what was not written. `far` reads the result of `direct` on another stream.
    let direct = relu(&a, &part, &y);
    b.wait_stream(&a);
    let far = relu(&b, &y, &y);
    let untouched = a.fill(&x.slice(SHORT..).unwrap(), 7.0);
    slow.refuse_pinning();
    for pending in [direct, far] {
        let inherited = slow.finish(pending).unwrap_err();
        assert!(inherited.is_inherited(), "{inherited}");
        says(
            &inherited,
            ErrorKind::OutOfMemory,
            &["reads memory that was not written", "could not allocate pinned memory"],
        );
    }
    slow.finish(untouched).unwrap();
    // Ops that are called now fail as well on streams ordered after the write, until the program
    // looks at the error itself.
    let z = [slow_alloc(&a), slow_alloc(&b)];
    assert!(refusal(relu(&a, &part, &z[0])).is_inherited());
    assert!(refusal(relu(&b, &part, &z[1])).is_inherited());
    let error = slow.finish(written).unwrap_err();
    assert!(!error.is_inherited());
    slow.finish(relu(&a, &part, &z[0])).unwrap();
    slow.finish(relu(&b, &part, &z[1])).unwrap();
    let unseen = slow.finish(a.synchronize());
    assert!(unseen.is_ok(), "every error was looked at: {unseen:?}");
}

#[test]
fn what_is_overwritten_behind_a_write_that_got_no_memory_is_read() {
    let slow = Slow::new();
    let [a, b] = slow.streams(["a", "b"]);
    let x = slow.filled(&a, LONG);
    drop(a.write(&x, &vec![1.0; LONG]));
    let half = [x.slice(..LONG / 2).unwrap(), x.slice(LONG / 2..).unwrap()];
    drop(a.fill(&half[0], 2.0));
    b.wait_stream(&a);
    let [y, z] = [0, 1].map(|_| b.alloc::<f32>(LONG / 2).unwrap());
    let (read, unwritten) = (b.copy_buffer(&y, &half[0]), b.copy_buffer(&z, &half[1]));
    slow.refuse_pinning();
    slow.finish(read).unwrap();
    assert!(refusal_of(&slow, unwritten).is_inherited());
    // Ops that are called now get the same verdicts.
    slow.finish(b.copy_buffer(&y, &half[0])).unwrap();
    assert!(refusal(b.copy_buffer(&z, &half[1])).is_inherited());
    says(&refusal_of(&slow, a.synchronize()), ErrorKind::OutOfMemory, &["write on stream \"a\""]);
    slow.finish(b.copy_buffer(&z, &half[1])).unwrap();
}

#[test]
fn an_op_that_the_driver_refuses_late_fails_its_own_pending() {
    let slow = Slow::new();
    let [a] = slow.streams(["a"]);
    let (x, y) = (slow.filled(&a, LONG), slow.filled(&a, SHORT));
    let read = a.read(&x);
    let refused = a.fill(&y, 1.0);
    let reader = a.copy_buffer(&x.slice(..SHORT).unwrap(), &y);
    let other = a.fill(&x.slice(SHORT..).unwrap(), 1.0);
    // The copy's memory is refused, so the fill is the driver's first submission.
    slow.refuse_next();
    slow.refuse_pinning();
    drop(refusal_of(&slow, read));
    let error = refusal_of(&slow, refused);
    says(&error, ErrorKind::Driver, &["fill on stream \"a\"", "CUDA_ERROR_INVALID_VALUE"]);
    assert!(refusal_of(&slow, reader).is_inherited());
    slow.finish(other).unwrap();
}

#[test]
fn a_late_refusal_that_nobody_awaits_is_returned_by_synchronize() {
    let slow = Slow::new();
    let [a] = slow.streams(["a"]);
    let x = slow.filled(&a, LONG);
    // One is dropped before the refusal, the other after it.
    drop(a.read(&x));
    let late = a.read(&x);
    slow.refuse_pinning();
    slow.refuse_pinning();
    while slow.pinned_by().len() < 2 {
        std::thread::yield_now();
    }
    let end = a.fill(&x, 1.0);
    slow.finish(end).unwrap();
    drop(late);
    let sites: Vec<_> = (0..2).map(|_| refusal_of(&slow, a.synchronize()).site().unwrap().op()).collect();
    assert_eq!(sites, ["read", "read"]);
    slow.finish(a.synchronize()).unwrap();
}

#[test]
fn of_late_refusals_that_are_joined_the_first_is_returned_and_the_others_are_unseen() {
    let slow = Slow::new();
    let [a] = slow.streams(["a"]);
    let x = slow.filled(&a, LONG);
    let reads: Vec<_> = (0..3).map(|_| a.read(&x)).collect();
    for _ in 0..3 {
        slow.refuse_pinning();
    }
    says(&refusal_of(&slow, Pending::join_all(reads)), ErrorKind::OutOfMemory, &["read on stream \"a\""]);
    for _ in 0..2 {
        says(&refusal_of(&slow, a.synchronize()), ErrorKind::OutOfMemory, &["read on stream \"a\""]);
    }
    slow.finish(a.synchronize()).unwrap();
}

#[test]
fn a_stream_whose_wait_cannot_be_handed_over_is_given_up_and_so_is_who_waits_for_it() {
    let slow = Slow::new();
    let [a, b, c, d] = slow.streams(["a", "b", "c", "d"]);
    let (x, y) = (slow.filled(&a, LONG), slow.filled(&b, SHORT));
    let read = a.read(&x);
    b.wait_stream(&a);
    let on_b = b.fill(&y, 1.0);
    c.wait_stream(&b);
    let on_c = c.fill(&y, 2.0);
    slow.refuse_next();
    // The copy of `a` fails without the driver, so the wait of `b` is the driver's first
    // submission.
    slow.refuse_pinning();
    says(
        &refusal_of(&slow, on_b),
        ErrorKind::Driver,
        &["stream \"b\" of cuda:0 was abandoned", "wait_stream"],
    );
    says(
        &refusal_of(&slow, on_c),
        ErrorKind::Driver,
        &["stream \"c\" of cuda:0 was abandoned", "stream \"b\""],
    );
    drop(refusal_of(&slow, read));
    says(&refusal(d.wait_stream(&c)), ErrorKind::Driver, &["stream \"c\" of cuda:0 was abandoned"]);
    says(
        &refusal(d.wait_event(&b.record_event())),
        ErrorKind::Driver,
        &["stream \"b\" of cuda:0 was abandoned"],
    );
    slow.finish(a.fill(&x, 1.0)).unwrap();
    slow.finish(d.fill(&x.slice(..0).unwrap(), 1.0)).unwrap();
}

#[test]
fn a_view_of_what_was_not_written_fails_too() {
    let slow = Slow::new();
    let device = &slow.device;
    let stream = device.new_stream().unwrap();
    let (tensor, view) = stream.enter(|| {
        let tensor = warpline::Tensor::from_host(&vec![1.0f32; LONG], [LONG], device);
        let view = warpline::TensorOps::reshape(&tensor, [2, LONG / 2]);
        (tensor, view)
    });
    slow.refuse_pinning();
    says(&refusal_of(&slow, view), ErrorKind::OutOfMemory, &["from_host"]);
    says(&refusal_of(&slow, tensor), ErrorKind::OutOfMemory, &["from_host"]);
}

#[test]
fn what_a_closed_stream_could_not_write_is_not_read_as_if_it_were_written() {
    let slow = Slow::new();
    let [a, b] = slow.streams(["a", "b"]);
    let x = slow.filled(&a, LONG);
    let y = b.alloc::<f32>(LONG).unwrap();
    drop(a.write(&x, &vec![5.0; LONG]));
    drop(a);
    slow.refuse_pinning();
    slow.take_when(1);
    slow.reach_markers();
    let error = slow.finish(b.copy_buffer(&y, &x)).unwrap_err();
    assert!(error.is_inherited(), "{error}");
}

/// Opens `thread:0`, a device that runs work.
fn thread_device() -> AnyDriver {
    let health = Arc::new(Health::default());
    (Arc::new(ThreadDevice::open(0, health.clone())), health)
}

const THREAD_0: DeviceId = DeviceId::Other { backend: BACKEND, ordinal: 0 };

/// Polls until `pending` resolves, while the recording driver completes what it has.
fn while_completing<T>(complete: impl Fn(), pending: Pending<T>) -> Result<T, Error> {
    let mut pending = task::spawn(pending);
    loop {
        if let std::task::Poll::Ready(result) = pending.poll() {
            return result;
        }
        complete();
        std::thread::yield_now();
    }
}

#[test]
fn a_late_refusal_is_known_behind_waits_through_another_backend() {
    within_a_minute(|| {
        for direct in [true, false] {
            let (runtime, driver) = Recording::runtime_with_slow_pinning_beside(thread_device());
            let [cuda, thread] = [DeviceId::Cuda(0), THREAD_0].map(|id| runtime.device(id).unwrap());
            let [writer, reader] =
                ["writer", "reader"].map(|label| cuda.stream().label(label).build().unwrap());
            let between = thread.new_stream().unwrap();
            let [x, y] = [(); 2].map(|()| writer.alloc::<f32>(LONG).unwrap());
            reader.wait_stream(&writer);
            let written = writer.write(&x, &vec![1.0; LONG]);
            between.wait_stream(&writer);
            if !direct {
                // The wait is then for work of that device, and not for its wait.
                between.call(|| ()).detach();
            }
            reader.wait_stream(&between);
            let copied = reader.copy_buffer(&y, &x);
            driver.refuse_pinning();
            let complete = || driver.reach_markers();
            let error = while_completing(complete, copied).unwrap_err();
            assert!(error.is_inherited(), "{error}");
            assert_eq!(while_completing(complete, written).unwrap_err().kind(), ErrorKind::OutOfMemory);
            driver.allow_pinning(1000);
        }
    });
}

#[test]
fn a_stream_that_follows_another_is_not_behind_a_submission_that_waits_for_room() {
    within_a_minute(|| {
        let (runtime, driver) = Recording::runtime_with_slow_pinning_beside(thread_device());
        let [cuda, thread] = [DeviceId::Cuda(0), THREAD_0].map(|id| runtime.device(id).unwrap());
        let [full, writer, reader] =
            ["full", "writer", "reader"].map(|label| cuda.stream().label(label).build().unwrap());
        let [m, n] = [&full, &reader].map(|stream| stream.alloc::<f32>(SHORT).unwrap());
        let x = writer.alloc::<f32>(LONG).unwrap();
        let elsewhere = thread.new_stream().unwrap();
        let gate = elsewhere.hold().unwrap();
        full.wait_stream(&elsewhere);
        full.fill(&m, 1.0).detach();
        // The thread that hands this stream over is in the driver until the second wait.
        let room = driver.pause_next("fill");
        gate.open();
        room.wait();
        writer.write(&x, &vec![1.0; LONG]).detach();
        reader.wait_stream(&writer);
        let filled = reader.fill(&n, 2.0);
        driver.allow_pinning(1000);
        while_completing(|| driver.reach_markers(), filled).unwrap();
        room.wait();
        while_completing(|| driver.reach_markers(), full.synchronize()).unwrap();
    });
}

#[test]
fn an_event_can_be_waited_for_while_it_is_recorded_although_its_stream_has_ended() {
    within_a_minute(|| {
        let (runtime, driver) = Recording::runtime_with_slow_pinning_beside(thread_device());
        let [cuda, thread] = [DeviceId::Cuda(0), THREAD_0].map(|id| runtime.device(id).unwrap());
        let (ended, reader) = (cuda.new_stream().unwrap(), thread.new_stream().unwrap());
        let x = ended.alloc::<f32>(LONG).unwrap();
        let mut written = task::spawn(ended.write(&x, &vec![1.0; LONG]));
        // The marker is handed over before the event, so the device may be through by then.
        assert!(written.poll().is_pending());
        let event = ended.record_event();
        drop(ended);
        let pause = driver.pause_next("record");
        driver.allow_pinning(1000);
        pause.wait();
        driver.reach_markers();
        let waits = reader.wait_event(&event);
        pause.wait();
        waits.queued().unwrap();
        reader.synchronize().blocking_wait().unwrap();
        written.into_inner().blocking_wait().unwrap();
    });
}

#[test]
fn an_event_hands_on_a_late_refusal_although_its_place_was_observed_before_it_was_recorded() {
    within_a_minute(|| {
        let (runtime, driver) = Recording::runtime_with_slow_pinning(OrderMode::Deny);
        let device = runtime.device(DeviceId::Cuda(0)).unwrap();
        let [writer, reader] = [(); 2].map(|()| device.new_stream().unwrap());
        let [x, y0, y1, y2] = [(); 4].map(|()| writer.alloc::<f32>(LONG).unwrap());
        let z = writer.alloc::<f32>(SHORT).unwrap();
        reader.wait_stream(&writer);
        let written = writer.write(&x, &vec![1.0; LONG]);
        let mut filled = task::spawn(writer.fill(&z, 1.0));
        // The marker is handed over before the event.
        assert!(filled.poll().is_pending());
        let event = writer.record_event();
        let pause = driver.pause_next("record");
        driver.refuse_pinning();
        pause.wait();
        driver.reach_markers();
        assert!(filled.poll().is_ready(), "the place is observed");
        // It is handed on to whoever waits for those who wait, also if they took no ticket.
        let [further, again] = [(); 2].map(|()| device.new_stream().unwrap());
        further.wait_stream(&reader);
        again.wait_stream(&reader);
        reader.wait_event(&event).queued().unwrap();
        further.wait_stream(&reader);
        again.wait_event(&reader.record_event());
        let copied =
            [(&reader, &y0), (&further, &y1), (&again, &y2)].map(|(stream, y)| stream.copy_buffer(y, &x));
        pause.wait();
        let complete = || driver.reach_markers();
        for copied in copied {
            let error = while_completing(complete, copied).unwrap_err();
            assert!(error.is_inherited(), "{error}");
        }
        assert_eq!(while_completing(complete, written).unwrap_err().kind(), ErrorKind::OutOfMemory);
    });
}

#[test]
fn an_op_fails_although_the_write_before_it_is_refused_between_its_check_and_its_edge() {
    within_a_minute(|| {
        let (runtime, driver) = Recording::runtime_with_slow_pinning(OrderMode::Deny);
        let device = runtime.device(DeviceId::Cuda(0)).unwrap();
        let [plain, writer, reader] = [(); 3].map(|()| device.new_stream().unwrap());
        let [y, x] = [(); 2].map(|()| plain.alloc::<f32>(LONG).unwrap());
        for stream in [&writer, &reader] {
            stream.wait_stream(&plain);
        }
        // Two closed streams: the runtime adds an edge behind each, in the order of the operands.
        plain.fill(&x, 1.0).detach();
        drop(plain);
        let written = writer.write(&y, &vec![1.0; LONG]);
        drop(writer);
        let pause = driver.pause_next("edge");
        let operands = (x.clone(), y.clone());
        let adding = std::thread::spawn(move || {
            let add = kernels::add_(LONG as u64, &operands.0, &operands.1);
            reader.launch(add, LaunchConfig::for_elements(64u32))
        });
        pause.wait();
        driver.refuse_pinning();
        let complete = || driver.reach_markers();
        assert_eq!(while_completing(complete, written).unwrap_err().kind(), ErrorKind::OutOfMemory);
        pause.wait();
        let error = while_completing(complete, adding.join().unwrap()).unwrap_err();
        // The writer is closed, so nothing that the program awaits would end it.
        says(
            &error,
            ErrorKind::OutOfMemory,
            &["reads memory that was not written", "; overwrite the memory, or"],
        );
        assert!(error.is_inherited(), "{error}");
    });
}

#[test]
fn a_wait_that_the_runtimes_own_edges_imply_hands_on_a_late_refusal() {
    let slow = Slow::new();
    let [writer, between, reader] = slow.streams(["writer", "between", "reader"]);
    let [x, y] = [(); 2].map(|()| slow.filled(&writer, LONG));
    let w = slow_alloc(&writer);
    between.wait_stream(&writer);
    reader.wait_stream(&writer);
    let written = writer.write(&x, &vec![1.0; LONG]);
    between.wait_stream(&writer);
    between.fill(&w, 1.0).detach();
    drop(between);
    // Behind a closed stream the runtime adds the edge, and with it one behind the writer.
    let behind = reader.fill(&w, 2.0);
    reader.wait_stream(&writer);
    slow.refuse_pinning();
    slow.finish(behind).unwrap();
    let error = slow.finish(reader.copy_buffer(&y, &x)).unwrap_err();
    assert!(error.is_inherited(), "{error}");
    assert_eq!(slow.finish(written).unwrap_err().kind(), ErrorKind::OutOfMemory);
}

#[test]
fn the_ticket_of_a_late_refusal_is_reached_on_a_device_without_markers() {
    within_a_minute(|| {
        let (runtime, driver) = Recording::runtime_without_markers_beside(thread_device());
        let [cuda, thread] = [DeviceId::Cuda(0), THREAD_0].map(|id| runtime.device(id).unwrap());
        let (a, b) = (thread.new_stream().unwrap(), cuda.new_stream().unwrap());
        let x = b.alloc::<f32>(8).unwrap();
        let gate = a.hold().unwrap();
        b.wait_stream(&a);
        driver.refuse_op("fill");
        let filled = b.fill(&x, 1.0);
        gate.open();
        let complete = || driver.complete_all();
        says(
            &while_completing(complete, filled).unwrap_err(),
            ErrorKind::Driver,
            &["fill on stream", "CUDA_ERROR_INVALID_VALUE", "the device is still usable"],
        );
        while_completing(complete, b.synchronize()).unwrap();
    });
}

#[test]
fn a_wait_that_cannot_be_handed_over_ends_its_stream() {
    within_a_minute(|| {
        let (runtime, driver) = Recording::runtime_without_markers_beside(thread_device());
        let [cuda, thread] = [DeviceId::Cuda(0), THREAD_0].map(|id| runtime.device(id).unwrap());
        let (a, b) = (thread.new_stream().unwrap(), cuda.new_stream().unwrap());
        let gate = a.hold().unwrap();
        b.wait_stream(&a);
        let lost = b.call(|| ());
        driver.refuse_next();
        gate.open();
        let complete = || driver.complete_all();
        let parts = ["was abandoned: wait_stream (", "could not be enqueued", "CUDA_ERROR_INVALID_VALUE"];
        says(&while_completing(complete, lost).unwrap_err(), ErrorKind::Driver, &parts);
        says(&refusal(b.call(|| ())), ErrorKind::Driver, &parts);
    });
}
