//! Waiting until a turn of foreign work ends.

use parking_lot::{Condvar, Mutex};

/// Announces that a turn has ended.
#[derive(Debug, Default)]
pub(crate) struct ForeignTurns {
    ended: Mutex<u64>,
    changed: Condvar,
}

impl ForeignTurns {
    pub(crate) fn ended(&self) -> u64 {
        *self.ended.lock()
    }

    pub(super) fn wait_for_more_than(&self, before: u64) {
        let mut ended = self.ended.lock();
        while *ended <= before {
            self.changed.wait(&mut ended);
        }
    }

    pub(crate) fn end(&self) {
        *self.ended.lock() += 1;
        self.changed.notify_all();
    }
}
