//! Ten thousand live streams with a hundred ops each, on a handful of threads, compared with the
//! same ops on eight streams.
//!
//! An op is a kernel on a buffer that belongs to its stream. Before some ops the stream waits for
//! another stream, drawn at random: the edge. The time runs from the first enqueue until all work
//! has finished. Nothing is awaited in between, so the host observes no completion and the order
//! check forgets nothing.

mod support;

use std::time::Instant;
use support::process::threads;
use support::random::Random;
use support::{Figure, ONE, Options, Sample, Table, counting, touch_one};
use warpline::prelude::*;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

/// The goals for 1 000 streams: the percentage of ops with an edge, and nanoseconds an op.
const GOALS: [(usize, u32); 2] = [(10, 400), (100, 1500)];

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

    /// Enqueues `ops` ops round-robin, `per_mille` in a thousand of them after an edge, and waits
    /// for all. Returns the nanoseconds per op and the largest number of threads seen.
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
    // For a profiler: a given number of ops on a given number of streams, and nothing else.
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
        table.row(&format!("an idle stream {name}"), "B", bytes, "< 2048", None, Some(bytes < 2048.0));
    }

    let mut random = Random(7);
    let (mut crowd, mut few, mut most_threads) = (Sample::default(), Sample::default(), 0);
    for round in 0..=options.rounds(5) {
        // Fresh runtimes, because clocks would keep what earlier rounds left in them.
        let mut took = [0.0; 2];
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for which in order {
            // Gives the workers of the previous runtime the time to exit.
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
    let what = format!("{ops} ops on {many} streams, an edge on 2 %");
    let rival = ("on 8 streams", &few);
    table.compare(&what, "ns an op", &crowd, rival, "ratio ≤ 2", |ratio| Some(ratio <= 2.0));
    table.row(
        &format!("{what}: the most threads of the process"),
        "",
        Figure::count(most_threads),
        &format!("≤ {} (cores + 2)", cores + 2),
        None,
        Some(most_threads <= cores + 2),
    );

    // The cost by the share of ops with an edge. Clocks grow with the edges, up to one entry per
    // stream, and each edge merges two of them. Hence fewer ops here.
    let mut most_bytes = 0;
    let mut left_bytes = 0;
    for (count, ops) in [(8, 200_000), (100, 200_000), (1_000, 100_000), (many, 200_000)] {
        let ops = options.scaled(ops);
        for percent in [0, 1, 2, 5, 10, 20, 50, 100] {
            let before = counting::live_bytes();
            let (_runtime, device) = support::cpu();
            let set = Set::new(&device, count);
            let (ns, _) = set.run(&device, ops, percent * 10, &mut random);
            if (count, percent) == (many, 100) {
                most_bytes = counting::live_bytes() - before;
                // A stream drops its clock when it is awaited after all that it waited for was
                // observed.
                device.synchronize().blocking_wait().expect("it runs");
                left_bytes = counting::live_bytes() - before;
            }
            let goal = GOALS.iter().find(|goal| count == 1_000 && goal.0 == percent).map(|goal| goal.1);
            let text = goal.map_or(String::new(), |goal| format!("≤ {goal}"));
            let met = goal.map(|goal| ns <= f64::from(goal));
            let what = format!("{count} streams, {ops} ops, an edge on {percent} %");
            table.row(&what, "ns an op", ns, &text, None, met);
        }
    }
    let mib = |bytes: u64| Figure::count(format!("{:.0}", bytes as f64 / f64::from(1 << 20)));
    let what = format!("{many} streams with an edge on each op: memory");
    table.row(&what, "MiB", mib(most_bytes), "≤ 1024", None, Some(most_bytes <= 1 << 30));
    table.report(&format!("{what} after all was awaited"), "MiB", mib(left_bytes));
}
