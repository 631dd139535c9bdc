//! Programs of the shapes that real programs have: many slices, many readers, long chains, streams
//! that come and go.
//!
//! Histories and clocks that are long are kept in other ways than short ones.

use super::{BUFFERS, Part, Refusal, Run, Size, Step, run_programs, step};
use proptest::prelude::*;
use warpline_test_counts::count;

/// A part of a program, which stands for many steps.
#[derive(Clone, Debug)]
enum Shape {
    One(Step),
    /// A stream writes one slice after the other, and perhaps reads all of them each time. Perhaps
    /// it waits for the buffer first, as in the other shapes.
    Slices {
        stream: usize,
        buffer: usize,
        len: usize,
        reads: bool,
        waits: bool,
    },
    /// Each stream waits for one of them, which writes, and reads. Perhaps that one waits for all
    /// others in the end.
    Readers {
        hub: usize,
        buffer: usize,
        part: Part,
        waits: bool,
        gathers: bool,
    },
    /// Each stream writes its own columns.
    Columns {
        buffer: usize,
        rows: usize,
        waits: bool,
    },
    /// Each stream waits for the one before it.
    Chain {
        from: usize,
    },
    /// Streams wait for the buffer, read it, and are closed.
    ComeAndGo {
        stream: usize,
        buffer: usize,
        part: Part,
        times: usize,
    },
}

impl Shape {
    fn steps(&self, size: Size) -> Vec<Step> {
        let refusal = Refusal::LookedAt;
        let write = |stream, buffer, part| Step::Write { stream, buffer, part, refusal };
        let all = 0..size.streams;
        match *self {
            Shape::One(ref step) => vec![step.clone()],
            Shape::Slices { stream, buffer, len, reads, waits } => (0..size.bytes() / len)
                .flat_map(|at| {
                    let wait = (waits && at == 0).then_some(Step::WaitFor { stream, buffer });
                    let read = Step::Read { stream, buffer, part: Part::Slice(0, (at + 1) * len) };
                    let write = write(stream, buffer, Part::Slice(at * len, (at + 1) * len));
                    [wait, Some(write), reads.then_some(read)]
                })
                .flatten()
                .collect(),
            Shape::Readers { hub, buffer, part, waits, gathers } => {
                let wait = |stream, other| Step::WaitStream { stream, other };
                let read = |stream| [wait(stream, hub), Step::Read { stream, buffer, part }];
                let gather = all.clone().filter(|_| gathers).map(|other| wait(hub, other));
                let written = write(hub, buffer, part);
                let first = waits.then_some(Step::WaitFor { stream: hub, buffer });
                first
                    .into_iter()
                    .chain([written.clone()])
                    .chain(all.clone().flat_map(read))
                    .chain(gather)
                    .chain([written])
                    .collect()
            }
            Shape::Columns { buffer, rows, waits } => {
                let width = (size.bytes() / rows / size.streams).max(1);
                all.flat_map(|stream| {
                    let (from, to) = (stream * width, (stream + 1) * width);
                    let wait = waits.then_some(Step::WaitFor { stream, buffer });
                    let fits = to <= size.bytes() / rows;
                    wait.into_iter()
                        .chain(fits.then(|| write(stream, buffer, Part::Columns { rows, from, to })))
                })
                .collect()
            }
            Shape::Chain { from } => (1..size.streams)
                .map(|at| (from + at) % size.streams)
                .map(|stream| Step::WaitStream { stream, other: (stream + size.streams - 1) % size.streams })
                .collect(),
            Shape::ComeAndGo { stream, buffer, part, times } => (0..times)
                .flat_map(|_| {
                    [
                        Step::WaitFor { stream, buffer },
                        Step::Read { stream, buffer, part },
                        Step::Close { stream },
                    ]
                })
                .collect(),
        }
    }
}

/// Returns programs of shapes and of single steps, `singles` of them for each shape.
fn programs(size: Size, singles: u32, len: usize) -> impl Strategy<Value = Vec<Step>> {
    let (stream, buffer, part) = (0..size.streams, 0..BUFFERS, || super::part(size));
    let rows = prop::sample::select(vec![size.side, size.side / 2]);
    let often = || prop::bool::weighted(0.8);
    let shape = prop_oneof![
        5 * singles => step(size).prop_map(Shape::One),
        1 => (stream.clone(), buffer.clone(), 1..4_usize, any::<bool>(), often())
            .prop_map(|(stream, buffer, len, reads, waits)| Shape::Slices { stream, buffer, len, reads, waits }),
        1 => (stream.clone(), buffer.clone(), part(), often(), any::<bool>())
            .prop_map(|(hub, buffer, part, waits, gathers)| Shape::Readers { hub, buffer, part, waits, gathers }),
        1 => (buffer.clone(), rows, often())
            .prop_map(|(buffer, rows, waits)| Shape::Columns { buffer, rows, waits }),
        1 => stream.clone().prop_map(|from| Shape::Chain { from }),
        1 => (stream, buffer, part(), 1..6_usize)
            .prop_map(|(stream, buffer, part, times)| Shape::ComeAndGo { stream, buffer, part, times }),
    ];
    prop::collection::vec(shape, 1..len)
        .prop_map(move |shapes| shapes.iter().flat_map(|shape| shape.steps(size)).collect())
}

#[test]
fn verdicts_agree_on_programs_with_many_slices_and_readers() {
    let size = Size { devices: 1, streams: 6, side: 8 };
    run_programs(count(500, 20_000), programs(size, 4, 30), || Run::recorded(size));
}

#[test]
fn verdicts_agree_on_programs_with_a_thousand_slices_and_readers() {
    let size = Size { devices: 1, streams: 40, side: 32 };
    run_programs(count(1, 8), programs(size, 2, 12), || Run::recorded(size));
}

#[test]
fn verdicts_agree_on_programs_with_a_thousand_streams() {
    let size = Size { devices: 1, streams: 1_000, side: 64 };
    run_programs(count(1, 2), programs(size, 2, 6), || Run::recorded(size));
}
