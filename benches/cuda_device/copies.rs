//! Copies, the overlap of copies with kernels, and allocation.

use crate::support::gpu_kernels::add_one;
use crate::support::{Sample, interleave, ns};
use crate::{Bench, open};
use futures::executor::block_on;
use std::collections::VecDeque;
use std::time::Instant;
use warpline::prelude::*;
use warpline::{Result, WakeUp};

/// Measures copies from page-locked memory to the device, each awaited, against the driver call and
/// `cuStreamSynchronize`.
pub(crate) fn bandwidth(bench: &Bench) {
    let (_runtime, device, raw) = open(WakeUp::Balanced);
    let stream = device.new_stream().expect("a stream");
    for mib in if bench.options.quick { [1, 4] } else { [1, 64] } {
        let len_bytes = mib << 20;
        let times = if mib < 8 { bench.options.scaled(200) } else { bench.options.scaled(20) };
        let buffer = stream.alloc::<u8>(len_bytes).expect("memory");
        let host =
            std::cell::Cell::new(Some(device.blocking_pinned::<u8>(len_bytes).expect("pinned memory")));
        let (theirs, from, to) = (raw.stream(), raw.pinned(len_bytes), raw.memory(len_bytes));
        let gigabytes = |ns: f64| len_bytes as f64 / ns;
        let [ours, by_hand] = interleave(
            bench.options.rounds(15),
            [
                &mut || {
                    gigabytes(ns(times, || {
                        for _ in 0..times {
                            let sent = stream.copy_into(&buffer, host.take().expect("it came back"));
                            host.set(Some(block_on(sent).expect("it runs")));
                        }
                    }))
                },
                &mut || {
                    gigabytes(ns(times, || {
                        for _ in 0..times {
                            // SAFETY: both are live until the stream has been synchronized, and
                            // nothing else uses them.
                            unsafe { theirs.copy_in(to, from) };
                            theirs.synchronize();
                        }
                    }))
                },
            ],
        );
        bench.table.compare(
            &format!("host to device from page-locked memory, {mib} MiB, awaited each"),
            "GB/s",
            &ours,
            ("by the driver's calls", &by_hand),
            "ratio ≥ 0.97",
            |ratio| bench.verdict(ratio >= 0.97),
        );
    }
}

struct Pipeline {
    copy_in: Stream,
    compute: Stream,
    copy_out: Stream,
    chunks: usize,
    /// The number of elements of a chunk.
    len: usize,
    /// The number of additions to each element.
    work: u64,
}

/// The largest number of chunks in flight.
const AHEAD: usize = 4;

impl Pipeline {
    fn launch(&self, x: &Buffer<f32>) -> Pending<()> {
        let n = self.len as u64;
        self.compute.launch(add_one(n, self.work, x), LaunchConfig::for_elements(n))
    }

    /// Copies each chunk in, runs the kernel on it and copies it out, on three streams.
    async fn run(&self, device: &Device) -> Result<()> {
        let mut free = Vec::new();
        for _ in 0..AHEAD {
            free.push(device.pinned::<f32>(self.len).await?);
        }
        let (mut sent, mut back) = (VecDeque::new(), VecDeque::new());
        for _ in 0..self.chunks {
            if sent.len() == AHEAD {
                free.push(sent.pop_front().map(IntoFuture::into_future).expect("some").await?);
                drop(back.pop_front().map(IntoFuture::into_future).expect("some").await?);
            }
            let (x, copied) = self.copy_in.copy_to_device(free.pop().expect("one is free"))?;
            sent.push_back(copied);
            self.compute.wait_stream(&self.copy_in);
            drop(self.launch(&x));
            self.copy_out.wait_stream(&self.compute);
            back.push_back(self.copy_out.copy_to_host(&x));
        }
        for copied in sent {
            copied.await?;
        }
        for copied in back {
            drop::<Pinned<f32>>(copied.await?);
        }
        Ok(())
    }

