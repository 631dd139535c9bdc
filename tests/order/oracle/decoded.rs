//! Programs from the bytes of a fuzzer: eight bytes a step.

use super::{BUFFERS, Part, Refusal, Run, Size, Step};

const SIZE: Size = Size::SMALL;

/// The longest program, as in the random tests.
const STEPS: usize = 60;

/// Runs the program that `bytes` encode over the recording driver.
pub(crate) fn run(bytes: &[u8]) {
    let mut run = Run::recorded(SIZE);
    let (steps, _) = bytes.as_chunks();
    steps.iter().take(STEPS).for_each(|bytes| run.step(&step(bytes)));
}

fn step(&[kind, one, two, three, four, five, six, seven]: &[u8; 8]) -> Step {
    let (stream, other) = (usize::from(one) % SIZE.streams, usize::from(two) % SIZE.streams);
    let (buffer, any) = (usize::from(two) % BUFFERS, usize::from(two));
    let from = part(three, four);
    let refusal = if seven & 1 == 0 { Refusal::LookedAt } else { Refusal::Dropped };
    match kind % 15 {
        0 => Step::Read { stream, buffer, part: from },
        1 => Step::Write { stream, buffer, part: from, refusal },
        2 => {
            let to = (usize::from(seven >> 1) % BUFFERS, part(five, six));
            Step::Copy { stream, from: (buffer, from), to, refusal }
        }
        3 => Step::External {
            stream,
            buffer,
            part: from,
            writes: five & 1 == 0,
            fails: five % 6 == 5,
            refusal,
        },
        4 => Step::WaitStream { stream, other },
        5 => Step::Record { stream },
        6 => Step::WaitEvent { stream, event: any },
        7 => Step::WaitFor { stream, buffer },
        8 => Step::AwaitOp { op: any },
        9 => Step::AwaitEvent { event: any },
        10 => Step::Synchronize { stream },
        11 => Step::Accept { buffer, part: from },
        12 => Step::Progress,
        13 => Step::Replace { stream, buffer },
        _ => Step::Close { stream },
    }
}

fn part(a: u8, b: u8) -> Part {
    let ends = |n: usize| {
        let (a, b) = (usize::from(a / 2) % n, usize::from(b) % n);
        (a.min(b), a.max(b) + 1)
    };
    if a.is_multiple_of(2) {
        let (from, to) = ends(SIZE.bytes());
        Part::Slice(from, to)
    } else {
        let rows = if a & 2 == 0 { SIZE.side } else { SIZE.side / 2 };
        let (from, to) = ends(SIZE.bytes() / rows);
        Part::Columns { rows, from, to }
    }
}
