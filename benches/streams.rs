//! Ten thousand live streams, a hundred ops each, on a handful of threads; against the same ops on eight streams.
//!
//! An op is a kernel on a buffer of the stream's own. Before some of them the stream waits for another, drawn at random: the
//! edge. Measured from the first enqueue until everything is done; nothing is awaited in between, so nothing is forgotten.

mod support;

use std::time::Instant;
use support::measure::short;
use support::process::threads;
use support::{ONE, Options, Sample, Table, counting, ratio, touch_one};
use warpline::prelude::*;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        // xorshift64*, Vigna 2016.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as usize * n) >> 32
    }
}

struct Set {
    streams: Vec<Stream>,
    buffers: Vec<Buffer<f32>>,
}

impl Set {
    fn new(device: &Device, count: usize) -> Self {
        let streams: Vec<_> = (0..count).map(|_| device.new_stream().expect("a stream")).collect();
        let buffers = streams.iter().map(|stream| stream.alloc::<f32>(64).expect("256 bytes")).collect();
        Set { streams, buffers }
    }

    /// Nanoseconds an op, of `ops` ops dealt out in turn, with an edge before `per_mille` in a thousand; and the most threads.
    fn run(&self, device: &Device, ops: usize, per_mille: usize, random: &mut Random) -> (f64, usize) {
        let count = self.streams.len();
        let start = Instant::now();
        let mut most_threads = 0;
        for op in 0..ops {
            let at = op % count;
            let stream = &self.streams[at];
            if random.below(1000) < per_mille {
                let other = (at + 1 + random.below(count - 1)) % count;
                stream.wait_stream(&self.streams[other]);
            }
            stream.launch(touch_one(0.5, &self.buffers[at]), ONE).detach();
            if op % 65_536 == 0 {
                most_threads = most_threads.max(threads());
            }
        }
        most_threads = most_threads.max(threads());
        device.synchronize().blocking_wait().expect("it runs");
        (start.elapsed().as_nanos() as f64 / ops as f64, most_threads)
    }
}

fn main() {
    let options = Options::from_command_line();
    // For a profiler: so many ops on so many streams, and nothing else.
    if let Some((streams, ops)) = &options.only {
        let (_runtime, device) = support::cpu();
        let set = Set::new(&device, streams.parse().expect("a number of streams"));
        set.run(&device, *ops as usize, 20, &mut Random(7));
        return;
    }
    let table = Table::new("streams: ten thousand live streams (ns an op)");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let many = 10_000;
    let ops = options.scaled(1_000_000);

    let (runtime, device) = support::cpu();
    device.new_stream().expect("a stream").synchronize().blocking_wait().expect("nothing to wait for");
    let before = counting::live_bytes();
    let idle: Vec<_> = (0..many).map(|_| device.new_stream().expect("a stream")).collect();
    let never_used = (counting::live_bytes() - before) as f64 / many as f64;
    drop(idle);
    let before = counting::live_bytes();
    let idle: Vec<_> = (0..many).map(|_| device.new_stream().expect("a stream")).collect();
    for stream in &idle {
        for _ in 0..10 {
            stream.launch(support::touch_none(0.5), ONE).detach();
        }
    }
    device.synchronize().blocking_wait().expect("it runs");
    let used = (counting::live_bytes() - before) as f64 / many as f64;
    drop((idle, device, runtime));
    for (name, bytes) in [("that was never used", never_used), ("after ten ops", used)] {
        table.row(
            &format!("bytes an idle stream {name}"),
            &short(bytes),
            "",
            "",
            "",
            "< 2048",
            Some(bytes < 2048.0),
        );
    }

    let mut random = Random(7);
    let (mut crowd, mut few, mut most_threads) = (Sample::default(), Sample::default(), 0);
    for round in 0..=options.rounds(5) {
        // Fresh runtimes: what earlier rounds left in clocks is not this round's.
        let mut took = [0.0; 2];
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for which in order {
            // The workers of the runtime before leave by themselves.
            std::thread::sleep(std::time::Duration::from_millis(50));
            let (_runtime, device) = support::cpu();
            let set = Set::new(&device, [many, 8][which]);
            let (ns, threads) = set.run(&device, ops, 20, &mut random);
            took[which] = ns;
            if which == 0 {
                most_threads = most_threads.max(threads);
            }
        }
        if round > 0 {
            crowd.0.push(took[0]);
            few.0.push(took[1]);
        }
    }
    let slower = ratio(&crowd, &few);
    table.row(
        &format!("{ops} ops on {many} streams, an edge on 2 %"),
        &short(crowd.median()),
        &format!("{} on 8 streams", short(few.median())),
        &short(slower.median()),
        &slower.spread(),
        "≤ 2 ×",
        Some(slower.median() <= 2.0),
    );
    table.row(
        "the most threads of the process meanwhile",
        &most_threads.to_string(),
        "",
        "",
        "",
        &format!("≤ {} (cores + 2)", cores + 2),
        Some(most_threads <= cores + 2),
    );

    // The curve. Clocks grow with the edges, up to one entry a stream, and each edge merges them: so fewer ops, and streams.
    for (count, ops) in [(8, 200_000), (100, 200_000), (1_000, 100_000), (many, 200_000)] {
        let ops = options.scaled(ops);
        let curve: Vec<String> = [0, 10, 20, 50, 100, 200, 500, 1000]
            .into_iter()
            // Ten thousand entries in each of two clocks of ten thousand streams are 3 GB.
            .filter(|per_mille| count < many || ops * per_mille / 1000 <= 4 * count)
            .map(|per_mille| {
                let (_runtime, device) = support::cpu();
                let set = Set::new(&device, count);
                let (ns, _) = set.run(&device, ops, per_mille, &mut random);
                format!("{} %: {}", per_mille as f64 / 10.0, short(ns))
            })
            .collect();
        table.note(&format!("{count} streams, {ops} ops, edge on …"), &curve.join(", "));
    }
}
