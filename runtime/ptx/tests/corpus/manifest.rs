//! Reader of `corpus.tsv`, the list of launches.
//!
//! A line of the file is a launch, with these columns between tabs:
//!
//! | column | contents |
//! |---|---|
//! | `file` | the source without `.cu`; its PTX is `ptx/FILE.ptx` |
//! | `kernel` | the name of the entry function |
//! | `grid`, `block` | three sizes between commas |
//! | `shared` | bytes of dynamic shared memory |
//! | `cooperative` | `yes` if the blocks wait for each other, so all must be resident; else `no` |
//! | `parameters` | in order: `NAME:TYPE[LENGTH]=CONTENTS` for an array, `NAME:TYPE=VALUE` for a scalar |
//! | `fault` | `sound`, or the kind of the fault |
//! | `lines` | the lines of the source with the accesses or barriers at fault; `-` if sound |
//!
//! The first report of a fault names one of the lines. If it is a race, it names two accesses, both
//! on such lines, possibly on the same one. Later reports may be consequences on other lines.

use super::fills;
use super::values::{Element, Values};

/// One launch of a kernel.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) file: String,
    pub(crate) kernel: String,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) cooperative: bool,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) fault: Option<Fault>,
}

#[derive(Debug)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    /// Passed by address; otherwise `values` is one scalar, passed by value.
    pub(crate) is_array: bool,
    pub(crate) values: Values,
}

#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) lines: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// Two accesses to the same memory, of which one writes and which nothing orders.
    Race,
    /// An access outside the array's memory.
    Bounds,
    /// A barrier or shuffle that does not get the threads it names.
    Sync,
    /// A read of shared or local memory that nothing wrote.
    Init,
    /// A vector access at an address that is not a multiple of its size.
    Align,
    /// An assertion of the kernel fails.
    Assert,
    /// The kernel executes `trap`.
    Trap,
}

impl Case {
    /// The contents of the array `name` before the launch.
    pub(crate) fn array<T: Element>(&self, name: &str) -> &[T] {
        let parameter = self.parameters.iter().find(|parameter| parameter.name == name);
        let parameter = parameter.unwrap_or_else(|| panic!("{} has no parameter {name}", self.file));
        T::of(&parameter.values)
            .unwrap_or_else(|| panic!("{name} of {} has type {}", self.file, parameter.values.type_name()))
    }

    pub(crate) fn scalar<T: Element>(&self, name: &str) -> T {
        self.array(name)[0]
    }

    pub(crate) fn threads(&self) -> usize {
        self.blocks() * self.threads_per_block()
    }

    pub(crate) fn threads_per_block(&self) -> usize {
        self.block.iter().product::<u32>() as usize
    }

    pub(crate) fn blocks(&self) -> usize {
        self.grid.iter().product::<u32>() as usize
    }
}

/// The launches of `corpus.tsv`.
pub(crate) fn cases() -> Vec<Case> {
    let lines = include_str!("corpus.tsv").lines().skip(1);
    lines.map(|line| case(line).unwrap_or_else(|| panic!("not a launch: {line}"))).collect()
}

fn case(line: &str) -> Option<Case> {
    let columns: Vec<&str> = line.split('\t').collect();
    let &[file, kernel, grid, block, shared, cooperative, parameters, fault, lines] = columns.as_slice()
    else {
        return None;
    };
    Some(Case {
        file: file.to_owned(),
        kernel: kernel.to_owned(),
        grid: sizes(grid)?,
        block: sizes(block)?,
        shared_bytes: shared.parse().ok()?,
        cooperative: cooperative == "yes",
        parameters: (0..)
            .zip(parameters.split(' '))
            .map(|(place, text)| parameter(text, place))
            .collect::<Option<_>>()?,
        fault: match fault {
            "sound" => None,
            _ => Some(Fault {
                kind: fault_kind(fault)?,
                lines: lines.split(',').map(|line| line.parse().ok()).collect::<Option<_>>()?,
            }),
        },
    })
}

fn sizes(text: &str) -> Option<[u32; 3]> {
    let sizes: Option<Vec<u32>> = text.split(',').map(|size| size.parse().ok()).collect();
    sizes?.try_into().ok()
}

fn parameter(text: &str, place: u32) -> Option<Parameter> {
    let (left, value) = text.split_once('=')?;
    let (name, kind) = left.split_once(':')?;
    let (is_array, values) = match kind.split_once('[') {
        Some((element, len)) => {
            (true, fills::fill(value, element, len.trim_end_matches(']').parse().ok()?, place))
        }
        None => (false, fills::scalar(value, kind)),
    };
    Some(Parameter { name: name.to_owned(), is_array, values })
}

fn fault_kind(text: &str) -> Option<FaultKind> {
    Some(match text {
        "race" => FaultKind::Race,
        "bounds" => FaultKind::Bounds,
        "sync" => FaultKind::Sync,
        "init" => FaultKind::Init,
        "align" => FaultKind::Align,
        "assert" => FaultKind::Assert,
        "trap" => FaultKind::Trap,
        _ => return None,
    })
}
