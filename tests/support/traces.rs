//! What a recorder hears, as it writes it. Apart from the rest: what is of `serde_json` makes types ambiguous where it is seen.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use serde_json::Value;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use warpline::trace::Recorder;

/// A recorder of what `f` does on this thread.
pub(crate) fn recorded(f: impl FnOnce(&Recorder)) -> Recorder {
    let recorder = Recorder::new();
    let subscriber = tracing_subscriber::registry().with(recorder.layer());
    tracing::subscriber::with_default(subscriber, || f(&recorder));
    recorder
}

/// A recorder of what all threads do, once a process.
pub(crate) fn recording_all() -> Recorder {
    let recorder = Recorder::new();
    tracing_subscriber::registry().with(recorder.layer()).init();
    recorder
}

pub(crate) fn written(recorder: &Recorder) -> Value {
    let mut json = Vec::new();
    recorder.write(&mut json).unwrap();
    serde_json::from_slice(&json).expect("valid JSON")
}

/// The events of a phase: `X` are ops with their times, `M` names.
pub(crate) fn events<'a>(trace: &'a Value, phase: &str) -> Vec<&'a Value> {
    trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == phase).collect()
}
