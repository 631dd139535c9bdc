//! The order in which a launch runs nodes that no edge orders.
//!
//! A GPU may run such nodes in any order, so an order that happens to be right must not hide a
//! missing edge. The number of a launch among those of its executable graph selects the order:
//! 1. The first launch prefers the nodes captured last. As a rule, a side stream then runs before
//!    the stream that it was forked from.
//! 2. The second launch follows a branch to its end, and begins with the node captured first.
//! 3. Each further launch takes a mixed order, from its number and `SOFTCUDA_GRAPH_SEED`.
//!
//! If the executable graph was instantiated to use the priorities of its nodes, nodes of higher
//! priority run before all others.
//!
//! In the first two launches each of the two branches of a fork thus runs before the other once.

/// The order of one launch.
#[derive(Clone, Copy)]
pub(crate) struct Order {
    of_equals: OfEquals,
    by_priority: bool,
}

/// The place of a node among those that can start: the smallest goes first. The last part is the
/// number of the node.
pub(crate) type Rank = (i32, u64, usize);

#[derive(Clone, Copy)]
enum OfEquals {
    LastFirst,
    ByBranch,
    Mixed(u64),
}

impl Order {
    /// Returns the order of an executable graph's nth launch, counted from 0.
    pub(crate) fn of_launch(nth: u64, seed: u64, by_priority: bool) -> Self {
        let of_equals = match nth {
            0 => OfEquals::LastFirst,
            1 => OfEquals::ByBranch,
            _ => OfEquals::Mixed(mixed(seed).wrapping_add(nth)),
        };
        Order { of_equals, by_priority }
    }

    /// Returns the place of a node that can start after `step` nodes have ended.
    pub(crate) fn place(self, node: usize, priority: i32, step: usize) -> Rank {
        let first = match self.of_equals {
            OfEquals::LastFirst => u64::MAX - node as u64,
            OfEquals::ByBranch => u64::MAX - step as u64,
            OfEquals::Mixed(seed) => mixed(mixed(seed) ^ node as u64),
        };
        (if self.by_priority { priority } else { 0 }, first, node)
    }
}

/// Maps values one to one and without visible pattern: the output function of SplitMix64.
fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
