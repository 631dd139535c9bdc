//! Fails each entry point of the driver at its first, its middle and its last call, one failure per
//! process. The quick suite takes one of the three. Every process runs a workload that uses a bit
//! of everything.
//!
//! Some call counts vary with timing. If a run does not reach the planned call, the next run fails
//! an earlier one. So every case ends with a call that did fail.
//!
//! Whatever fails, nothing hangs and nothing panics. Every result is a right value or an error.
//! Once everything is dropped, no memory is in use, unless the device was lost.

use crate::support::block_on;
use crate::support::raw::calls;
use crate::support::software::{Third, in_child, run_third_of_cuda_tests};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use warpline::kernels;
use warpline::prelude::*;
use warpline::{Element, Result, reads, writes};
use warpline_test_counts::count;

/// The seconds after which a workload that hangs is killed.
const WATCHDOG_SECONDS: u32 = 30;
/// Entry points that the contract calls only after a refusal. A workload without failures never
/// calls them.
const FOR_REFUSALS: [&str; 2] = ["cuGetErrorName", "cuGetErrorString"];

/// The outcomes of the workload's ops.
#[derive(Default)]
struct Tally {
    done: usize,
    failed: BTreeMap<String, usize>,
}

impl Tally {
    fn see<T>(&mut self, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => {
                self.done += 1;
                Some(value)
            }
            Err(error) => {
                *self.failed.entry(format!("{:?}", error.kind())).or_default() += 1;
                None
            }
        }
    }

    fn is<T: PartialEq + Debug>(&mut self, result: Result<T>, right: T) {
        if let Some(value) = self.see(result) {
            assert_eq!(value, right, "what is no error is right");
        }
    }

    fn pending<T>(&mut self, pending: Pending<T>) -> Option<T> {
        self.see(pending.blocking_wait())
    }
}

warpline::kernel! {
    unsafe fn shared(n: u32, y: &mut [f32]) where n as usize <= y.len() {
        cuda: "extern \"C\" __global__ void shared(unsigned n, float* y) {}",
        cpu: |n, y| y[..n as usize].fill(9.0),
    }
}

/// Uses a bit of everything on two devices of a runtime.
fn use_devices(tally: &mut Tally, runtime: &Runtime) {
    let [one, two] = [0, 1].map(|n| tally.see(runtime.device(DeviceId::Cuda(n))));
    let (Some(one), Some(two)) = (one, two) else { return };
    let _ = (one.properties(), one.free_bytes());
    tally.see(one.suggest_config(&kernels::AXPY, 1000, 0).map(drop));
    let made = [one.new_stream(), one.stream().priority(warpline::Priority::High).build(), two.new_stream()];
    let [Some(a), Some(b), Some(c)] = made.map(|made| tally.see(made)) else { return };
    on_one_device(tally, &one, &a, &b);
    between_devices(tally, &a, &c);
    what_is_closed_and_dropped(tally, &one);
    for device in [&one, &two] {
        tally.pending(device.synchronize());
    }
    for _ in 0..3 {
        tally.see(a.query());
    }
    drop((a, b, c));
    for device in [one, two] {
        and_nothing_is_in_use(&device);
    }
}

