//! Warps whose lanes are split at random, in launches with a seed.
//!
//! # Why
//! Lanes of a warp need not run together, but rule 1 of `warp` lets them. So code that relies on
//! it, as a reduction in shared memory without `__syncwarp()`, works in each order of the warps.
//! CUDA C++ Programming Guide, "Independent Thread Scheduling": such code is wrong from Volta on.
//!
//! # Rules
//! 1. A launch with a seed splits the fragment that would run next, at moments that are drawn:
//!    some of its lanes become a fragment of their own.
//! 2. For a time, which is drawn too, the warp is **apart**: the fragment that runs next is drawn
//!    from those that can run, and so is how long it runs. Fragments at the same place are not
//!    joined. Then the rules of `warp` hold again, and fragments that meet are joined.
//! 3. Waits hold as ever. Fragments at an instruction for several lanes, such as `shfl.sync`,
//!    `mma` or `bar.warp.sync`, are joined there, also while the warp is apart. Those that wait at
//!    a barrier of the block count together. So an instruction that is `.sync` or `.aligned` gets
//!    the lanes that it needs.
//! 4. A text for a target before sm_70 is not split. On such GPUs the lanes of a warp do run
//!    together, and later ones run such a text by the same rules. Its shuffles and votes may lack
//!    `.sync`, and do not wait.

use super::fragment::Wait;
use super::schedule::Order;
use super::turns::Pick;
use super::warp::Warp;

/// The most ops that a warp runs before it is split, in a short and in a long turn. Short ones hit
/// the few instructions of a reduction, long ones leave time for what follows.
const BEFORE: [u32; 2] = [48, 1024];
/// The most ops that a warp runs apart.
const APART: u32 = 256;
/// The most ops that a fragment of a warp runs before another one is drawn.
const TURN: u32 = 32;

/// The time of a warp until its lanes are split, or until they may be joined again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Splits {
    /// It is split after that many ops.
    In(u32),
    /// It is apart for that many ops.
    Apart(u32),
}

impl Splits {
    /// Returns the state of a warp that starts.
    pub(super) const START: Splits = Splits::Apart(0);

    /// Notes that the warp has run that many ops.
    pub(super) fn pass(&mut self, ops: u32) {
        let (Splits::In(left) | Splits::Apart(left)) = self;
        *left = left.saturating_sub(ops);
    }
}

impl Warp {
    /// Returns the turn that comes next in a launch with a seed, if any fragment can run.
    pub(super) fn drawn_turn(&mut self, order: &mut Order) -> Option<Pick> {
        loop {
            match self.splits {
                Splits::In(0) => {
                    let (at, _) = self.next()?;
                    let mask = self.fragments[at].mask;
                    if mask.count_ones() > 1 {
                        self.split(at, order.some_of(mask));
                    }
                    self.splits = Splits::Apart(1 + order.draw(APART));
                }
                Splits::In(most) => {
                    let (at, passes) = self.next()?;
                    let at = self.join(at);
                    return Some(Pick { at, passes, most });
                }
                Splits::Apart(0) => {
                    let most = BEFORE[order.draw(2) as usize];
                    self.splits = Splits::In(1 + order.draw(most));
                }
                Splits::Apart(left) => {
                    self.wake();
                    let can_run = |at: &usize| self.fragments[*at].wait == Wait::Nothing;
                    let ready: Vec<usize> = (0..self.fragments.len()).filter(can_run).collect();
                    if ready.is_empty() {
                        return None;
                    }
                    let at = ready[order.draw(ready.len() as u32) as usize];
                    return Some(Pick { at, passes: true, most: left.min(1 + order.draw(TURN)) });
                }
            }
        }
    }
}
