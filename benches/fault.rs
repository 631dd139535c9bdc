//! From a fault to a thousand waiting tasks that have its error.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::measure::short;
use support::{ONE, Options, Sample, Table, touch_none};

const TASKS: usize = 1_000;
const STREAMS: usize = 8;

/// How long until the last of the tasks has seen the fault, and until the first has.
fn round(executor: &tokio::runtime::Runtime) -> (f64, f64) {
    let (_runtime, device) = support::cpu();
    let streams: Vec<_> = (0..STREAMS).map(|_| device.new_stream().expect("a stream")).collect();
    let go = Arc::new(AtomicBool::new(false));
    let failed_at = Arc::new(Mutex::new(None));
    let gates: Vec<_> = streams[1..].iter().map(|stream| stream.hold().expect("held")).collect();
    let (wait, at) = (go.clone(), failed_at.clone());
    streams[0]
        .call(move || {
            while !wait.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            *at.lock().expect("nobody panics with it") = Some(Instant::now());
            std::panic::resume_unwind(Box::new("the bench's fault"));
        })
        .detach();
    let tasks: Vec<_> = (0..TASKS)
        .map(|at| {
            let pending = streams[at % STREAMS].launch(touch_none(0.5), ONE);
            executor.spawn(async move {
                pending.await.expect_err("the device has failed");
                Instant::now()
            })
        })
        .collect();
    // All have been polled once, and wait.
    std::thread::sleep(Duration::from_millis(30));
    go.store(true, Ordering::Release);
    let seen: Vec<Instant> = executor.block_on(async {
        let mut seen = Vec::new();
        for task in tasks {
            seen.push(task.await.expect("it does not panic"));
        }
        seen
    });
    drop(gates);
    let at = failed_at.lock().expect("nobody panics with it").expect("it has failed");
    let micros = |when: &Instant| when.saturating_duration_since(at).as_nanos() as f64 / 1000.0;
    (micros(seen.iter().max().expect("tasks")), micros(seen.iter().min().expect("tasks")))
}

fn main() {
    let options = Options::from_command_line();
    std::panic::set_hook(Box::new(|_| {}));
    let table = Table::new("fault: from a fault to a thousand waiting tasks (µs)");
    let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let (mut last, mut first) = (Sample::default(), Sample::default());
    for _ in 0..options.rounds(21) {
        let (all, one) = round(&executor);
        last.0.push(all);
        first.0.push(one);
    }
    table.row(
        &format!("fault to the last of {TASKS} tasks on {STREAMS} streams, µs"),
        &short(last.median()),
        &format!("{} to the first", short(first.median())),
        "",
        &last.spread(),
        "milliseconds",
        None,
    );
}
