//! Edges and copies between devices of different backends, such as `cpu:0` and `cuda:0`.
//!
//! Each test runs with the two devices in both orders, with the CPU device on threads and under
//! seeds.

mod ends;

use crate::support::{block_on, refusal, says, within_a_minute};
use crate::{and_nothing_is_left, refused, seeds, warm_up, with_outside_devices};
use std::future::Future;
use std::sync::{Arc, Mutex};
use warpline::prelude::*;
use warpline::{Result, RuntimeBuilder};
use warpline_outside_driver::BACKEND;

const THREAD_0: DeviceId = DeviceId::Other { backend: BACKEND, ordinal: 0 };

/// Turns each function of two devices into a module with one test per pair of backends.
macro_rules! between_backends {
    ($($(#[$attr:meta])* async fn $name:ident([$one:ident, $two:ident]) $body:block)*) => {$(
        $(#[$attr])*
        mod $name {
            #[allow(unused_imports, reason = "few tests use all of them")]
            use super::*;

            async fn body([$one, $two]: [Device; 2]) -> Result<()> {
                $body
                Ok(())
            }

            #[test]
            fn cpu_and_outside() {
                pair(Schedule::Threads, THREAD_0, false, body);
            }

            #[test]
            fn outside_and_cpu() {
                pair(Schedule::Threads, THREAD_0, true, body);
            }

            #[test]
            fn seeded_and_outside() {
                (0..seeds()).for_each(|seed| pair(Schedule::Seeded(seed), THREAD_0, seed % 2 == 1, body));
            }

            #[test]
            #[ignore = "needs a CUDA device"]
            fn cpu_and_cuda() {
                pair(Schedule::Threads, DeviceId::Cuda(0), false, body);
            }

            #[test]
            #[ignore = "needs a CUDA device"]
            fn cuda_and_cpu() {
                pair(Schedule::Threads, DeviceId::Cuda(0), true, body);
            }

            #[test]
            #[ignore = "needs a CUDA device"]
            fn seeded_and_cuda() {
                (0..seeds()).for_each(|seed| pair(Schedule::Seeded(seed), DeviceId::Cuda(0), seed % 2 == 1, body));
            }
        }
    )*};
}

/// Returns the settings of the process, as other CUDA tests have them, with `thread:0`.
fn builder() -> RuntimeBuilder {
    with_outside_devices(RuntimeBuilder::from_env().unwrap(), 1)
}

/// Runs `body` on `cpu:0` and `other`, in that order unless `swapped`.
fn pair<Fut: Future<Output = Result<()>>>(
    schedule: Schedule,
    other: DeviceId,
    swapped: bool,
    body: impl Fn([Device; 2]) -> Fut + Send + 'static,
) {
    within_a_minute(move || {
        let runtime = builder().schedule(schedule).build().unwrap();
        let mut devices = [DeviceId::Cpu(0), other].map(|id| runtime.device(id).unwrap());
        if let DeviceId::Cuda(_) = other {
            warm_up(&devices[1]).unwrap();
        }
        if swapped {
            devices.reverse();
        }
        block_on(and_nothing_is_left(body, devices)).unwrap();
    });
}

/// A list to which host functions append when they run.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<u32>>>);

impl Diary {
    fn note(&self, stream: &Stream, what: u32) -> Pending<()> {
        let diary = self.0.clone();
        stream.call(move || diary.lock().unwrap().push(what))
    }

    fn entries(&self) -> Vec<u32> {
        self.0.lock().unwrap().clone()
    }
}

between_backends! {
    async fn wait_stream_covers_what_was_enqueued_before_it_and_nothing_later([one, two]) {
        let (a, b) = (one.new_stream()?, two.new_stream()?);
        let diary = Diary::default();
        let gate = a.hold()?;
        diary.note(&a, 1).detach();
        b.wait_stream(&a);
        let mut noted = diary.note(&b, 2);
        let later = a.hold()?;
        diary.note(&a, 3).detach();
        assert!(!noted.query()?, "it waits for a, which the gate holds");
        gate.open();
        noted.await?;
        assert_eq!(diary.entries(), [1, 2]);
        later.open();
        a.synchronize().await?;
        assert_eq!(diary.entries(), [1, 2, 3]);
    }

    async fn the_waiting_of_one_stream_delays_no_other([one, two]) {
        let (a, b, other) = (one.new_stream()?, two.new_stream()?, two.new_stream()?);
        let diary = Diary::default();
        let gate = a.hold()?;
        b.wait_stream(&a);
        let noted = diary.note(&b, 2);
        diary.note(&other, 1).await?;
        gate.open();
        noted.await?;
        assert_eq!(diary.entries(), [1, 2]);
    }

    async fn order_is_transitive_across_backends([one, two]) {
        let (a, b, c) = (one.new_stream()?, two.new_stream()?, one.new_stream()?);
        let diary = Diary::default();
        let gate = a.hold()?;
        diary.note(&a, 1).detach();
        b.wait_stream(&a);
        diary.note(&b, 2).detach();
        c.wait_stream(&b);
        let last = diary.note(&c, 3);
        gate.open();
        last.await?;
        assert_eq!(diary.entries(), [1, 2, 3]);
    }

    async fn a_stream_of_the_same_backend_follows_one_that_waits_elsewhere([one, two]) {
        let (a, b, c) = (one.new_stream()?, two.new_stream()?, two.new_stream()?);
        let diary = Diary::default();
        let gate = a.hold()?;
        b.wait_stream(&a);
        diary.note(&b, 1).detach();
        c.wait_stream(&b);
        let mut last = diary.note(&c, 2);
        assert!(!last.query()?);
        gate.open();
        last.await?;
        assert_eq!(diary.entries(), [1, 2]);
    }

    async fn wait_event_covers_what_came_before_the_record([one, two]) {
        let (a, b) = (one.new_stream()?, two.new_stream()?);
        let diary = Diary::default();
        let gate = a.hold()?;
        diary.note(&a, 1).detach();
        let event = a.record_event();
        let later = a.hold()?;
        b.wait_event(&event);
        let mut noted = diary.note(&b, 2);
        assert!(!noted.query()?);
        gate.open();
        noted.await?;
        assert!(event.query()?);
        assert_eq!(diary.entries(), [1, 2]);
        later.open();
    }

    async fn an_event_behind_held_back_work_can_be_awaited([one, two]) {
        let (a, b) = (one.new_stream()?, two.new_stream()?);
        let diary = Diary::default();
        let gate = a.hold()?;
        b.wait_stream(&a);
        diary.note(&b, 1).detach();
        let event = b.record_event();
        assert!(!event.query()?);
        gate.open();
        event.await?;
        assert_eq!(diary.entries(), [1]);
    }

    async fn work_that_has_finished_is_not_waited_for([one, two]) {
        let (a, b) = (one.new_stream()?, two.new_stream()?);
        a.call(|| ()).await?;
        let before = b.issued();
        b.wait_stream(&a);
        // The host has observed that work, so the wait changes nothing.
        assert_eq!(b.issued(), before);
        b.call(|| ()).await?;
    }

    async fn a_closed_stream_is_waited_for([one, two]) {
        let (a, b) = (one.new_stream()?, two.new_stream()?);
        let diary = Diary::default();
        let gate = a.hold()?;
        diary.note(&a, 1).detach();
        b.wait_stream(&a);
        drop(a);
        let noted = diary.note(&b, 2);
        gate.open();
        noted.await?;
        assert_eq!(diary.entries(), [1, 2]);
    }

    async fn a_stream_may_be_dropped_while_its_work_is_held_back([one, two]) {
        let (a, b, c) = (one.new_stream()?, two.new_stream()?, one.new_stream()?);
        let diary = Diary::default();
        let gate = a.hold()?;
        b.wait_stream(&a);
        diary.note(&b, 1).detach();
        c.wait_stream(&b);
        drop(b);
        let noted = diary.note(&c, 2);
        gate.open();
        noted.await?;
        assert_eq!(diary.entries(), [1, 2]);
    }

    async fn streams_of_two_backends_take_turns([one, two]) {
        let streams = [one.new_stream()?, two.new_stream()?, one.new_stream()?, two.new_stream()?];
        let diary = Diary::default();
        let gate = streams[3].hold()?;
        for n in 0..100 {
            let (here, before) = (&streams[n % 4], &streams[(n + 3) % 4]);
            here.wait_stream(before);
            diary.note(here, n as u32).detach();
        }
        let last = streams[99 % 4].synchronize();
        gate.open();
        last.await?;
        assert_eq!(diary.entries(), (0..100).collect::<Vec<_>>());
    }

    async fn memory_is_ordered_by_an_edge_through_another_backend([one, two]) {
        let (writer, through, reader) = (one.new_stream()?, two.new_stream()?, one.new_stream()?);
        let x = writer.alloc::<f32>(8)?;
        let gate = writer.hold()?;
        writer.fill(&x, 3.0).detach();
        says(
            &refused(reader.read(&x)).await,
            ErrorKind::Unordered,
            &["reads memory that fill on stream", "no edge orders them"],
        );
        through.wait_stream(&writer);
        reader.wait_stream(&through);
        let read = reader.read(&x);
        gate.open();
        assert_eq!(read.await?, [3.0; 8]);
    }

    async fn a_capture_refuses_an_edge_to_another_backend([one, two]) {
        let (a, b) = (one.new_stream()?, two.new_stream()?);
        let error = a.capture(|_| {
            b.wait_stream(&a);
            Ok(())
        }).unwrap_err();
        let text = format!("a stream on {} to a capture on {}; a graph runs on one device", two, one);
        says(&error, ErrorKind::Captured, &[&text]);
        // Neither stream is captured any more.
        b.wait_stream(&a);
        b.call(|| ()).await?;
    }

    async fn a_stream_limits_its_held_back_work_too([one, two]) {
        let a = one.new_stream()?;
        let b = two.stream().max_in_flight(1).build()?;
        let gate = a.hold()?;
        b.wait_stream(&a);
        let first = b.call(|| 1);
        assert_eq!(refusal(b.call(|| 2)).kind(), ErrorKind::Full);
        gate.open();
        assert_eq!(first.await?, 1);
        assert_eq!(b.room().await?.enter(|| b.call(|| 3)).await?, 3);
    }

    async fn a_copy_moves_every_placement_both_ways([one, two]) {
        let on = off_the_cpu([&one, &two]);
        crate::peers::copied(&on, &one, &two).await?;
        crate::peers::copied(&on, &two, &one).await?;
    }

    async fn a_large_copy_goes_in_pieces([one, two]) {
        let stream = off_the_cpu([&one, &two]).new_stream()?;
        let (source, destination) = (one.new_stream()?, two.new_stream()?);
        // More than two pieces, and not a whole number of them.
        let len = (9 << 20) / 4 + 3;
        let (x, y) = (source.alloc::<f32>(len)?, destination.alloc::<f32>(len)?);
        source.write(&x, &ramp(len)).await?;
        destination.synchronize().await?;
        stream.copy_buffer_peer(&y, &x).await?;
        assert!(destination.read(&y).await? == ramp(len));
        let pinned = stream.device().pinned_stats();
        assert!(pinned.allocated_bytes <= 4 << 20, "{pinned:?}");
    }

    async fn a_copy_needs_its_edges([one, two]) {
        let stream = off_the_cpu([&one, &two]).stream().label("copies").build()?;
        let source = one.stream().label("source").build()?;
        let destination = two.stream().label("destination").build()?;
        let (x, y) = (source.alloc::<f32>(100)?, destination.alloc::<f32>(100)?);
        let gate = source.hold()?;
        source.fill(&x, 1.0).detach();
        destination.fill(&y, 2.0).await?;
        says(
            &refused(stream.copy_buffer_peer(&y, &x)).await,
            ErrorKind::Unordered,
            &[
                "copy_buffer_peer on stream \"copies\" (tests/contract/between_backends.rs:",
                "reads memory that fill on stream \"source\"",
                "call copies.wait_stream(&source) before it",
            ],
        );
        stream.wait_stream(&source);
        let mut copied = stream.copy_buffer_peer(&y, &x);
        says(
            &refused(destination.read(&y)).await,
            ErrorKind::Unordered,
            &["reads memory that copy_buffer_peer on stream \"copies\"", "call destination.wait_stream(&copies) before it"],
        );
        destination.wait_for(&y);
        let read = destination.read(&y);
        assert!(!copied.query()?, "it waits for the fill, which the gate holds");
        gate.open();
        assert_eq!(read.await?, [1.0; 100]);
        copied.await?;
    }

    async fn memory_dropped_behind_a_copy_is_reused_after_it([one, two]) {
        let stream = off_the_cpu([&one, &two]).new_stream()?;
        let (source, destination) = (one.new_stream()?, two.new_stream()?);
        let y = destination.alloc::<f32>(1000)?;
        let x = source.alloc::<f32>(1000)?;
        source.write(&x, &ramp(1000)).await?;
        let gate = stream.hold()?;
        stream.wait_stream(&destination);
        let copied = stream.copy_buffer_peer(&y, &x);
        drop(x);
        // It may get the same block, whose earlier use has not finished.
        let z = source.alloc::<f32>(1000)?;
        source.fill(&z, 7.0).detach();
        destination.wait_stream(&stream);
        let read = destination.read(&y);
        gate.open();
        copied.await?;
        assert_eq!(read.await?, ramp(1000));
        assert_eq!(source.read(&z).await?, [7.0; 1000]);
    }

    async fn an_empty_copy_moves_nothing([one, two]) {
        let stream = off_the_cpu([&one, &two]).new_stream()?;
        let (source, destination) = (one.new_stream()?, two.new_stream()?);
        let (x, y) = (source.alloc::<f32>(0)?, destination.alloc::<f32>(0)?);
        stream.copy_buffer_peer(&y, &x).await?;
    }

    async fn a_copy_on_another_devices_stream_is_refused([one, two]) {
        let (a, b) = (one.new_stream()?, two.new_stream()?);
        let (x, y, z) = (a.alloc::<f32>(8)?, b.alloc::<f32>(8)?, a.alloc::<f32>(8)?);
        let (on_cpu, other) = if one.id() == DeviceId::Cpu(0) { (&a, &two) } else { (&b, &one) };
        let text = format!("the stream is on cpu:0 and an operand is on {other}; copy on a stream of that device");
        says(&refused(on_cpu.copy_buffer_peer(&y, &x)).await, ErrorKind::DeviceMismatch, &[&text]);
        let text = format!("the stream is on {two} and an operand is on {one}; copy on a stream of that device");
        says(&refused(b.copy_buffer_peer(&z, &x)).await, ErrorKind::DeviceMismatch, &[&text]);
        let text = format!("the stream is on {two} and an operand is on {one}; move a tensor with to, or a buffer with copy_buffer_peer");
        says(&refused(b.copy_buffer(&y, &x)).await, ErrorKind::DeviceMismatch, &[&text]);
        let short = b.alloc::<f32>(7)?;
        let stream = off_the_cpu([&one, &two]).new_stream()?;
        says(
            &refused(stream.copy_buffer_peer(&short, &x)).await,
            ErrorKind::Shape,
            &["the source has 8 elements and the destination 7"],
        );
    }

    async fn to_moves_a_tensor_between_backends([one, two]) {
        crate::transfers::moves(&one, &two).await?;
        assert_eq!(Tensor::ones([2], &one).cpu().await?.device(), one.sibling(DeviceId::Cpu(0))?);
    }

    async fn copies_between_backends_order_themselves_on_the_current_streams([one, two]) {
        crate::transfers::order_themselves(&one, &two).await?;
    }

    async fn copies_between_backends_do_not_order_other_streams([one, two]) {
        crate::transfers::do_not_order_others(&one, &two).await?;
    }

    async fn a_copy_to_another_backend_says_what_does_not_fit([one, two]) {
        crate::transfers::say_what_does_not_fit(&one, &two).await?;
    }

    async fn a_capture_refuses_a_copy_to_another_backend([one, two]) {
        let stream = off_the_cpu([&one, &two]).new_stream()?;
        let (x, y) = (one.new_stream()?.alloc::<f32>(8)?, two.new_stream()?.alloc::<f32>(8)?);
        let error = stream.capture(|_| {
            stream.copy_buffer_peer(&y, &x).detach();
            Ok(())
        }).unwrap_err();
        says(&error, ErrorKind::Captured, &["copy_buffer_peer on stream", "one device"]);
    }
}

/// Returns the device that is not a CPU device. Its streams make the copies.
fn off_the_cpu(devices: [&Device; 2]) -> Device {
    devices.into_iter().find(|device| device.id() != DeviceId::Cpu(0)).expect("one of the two").clone()
}

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}
