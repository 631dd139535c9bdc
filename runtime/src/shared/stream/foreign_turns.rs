//! Waiting until a turn of foreign work ends.

use super::core::{State, StreamCore};
use crate::delegation::Locked;
use crate::order::Site;
use parking_lot::{Condvar, Mutex};
use warpline_driver::{Error, ErrorKind, Result, reentry};

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

/// Waits until no thread does foreign work here.
///
/// # Errors
/// `Reentrant` if this thread does the foreign work, or must not wait.
#[cold]
pub(super) fn wait_for_turn<'a>(
    core: &'a StreamCore,
    mut state: Locked<'a, State>,
    site: Site,
) -> Result<Locked<'a, State>> {
    while let Some(thread) = state.foreign {
        let why = if thread == std::thread::current().id() {
            "this thread is inside foreign work on the stream; enqueue through the raw stream \
             that the closure received, or after the closure returns"
        } else if !reentry::may_block() {
            "another thread is inside foreign work on the stream, and a waker must not wait \
             for it; enqueue in a task"
        } else {
            let turns = core.device.foreign_turns.ended();
            drop(state);
            core.device.foreign_turns.wait_for_more_than(turns);
            state = core.state.lock();
            continue;
        };
        return Err(Error::new(ErrorKind::Reentrant, format!("{}: {why}", site.on(&core.label))));
    }
    Ok(state)
}
