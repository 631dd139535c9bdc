//! Blocking a thread until a `Pending` resolves.

use super::{Pending, Work};
use crate::block_on::block_on;
use crate::order::Site;
use crate::shared::StreamCore;
use std::sync::Arc;
use warpline_driver::{Result, reentry};

impl<T> Pending<T> {
    /// Blocks the calling thread until it resolves.
    ///
    /// This is for programs without an executor. On an executor's thread, await it instead:
    /// blocking would stop the executor.
    ///
    /// # Errors
    /// The error that awaiting returns; `Reentrant` in a host function or a waker, since the work
    /// may be waiting for either, and in a task with [`SyncMode::Error`](crate::SyncMode::Error).
    #[track_caller]
    pub fn blocking_wait(self) -> Result<T> {
        if !reentry::may_block() && self.is_waiting() {
            return Err(reentry::refused(&"blocking_wait"));
        }
        if let Some(core) = self.awaited_core() {
            let sync = &core.device.runtime.sync;
            sync.may_block(Site::here(&"blocking_wait"), "await the Pending instead")?;
        }
        block_on(self)
    }

    /// Returns a stream that it waits for, unless it has resolved already.
    pub(super) fn awaited_core(&self) -> Option<&Arc<StreamCore>> {
        match &self.work {
            Work::Place(awaited) => Some(&awaited.core),
            Work::Many(many) => many.awaited_core(),
            _ => None,
        }
    }
}