fn on_one_device(tally: &mut Tally, device: &Device, a: &Stream, b: &Stream) {
    let config = LaunchConfig::linear(1, 32);
    let host = tally.see(block_on(device.pinned::<f32>(8)));
    let (Some(x), Some(y)) = (tally.see(a.alloc::<f32>(8)), tally.see(a.alloc::<f32>(8))) else { return };
    drop(a.fill(&y, 1.0));
    if let Some(mut host) = host {
        host.fill(2.0);
        let sent = a.copy_into(&x, host);
        let launched = a.launch(kernels::axpy(8, 3.0, &x, &y), config);
        tally.is(a.read(&y).blocking_wait(), vec![7.0; 8]);
        tally.pending(launched);
        tally.pending(sent);
    }
    if let Some(registered) = tally.see(device.pin(vec![5.0f32; 8])) {
        // If the copy is refused, `x` keeps its contents, and awaiting the copy clears the mark on
        // `x`.
        if tally.pending(a.copy_into(&x, registered)).is_some() {
            tally.is(a.read(&x).blocking_wait(), vec![5.0; 8]);
        }
    }
    tally.see(a.record_timed_event().and_then(|start| {
        let end = a.record_timed_event()?;
        end.synchronize().blocking_wait()?;
        end.elapsed_since(&start).map(drop)
    }));

    // If the edge cannot be made, the read behind it is refused.
    drop(a.fill(&x, 4.0));
    b.wait_stream(a);
    tally.is(b.read(&x).blocking_wait(), vec![4.0; 8]);
    let gate = a.hold();
    drop(a.fill(&x, 6.0));
    let event = a.record_event();
    b.wait_event(&event);
    let mut read = b.read(&x);
    let mut early = None;
    if let Some(gate) = tally.see(gate) {
        // While an op takes long, the runtime asks the driver whether the device lives.
        let asked = || calls(c"cuEventRecordWithFlags");
        let before = asked();
        while asked() == before && early.is_none() {
            early = poll_once(&mut read);
            std::thread::yield_now();
        }
        gate.open();
    }
    tally.is(early.unwrap_or_else(|| read.blocking_wait()), vec![6.0; 8]);
    tally.see(event.query().map(drop));

    fills(tally, a, 7u8);
    fills(tally, a, 7u16);
    fills(tally, a, 7u32);
    fills(tally, a, 7u64);
    fills(tally, a, 7u64 << 40);
    copies(tally, a);
    graphs(tally, a, b);
    product(tally, a);
    tally.pending(a.launch(shared(8, &y), config.with_shared_bytes(64 << 10)));
    tally.pending(a.launch(shared(8, &y), config.cooperatively()));
    let stand = a.alloc::<f32>(8).and_then(|z| {
        a.copy_buffer(&z, &y).blocking_wait()?;
        a.read(&z).blocking_wait()
    });
    if let Some(values) = tally.see(stand) {
        assert!(values == [9.0; 8] || values == [7.0; 8] || values == [1.0; 8], "{values:?}");
    }
    tally.is(a.call(|| 11).blocking_wait(), 11);
    // SAFETY: it touches no device memory.
    let foreign = unsafe { a.external(reads([&x]), writes([&y; 0]), |raw| raw.call(|| ())) };
    tally.pending(foreign);
    // Several allocations, each larger than the memory in the pool.
    for n in 20..23 {
        tally.see(b.alloc::<f32>(1 << n).map(drop));
    }
    device.empty_cache();
    tally.see(block_on(device.pinned::<u8>(1 << 20)).map(drop));
    device.empty_cache();
}

fn fills<T: Element + PartialEq + Debug>(tally: &mut Tally, stream: &Stream, value: T) {
    let Some(x) = tally.see(stream.alloc::<T>(12)) else { return };
    drop(stream.fill(&x, value));
    tally.is(stream.read(&x).blocking_wait(), vec![value; 12]);
    let columns = x.as_matrix(4).and_then(|x| x.columns(1..3)).unwrap();
    drop(stream.fill(&columns, value));
    tally.is(stream.read(&columns).blocking_wait(), vec![value; 8]);
}

fn copies(tally: &mut Tally, stream: &Stream) {
    let made = [stream.alloc::<f32>(12), stream.alloc::<f32>(8)].map(|made| tally.see(made));
    let [Some(x), Some(y)] = made else { return };
    let columns = x.as_matrix(4).and_then(|x| x.columns(..2)).unwrap();
    drop(stream.fill(&x, 0.0));
    drop(stream.write(&columns, &[1.0; 8]));
    tally.is(stream.read(&columns).blocking_wait(), vec![1.0; 8]);
    drop(stream.copy_buffer(&y, &columns));
    tally.is(stream.read(&y).blocking_wait(), vec![1.0; 8]);
}

fn graphs(tally: &mut Tally, stream: &Stream, side: &Stream) {
    let Some(x) = tally.see(stream.alloc::<f32>(8)) else { return };
    let captured = stream.capture(|s| {
        let y = s.alloc::<f32>(8)?;
        side.wait_stream(s).queued()?;
        side.copy_buffer(&y, &x).queued()?;
        s.wait_stream(side).queued()?;
        s.launch(kernels::axpy(8, 1.0, &x, &y), LaunchConfig::linear(1, 32)).queued()?;
        Ok(y)
    });
    let Some((graph, y)) = tally.see(captured) else { return };
    for value in [1.0, 2.0] {
        drop(stream.fill(&x, value));
        drop(graph.launch(stream));
        tally.is(stream.read(&y).blocking_wait(), vec![2.0 * value; 8]);
    }
}

/// Computes a matrix product with the stand-in for cuBLAS, whose driver calls fail as well.
fn product(tally: &mut Tally, stream: &Stream) {
    let Some(x) = tally.see(stream.alloc::<f32>(4)) else { return };
    let Some(y) = tally.see(stream.alloc::<f32>(4)) else { return };
    drop(stream.fill(&x, 3.0));
    drop(stream.launch(kernels::matmul(2, 2, 2, 0, 0, &x, &x, &y), kernels::launch::product(2, 2)));
    tally.is(stream.read(&y).blocking_wait(), vec![18.0; 4]);
}

