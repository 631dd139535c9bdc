//! In which order a launch runs nodes that no edge orders.
//!
//! A GPU may run them in any order, so an order that happens to be right must not hide an edge that is missing. A launch
//! takes its order from its number among those of its executable graph:
//! 1. the first prefers what was captured last, so that as a rule a side stream runs before the one it was forked from;
//! 2. the second stays on a branch as long as it goes on, and begins with what was captured first;
//! 3. each further one is mixed, by its number and `SOFTCUDA_GRAPH_SEED`.
//!
//! Where the executable graph was made to use the priorities of its nodes, the more urgent go before all others.
//!
//! Two branches of one fork so run each before the other in the first two launches.

/// The order of one launch.
#[derive(Clone, Copy)]
pub(crate) struct Order {
    of_equals: OfEquals,
    by_priority: bool,
}

/// The place of a node among those that can start: the least goes first. The last part is the node.
pub(crate) type Place = (i32, u64, usize);

#[derive(Clone, Copy)]
enum OfEquals {
    LastFirst,
    ByBranch,
    Mixed(u64),
}

impl Order {
    /// The order of an executable graph's nth launch, from 0.
    pub(crate) fn of_launch(nth: u64, seed: u64, by_priority: bool) -> Self {
        let of_equals = match nth {
            0 => OfEquals::LastFirst,
            1 => OfEquals::ByBranch,
            _ => OfEquals::Mixed(mixed(seed).wrapping_add(nth)),
        };
        Order { of_equals, by_priority }
    }

    /// The place of a node. `step` nodes have ended before it could start.
    pub(crate) fn place(self, node: usize, priority: i32, step: usize) -> Place {
        let first = match self.of_equals {
            OfEquals::LastFirst => u64::MAX - node as u64,
            OfEquals::ByBranch => u64::MAX - step as u64,
            OfEquals::Mixed(seed) => mixed(mixed(seed) ^ node as u64),
        };
        (if self.by_priority { priority } else { 0 }, first, node)
    }
}

/// A bijection without visible pattern: the end of SplitMix64.
fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
