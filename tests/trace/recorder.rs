//! The recorder, which writes every op with its times as JSON. Each stream has a track.

use crate::traces;

use crate::support::runtime;
use crate::traces::{events, recording_all, written};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use warpline::prelude::*;
use warpline::trace::Recorder;

/// Returns a recorder of `f` on this thread, and the JSON that it writes.
fn recorded(f: impl FnOnce()) -> (Recorder, Value) {
    let recorder = traces::recorded(|_| f());
    let trace = written(&recorder);
    (recorder, trace)
}

/// Returns the stream's label for each track number.
fn tracks(trace: &Value) -> BTreeMap<u64, String> {
    let named = events(trace, "M").into_iter().filter(|event| event["name"] == "thread_name");
    named
        .map(|event| (event["tid"].as_u64().unwrap(), event["args"]["name"].as_str().unwrap().to_owned()))
        .collect()
}

/// Returns a runtime whose ops run on the thread that waits for them.
fn seeded(devices: u32) -> Runtime {
    Runtime::builder().cpu_devices(devices).schedule(Schedule::Seeded(1)).build().unwrap()
}

#[test]
fn every_op_is_there_once_with_its_times_bytes_and_line() {
    let (recorder, trace) = recorded(|| {
        let runtime = seeded(1);
        let device = runtime.device(DeviceId::Cpu(0)).unwrap();
        let [a, b] = ["a", "b"].map(|label| device.stream().label(label).build().unwrap());
        let x = a.alloc::<f32>(100).unwrap();
        drop(a.fill(&x, 1.0));
        b.wait_stream(&a);
        drop(b.read(&x));
        drop(b.call(|| ()));
        device.synchronize().blocking_wait().unwrap();
    });
    assert_eq!((recorder.len(), recorder.is_empty()), (4, false));
    let ops = events(&trace, "X");
    let summary: BTreeSet<_> = ops
        .iter()
        .map(|op| {
            let args = &op["args"];
            let (name, bytes) = (op["name"].as_str().unwrap(), args["bytes"].as_u64().unwrap());
            assert!(args["site"].as_str().unwrap().starts_with("tests/trace/recorder.rs:"), "{op}");
            assert!(op["ts"].as_f64().unwrap() >= 0.0 && op["dur"].as_f64().unwrap() >= 0.0);
            assert!(args["queued_us"].as_f64().unwrap() >= 0.0);
            (op["tid"].as_u64().unwrap(), args["ticket"].as_u64().unwrap(), name, bytes)
        })
        .collect();
    let tracks = tracks(&trace);
    let track = |label: &str| *tracks.iter().find(|(_, of)| *of == label).expect("a track of that label").0;
    let (a, b) = (track("a"), track("b"));
    let expected = [(a, 1, "fill", 400), (b, 1, "wait_stream", 0), (b, 2, "read", 400), (b, 3, "call", 0)];
    assert_eq!(summary, BTreeSet::from(expected));
    assert_eq!(ops.len(), 4);
}

#[test]
fn ops_of_one_track_follow_each_other() {
    let (_, trace) = recorded(|| {
        let runtime = seeded(1);
        let device = runtime.device(DeviceId::Cpu(0)).unwrap();
        let streams: Vec<_> = (0..4).map(|_| device.new_stream().unwrap()).collect();
        (0..200).for_each(|n| drop(streams[n % 4].call(|| ())));
        device.synchronize().blocking_wait().unwrap();
    });
    let mut ended = BTreeMap::new();
    let mut ops: Vec<_> = events(&trace, "X");
    ops.sort_by_key(|op| op["args"]["ticket"].as_u64().unwrap());
    assert_eq!(ops.len(), 200);
    for op in ops {
        // Times are whole nanoseconds, written as microseconds with three decimals.
        let [start, took] =
            [&op["ts"], &op["dur"]].map(|time| (time.as_f64().unwrap() * 1000.0).round() as u64);
        let end = ended.insert(op["tid"].as_u64().unwrap(), start + took);
        assert!(end.is_none_or(|end| end <= start), "{op} begins before {end:?}");
    }
    assert_eq!(ended.len(), 4, "one track a stream");
    assert_eq!(tracks(&trace).len(), 4);
}

