//! The latency of one kernel and of the waiter behind it.

use crate::support::by_hand::Word;
use crate::support::gpu_kernels::{BUSY, NOTHING, busy, busy_then_tell, nothing};
use crate::support::process::Usage;
use crate::support::{ONE, Sample, interleave, ns};
use crate::{Bench, WAKE_UPS, open, open_with};
use futures::executor::block_on;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use warpline::WakeUp;
use warpline::prelude::*;

/// How many nanoseconds longer than the rival an await may take, for each of `WAKE_UPS`.
const MOST_MORE_NS: [u32; 2] = [1_000, 10_000];

/// Measures an empty kernel, launched and awaited, against a launch and `cuStreamSynchronize`.
pub(crate) fn launch_and_await(bench: &Bench) {
    let times = bench.options.scaled(2_000);
    for (at, (wake_up, name)) in WAKE_UPS.into_iter().enumerate() {
        let (_runtime, device, raw) = open(wake_up);
        let stream = device.new_stream().expect("a stream");
        stream.launch(nothing(), ONE).blocking_wait().expect("it runs");
        let (theirs, kernel) = (raw.stream(), raw.kernel(NOTHING, "nothing"));
        let mut cpu = [Sample::default(), Sample::default()];
        let mut timed = |at: usize, work: &dyn Fn()| {
            let before = Usage::now();
            let took = ns(times, || (0..times).for_each(|_| work()));
            cpu[at].0.push(Usage::now().since(&before).cpu.as_nanos() as f64 / times as f64);
            took
        };
        let timed = std::cell::RefCell::new(&mut timed);
        let [ours, by_hand] = interleave(
            bench.options.rounds(15),
            [
                &mut || timed.borrow_mut()(0, &|| block_on(stream.launch(nothing(), ONE)).expect("it runs")),
                &mut || {
                    timed.borrow_mut()(1, &|| {
                        theirs.launch(kernel, &mut []);
                        theirs.synchronize();
                    })
                },
            ],
        );
        let what = format!("empty kernel launched and awaited, {name}");
        let rival = "launch and cuStreamSynchronize";
        let most = by_hand.median() + f64::from(MOST_MORE_NS[at]);
        let goal = format!("≤ {} more than the rival", MOST_MORE_NS[at]);
        let met = |_| bench.verdict(ours.median() <= most);
        bench.table.compare(&what, "ns", &ours, (rival, &by_hand), &goal, met);
        let [ours, theirs] = &cpu;
        let (what, rival) = (format!("{what}: CPU time"), (rival, theirs.into()));
        bench.table.row(&what, "ns", ours, "", Some(rival), None);
    }
}

/// Measures the time from the last store of a kernel, which another thread observes, to the return
/// of the wait for that kernel.
pub(crate) fn kernel_end_to_wake(bench: &Bench) {
    let times = bench.options.scaled(2_000) as u64;
    for (wake_up, name) in WAKE_UPS {
        for (by, builder) in [
            ("word", Runtime::builder().wake_up(wake_up)),
            ("event", Runtime::builder().wake_up(wake_up).complete_by_events()),
        ] {
            let (_runtime, device, raw) = open_with(builder);
            let stream = device.new_stream().expect("a stream");
            let told = raw.word();
            let late = late_by(times, told, |value| {
                let call = busy_then_tell(20_000, told.device, told.host_address(), value);
                block_on(stream.launch(call, ONE)).expect("it runs");
            });
            tell(bench, &format!("kernel end to wake, {by}, {name}"), &late);
        }
    }
    let (_runtime, device, raw) = open(WakeUp::Balanced);
    let stream = device.new_stream().expect("a stream");
    let told = raw.word();
    let launch = |value| {
        let call = busy_then_tell(20_000, told.device, told.host_address(), value);
        drop(stream.launch(call, ONE));
    };
    let late = late_by(times, told, |value| {
        launch(value);
        let thread = std::thread::current();
        let called = std::sync::Arc::new(AtomicBool::new(false));
        let theirs = called.clone();
        drop(stream.call(move || {
            theirs.store(true, Ordering::Release);
            thread.unpark();
        }));
        while !called.load(Ordering::Acquire) {
            std::thread::park();
        }
    });
    tell(bench, "kernel end to wake, host function that unparks", &late);
    let theirs = raw.stream();
    let late = late_by(times, told, |value| {
        let mut params = [20_000, told.device, told.host_address(), value];
        theirs.launch(raw_tell(raw), &mut params);
        theirs.synchronize();
    });
    tell(bench, "kernel end to return of cuStreamSynchronize", &late);
}

