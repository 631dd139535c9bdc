//! The effects of a fault, each in a process of its own, because a fault makes the context unusable
//! for the rest of the process.

use crate::support::by_hand::{Raw, RawKernel};
use crate::support::gpu_kernels::{
    ILLEGAL, ILLEGAL_ADDRESS, TRAP, TRAP_NOW, busy_then_tell, illegal_address, trap_now,
};
use crate::support::measure::short;
use crate::support::{ONE, Sample};
use crate::{Bench, open};
use futures::executor::block_on;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use warpline::{Device, WakeUp};

/// The seconds after which a child that hangs is killed.
const WATCHDOG_SECONDS: u32 = 30;
/// An address with no allocation.
const NOWHERE: u64 = 0x10;

pub(crate) fn all(bench: &Bench) {
    let mut is_answered = true;
    for (case, fault) in [("illegal", "an illegal address"), ("trap", "a trap")] {
        let answer = run(&format!("{case}-by-hand"));
        bench.table.note(&format!("behind {fault}, by hand: {answer}"));
        let (mut late, mut by_hand) = (Sample::default(), Sample::default());
        let mut answer = String::new();
        let ms = |answer: &str| -> Option<f64> {
            answer.split_whitespace().next().and_then(|first| first.parse().ok())
        };
        for _ in 0..bench.options.rounds(9) {
            answer = run(&format!("{case}-awaited"));
            late.0.extend(ms(&answer));
            by_hand.0.extend(ms(&run(&format!("{case}-synchronized"))));
        }
        let what = format!("{fault} to the error of the awaiting task");
        if late.0.is_empty() || by_hand.0.is_empty() {
            bench.table.note(&format!("{what}: not measured: {answer}"));
            is_answered = false;
            continue;
        }
        let met = bench.verdict(late.median() < by_hand.median() + 5.0);
        let rival = ("cuStreamSynchronize", (&by_hand).into());
        bench.table.row(&what, "ms", &late, "< 5 more than the rival", Some(rival), met);

        let mut unawaited = Sample::default();
        for _ in 0..bench.options.rounds(3) {
            answer = run(&format!("{case}-unawaited"));
            unawaited.0.extend(ms(&answer));
        }
        let what = format!("{fault} that nobody awaits to the health of the device");
        if unawaited.0.is_empty() {
            bench.table.note(&format!("{what}: not measured: {answer}"));
            is_answered = false;
            continue;
        }
        let met = bench.verdict(unawaited.median() < 1000.0);
        bench.table.row(&what, "ms", &unawaited, "< 1000", None, met);
    }
    if !is_answered {
        std::process::exit(1);
    }
}

/// Runs a case in a child and returns its answer.
fn run(case: &str) -> String {
    let mut command = Command::new(std::env::current_exe().expect("a bench has an executable"));
    let output = command.env("RUST_BACKTRACE", "0").args(["--fault", case]).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let said = said.lines().find_map(|line| line.strip_prefix("fault: "));
    said.map_or_else(|| format!("no answer, {}", output.status), str::to_owned)
}

pub(crate) fn child(case: &str) {
    // SAFETY: `alarm` takes any number. Its signal ends a process that hangs.
    unsafe { libc::alarm(WATCHDOG_SECONDS) };
    let (fault, how) = case.split_once('-').expect("a fault and how it is looked at");
    match how {
        "by-hand" => by_hand(fault),
        "synchronized" => synchronized(fault),
        "unawaited" => unawaited(fault),
        _ => awaited(fault),
    }
    // Exits without teardown, because the context is unusable.
    std::process::exit(0);
}

/// Loads the kernel that faults, for direct driver calls.
fn faulty_kernel(fault: &str, device: &Device, raw: Raw) -> RawKernel {
    let (text, kernel) = if fault == "trap" { (TRAP, &TRAP_NOW) } else { (ILLEGAL, &ILLEGAL_ADDRESS) };
    // Makes the kernel known to the software driver.
    device.suggest_config(kernel, 1, 0).expect("it loads");
    raw.kernel(text, kernel.name)
}

