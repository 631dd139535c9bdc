//! Admission to a stream: it has to be open, its device usable, and no other thread may be putting
//! foreign work on it.

use super::core::{State, StreamCore};
use crate::delegation::Locked;
use crate::order::{MAX_TICKET, Site};
use warpline_driver::{Error, ErrorKind, Result, reentry};

impl StreamCore {
    /// Takes the lock in order to enqueue something.
    ///
    /// On success the stream is open, the device is usable, and no other thread does foreign work
    /// here. `turn`: true if the caller holds the turn for foreign work.
    #[inline(always)]
    pub(crate) fn lock(&self, site: Site, turn: bool) -> Result<Locked<'_, State>> {
        self.may_ask(site)?;
        let state = self.state.lock();
        if state.closed || (state.foreign.is_some() && !turn) || state.issued >= MAX_TICKET {
            return self.lock_slowly(state, site, turn);
        }
        self.device.ensure_open()?;
        Ok(state)
    }

    /// Refuses calls from code that a device waits for. The holder of the stream's lock may be
    /// waiting for room that only becomes free once that code has returned.
    #[inline]
    pub(crate) fn may_ask(&self, site: Site) -> Result<()> {
        if reentry::holds_a_device() { Err(reentry::refused(&site.on(&self.label))) } else { Ok(()) }
    }

    #[cold]
    fn lock_slowly<'a>(
        &'a self,
        mut state: Locked<'a, State>,
        site: Site,
        turn: bool,
    ) -> Result<Locked<'a, State>> {
        if !turn {
            state = self.wait_for_turn(state, site)?;
        }
        if state.closed || state.issued >= MAX_TICKET {
            return Err(self.closed_error(site));
        }
        self.device.ensure_open()?;
        Ok(state)
    }

    /// Checks that the stream takes allocations: it is open and the device is usable.
    #[inline]
    pub(crate) fn ensure_open(&self, site: Site) -> Result<()> {
        self.may_ask(site)?;
        if self.is_closed() {
            return Err(self.closed_error(site));
        }
        self.device.ensure_open()
    }

    /// Waits until no thread does foreign work here.
    ///
    /// # Errors
    /// `Reentrant` if this thread does the foreign work, or must not wait.
    #[cold]
    pub(super) fn wait_for_turn<'a>(
        &'a self,
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
                let turns = self.device.foreign_turns.ended();
                drop(state);
                self.device.foreign_turns.wait_for_more_than(turns);
                state = self.state.lock();
                continue;
            };
            return Err(Error::new(ErrorKind::Reentrant, format!("{}: {why}", site.on(&self.label))));
        }
        Ok(state)
    }
}
