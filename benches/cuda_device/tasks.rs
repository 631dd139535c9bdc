//! Many tasks that await kernels on few streams.

use crate::support::gpu_kernels::{BUSY, busy};
use crate::support::process::Usage;
use crate::support::{ONE, Sample};
use crate::{Bench, WAKE_UPS, open};
use std::time::Instant;
use warpline::prelude::*;

const STREAMS: usize = 32;
const TASKS: usize = 1_000;
/// The duration of each kernel.
const KERNEL_NS: u64 = 5_000;

/// Measures 1 000 tasks, each awaiting kernels one by one on one of 32 streams, against 32 threads
/// that synchronize.
pub(crate) fn a_thousand(bench: &Bench) {
    let awaits = bench.options.scaled(20);
    let total = (TASKS * awaits) as f64;
    let threads = std::thread::available_parallelism().map_or(2, usize::from).min(8);
    let tokio =
        tokio::runtime::Builder::new_multi_thread().worker_threads(threads).build().expect("a runtime");
    for (wake_up, name) in WAKE_UPS {
        let (_runtime, device, raw) = open(wake_up);
        let streams: Vec<Stream> = (0..STREAMS).map(|_| device.new_stream().expect("a stream")).collect();
        streams[0].launch(busy(KERNEL_NS), ONE).blocking_wait().expect("it runs");
        let theirs: Vec<_> = (0..STREAMS).map(|_| raw.stream()).collect();
        let kernel = raw.kernel(BUSY, "busy");
        let [mut ours, mut by_hand, mut cpu, mut their_cpu] = [(); 4].map(|()| Sample::default());
        for _ in 0..bench.options.rounds(7) {
            let (before, since) = (Usage::now(), Instant::now());
            tokio.block_on(async {
                let tasks: Vec<_> = (0..TASKS)
                    .map(|task| {
                        let stream = streams[task % STREAMS].clone();
                        tokio.spawn(async move {
                            for _ in 0..awaits {
                                stream.launch(busy(KERNEL_NS), ONE).await.expect("it runs");
                            }
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await.expect("it ends");
                }
            });
            ours.0.push(total / since.elapsed().as_secs_f64());
            cpu.0.push(Usage::now().since(&before).cpu.as_nanos() as f64 / total);

            let (before, since) = (Usage::now(), Instant::now());
            std::thread::scope(|scope| {
                for &stream in &theirs {
                    scope.spawn(move || {
                        raw.bind();
                        for _ in 0..(total as usize / STREAMS) {
                            stream.launch(kernel, &mut [KERNEL_NS]);
                            stream.synchronize();
                        }
                    });
                }
            });
            by_hand.0.push(total / since.elapsed().as_secs_f64());
            their_cpu.0.push(Usage::now().since(&before).cpu.as_nanos() as f64 / total);
        }
        let rival = format!("{STREAMS} threads that synchronize");
        let what = format!("{TASKS} tasks on {STREAMS} streams, kernels of {} µs, {name}", KERNEL_NS / 1000);
        bench.table.compare(&what, "awaits/s", &ours, (&rival, &by_hand), "", |_| None);
        let what = format!("{what}: CPU time an await");
        bench.table.compare(&what, "ns", &cpu, (&rival, &their_cpu), "", |_| None);
    }
}
