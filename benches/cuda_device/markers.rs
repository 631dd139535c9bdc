//! The cost of a marker for the host that enqueues it and for the device that executes it, by
//! direct driver calls.

use crate::support::ONE;
use crate::support::Sample;
use crate::support::by_hand::{Raw, RawStream};
use crate::support::gpu_kernels::{BUSY, STAMP, busy, stamp};
use crate::support::ns;
use crate::{Bench, open};
use std::sync::Barrier;
use std::sync::atomic::AtomicU64;
use warpline::WakeUp;

/// The number of calls between two synchronizations, so that no queue fills.
const AT_A_TIME: usize = 256;

/// Measures enqueuing the write of a word against recording an event, on 1, 4 and 16 threads with a
/// stream each.
pub(crate) fn enqueue(bench: &Bench) {
    let (_runtime, _device, raw) = open(WakeUp::Balanced);
    let times = bench.options.scaled(20_480).next_multiple_of(AT_A_TIME);
    for threads in [1, 4, 16] {
        let (mut words, mut events) = (Sample::default(), Sample::default());
        for _ in 0..bench.options.rounds(7) {
            words.0.push(on_threads(raw, threads, times, |raw| {
                let (word, mut value) = (raw.word(), 0);
                move |stream: RawStream| {
                    value += 1;
                    stream.write(word, value);
                }
            }));
            events.0.push(on_threads(raw, threads, times, |raw| {
                let event = raw.event();
                move |stream: RawStream| {
                    stream.record(event);
                }
            }));
        }
        let what = format!("enqueuing a word's write, {threads} threads");
        bench.table.compare(&what, "ns", &words, ("recording an event", &events), "", |_| None);
    }
}

/// Returns the mean time of a call over all threads.
fn on_threads<F: FnMut(RawStream)>(
    raw: Raw,
    threads: usize,
    times: usize,
    make: impl Fn(Raw) -> F + Sync,
) -> f64 {
    let barrier = Barrier::new(threads);
    let took: Vec<f64> = std::thread::scope(|scope| {
        let spawned: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    raw.bind();
                    let (stream, mut call) = (raw.stream(), make(raw));
                    call(stream);
                    stream.synchronize();
                    barrier.wait();
                    let mut total = 0.0;
                    for _ in 0..times / AT_A_TIME {
                        total += ns(times, || (0..AT_A_TIME).for_each(|_| call(stream)));
                        stream.synchronize();
                    }
                    total
                })
            })
            .collect();
        spawned.into_iter().map(|thread| thread.join().expect("it ends")).collect()
    });
    took.iter().sum::<f64>() / threads as f64
}

/// Measures how much a marker between two kernels of a stream adds to the time from one to the
/// next, by the clock of the device.
pub(crate) fn gap(bench: &Bench) {
    const KERNELS: u64 = 50;
    static CALLED: AtomicU64 = AtomicU64::new(0);
    let (_runtime, device, raw) = open(WakeUp::Balanced);
    let stream = device.new_stream().expect("a stream");
    let times = stream.alloc::<u64>(KERNELS as usize).expect("memory");
    stream.fill(&times, 0).blocking_wait().expect("it runs");
    // Loads both kernels and makes them known to the software driver.
    drop(stream.launch(busy(1_000), ONE));
    stream.launch(stamp(0, &times), ONE).blocking_wait().expect("it runs");
    let (mine, hold, stamp) = (raw.stream(), raw.kernel(BUSY, "busy"), raw.kernel(STAMP, "stamp"));
    let (word, event, at) = (raw.word(), raw.event(), raw.memory(8 * KERNELS as usize));
    let host = raw.pinned(8 * KERNELS as usize);
    let betweens: [(&str, &dyn Fn(u64)); 4] = [
        ("nothing", &|_| ()),
        ("a word's write", &|value| assert_eq!(mine.write(word, value), 0)),
        ("an event", &|_| assert_eq!(mine.record(event), 0)),
        ("a host function", &|_| assert_eq!(mine.count_up(&CALLED), 0)),
    ];
    let mut samples = [(); 4].map(|()| Sample::default());
    for round in 0..bench.options.rounds(21) as u64 {
        for (sample, (_, between)) in samples.iter_mut().zip(betweens) {
            // The first kernel holds the stream until everything is in the queue.
            mine.launch(hold, &mut [3_000_000]);
            for kernel in 0..KERNELS {
                mine.launch(stamp, &mut [kernel, at, KERNELS]);
                between(round * KERNELS + kernel + 1);
            }
            assert_eq!(mine.synchronize(), 0);
            let times = read(host, at, mine);
            let mut gaps = Sample(times.windows(2).map(|two| two[1].saturating_sub(two[0]) as f64).collect());
            gaps.0.sort_by(f64::total_cmp);
            // The mean, because the steps of the clock may be longer than a gap.
            sample.0.push(gaps.0.iter().sum::<f64>() / gaps.0.len() as f64);
        }
    }
    for (sample, (name, _)) in samples.iter().zip(betweens) {
        let what = format!("from one kernel to the next with {name} between, by the device's clock");
        bench.table.report(&what, "ns", sample);
    }
}

fn read(host: &mut [u8], at: u64, stream: RawStream) -> Vec<u64> {
    stream.copy_out(host, at);
    host.chunks_exact(8).map(|bytes| u64::from_ne_bytes(bytes.try_into().expect("eight"))).collect()
}
