//! The spans of batches.

use crate::builder;
use crate::support;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tracing::span::{Attributes, Id};
use tracing::{Dispatch, Event, Instrument, Subscriber, info_span};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, registry};
use warpline::serve::WriterError;

fn one(row: (&mut [f32],)) -> Result<(), WriterError> {
    row.0.fill(1.0);
    Ok(())
}

/// The spans and the events that a subscriber heard of.
#[derive(Default)]
struct Heard {
    names: HashMap<u64, &'static str>,
    /// From a span to those that it follows from.
    follows: Vec<(u64, u64)>,
    /// The spans in which ops were enqueued.
    enqueued_in: Vec<Option<u64>>,
}

#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Heard>>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Listener {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        self.0.lock().unwrap().names.insert(id.into_u64(), attributes.metadata().name());
    }

    fn on_follows_from(&self, span: &Id, follows: &Id, _: Context<'_, S>) {
        self.0.lock().unwrap().follows.push((span.into_u64(), follows.into_u64()));
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut is_enqueue = false;
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            is_enqueue |= field.name() == "phase" && format!("{value:?}").contains("enqueue");
        });
        if is_enqueue {
            let span = context.event_span(event).map(|span| span.id().into_u64());
            self.0.lock().unwrap().enqueued_in.push(span);
        }
    }
}

#[test]
fn a_batch_is_one_span_that_follows_from_its_callers() {
    let listener = Listener::default();
    // With a single subscriber, `tracing` asks that of whichever thread reaches an event first
    // whether it is heard: in another test there is none.
    let _second = Dispatch::new(registry());
    let runtime = support::runtime(1);
    let device = runtime.devices()[0].clone();
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let batches = tracing::subscriber::with_default(registry().with(listener.clone()), || {
        tokio.block_on(async {
            let batcher = builder(&device).max_rows(4).build(|_, (x,), _| async move { Ok((x,)) });
            let batcher = batcher.await.unwrap();
            listener.0.lock().unwrap().enqueued_in.clear();
            let mut batches = 0;
            for _ in 0..3 {
                let calls = (0..3).map(|_| batcher.submit(one).instrument(info_span!("request")));
                futures::future::try_join_all(calls).await.unwrap();
                batches += 1;
            }
            // A caller without a span.
            batcher.submit(one).await.unwrap();
            batches + 1
        })
    });
    let heard = listener.0.lock().unwrap();
    let of = |name| heard.names.iter().filter(move |(_, of)| **of == name).map(|(id, _)| *id);
    let (spans, requests): (Vec<_>, Vec<_>) = (of("batch").collect(), of("request").collect());
    assert_eq!(requests.len(), 9);
    assert_eq!(spans.len(), batches);
    let mut followed: Vec<_> = heard.follows.iter().map(|(_, request)| *request).collect();
    followed.sort_unstable();
    followed.dedup();
    assert_eq!(followed.len(), 9, "each request is followed by one batch");
    assert_eq!(heard.follows.len(), 9);
    assert!(heard.follows.iter().all(|(span, request)| spans.contains(span) && requests.contains(request)));
    assert!(!heard.enqueued_in.is_empty());
    for span in &heard.enqueued_in {
        assert!(span.is_some_and(|span| spans.contains(&span)), "an op was enqueued outside of a batch");
    }
}
