//! Random programs that have no race by construction.
//!
//! A program is a list of phases, separated by barriers. In a phase, a thread may read any word of
//! one array in shared memory, and writes one word of the other array, which no other thread
//! writes. The arrays take turns. Counters are changed by one commutative operation each, and read
//! in later phases alone.

use proptest::prelude::*;

/// The number of values that a thread computes with.
pub(crate) const VALUES: usize = 6;

/// The operation of each counter. It is commutative and associative.
pub(crate) const COUNTERS: [Arithmetic; 4] =
    [Arithmetic::Add, Arithmetic::Xor, Arithmetic::Max, Arithmetic::Or];

#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Threads of a block, and blocks.
    pub(crate) threads: u32,
    pub(crate) blocks: u32,
    pub(crate) phases: Vec<Phase>,
}

/// The work of all threads of a block up to a barrier.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    /// Statements that whole warps or blocks run together.
    pub(crate) together: Vec<Together>,
    pub(crate) body: Vec<Statement>,
    /// The value that a thread writes at the end, and how far from its own word it does.
    pub(crate) value: usize,
    pub(crate) shift: u32,
    pub(crate) barrier: Barrier,
}

/// An instruction in which threads exchange values.
#[derive(Clone, Debug)]
pub(crate) enum Together {
    /// `d` becomes `a` of another lane: the one with number `lane`, modulo the lanes of the warp.
    Shuffle { d: usize, a: usize, lane: usize },
    /// `d` becomes `a` of the lane that is `distance` before, if there is one.
    ShuffleUp { d: usize, a: usize, distance: u32 },
    /// `d` becomes the mask of the lanes in which `a < b`.
    Ballot { d: usize, a: usize, b: usize },
    /// `d` becomes the number of threads of the block in which `a < b`.
    Count { d: usize, a: usize, b: usize },
}

#[derive(Clone, Debug)]
pub(crate) enum Statement {
    Compute {
        operation: Arithmetic,
        d: usize,
        a: usize,
        b: usize,
    },
    /// `d` becomes the result of a function of `a` and `b`, which branches too.
    Call {
        d: usize,
        a: usize,
        b: usize,
    },
    /// If `a < b`, else.
    If {
        a: usize,
        b: usize,
        then: Vec<Statement>,
        otherwise: Vec<Statement>,
    },
    /// Up to three times, by the lowest bits of `count` before the loop.
    Repeat {
        count: usize,
        body: Vec<Statement>,
    },
    /// `d` becomes a word of the array that this phase reads.
    Read {
        d: usize,
        index: usize,
    },
    /// `d` becomes a counter of the phase before.
    ReadCounter {
        d: usize,
        counter: usize,
    },
    /// Applies a value to a counter of the block, or of the launch.
    Count {
        counter: usize,
        value: usize,
        is_global: bool,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Arithmetic {
    Add,
    Sub,
    Mul,
    And,
    Or,
    Xor,
    Min,
    Max,
    ShiftLeft,
    ShiftRight,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Barrier {
    /// `bar.sync 0`
    All,
    /// `barrier.sync 1`
    Other,
    /// `bar.sync 2` with the number of threads, in whole warps.
    Counted,
}

impl Program {
    pub(crate) fn all_threads(&self) -> u32 {
        self.threads * self.blocks
    }

    /// The number of words of the output.
    pub(crate) fn out_len(&self) -> usize {
        self.all_threads() as usize * VALUES + self.blocks as usize * self.phases.len() * COUNTERS.len()
    }

    /// The input of a thread. The factor spreads the bits; Knuth, "The Art of Computer
    /// Programming", volume 3, 6.4, multiplicative hashing.
    pub(crate) fn input(thread: u32) -> u32 {
        (thread + 1).wrapping_mul(0x9e37_79b1)
    }
}

fn value() -> impl Strategy<Value = usize> {
    0..VALUES
}

fn arithmetic() -> impl Strategy<Value = Arithmetic> {
    use Arithmetic::*;
    prop::sample::select(vec![Add, Sub, Mul, And, Or, Xor, Min, Max, ShiftLeft, ShiftRight])
}

fn statement() -> impl Strategy<Value = Statement> {
    let counter = || 0..COUNTERS.len();
    let leaf = prop_oneof![
        4 => (arithmetic(), value(), value(), value())
            .prop_map(|(operation, d, a, b)| Statement::Compute { operation, d, a, b }),
        1 => (value(), value(), value()).prop_map(|(d, a, b)| Statement::Call { d, a, b }),
        2 => (value(), value()).prop_map(|(d, index)| Statement::Read { d, index }),
        1 => (value(), counter()).prop_map(|(d, counter)| Statement::ReadCounter { d, counter }),
        1 => (counter(), value(), prop::bool::ANY)
            .prop_map(|(counter, value, is_global)| Statement::Count { counter, value, is_global }),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let list = || prop::collection::vec(inner.clone(), 0..4);
        prop_oneof![
            2 => (value(), value(), list(), list())
                .prop_map(|(a, b, then, otherwise)| Statement::If { a, b, then, otherwise }),
            1 => (value(), list()).prop_map(|(count, body)| Statement::Repeat { count, body }),
        ]
    })
}

fn together() -> impl Strategy<Value = Together> {
    prop_oneof![
        (value(), value(), value()).prop_map(|(d, a, lane)| Together::Shuffle { d, a, lane }),
        (value(), value(), 0u32..32).prop_map(|(d, a, distance)| Together::ShuffleUp { d, a, distance }),
        (value(), value(), value()).prop_map(|(d, a, b)| Together::Ballot { d, a, b }),
        (value(), value(), value()).prop_map(|(d, a, b)| Together::Count { d, a, b }),
    ]
}

fn phase() -> impl Strategy<Value = Phase> {
    let barrier = prop::sample::select(vec![Barrier::All, Barrier::Other, Barrier::Counted]);
    let together = prop::collection::vec(together(), 0..3);
    let body = prop::collection::vec(statement(), 0..6);
    (together, body, value(), 0u32..96, barrier).prop_map(|(together, body, value, shift, barrier)| Phase {
        together,
        body,
        value,
        shift,
        barrier,
    })
}

/// Draws a program.
pub(crate) fn any() -> impl Strategy<Value = Program> {
    (1u32..=96, 1u32..=3, prop::collection::vec(phase(), 1..4))
        .prop_map(|(threads, blocks, phases)| Program { threads, blocks, phases })
}
