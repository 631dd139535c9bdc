//! Random programs over a few streams and buffers, each named by a number. Tests run them in
//! different ways and compare the results.

use warpline::prelude::*;
use warpline::{Result, kernels, ops};

pub(crate) const STREAMS: usize = 4;
pub(crate) const BUFFERS: usize = 5;
/// The number of elements of a buffer.
pub(crate) const LEN: usize = 24;

/// One step of a program. Its numbers stand for streams, for buffers, or for positions among the
/// events or ops that exist at that point.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Fill(usize, usize, f32),
    /// Copies half of one buffer to the other half of another.
    Copy(usize, usize, usize),
    Add(usize, usize, usize),
    Axpy(usize, usize, usize),
    WaitStream(usize, usize),
    WaitFor(usize, usize),
    Await(usize),
    Record(usize),
    WaitEvent(usize, usize),
    /// Drops a buffer, whose block may be reused immediately, and allocates and fills another one.
    Replace(usize, usize),
}

/// A small random number generator, so that one number determines a program.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(number: u64) -> Self {
        Dice(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

pub(crate) fn program(number: u64) -> Vec<Step> {
    let mut dice = Dice::new(number);
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

/// Returns the streams, and buffers that are allocated on the first one.
pub(crate) fn streams_and_buffers(device: &Device) -> Result<(Vec<Stream>, Vec<Buffer<f32>>)> {
    let streams = (0..STREAMS).map(|_| device.new_stream()).collect::<Result<Vec<_>>>()?;
    let buffers = (0..BUFFERS).map(|_| streams[0].alloc(LEN)).collect::<Result<_>>()?;
    Ok((streams, buffers))
}

/// Returns the initial value of a buffer's elements.
pub(crate) fn first_value(buffer: usize) -> f32 {
    0.5 + buffer as f32
}

/// Enqueues a step on its stream. If it is an op, returns the buffer that it writes and its
/// `Pending`.
pub(crate) fn enqueue(
    step: Step,
    streams: &[Stream],
    buffers: &mut [Buffer<f32>],
    events: &mut Vec<Event>,
) -> Result<Option<(usize, Pending<()>)>> {
    let op = match step {
        Step::Fill(s, b, value) => (b, streams[s].fill(&buffers[b], value)),
        Step::Copy(s, a, b) => {
            let (from, to) = (buffers[a].slice(..LEN / 2)?, buffers[b].slice(LEN / 2..)?);
            (b, streams[s].copy_buffer(&to, &from))
        }
        Step::Add(s, a, b) => (a, streams[s].enter(|| ops::add_(&buffers[a], &buffers[b]))),
        Step::Axpy(s, a, b) => {
            let call = kernels::axpy(LEN as u64, 0.25, &buffers[a], &buffers[b]);
            (b, streams[s].launch(call, LaunchConfig::for_elements(LEN as u32)))
        }
        Step::Replace(s, b) => {
            buffers[b] = streams[s].alloc(LEN)?;
            (b, streams[s].fill(&buffers[b], 100.0 + b as f32))
        }
        Step::WaitStream(s, t) => return streams[s].wait_stream(&streams[t]).queued().map(|()| None),
        Step::WaitFor(s, b) => return streams[s].wait_for(&buffers[b]).queued().map(|()| None),
        Step::Record(s) => {
            events.push(streams[s].record_event());
            return Ok(None);
        }
        Step::WaitEvent(s, nth) if !events.is_empty() => {
            return streams[s].wait_event(&events[nth % events.len()]).queued().map(|()| None);
        }
        Step::WaitEvent(..) | Step::Await(_) => return Ok(None),
    };
    Ok(Some(op))
}