fn raw_tell(raw: crate::support::by_hand::Raw) -> crate::support::by_hand::RawKernel {
    thread_local! {
        static KERNEL: std::cell::OnceCell<crate::support::by_hand::RawKernel> = const { std::cell::OnceCell::new() };
    }
    let text = crate::support::gpu_kernels::BUSY_THEN_TELL;
    KERNEL.with(|kernel| *kernel.get_or_init(|| raw.kernel(text, "busy_then_tell")))
}

/// Returns how many microseconds after `told` has its value `wait` returns. `wait` gets that value,
/// launches the kernel that stores it, and waits for the kernel.
fn late_by(times: u64, told: Word, mut wait: impl FnMut(u64)) -> Sample {
    let start = Instant::now();
    let now = || start.elapsed().as_nanos() as u64;
    let (seen, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut late = Sample::default();
    told.host.store(0, Ordering::SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut last = 0;
            while !over.load(Ordering::Relaxed) {
                let value = told.host.load(Ordering::Acquire);
                if value != last {
                    seen.store(now(), Ordering::Release);
                    last = value;
                }
                std::hint::spin_loop();
            }
        });
        for value in 1..=times {
            seen.store(0, Ordering::Relaxed);
            wait(value);
            let back = now();
            let told_at = loop {
                let at = seen.load(Ordering::Acquire);
                if at > 0 {
                    break at;
                }
                std::hint::spin_loop();
            };
            late.0.push(back.saturating_sub(told_at) as f64 / 1e3);
        }
        over.store(true, Ordering::Relaxed);
    });
    late
}

fn tell(bench: &Bench, what: &str, late: &Sample) {
    bench.table.report(what, "µs", late);
    bench.table.report(&format!("{what}: p99"), "µs", late.quantile(0.99));
}

/// Measures the CPU time used while a long kernel is awaited.
pub(crate) fn a_long_kernel(bench: &Bench) {
    let time = Duration::from_millis(if bench.options.quick { 20 } else { 200 });
    let share = |work: &mut dyn FnMut()| {
        let mut sample = Sample::default();
        for _ in 0..bench.options.rounds(5) {
            let (before, since) = (Usage::now(), Instant::now());
            work();
            sample
                .0
                .push(100.0 * Usage::now().since(&before).cpu.as_secs_f64() / since.elapsed().as_secs_f64());
        }
        sample
    };
    for (wake_up, name) in
        [(WakeUp::LowLatency, "low latency"), (WakeUp::Balanced, "balanced"), (WakeUp::LowPower, "low power")]
    {
        let (_runtime, device, raw) = open(wake_up);
        let stream = device.new_stream().expect("a stream");
        let ns = time.as_nanos() as u64;
        stream.launch(busy(1_000), ONE).blocking_wait().expect("it runs");
        let ours = share(&mut || block_on(stream.launch(busy(ns), ONE)).expect("it runs"));
        let (theirs, kernel) = (raw.stream(), raw.kernel(BUSY, "busy"));
        let by_hand = share(&mut || {
            theirs.launch(kernel, &mut [ns]);
            theirs.synchronize();
        });
        let what =
            format!("CPU share of the process while a {} ms kernel is awaited, {name}", time.as_millis());
        let rival = ("cuStreamSynchronize", (&by_hand).into());
        let is_judged = wake_up == WakeUp::Balanced;
        let met = if is_judged { bench.verdict(ours.median() < 2.0) } else { None };
        bench.table.row(&what, "%", &ours, if is_judged { "< 2" } else { "" }, Some(rival), met);
    }
}
