//! The effects of an instruction that the checks watch: on memory, and on the order of accesses.

use super::vote::Form;

/// An effect that a launch with checks looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Effect {
    /// None that is watched.
    #[default]
    None,
    Load(Moved),
    /// The cells of the elements are wide or not.
    Store(Moved, bool),
    /// A store that is a part of what an instruction does.
    Part(Moved),
    /// A store that a later instruction makes. It may happen from here on.
    Later(Moved),
    /// Accesses that the instruction tells the checks of while it runs.
    Parts,
    /// `atom` and `red`. The flag is true if it returns the old value.
    Atomic(Moved, bool),
    /// `membar` and `fence`.
    Fence(Scope),
    /// An exchange, which the lanes in the mask `e` run together.
    Meet(Form),
    /// `bar.arrive` and `barrier.cluster.arrive`
    Arrive,
    /// A copy of bytes within the frame of a function.
    Copy,
    /// A call that writes a result of that many bytes to the frame, at `d`.
    Result(u8),
}

/// The elements that an instruction moves between registers and memory, and their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    /// The bytes of an element.
    pub(crate) bytes: u8,
    /// The elements of a lane.
    pub(crate) elements: u8,
    /// True unless the instruction is weak: atomic, volatile, relaxed or stronger. PTX ISA 8.3,
    /// "Operation types".
    pub(crate) is_strong: bool,
    /// The scope of a strong access.
    pub(crate) scope: Scope,
    /// The scope of a release before the access.
    pub(crate) releases: Option<Scope>,
}

impl Moved {
    pub(crate) fn all_bytes(self) -> u64 {
        u64::from(self.bytes) * u64::from(self.elements)
    }
}

/// The threads for which a fence or a release orders accesses, and an access is strong. PTX ISA
/// 8.5, "Scope".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// The threads of the block.
    Block,
    /// The threads of the blocks of the cluster.
    Cluster,
    /// All threads. A system is not told apart from the device.
    Device,
}