    /// Returns the seconds of the copies in, the kernels and the copies out, each part alone.
    async fn alone(&self, device: &Device) -> Result<[f64; 3]> {
        let mut host = device.pinned::<f32>(self.len).await?;
        let x = self.copy_in.alloc::<f32>(self.len)?;
        host = self.copy_in.copy_into(&x, host).await?;
        let since = Instant::now();
        for _ in 0..self.chunks {
            host = self.copy_in.copy_into(&x, host).await?;
        }
        let copy_in = since.elapsed();
        self.launch(&x).await?;
        let since = Instant::now();
        for _ in 1..self.chunks {
            drop(self.launch(&x));
        }
        self.launch(&x).await?;
        let compute = since.elapsed();
        self.copy_out.wait_stream(&self.compute);
        drop(self.copy_out.copy_to_host(&x).await?);
        let since = Instant::now();
        for _ in 0..self.chunks {
            drop(self.copy_out.copy_to_host(&x).await?);
        }
        Ok([copy_in, compute, since.elapsed()].map(|time| time.as_secs_f64()))
    }
}

/// Measures copies in, kernels and copies out on three streams, against the longest of the three
/// alone.
pub(crate) fn pipeline(bench: &Bench) {
    let (_runtime, device, _) = open(WakeUp::Balanced);
    let [copy_in, compute, copy_out] = [(); 3].map(|()| device.new_stream().expect("a stream"));
    let (chunks, len) = if bench.options.quick { (8, 1 << 16) } else { (32, 4 << 20) };
    let mut pipeline = Pipeline { copy_in, compute, copy_out, chunks, len, work: 16 };
    // The kernel takes as long as a copy, which is the easiest case to overlap.
    let [copy, over, _] = block_on(pipeline.alone(&device)).expect("it runs");
    if bench.on_gpu {
        pipeline.work = ((16.0 * copy / over) as u64).clamp(1, 1 << 20);
    }
    let [mut share, mut took] = [(); 2].map(|()| Sample::default());
    let mut parts = [0.0; 3];
    for _ in 0..bench.options.rounds(11) {
        parts = block_on(pipeline.alone(&device)).expect("it runs");
        let since = Instant::now();
        block_on(pipeline.run(&device)).expect("it runs");
        let all = since.elapsed().as_secs_f64();
        share.0.push(100.0 * parts.iter().copied().fold(0.0, f64::max) / all);
        took.0.push(1e3 * all);
    }
    let [copy_in, compute, copy_out] = parts.map(|seconds| 1e3 * seconds);
    let what = format!("{chunks} chunks of {} KiB in, over and out on three streams", (len * 4) >> 10);
    bench.table.row(
        &format!("{what}: share of the longest part alone"),
        "%",
        &share,
        "≥ 95",
        None,
        bench.verdict(share.median() >= 95.0),
    );
    bench.table.report(&what, "ms", &took);
    for (part, alone) in [("in", copy_in), ("kernels", compute), ("out", copy_out)] {
        bench.table.report(&format!("{what}: {part} alone"), "ms", alone);
    }
}

/// Measures memory from the cache against the driver's own pool.
pub(crate) fn alloc(bench: &Bench) {
    let (_runtime, device, raw) = open(WakeUp::Balanced);
    let stream = device.new_stream().expect("a stream");
    let theirs = raw.stream();
    let times = bench.options.scaled(5_000);
    // The software driver may free memory late, so the blocks are smaller there.
    let large = if bench.on_gpu { (64 << 20, "64 MiB") } else { (1 << 20, "1 MiB") };
    for (len_bytes, name) in [(4 << 10, "4 KiB"), large] {
        let [ours, by_hand] = interleave(
            bench.options.rounds(11),
            [
                &mut || {
                    ns(times, || {
                        (0..times).for_each(|_| drop(stream.alloc::<u8>(len_bytes).expect("memory")))
                    })
                },
                &mut || {
                    let took = ns(times, || (0..times).for_each(|_| theirs.alloc_and_free(len_bytes)));
                    theirs.synchronize();
                    took
                },
            ],
        );
        bench.table.compare(
            &format!("{name} allocated and freed, cache hit"),
            "ns",
            &ours,
            ("cuMemAllocAsync and cuMemFreeAsync", &by_hand),
            "",
            |_| None,
        );
    }
}