fn between_devices(tally: &mut Tally, a: &Stream, c: &Stream) {
    let made = [a.alloc::<f32>(12), c.alloc::<f32>(12), c.alloc::<f32>(8)].map(|made| tally.see(made));
    let [Some(x), Some(y), Some(z)] = made else { return };
    drop(a.fill(&x, 3.0));
    a.wait_stream(c);
    drop(a.copy_buffer_peer(&y, &x));
    drop(a.copy_buffer_peer(&z, &x.as_matrix(4).and_then(|x| x.columns(1..3)).unwrap()));
    c.wait_stream(a);
    tally.is(c.read(&y).blocking_wait(), vec![3.0; 12]);
    tally.is(c.read(&z).blocking_wait(), vec![3.0; 8]);
    // Back on a stream of the other device, then within that device on this stream.
    drop(c.copy_buffer_peer(&x, &y));
    a.wait_stream(c);
    tally.is(a.read(&x).blocking_wait(), vec![3.0; 12]);
    drop(a.copy_buffer_peer(&z, &y.slice(..8).unwrap()));
    c.wait_stream(a);
    tally.is(c.read(&z).blocking_wait(), vec![3.0; 8]);
    tally.pending(a.synchronize());
}

fn what_is_closed_and_dropped(tally: &mut Tally, device: &Device) {
    let pool = device.stream_pool(1).unwrap();
    for n in 0..3 {
        let Some(lease) = tally.see(block_on(pool.lease())) else { continue };
        let gate = lease.hold();
        drop(lease.call(move || n));
        drop(lease);
        drop(gate);
    }
    let Some(stream) = tally.see(device.new_stream()) else { return };
    let Some(gate) = tally.see(stream.hold()) else { return };
    let held = stream.call(|| 5);
    drop(stream);
    gate.open();
    // A stream that is made while the other one drains.
    tally.see(device.new_stream().and_then(|stream| stream.call(|| ()).blocking_wait()));
    tally.is(held.blocking_wait(), 5);
}

fn and_nothing_is_in_use(device: &Device) {
    let since = Instant::now();
    let in_use = || (device.memory_stats().allocated_bytes, device.pinned_stats().allocated_bytes);
    while in_use() != (0, 0) || {
        device.empty_cache();
        device.memory_stats().reserved_bytes > 0
    } {
        if device.fault().is_some() {
            return;
        }
        assert!(
            since.elapsed() < Duration::from_secs(10),
            "{:?} bytes in use of {device}, {:?}",
            in_use(),
            device.memory_stats()
        );
        std::thread::yield_now();
    }
}

fn poll_once<T>(pending: &mut Pending<T>) -> Option<Result<T>> {
    match Pin::new(pending).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// Runs the whole workload and prints the outcomes.
fn workload() {
    // SAFETY: `alarm` only sets a timer, whose signal ends the process if it hangs.
    unsafe { libc::alarm(WATCHDOG_SECONDS) };
    let mut tally = Tally::default();
    // One runtime after the other; the second one uses events as markers.
    let builders = [Runtime::builder(), Runtime::builder().complete_by_events()];
    for builder in builders {
        let runtime = builder.build().unwrap();
        use_devices(&mut tally, &runtime);
        // The runtime is dropped with work in flight.
        let left = runtime.device(DeviceId::Cuda(0)).and_then(|device| {
            let stream = device.new_stream()?;
            Ok((stream.call(|| 6), stream.hold(), stream.call(|| 7)))
        });
        drop(runtime);
        if let Some((done, gate, held)) = tally.see(left) {
            if let Ok(value) = done.blocking_wait() {
                assert_eq!(value, 6);
            }
            let held = held.blocking_wait();
            assert!(
                gate.is_err() || matches!(&held, Err(error) if error.kind() != ErrorKind::Unordered),
                "{held:?}"
            );
        }
    }
    let failed: Vec<_> = tally.failed.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    let failed = if failed.is_empty() { "-".to_owned() } else { failed.join(", ") };
    println!("\noutcome {} done; {failed}", tally.done);
}

/// Returns the number of calls of each entry point, from the output of the software CUDA driver.
pub(crate) fn counts(said: &str) -> BTreeMap<String, u64> {
    let counted = |line: &str| {
        let (name, count) = line.rsplit(' ').next().and_then(|count| {
            let name = line.strip_suffix(count)?.trim_end().rsplit(' ').next()?;
            Some((name.to_owned(), count.parse().ok()?))
        })?;
        name.starts_with("cu").then_some((name, count))
    };
    said.lines().filter_map(counted).collect()
}

fn outcome(said: &str) -> &str {
    said.lines()
        .find_map(|line| line.strip_prefix("outcome "))
        .unwrap_or_else(|| panic!("no outcome:\n{said}"))
}

/// Checks that the contract, under the settings of its other runs, makes no call that is missing
/// from `calls`.
fn nothing_is_left_out(calls: &BTreeMap<String, u64>, library: (&str, &str)) {
    // In the quick suite the first three run each test once.
    let settings =
        [("SOFTCUDA_PEER", "1"), ("SOFTCUDA_PEER", "0"), ("WARPLINE_COMPLETION", "event"), library];
    let missing: BTreeSet<_> = settings
        .into_iter()
        .enumerate()
        .flat_map(|(number, setting)| {
            let third = Third { number: number % 3, ..Third::default() };
            let variables = [crate::DEVICES, ("SOFTCUDA_COUNTS", "1"), setting];
            counts(&run_third_of_cuda_tests(&third, &variables)).into_keys()
        })
        .filter(|entry| !calls.contains_key(entry) && !FOR_REFUSALS.contains(&entry.as_str()))
        .collect();
    assert!(missing.is_empty(), "the contract calls what the workload does not: {missing:?}");
}

/// Returns a code that this entry point may answer while the device still works.
fn code_of(entry: &str) -> &'static str {
    match entry {
        "cuMemAlloc_v2" | "cuMemHostAlloc" | "cuStreamCreateWithPriority" | "cuEventCreate" => "2",
        "cuModuleLoadDataEx" => "218",
        _ => "1",
    }
}

