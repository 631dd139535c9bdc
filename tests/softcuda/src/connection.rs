//! Connections: the hardware queues that a context's streams share, if the plan sets their number.
//!
//! Work of all streams of a connection starts in the order in which it was enqueued. A piece of
//! work that waits for an event, for a word or for earlier work of its stream delays everything
//! behind it. A piece leaves the connection when it starts, a graph when it ends.
//!
//! # Rules
//! 1. `order` has one entry of a stream for each piece in the stream's queue that has not left. It
//!    grows under the stream's lock, so a stream's first entry stands for the front of its queue.
//! 2. The holder of a stream (see [`stream`](crate::stream)) asks whether it is the stream's turn.
//!    If not, the connection becomes the holder until that turn.
//! 3. The lock is taken last: no other lock is taken under it.

use crate::stream::Stream;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// A hardware queue.
#[derive(Default)]
pub(crate) struct Connection(Mutex<State>);

#[derive(Default)]
struct State {
    order: VecDeque<&'static Stream>,
    /// Streams that the connection holds because their fronts are not first.
    parked: Vec<&'static Stream>,
}

impl Connection {
    /// Adds a piece of work that was put at the end of a stream.
    pub(crate) fn push(&self, stream: &'static Stream) {
        self.0.lock().order.push_back(stream);
    }

    /// Returns true if a stream's front is first. Otherwise the connection holds the stream until
    /// its turn.
    pub(crate) fn is_turn_of(&self, stream: &'static Stream) -> bool {
        let mut state = self.0.lock();
        let first = state.order.front().is_some_and(|first| std::ptr::eq(*first, stream));
        if !first {
            state.parked.push(stream);
        }
        first
    }

    /// Removes the first piece. Returns the stream whose front is first now, if the connection held
    /// it. The caller schedules that stream.
    #[must_use]
    pub(crate) fn leave(&self) -> Option<&'static Stream> {
        let mut state = self.0.lock();
        state.order.pop_front();
        let next = *state.order.front()?;
        let place = state.parked.iter().position(|parked| std::ptr::eq(*parked, next))?;
        Some(state.parked.swap_remove(place))
    }
}
