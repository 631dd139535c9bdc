//! The choice of the fragment of a warp that runs next, by the rules of `warp`.

use super::fragment::{Fragment, Wait};
use super::registers::Mask;
use super::warp::{LONGEST_TURN, Warp};

/// The fragment that runs next, and how.
pub(super) struct Pick {
    pub(super) at: usize,
    /// True if it may pass fragments that wait to be met.
    pub(super) passes: bool,
    /// The most ops that it runs.
    pub(super) most: u32,
}

impl Warp {
    /// Returns the turn that comes next, if any fragment can run.
    pub(super) fn turn(&mut self) -> Option<Pick> {
        let (at, passes) = self.next()?;
        let at = if self.fragments.len() > 1 { self.join(at) } else { at };
        Some(Pick { at, passes, most: u32::MAX })
    }

    /// Returns the fragment that runs next, and whether it does because of rule 2.
    pub(super) fn next(&mut self) -> Option<(usize, bool)> {
        if let [only] = &self.fragments[..]
            && only.wait == Wait::Nothing
        {
            return Some((0, false));
        }
        self.wake();
        let can_run = |(at, fragment): (usize, &Fragment)| (fragment.wait == Wait::Nothing).then_some(at);
        let ready = || self.fragments.iter().enumerate().filter_map(can_run);
        let preferred = ready().min_by_key(|at| self.fragments[*at].order())?;
        let oldest = ready().min_by_key(|at| self.fragments[*at].turn)?;
        // The preferred one has used up its turn if it has run since the oldest one had one.
        let is_due = self.fragments[preferred].turn > self.fragments[oldest].turn;
        Some(if is_due { (oldest, true) } else { (preferred, false) })
    }

    /// Lets fragments run whose lanes wait for none but exited ones.
    pub(super) fn wake(&mut self) {
        let dead = self.lanes.registers.dead;
        for fragment in &mut self.fragments {
            if let Wait::For(needed) = fragment.wait
                && needed & !dead & !fragment.mask == 0
            {
                fragment.wait = Wait::Nothing;
            }
        }
    }

    /// Splits the lanes of `mask` off a fragment.
    pub(super) fn split(&mut self, at: usize, mask: Mask) -> usize {
        if self.fragments[at].mask == mask {
            return at;
        }
        let part = Fragment { mask, ..self.fragments[at].clone() };
        self.fragments[at].mask &= !mask;
        self.fragments.push(part);
        self.fragments.len() - 1
    }

    /// Joins the fragment with those at the same place. Returns its new number.
    pub(super) fn join(&mut self, at: usize) -> usize {
        let mut ours = self.fragments.swap_remove(at);
        let mut other = 0;
        while other < self.fragments.len() {
            if self.fragments[other].meets(&ours) {
                let met = self.fragments.swap_remove(other);
                ours.join(met);
            } else {
                other += 1;
            }
        }
        self.fragments.push(ours);
        if self.fragments.len() == 1 {
            self.turn_length = LONGEST_TURN;
        }
        self.fragments.len() - 1
    }
}