/// Prints the time from the launch of a kernel that faults until `cuStreamSynchronize` returns,
/// and its code.
fn synchronized(fault: &str) {
    let (_runtime, device, raw) = open(WakeUp::Balanced);
    let stream = raw.stream();
    let kernel = faulty_kernel(fault, &device, raw);
    let start = Instant::now();
    stream.launch(kernel, &mut [NOWHERE]);
    let code = stream.synchronize();
    println!("fault: {} code {code}", short(start.elapsed().as_secs_f64() * 1e3));
}

/// Prints how the driver treats work that was queued behind a fault, and calls on other streams.
fn by_hand(fault: &str) {
    static CALLED: AtomicU64 = AtomicU64::new(0);
    let (_runtime, device, raw) = open(WakeUp::Balanced);
    let (mine, idle, word, event) = (raw.stream(), raw.stream(), raw.word(), raw.event());
    mine.launch(faulty_kernel(fault, &device, raw), &mut [NOWHERE]);
    let (written, called) = (mine.write(word, 7), mine.count_up(&CALLED));
    // The word may never be written and the host function never called, so this can only wait for a
    // fixed time.
    std::thread::sleep(Duration::from_millis(200));
    // Query the idle stream first. A call on the faulted stream may make it report the fault, and
    // the question is whether it does so by itself.
    let alone = [idle.query(), idle.record(event), event.query(), idle.query()];
    let (faulted, afterwards) = (mine.query(), idle.query());
    let moved = if word.host.load(Ordering::Acquire) == 7 { "written" } else { "not written" };
    let ran = if CALLED.load(Ordering::SeqCst) == 1 { "called" } else { "not called" };
    let [query, record, of_event, again] = alone;
    println!(
        "fault: {moved}, {ran}; enqueued with {written} and {called}; an idle stream's query {query}, its event record {record}, \
         that event's query {of_event}, its query {again}; the faulted stream's query {faulted}, then the idle one's {afterwards}"
    );
}

/// Prints the time from the launch of a kernel that faults, and that nobody awaits, until a task
/// that watches the health of the device learns of it, and the error.
fn unawaited(fault: &str) {
    let (_runtime, device, _raw) = open(WakeUp::Balanced);
    let stream = device.new_stream().expect("a stream");
    block_on(stream.synchronize()).expect("it is idle");
    // The device's thread looks at fixed times, so each process begins at another one.
    std::thread::sleep(Duration::from_millis(u64::from(std::process::id()) * 37 % 500));
    let mut health = device.watch_health();
    let start = Instant::now();
    let faulty = if fault == "trap" { trap_now() } else { illegal_address(NOWHERE) };
    drop(stream.launch(faulty, ONE));
    let state = block_on(health.unready());
    let late = start.elapsed();
    println!("fault: {} {}", short(late.as_secs_f64() * 1e3), state.fault().expect("a fault"));
}

/// Prints the time from the end of the preceding kernel until the awaiting thread has the error of
/// the faulty op, and the kind of that error.
fn awaited(fault: &str) {
    let (_runtime, device, raw) = open(WakeUp::Balanced);
    let stream = device.new_stream().expect("a stream");
    let told = raw.word();
    block_on(stream.launch(busy_then_tell(1_000, told.device, told.host_address(), 1), ONE))
        .expect("it runs");
    let (over, seen) = (AtomicBool::new(false), AtomicU64::new(0));
    let start = Instant::now();
    let now = || start.elapsed().as_nanos() as u64;
    let (back, error) = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if told.host.load(Ordering::Acquire) == 2 {
                    seen.store(now(), Ordering::Release);
                    break;
                }
                std::hint::spin_loop();
            }
        });
        drop(stream.launch(busy_then_tell(5_000_000, told.device, told.host_address(), 2), ONE));
        let faulty = if fault == "trap" {
            stream.launch(trap_now(), ONE)
        } else {
            stream.launch(illegal_address(NOWHERE), ONE)
        };
        let error = block_on(faulty).expect_err("a fault");
        let back = now();
        // Gives the watching thread the time to note a word that was written before the fault. If
        // none was written, `over` stops it.
        std::thread::sleep(Duration::from_millis(1));
        over.store(true, Ordering::Relaxed);
        (back, error)
    });
    let ms = back.saturating_sub(seen.load(Ordering::Acquire)) as f64 / 1e6;
    println!("fault: {} {:?}", short(ms), error.kind());
}
