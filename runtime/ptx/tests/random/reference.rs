//! Runs a program as its definition says: one phase after the other, one thread after the other.

use crate::Outcome;
use crate::program::{Arithmetic, COUNTERS, Phase, Program, Statement, Together, VALUES};

type Values = [u32; VALUES];
type Counters = [u32; COUNTERS.len()];

impl Arithmetic {
    fn of(self, a: u32, b: u32) -> u32 {
        match self {
            Arithmetic::Add => a.wrapping_add(b),
            Arithmetic::Sub => a.wrapping_sub(b),
            Arithmetic::Mul => a.wrapping_mul(b),
            Arithmetic::And => a & b,
            Arithmetic::Or => a | b,
            Arithmetic::Xor => a ^ b,
            Arithmetic::Min => a.min(b),
            Arithmetic::Max => a.max(b),
            // PTX ISA 9.7.8.8, shl: "Shift amounts greater than the register width N are clamped".
            Arithmetic::ShiftLeft => a.checked_shl(b).unwrap_or(0),
            Arithmetic::ShiftRight => a.checked_shr(b).unwrap_or(0),
        }
    }
}

/// The function that [`Statement::Call`] calls.
fn mix(a: u32, b: u32) -> u32 {
    if a < b { a.wrapping_mul(5) ^ b } else { a.wrapping_sub(b) }
}

/// The memory of a block during a phase.
struct Memory<'a> {
    /// The array that the phase reads.
    front: &'a [u32],
    earlier: Counters,
    counters: Counters,
    global: &'a mut Counters,
}

fn execute(statements: &[Statement], v: &mut Values, memory: &mut Memory<'_>) {
    for statement in statements {
        match statement {
            Statement::Compute { operation, d, a, b } => v[*d] = operation.of(v[*a], v[*b]),
            Statement::Call { d, a, b } => v[*d] = mix(v[*a], v[*b]),
            Statement::If { a, b, then, .. } if v[*a] < v[*b] => execute(then, v, memory),
            Statement::If { otherwise, .. } => execute(otherwise, v, memory),
            Statement::Repeat { count, body } => {
                for _ in 0..v[*count] & 3 {
                    execute(body, v, memory);
                }
            }
            Statement::Read { d, index } => {
                v[*d] = memory.front[v[*index] as usize % memory.front.len()];
            }
            Statement::ReadCounter { d, counter } => v[*d] = memory.earlier[*counter],
            Statement::Count { counter, value, is_global } => {
                let counters = if *is_global { &mut *memory.global } else { &mut memory.counters };
                counters[*counter] = COUNTERS[*counter].of(counters[*counter], v[*value]);
            }
        }
    }
}

/// Runs an instruction of all threads of a block.
fn execute_together(together: &Together, threads: &mut [Values]) {
    if let Together::Count { d, a, b } = together {
        let count = threads.iter().filter(|v| v[*a] < v[*b]).count() as u32;
        threads.iter_mut().for_each(|v| v[*d] = count);
    }
    for warp in threads.chunks_mut(32) {
        let before = warp.to_vec();
        match together {
            Together::Shuffle { d, a, lane } => {
                for (v, own) in warp.iter_mut().zip(&before) {
                    v[*d] = before[own[*lane] as usize % before.len()][*a];
                }
            }
            Together::ShuffleUp { d, a, distance } => {
                for (lane, v) in warp.iter_mut().enumerate() {
                    v[*d] = before[lane.checked_sub(*distance as usize).unwrap_or(lane)][*a];
                }
            }
            Together::Ballot { d, a, b } => {
                let bit = |(lane, v): (usize, &Values)| u32::from(v[*a] < v[*b]) << lane;
                let mask = before.iter().enumerate().map(bit).sum();
                warp.iter_mut().for_each(|v| v[*d] = mask);
            }
            Together::Count { .. } => {}
        }
    }
}

/// Returns the outcome of a program.
pub(crate) fn run(program: &Program) -> Outcome {
    let (mut out, mut global) = (Vec::new(), Counters::default());
    let mut tail = Vec::new();
    for block in 0..program.blocks {
        let mut threads: Vec<Values> = (0..program.threads)
            .map(|thread| {
                let all = block * program.threads + thread;
                [all, thread, block, Program::input(all), !all, 0]
            })
            .collect();
        let mut front: Vec<u32> = threads.iter().map(|v| v[3]).collect();
        let mut earlier = Counters::default();
        for Phase { together, body, value, shift, .. } in &program.phases {
            together.iter().for_each(|together| execute_together(together, &mut threads));
            let mut memory =
                Memory { front: &front, earlier, counters: Counters::default(), global: &mut global };
            threads.iter_mut().for_each(|v| execute(body, v, &mut memory));
            earlier = memory.counters;
            tail.extend(earlier);
            let mut back = vec![0; front.len()];
            for (thread, v) in threads.iter().enumerate() {
                back[(thread + *shift as usize) % front.len()] = v[*value];
            }
            front = back;
        }
        out.extend(threads.iter().flatten());
    }
    out.extend(tail);
    Outcome { out, counters: global.to_vec() }
}
