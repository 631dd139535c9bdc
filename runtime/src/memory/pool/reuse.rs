//! Which free block an allocation may have, by who used it and what its stream is after.

use crate::memory::blocks::Uses;
use crate::order::{StreamId, Use};

/// What the allocating stream knows about the order of others.
///
/// Reuse is as safe as these answers are true. They are asked for under the pool's lock: a few loads, no allocation of this
/// device, no lock that is held around one.
pub(crate) trait ReuseOrder {
    /// Whether `used` is before whatever the allocating stream does next, by its known clock. Not asked about the stream's
    /// own uses.
    fn after(&self, used: Use) -> bool;

    /// Whether `used` is done, or its stream is gone.
    fn finished(&self, used: Use) -> bool;

    /// The same of cached memory of the default pool, whichever pool the allocation is for.
    fn is_over(&self, used: Use) -> bool {
        self.finished(used)
    }

    /// Whether the allocating stream could wait for `used`: not if its device has failed and it will never come.
    fn can_wait(&self, used: Use) -> bool {
        let _ = used;
        true
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

/// What keeps `stream` from having a block with these uses. Forgets uses found finished.
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
