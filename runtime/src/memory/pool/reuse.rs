//! The rule for reusing a free block, from its last uses and what the allocating stream is after.

use crate::memory::blocks::Uses;
use crate::order::{StreamId, Use};
use std::sync::Arc;

/// The allocating stream's knowledge of the order of other streams.
///
/// Reuse is as safe as these answers are true. They are given under the pool's lock: by a few
/// loads, without an allocation on this device, and without a lock that is held around one.
pub(crate) trait ReuseOrder {
    /// Returns whether `used` is before whatever the allocating stream does next, by its known
    /// clock. Not called for the stream's own uses.
    fn after(&self, used: Use) -> bool;

    /// Returns whether `used` is done, or its stream is gone.
    fn finished(&self, used: Use) -> bool;

    /// Like [`finished`](Self::finished), for cached memory of the default pool, whichever pool the
    /// allocation is for.
    fn is_over(&self, used: Use) -> bool {
        self.finished(used)
    }

    /// Returns whether the allocating stream could wait for `used`. It cannot if that use's device
    /// has failed, so that the use never finishes.
    fn can_wait(&self, used: Use) -> bool {
        let _ = used;
        true
    }

    /// Returns whether an unfinished use ends without any code of the host: nothing before it is a
    /// host function, a gate or foreign work. Asked for uses of memory of the default pool.
    fn ends(&self, used: Use) -> bool {
        let _ = used;
        false
    }

    /// Returns the host code that an unfinished use waits for, for errors, if it does.
    fn held_up_by(&self, used: Use) -> Option<String> {
        let _ = used;
        None
    }
}

impl<T: ReuseOrder + ?Sized> ReuseOrder for Arc<T> {
    fn after(&self, used: Use) -> bool {
        (**self).after(used)
    }

    fn finished(&self, used: Use) -> bool {
        (**self).finished(used)
    }

    fn is_over(&self, used: Use) -> bool {
        (**self).is_over(used)
    }

    fn can_wait(&self, used: Use) -> bool {
        (**self).can_wait(used)
    }

    fn ends(&self, used: Use) -> bool {
        (**self).ends(used)
    }

    fn held_up_by(&self, used: Use) -> Option<String> {
        (**self).held_up_by(used)
    }
}

pub(super) enum Verdict {
    Ready(Rung),
    AfterOne(Use),
    No,
}

#[derive(Clone, Copy)]
pub(super) enum Rung {
    Own,
    Ordered,
    Finished,
    Merged,
    Waited,
    Grown,
}

/// Judges whether `stream` may have a block with these uses. Removes uses that have finished.
pub(super) fn judge(uses: &mut Uses, stream: StreamId, order: &impl ReuseOrder) -> Verdict {
    let (mut rung, mut pending) = (Rung::Own, None);
    let mut at = 0;
    while let Some(&used) = uses.get(at) {
        if used.stream == stream {
        } else if order.after(used) {
            rung = Rung::Ordered;
        } else if order.finished(used) {
            uses.swap_remove(at);
            continue;
        } else if !order.can_wait(used) || pending.replace(used).is_some() {
            return Verdict::No;
        }
        at += 1;
    }
    match pending {
        Some(used) => Verdict::AfterOne(used),
        None if uses.is_empty() => Verdict::Ready(Rung::Finished),
        None => Verdict::Ready(rung),
    }
}