#[test]
fn each_device_is_a_process_of_its_own() {
    let (_, trace) = recorded(|| {
        let runtime = seeded(2);
        for device in runtime.devices() {
            device.default_stream().unwrap().call(|| ()).blocking_wait().unwrap();
        }
    });
    let named = events(&trace, "M").into_iter().filter(|event| event["name"] == "process_name");
    let names: BTreeMap<_, _> = named
        .map(|event| (event["args"]["name"].as_str().unwrap(), event["pid"].as_u64().unwrap()))
        .collect();
    assert_eq!(names.keys().copied().collect::<Vec<_>>(), ["cpu:0", "cpu:1"]);
    let used: BTreeSet<_> = events(&trace, "X").iter().map(|op| op["pid"].as_u64().unwrap()).collect();
    assert_eq!(used, names.into_values().collect());
}

#[test]
fn any_label_makes_valid_json() {
    let label = "a \"quoted\" \\ label\nwith a line break, a tab\t and \u{1f600}";
    let (_, trace) = recorded(|| {
        let runtime = seeded(1);
        let stream = runtime.device(DeviceId::Cpu(0)).unwrap().stream().label(label).build().unwrap();
        stream.call(|| ()).blocking_wait().unwrap();
    });
    assert_eq!(tracks(&trace).into_values().collect::<Vec<_>>(), [label]);
}

#[test]
fn nothing_recorded_is_valid_json_too() {
    let recorder = Recorder::new();
    assert!(recorder.is_empty());
    assert_eq!(written(&recorder)["traceEvents"], serde_json::json!([]));
}

#[test]
fn refused_ops_are_not_in_it_and_ops_that_did_not_run_have_no_bar() {
    let (recorder, trace) = recorded(|| {
        let runtime = seeded(1);
        let device = runtime.device(DeviceId::Cpu(0)).unwrap();
        let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let x = a.alloc::<f32>(4).unwrap();
        drop(a.fill(&x, 1.0));
        assert!(b.fill(&x, 2.0).queued().is_err());
        drop(crate::support::break_device(&a));
        drop(a.fill(&x, 3.0));
        assert!(a.synchronize().blocking_wait().is_err());
    });
    assert_eq!(recorder.len(), 3, "the refused one was never on a stream");
    let names: Vec<_> =
        events(&trace, "X").iter().map(|op| op["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, ["fill", "fails"], "the last one never began");
}

#[test]
fn a_file_holds_what_write_writes() {
    let (recorder, trace) = recorded(|| {
        let runtime = seeded(1);
        runtime
            .device(DeviceId::Cpu(0))
            .unwrap()
            .default_stream()
            .unwrap()
            .call(|| ())
            .blocking_wait()
            .unwrap();
    });
    let path = std::env::temp_dir().join(format!("warpline-trace-{}.json", std::process::id()));
    recorder.write_file(&path).unwrap();
    let file: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(file, trace);
}

#[test]
fn work_of_other_threads_is_recorded_through_the_global_subscriber() {
    let recorder = recording_all();
    let runtime = runtime(1);
    let device = runtime.device(DeviceId::Cpu(0)).unwrap();
    let streams: Vec<_> =
        (0..3).map(|n| device.stream().label(format!("global {n}")).build().unwrap()).collect();
    (0..300).for_each(|n| drop(streams[n % 3].call(|| ())));
    device.synchronize().blocking_wait().unwrap();
    let trace = written(&recorder);
    for (track, label) in tracks(&trace) {
        if label.starts_with("global") {
            let mut tickets: Vec<_> = events(&trace, "X")
                .into_iter()
                .filter(|op| op["tid"] == track)
                .map(|op| op["args"]["ticket"].as_u64().unwrap())
                .collect();
            tickets.sort_unstable();
            assert_eq!(tickets, (1..=100).collect::<Vec<_>>());
        }
    }
}
