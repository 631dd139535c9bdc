//! The `tracing` events of ops: the span that they are in, and the times of the device.

use crate::support::software::in_child;
use crate::with_outside_devices;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{self, Poll, Wake, Waker};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber, info_span};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, registry};
use warpline::prelude::*;
use warpline::{Result, reads, writes};
use warpline_outside_driver::BACKEND;

/// An event of an op.
#[derive(Clone, Debug, Default)]
struct Step {
    op: String,
    phase: String,
    span: Option<&'static str>,
    took_ns: Option<u64>,
}

impl Visit for Step {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "op" => self.op = value.to_owned(),
            "phase" => self.phase = value.to_owned(),
            _ => {}
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "took_ns" {
            self.took_ns = Some(value);
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

/// A subscriber layer that keeps the events of ops.
#[derive(Clone, Default)]
struct Steps(Arc<Mutex<Vec<Step>>>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Steps {
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if event.metadata().target() == "warpline::op" {
            let mut step =
                Step { span: context.event_span(event).map(|span| span.name()), ..Step::default() };
            event.record(&mut step);
            self.0.lock().unwrap().push(step);
        }
    }
}

/// Puts ops on a stream of `device`, in spans and outside of them. `other` is held meanwhile.
fn put_ops(device: &Device, other: &Stream) -> Result<()> {
    let stream = device.new_stream()?;
    let [x, y] = [stream.alloc::<f32>(1000)?, stream.alloc::<f32>(1000)?];
    let gate = other.hold()?;
    let [first, second] = [info_span!("first"), info_span!("second")];
    let mut pending = Vec::new();
    first.in_scope(|| {
        pending.push(stream.fill(&x, 1.0));
        pending.push(stream.call(|| ()));
        let none: [&Buffer<f32>; 0] = [];
        // SAFETY: nothing is enqueued.
        pending.push(unsafe { stream.external(reads(none), writes(none), |_| ()) });
    });
    // Some devices get the ops behind this wait from another thread.
    second.in_scope(|| stream.wait_stream(other).queued())?;
    second.in_scope(|| pending.push(stream.copy_buffer(&y, &x)));
    let read = stream.read(&x);
    info_span!("closed").in_scope(|| pending.push(stream.write(&x, &[2.0; 1000])));
    gate.open();
    info_span!("waiting").in_scope(|| {
        read.blocking_wait()?;
        pending.into_iter().try_for_each(|pending| pending.blocking_wait())?;
        device.synchronize().blocking_wait()
    })
}

/// Tells that a task was woken.
struct Woken(mpsc::Sender<()>);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.send(()).unwrap();
    }
}

/// Awaits an op until its task is woken. The op's end is reported by then.
fn await_held_op(device: &Device, steps: &Steps) -> Result<()> {
    let stream = device.new_stream()?;
    let x = stream.alloc::<f32>(1000)?;
    let gate = stream.hold()?;
    let mut fill = pin!(stream.fill(&x, 1.0).into_future());
    let (tell, woken) = mpsc::channel();
    let waker = Waker::from(Arc::new(Woken(tell)));
    let mut context = task::Context::from_waker(&waker);
    assert!(fill.as_mut().poll(&mut context).is_pending());
    gate.open();
    woken.recv().unwrap();
    assert!(matches!(fill.poll(&mut context), Poll::Ready(Ok(()))));
    let is_end = |step: &Step| step.op == "fill" && step.phase == "end";
    assert_eq!(steps.0.lock().unwrap().drain(..).filter(is_end).count(), 1, "on {}", device.id());
    Ok(())
}

/// Makes a call in a span that enqueues nothing, and then an op outside of it, while the span is
/// open.
fn leave_nothing(device: &Device, steps: &Steps) -> Result<()> {
    let [stream, other] = [device.new_stream()?, device.new_stream()?];
    let x = stream.alloc::<f32>(10)?;
    stream.fill(&x, 1.0).blocking_wait()?;
    let held = other.hold()?;
    drop(other.fill(&other.alloc::<f32>(10)?, 1.0));
    stream.wait_stream(&other).queued()?;
    let request = info_span!("request");
    request.in_scope(|| stream.wait_stream(&other).queued())?;
    drop(stream.fill(&x, 2.0));
    let refused = request.in_scope(|| other.fill(&x, 3.0).blocking_wait()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unordered);
    drop(other.call(|| ()));
    held.open();
    device.synchronize().blocking_wait()?;
    let steps = std::mem::take(&mut *steps.0.lock().unwrap());
    let of_request: Vec<_> = steps.iter().filter(|step| step.span.is_some()).collect();
    assert!(of_request.is_empty(), "{of_request:?} on {}", device.id());
    Ok(())
}

#[test]
fn every_step_of_an_op_is_in_the_span_of_its_call_and_its_end_has_its_time() {
    in_child(&[], || {
        let steps = Steps::default();
        tracing::subscriber::set_global_default(registry().with(steps.clone())).unwrap();
        let runtime = with_outside_devices(Runtime::builder(), 1).build().unwrap();
        let other = runtime.device(DeviceId::Cpu(0)).unwrap().new_stream().unwrap();
        for id in [DeviceId::Cpu(0), DeviceId::Other { backend: BACKEND, ordinal: 0 }, DeviceId::Cuda(0)] {
            let device = runtime.device(id).unwrap();
            await_held_op(&device, &steps).unwrap();
            leave_nothing(&device, &steps).unwrap();
            put_ops(&device, &other).unwrap();
            let mut spans = BTreeMap::<_, Vec<_>>::new();
            for step in steps.0.lock().unwrap().drain(..).filter(|step| step.op != "hold") {
                assert_eq!(step.took_ns.is_some(), step.phase == "end", "{step:?} of {id}");
                spans.entry(step.op).or_default().push((step.phase, step.span));
            }
            for (op, span) in [
                ("fill", Some("first")),
                ("call", Some("first")),
                ("external", Some("first")),
                ("copy_buffer", Some("second")),
                ("read", None),
            ] {
                let expected = ["enqueue", "start", "end"].map(|phase| (phase.to_owned(), span));
                let mut found = spans[op].clone();
                found.sort_by_key(|(phase, _)| ["enqueue", "start", "end"].iter().position(|of| of == phase));
                assert_eq!(found, expected, "{op} on {id}");
            }
            let later = spans["write"].iter().filter(|(phase, _)| phase != "enqueue");
            assert!(
                later.clone().all(|(_, span)| span.is_none()),
                "the span has closed: {:?}",
                spans["write"]
            );
            assert_eq!(later.count(), 2);
            let waits = &spans["wait_stream"];
            assert!(waits.iter().all(|(_, span)| *span == Some("second")), "{waits:?} on {id}");
        }
    });
}
