//! The bytes that running work has claimed, where the order check does not keep operands apart.
//!
//! In every order mode but `deny`, two ops may be enqueued whose accesses are not ordered. Each of
//! them claims its bytes, shared or exclusive, before it touches them. An op whose bytes are taken
//! parks its strand. The values it sees may be surprising, but no two twins ever hold slices that
//! conflict.
//!
//! # Rules
//! 1. An op gets all its claims or none, in one step under the table's lock: no op holds some
//!    claims while it waits for others.
//! 2. A strand holds claims for one op at a time, while that op runs. It releases them before the
//!    op's ticket completes.
//! 3. A refused strand parks first and asks for a wake second ([`Claims::wait`], which checks the
//!    claims once more).
//! 4. A release wakes every waiting strand, whatever it waits for, and each tries again. Shared
//!    claims can outrun a waiting exclusive claim, for as long as new ones keep arriving.
//!
//! One table serves all devices of a backend, because they share one address space.

use crate::sync::Mutex;
use warpline_driver::Claim;

/// The claims of all running work of a backend. `W` is the type of the waiters that a release
/// wakes.
pub(super) struct Claims<W> {
    table: Mutex<Table<W>>,
}

struct Table<W> {
    /// The claims held, each with the number of the stream that holds it.
    held: Vec<(u64, Claim)>,
    waiting: Vec<W>,
}

impl<W> Table<W> {
    fn free(&self, claims: &[Claim]) -> bool {
        claims.iter().all(|claim| {
            self.held
                .iter()
                .all(|(_, held)| !(claim.exclusive || held.exclusive) || !claim.range.overlaps(&held.range))
        })
    }
}

impl<W> Claims<W> {
    pub(super) fn new() -> Self {
        Claims { table: Mutex::new(Table { held: Vec::new(), waiting: Vec::new() }) }
    }

    /// Claims all of `claims` for `owner`, or none. Returns whether it claimed them.
    #[must_use]
    pub(super) fn try_claim(&self, owner: u64, claims: &[Claim]) -> bool {
        let mut table = self.table.lock();
        let free = table.free(claims);
        if free {
            table.held.extend(claims.iter().map(|claim| (owner, *claim)));
        }
        free
    }

    /// Asks for `who` to be woken at the next release. Returns `false`, and asks for nothing, if
    /// `claims` have become free.
    #[must_use]
    pub(super) fn wait(&self, claims: &[Claim], who: W) -> bool {
        let mut table = self.table.lock();
        let taken = !table.free(claims);
        if taken {
            table.waiting.push(who);
        }
        // A `who` that is not stored is dropped after the unlock: the arguments outlive the guard.
        taken
    }

    /// Releases the claims of `owner` and returns the waiters to be woken.
    #[must_use]
    pub(super) fn release(&self, owner: u64) -> Vec<W> {
        let mut table = self.table.lock();
        table.held.retain(|(holder, _)| *holder != owner);
        std::mem::take(&mut table.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpline_driver::ByteRange;

    fn claim(offset: u64, len: u64, exclusive: bool) -> Claim {
        Claim { range: ByteRange::contiguous(offset, len), exclusive }
    }

    #[test]
    fn shared_claims_overlap_and_exclusive_ones_do_not() {
        let claims = Claims::<u32>::new();
        assert!(claims.try_claim(1, &[claim(0, 10, false)]));
        assert!(claims.try_claim(2, &[claim(5, 10, false)]));
        assert!(!claims.try_claim(3, &[claim(14, 1, true)]));
        assert!(claims.try_claim(3, &[claim(15, 1, true)]));
    }

    #[test]
    fn a_refused_op_holds_nothing_and_a_release_wakes_who_waits() {
        let claims = Claims::<u32>::new();
        assert!(claims.try_claim(1, &[claim(0, 10, true)]));
        let wanted = [claim(100, 1, true), claim(9, 1, false)];
        assert!(!claims.try_claim(2, &wanted));
        assert!(claims.try_claim(3, &[claim(100, 1, true)]));
        assert!(claims.wait(&wanted, 7));
        assert_eq!(claims.release(1), [7]);
        assert!(claims.wait(&wanted, 8), "3 still holds byte 100");
        assert_eq!(claims.release(3), [8]);
        assert!(!claims.wait(&wanted, 9));
    }

    #[test]
    fn interleaved_columns_do_not_conflict() {
        let claims = Claims::<u32>::new();
        let column = |offset| Claim { range: ByteRange::strided(offset, 8, 16, 100), exclusive: true };
        assert!(claims.try_claim(1, &[column(0)]));
        assert!(claims.try_claim(2, &[column(8)]));
        assert!(!claims.try_claim(3, &[column(7)]));
    }
}
