//! The memory that a device reserves, against what a program needs: the peak of its live bytes
//! and, where streams run ahead, of what their unfinished work still uses.
//!
//! The programs draw lengths with a fixed seed. Of each buffer only the first element is written,
//! so the system provides little of the memory.

mod support;

use support::random::Random;
use support::{ONE, Options, Table, touch_one};
use warpline::BlockState;
use warpline::prelude::*;

const MIB: usize = 1 << 20;

/// A program that holds memory: one that always grows, one of random lengths, and one that appends
/// to a list, which it copies to a longer buffer each time.
#[derive(Clone, Copy, Debug)]
enum Pattern {
    Growing,
    Random,
    Append,
}

/// The buffers of a program, and the highest sum of their lengths.
#[derive(Default)]
struct Held {
    buffers: Vec<Buffer<f32>>,
    live: usize,
    most: usize,
}

impl Held {
    fn alloc(&mut self, stream: &Stream, len: usize) {
        let buffer = stream.alloc::<f32>(len / 4).expect("memory");
        stream.launch(touch_one(1.0, &buffer), ONE).detach();
        self.buffers.push(buffer);
        self.live += len;
        self.most = self.most.max(self.live);
    }

    fn drop(&mut self, at: usize) {
        self.live -= self.buffers.swap_remove(at).len() * 4;
    }
}

/// How far the host runs ahead of the device.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ahead {
    /// Each step is awaited.
    No,
    /// Nothing is awaited, and the device runs meanwhile.
    Yes,
    /// The device does nothing until the program ends, because nothing is awaited.
    Wholly,
}

/// Runs a program on `streams` streams. Returns the most bytes that were reserved, and the most
/// that were live or, with `busy`, live or in use by unfinished work.
fn run(pattern: Pattern, streams: usize, ahead: Ahead, busy: bool, steps: usize) -> (usize, usize) {
    let schedule = if ahead == Ahead::Wholly { Schedule::Seeded(1) } else { Schedule::Threads };
    let runtime = Runtime::builder().schedule(schedule).build().expect("a CPU runtime");
    let device = runtime.device(DeviceId::Cpu(0)).expect("cpu:0");
    let streams: Vec<Stream> = (0..streams).map(|_| device.new_stream().expect("a stream")).collect();
    let (mut held, mut random) = (Held::default(), Random(9));
    for step in 0..steps {
        let stream = &streams[step % streams.len()];
        match pattern {
            Pattern::Growing => {
                if step > 0 {
                    held.drop(0);
                }
                held.alloc(stream, (step + 1) * 10 * MIB);
            }
            Pattern::Random => {
                if held.buffers.len() == 8 {
                    held.drop(random.below(8));
                }
                held.alloc(stream, (1 + random.below(64 << 11)) * 512);
            }
            Pattern::Append => {
                held.alloc(stream, (step + 1) * 3 * MIB / 2);
                if held.buffers.len() > 1 {
                    held.drop(0);
                }
            }
        }
        if ahead == Ahead::No {
            stream.synchronize().blocking_wait().expect("the work succeeds");
        }
        if busy {
            let snapshot = device.memory_snapshot();
            let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
            let used = blocks.filter(|block| matches!(block.state, BlockState::Live | BlockState::Waiting));
            held.most = held.most.max(used.map(|block| block.len_bytes).sum());
        }
    }
    (device.memory_stats().peak_reserved_bytes, held.most)
}

fn main() {
    let options = Options::from_command_line();
    let table = Table::new("memory: reserved against what the program needs");
    for pattern in [Pattern::Growing, Pattern::Random, Pattern::Append] {
        let steps = if matches!(pattern, Pattern::Growing) { 48 } else { options.scaled(400) };
        let row = |what: &str, needs: &str, (reserved, most): (usize, usize)| {
            let ratio = reserved as f64 / most as f64;
            let name = format!("{pattern:?} lengths, {what}: reserved / {needs}");
            table.row(&name, "", ratio, "≤ 1.3", None, Some(ratio <= 1.3));
        };
        for streams in [1, 2, 4] {
            let what = format!("each step awaited, streams: {streams}");
            row(&what, "peak of live", run(pattern, streams, Ahead::No, false, steps));
        }
        let what = "running ahead, streams: 1";
        row(what, "peak of live", run(pattern, 1, Ahead::Wholly, false, steps));
        for streams in [2, 4] {
            let what = format!("running ahead, streams: {streams}");
            row(&what, "peak of live and used", run(pattern, streams, Ahead::Yes, true, steps));
        }
    }
}
