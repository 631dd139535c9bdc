//! The time from a fault until a thousand waiting tasks have its error.

mod support;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::{ONE, Options, Sample, Table, touch_none};

/// True once the kernel `fault` may fail.
static GO: AtomicBool = AtomicBool::new(false);
/// The time of the newest fault.
static FAILED_AT: Mutex<Option<Instant>> = Mutex::new(None);

warpline::kernel! {
    /// Panics, which fails the device.
    unsafe fn fault(k: f32) {
        cpu: |k| {
            std::hint::black_box(k);
            while !GO.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            *FAILED_AT.lock().expect("no thread panics with it") = Some(Instant::now());
            std::panic::resume_unwind(Box::new("the bench's fault"));
        },
    }
}

const TASKS: usize = 1_000;
const STREAMS: usize = 8;

/// Returns the µs from the fault until the last task has the error, and until the first has it.
fn round(executor: &tokio::runtime::Runtime) -> (f64, f64) {
    let (_runtime, device) = support::cpu();
    let streams: Vec<_> = (0..STREAMS).map(|_| device.new_stream().expect("a stream")).collect();
    GO.store(false, Ordering::Release);
    let gates: Vec<_> = streams[1..].iter().map(|stream| stream.hold().expect("held")).collect();
    streams[0].launch(fault(0.5), ONE).detach();
    let tasks: Vec<_> = (0..TASKS)
        .map(|at| {
            let pending = streams[at % STREAMS].launch(touch_none(0.5), ONE);
            executor.spawn(async move {
                pending.await.expect_err("the device has failed");
                Instant::now()
            })
        })
        .collect();
    // Gives every task the time to be polled once, so that all of them wait.
    std::thread::sleep(Duration::from_millis(30));
    GO.store(true, Ordering::Release);
    let seen: Vec<Instant> = executor.block_on(async {
        let mut seen = Vec::new();
        for task in tasks {
            seen.push(task.await.expect("it does not panic"));
        }
        seen
    });
    drop(gates);
    let at = FAILED_AT.lock().expect("no thread panics with it").expect("it has failed");
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
    for (which, sample) in [("first", &first), ("last", &last)] {
        let what = format!("fault to the {which} of {TASKS} tasks on {STREAMS} streams");
        table.report(&what, "µs", sample);
    }
}