/// Returns true if this entry point may answer that the context is lost.
fn tells_of_faults(entry: &str) -> bool {
    let asks_about_devices =
        ["cuDevice", "cuGetError", "cuDriver"].iter().any(|name| entry.starts_with(name));
    !asks_about_devices && !matches!(entry, "cuInit" | "cuCtxGetCurrent" | "cuCtxSetCurrent")
}

#[test]
fn whichever_call_fails_nothing_hangs_and_nothing_is_wrong() {
    #[allow(clippy::redundant_closure, reason = "a closure has the name of the test that it is in")]
    let run = |variables: &[(&str, &str)]| in_child(variables, || workload());
    let library = warpline_softcuda::cublas_library().expect("the library was built with this test");
    let library = ("WARPLINE_CUBLAS", library.to_str().expect("a path in UTF-8"));
    let plain = run(&[("SOFTCUDA_COUNTS", "1"), library]);
    let (done, rest) = outcome(&plain).split_once(" done; ").unwrap();
    // A driver that registers no memory refuses registration, and also a second closed gate.
    if !["SOFTCUDA_NO_REGISTER", "SOFTCUDA_CONFIDENTIAL"].iter().any(|name| std::env::var_os(name).is_some())
    {
        assert_eq!(rest, "-", "without faults nothing fails");
    }
    let calls = counts(&plain);
    // Skipped under the switches of the software driver: they do not change which calls are made,
    // and with some of them contract tests hold up their neighbours.
    if !std::env::vars().any(|(name, _)| name.starts_with("SOFTCUDA_")) {
        nothing_is_left_out(&calls, library);
    }
    let mut cases = Vec::new();
    for (at, (entry, &most)) in calls.iter().enumerate() {
        let mut calls = vec![("first", 1), ("middle", most.div_ceil(2)), ("last", most)];
        calls.dedup_by_key(|(_, nth)| *nth);
        if count(true, false) {
            // The quick suite takes one of them, not the same one for each entry point.
            calls = vec![calls[at % calls.len()]];
        }
        for (which, nth) in calls {
            cases.push((entry, which, nth, code_of(entry).to_owned()));
            if tells_of_faults(entry) {
                cases.push((entry, which, nth, "700:sticky".to_owned()));
            }
        }
    }
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((entry, _, nth, code)) = cases.get(at) else { return };
                    let mut nth = *nth;
                    loop {
                        let plan = format!("{entry}:{nth}:{code}");
                        let said = run(&[("SOFTCUDA_FAIL", &plan), library]);
                        if said.contains("fails as planned") {
                            outcomes.lock().unwrap().insert(at, (nth, plan, outcome(&said).to_owned()));
                            break;
                        }
                        assert!(nth > 1, "{entry} was called before, and now never");
                        nth -= nth.div_ceil(8);
                    }
                }
            });
        }
    });
    println!("{} cases; without faults {done} ops are done", cases.len());
    println!("{:<36} {:>6}  {:<8} {:>6}  plan and outcome", "entry point", "calls", "call", "which");
    let outcomes = outcomes.into_inner().unwrap();
    for (at, (entry, which, ..)) in cases.iter().enumerate() {
        let (nth, plan, outcome) = &outcomes[&at];
        println!("{entry:<36} {:>6}  {which:<8} {nth:>6}  {plan}: {outcome}", calls[*entry]);
    }
}
