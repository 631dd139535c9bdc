//! Whatever `deny` accepts gives the same verdicts and the same bytes under every interleaving, blocking or asynchronous.

mod support;

use warpline::prelude::*;
use warpline::testing::for_each_seed;
use warpline::{kernels, ops};

const STREAMS: usize = 4;
const BUFFERS: usize = 5;
const LEN: usize = 24;

#[derive(Clone, Copy, Debug)]
enum Step {
    Fill(usize, usize, f32),
    /// Half of one buffer to the other half of another.
    Copy(usize, usize, usize),
    Add(usize, usize, usize),
    Axpy(usize, usize, usize),
    WaitStream(usize, usize),
    WaitFor(usize, usize),
    Await(usize),
    Record(usize),
    WaitEvent(usize, usize),
    /// Drops a buffer, whose block may be used again at once, and allocates and fills another.
    Replace(usize, usize),
}

/// A small generator of our own, so that a program is one number.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

fn program(number: u64) -> Vec<Step> {
    let mut dice = Dice(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1);
    let length = 20 + dice.below(60);
    (0..length)
        .map(|at| {
            let (stream, buffer) = (dice.below(STREAMS), dice.below(BUFFERS));
            let other = (buffer + 1 + dice.below(BUFFERS - 1)) % BUFFERS;
            match dice.below(16) {
                0 => Step::Fill(stream, buffer, at as f32),
                1..3 => Step::Copy(stream, buffer, other),
                3 | 4 => Step::Add(stream, buffer, other),
                5 => Step::Axpy(stream, buffer, other),
                6..10 => Step::WaitStream(stream, dice.below(STREAMS)),
                10 | 11 => Step::WaitFor(stream, buffer),
                12 => Step::Await(dice.below(8)),
                13 => Step::Record(stream),
                14 => Step::WaitEvent(stream, dice.below(8)),
                _ => Step::Replace(stream, buffer),
            }
        })
        .collect()
}

/// What a run of a program shows: which ops were accepted, and what the buffers hold at the end.
#[derive(Clone, Debug, PartialEq)]
struct Outcome {
    accepted: Vec<bool>,
    bytes: Vec<Vec<u32>>,
}

/// Runs a program; `wait` is how the host waits.
macro_rules! run {
    ($device:expr, $steps:expr, $wait:ident) => {{
        let device: &Device = $device;
        let streams: Vec<Stream> = (0..STREAMS).map(|_| device.new_stream()).collect::<Result<_, _>>()?;
        let mut buffers = Vec::new();
        for at in 0..BUFFERS {
            let buffer = streams[0].alloc::<f32>(LEN)?;
            $wait!(streams[0].fill(&buffer, 0.5 + at as f32))?;
            buffers.push(buffer);
        }
        let mut accepted = Vec::new();
        let mut pending = Vec::new();
        let mut events = Vec::new();
        for &step in $steps {
            let (written, op) = match step {
                Step::Fill(s, b, value) => (b, streams[s].fill(&buffers[b], value)),
                Step::Copy(s, a, b) => {
                    let (from, to) = (buffers[a].slice(..LEN / 2)?, buffers[b].slice(LEN / 2..)?);
                    (b, streams[s].copy(&from, &to))
                }
                Step::Add(s, a, b) => (a, streams[s].enter(|| ops::add_(&buffers[a], &buffers[b]))),
                Step::Axpy(s, a, b) => {
                    let call = kernels::axpy(LEN as u64, 0.25, &buffers[a], &buffers[b]);
                    (b, streams[s].launch(call, LaunchConfig::for_elements(LEN as u32)))
                }
                Step::WaitStream(s, t) => {
                    streams[s].wait_stream(&streams[t]);
                    continue;
                }
                Step::WaitFor(s, b) => {
                    streams[s].wait_for(&buffers[b]);
                    continue;
                }
                Step::Await(nth) => {
                    if !pending.is_empty() {
                        let op: Pending<()> = pending.swap_remove(nth % pending.len());
                        $wait!(op)?;
                    }
                    continue;
                }
                Step::Record(s) => {
                    events.push(streams[s].record_event());
                    continue;
                }
                Step::WaitEvent(s, nth) => {
                    if !events.is_empty() {
                        streams[s].wait_event(&events[nth % events.len()]);
                    }
                    continue;
                }
                Step::Replace(s, b) => {
                    buffers[b] = streams[s].alloc(LEN)?;
                    (b, streams[s].fill(&buffers[b], 100.0 + b as f32))
                }
            };
            accepted.push(op.ticket().is_some());
            if op.ticket().is_some() {
                pending.push(op);
            } else {
                assert_eq!(op.queued().unwrap_err().kind(), ErrorKind::Unordered);
                buffers[written].accept_contents();
            }
        }
        $wait!(device.synchronize())?;
        let mut bytes = Vec::new();
        for buffer in &buffers {
            bytes.push($wait!(streams[0].read(buffer))?.iter().map(|x| x.to_bits()).collect());
        }
        Ok::<Outcome, Error>(Outcome { accepted, bytes })
    }};
}

macro_rules! asynchronous {
    ($pending:expr) => {
        $pending.await
    };
}

macro_rules! blocking {
    ($pending:expr) => {
        $pending.wait()
    };
}

fn run_blocking(device: &Device, steps: &[Step]) -> warpline::Result<Outcome> {
    run!(device, steps, blocking)
}

async fn run_async(device: Device, steps: &[Step]) -> warpline::Result<Outcome> {
    run!(&device, steps, asynchronous)
}

#[test]
fn what_deny_accepts_gives_the_same_bytes_for_200_seeds_and_under_threads() {
    let (mut ops, mut refused) = (0, 0);
    for number in 0..60 {
        let steps = program(number);
        let (_runtime, device, []) = support::streams([]);
        let expected = run_blocking(&device, &steps).unwrap();
        let again = futures::executor::block_on(run_async(device, &steps)).unwrap();
        assert_eq!(expected, again, "program {number}, blocking and asynchronous under threads: {steps:?}");
        ops += expected.accepted.len();
        refused += expected.accepted.iter().filter(|&&accepted| !accepted).count();
        for_each_seed(200 * number..200 * (number + 1), |device| {
            let (steps, expected) = (&steps, &expected);
            async move {
                assert_eq!(&run_async(device, steps).await?, expected, "program {number}: {steps:?}");
                Ok(())
            }
        });
    }
    assert!(
        ops / 5 < refused && refused < ops / 5 * 4,
        "{refused} of {ops} refused: the programs say little"
    );
}
