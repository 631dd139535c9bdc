//! Connections: the hardware queues that a context's streams share, if a plan sets their number.
//!
//! Work of all streams of a connection starts in the order in which it was enqueued. A piece that
//! waits for an event, for a word or for earlier work of its stream holds up everything behind it.
//! A piece leaves the connection when it starts, a graph when it ends.
//!
//! # Rules
//! 1. `order` names a stream once for each piece in its queue that has not left. It grows under the
//!    stream's lock, so the first entry of a stream stands for the front of its queue.
//! 2. A stream's turn is asked for by the thread that has it (see [`stream`](crate::stream)). Until
//!    its turn comes, the connection has the stream.
//! 3. The lock is taken last: nothing else is locked under it.

use crate::stream::Stream;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// A hardware queue.
#[derive(Default)]
pub(crate) struct Connection(Mutex<State>);

#[derive(Default)]
struct State {
    order: VecDeque<&'static Stream>,
    /// Streams whose fronts are not first.
    parked: Vec<&'static Stream>,
}

impl Connection {
    /// Notes that a piece of work was put at the end of a stream.
    pub(crate) fn push(&self, stream: &'static Stream) {
        self.0.lock().order.push_back(stream);
    }

    /// Returns true if a stream's front is first. Otherwise takes the stream over, to schedule it
    /// when its turn comes.
    pub(crate) fn is_turn_of(&self, stream: &'static Stream) -> bool {
        let mut state = self.0.lock();
        let first = state.order.front().is_some_and(|first| std::ptr::eq(*first, stream));
        if !first {
            state.parked.push(stream);
        }
        first
    }

    /// Lets the first piece leave. Returns the stream whose front is first now, if it was parked:
    /// the caller schedules it.
    #[must_use]
    pub(crate) fn leave(&self) -> Option<&'static Stream> {
        let mut state = self.0.lock();
        state.order.pop_front();
        let next = *state.order.front()?;
        let place = state.parked.iter().position(|parked| std::ptr::eq(*parked, next))?;
        Some(state.parked.swap_remove(place))
    }
}
