//! The events of a recorder, as it writes them. This module is apart from the others because
//! importing `serde_json` makes some inferred types ambiguous.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use serde_json::Value;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use warpline::trace::Recorder;

/// Returns a recorder of what `f` does on this thread.
pub(crate) fn recorded(f: impl FnOnce(&Recorder)) -> Recorder {
    let recorder = Recorder::new();
    let subscriber = tracing_subscriber::registry().with(recorder.layer());
    tracing::subscriber::with_default(subscriber, || f(&recorder));
    recorder
}

/// Returns a recorder of all threads. It can be installed once per process.
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

/// Returns the events of a phase: `X` for ops with their times, `M` for names.
pub(crate) fn events<'a>(trace: &'a Value, phase: &str) -> Vec<&'a Value> {
    trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == phase).collect()
}
