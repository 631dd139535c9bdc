//! Calls of a group, the sequences that they form, and fingerprints of sequences.

use crate::Rank;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The combination of the ranks' values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reduce {
    /// Adds them.
    Sum,
    /// Multiplies them.
    Product,
    /// Takes the smallest one.
    Min,
    /// Takes the largest one.
    Max,
    /// Adds them, and divides by the number of ranks.
    Mean,
}

/// The type of the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say all")]
pub enum Element {
    Bool,
    U8,
    I8,
    I32,
    U32,
    I64,
    U64,
    F16,
    Bf16,
    F32,
    F64,
}

/// The sort of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Every rank gets the combined values of all.
    AllReduce(Reduce),
    /// The root gets the combined values of all.
    Reduce(Reduce, Rank),
    /// Every rank gets the values of the root.
    Broadcast(Rank),
    /// Every rank gets the values of all, in the order of the ranks.
    AllGather,
    /// Each rank gets its share of the combined values.
    ReduceScatter(Reduce),
    /// No rank passes before all have called it.
    Barrier,
    /// The values go to this rank.
    Send(Rank),
    /// The values come from this rank.
    Receive(Rank),
}

/// The calls that the same ranks have to make in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Sequence {
    /// The collective calls of all ranks.
    Collectives,
    /// The messages from one rank to another one.
    Messages {
        /// The rank that sends.
        from: Rank,
        /// The rank that receives.
        to: Rank,
    },
}

/// The terms of a call, about which the ranks of a sequence have to agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Call {
    /// The sort of the call, with its root or peer.
    pub kind: Kind,
    /// The type of the elements.
    pub element: Element,
    /// The number of elements that each rank passes. A barrier has none.
    pub length: u64,
    /// True if it is in one submission with the call before it. Not compared of messages: the two
    /// ends of an exchange submit them in different orders.
    pub joined: bool,
    /// The collective calls that the rank has made before it in other groups of the same ranks,
    /// dropped ones too. Engines can block forever if ranks use two groups in different orders.
    pub beside: u64,
    /// Of a message: the collective calls of the group before it.
    pub collectives: u64,
}

/// A call and the line that made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// The call.
    pub call: Call,
    /// The source file and the line.
    pub site: String,
}

/// A hash of all calls of a sequence up to a position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fingerprint(pub u64);

impl Kind {
    /// Returns the sequence of this call of `rank`.
    pub fn sequence(self, rank: Rank) -> Sequence {
        match self {
            Kind::Send(to) => Sequence::Messages { from: rank, to },
            Kind::Receive(from) => Sequence::Messages { from, to: rank },
            _ => Sequence::Collectives,
        }
    }

    /// Returns whether all ranks of the group make this call.
    pub fn is_collective(self) -> bool {
        !matches!(self, Kind::Send(_) | Kind::Receive(_))
    }

    /// Returns a number for each sort, the same for both ends of a message, and the root.
    fn code(self) -> (u64, Rank) {
        match self {
            Kind::AllReduce(reduce) => (0x10 + reduce as u64, 0),
            Kind::Reduce(reduce, root) => (0x20 + reduce as u64, root),
            Kind::Broadcast(root) => (0x30, root),
            Kind::AllGather => (0x40, 0),
            Kind::ReduceScatter(reduce) => (0x50 + reduce as u64, 0),
            Kind::Barrier => (0x60, 0),
            // The sequence says which ranks these are.
            Kind::Send(_) | Kind::Receive(_) => (0x70, 0),
        }
    }
}

impl Sequence {
    /// Returns the ranks that make its calls, in a group of `size` ranks.
    pub(crate) fn ranks(self, size: Rank) -> Vec<Rank> {
        match self {
            Sequence::Collectives => (0..size).collect(),
            Sequence::Messages { from, to } => vec![from, to],
        }
    }
}

impl Fingerprint {
    /// Returns the fingerprint after one more call.
    #[must_use]
    pub fn with(self, call: &Call) -> Fingerprint {
        let (kind, root) = call.kind.code();
        let joined = call.joined && call.kind.is_collective();
        let small = kind | (call.element as u64) << 8 | u64::from(joined) << 16 | u64::from(root) << 32;
        let words = [small, call.length, call.beside, call.collectives];
        Fingerprint(words.iter().fold(self.0, |hash, word| mix(hash ^ mix(*word))))
    }
}

/// Returns the output of the generator `SplitMix64` at `state`, a bijection in which each bit of
/// the input changes about half of the output (Steele, Lea and Flood, "Fast splittable
/// pseudorandom number generators", 2014). It is the same on every machine and in every version,
/// as the hashes of the standard library are not.
fn mix(state: u64) -> u64 {
    let state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    state ^ (state >> 31)
}

impl fmt::Display for Reduce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reduce::Sum => "sum",
            Reduce::Product => "product",
            Reduce::Min => "min",
            Reduce::Max => "max",
            Reduce::Mean => "mean",
        })
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Element::Bool => "bool",
            Element::U8 => "u8",
            Element::I8 => "i8",
            Element::I32 => "i32",
            Element::U32 => "u32",
            Element::I64 => "i64",
            Element::U64 => "u64",
            Element::F16 => "f16",
            Element::Bf16 => "bf16",
            Element::F32 => "f32",
            Element::F64 => "f64",
        })
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (length, element) = (self.length, self.element);
        match self.kind {
            Kind::AllReduce(reduce) => write!(f, "all_reduce ({reduce}) of {length} {element}"),
            Kind::Reduce(reduce, root) => write!(f, "reduce ({reduce}) of {length} {element} to rank {root}"),
            Kind::Broadcast(root) => write!(f, "broadcast of {length} {element} from rank {root}"),
            Kind::AllGather => write!(f, "all_gather of {length} {element}"),
            Kind::ReduceScatter(reduce) => write!(f, "reduce_scatter ({reduce}) of {length} {element}"),
            Kind::Barrier => f.write_str("barrier"),
            Kind::Send(to) => write!(f, "send of {length} {element} to rank {to}"),
            Kind::Receive(from) => write!(f, "receive of {length} {element} from rank {from}"),
        }
    }
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.call, self.site)
    }
}

impl Sequence {
    /// Returns the words for a call of it.
    pub(crate) fn name(self, position: u64) -> String {
        match self {
            Sequence::Collectives => format!("collective call {position}"),
            Sequence::Messages { from, to } => format!("message {position} from rank {from} to rank {to}"),
        }
    }
}
