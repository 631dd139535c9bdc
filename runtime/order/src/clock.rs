//! Vector clocks: for each other stream, the last ticket that is ordered before the clock's owner.
//!
//! A clock is sparse and sorted by stream. It is shared by reference count and copied when it
//! changes. Only waits change it.

use std::fmt;
use std::sync::Arc;

/// The number of an op or a wait on its stream: 1, 2, 3 and so on, in the order of enqueuing.
pub type Ticket = u64;

/// The id of a stream. No other stream of the same runtime ever has it, even if both come from a
/// pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub(crate) u64);

impl StreamId {
    /// Returns the stream with this number. Only the owner of a table of streams calls it.
    #[doc(hidden)]
    pub const fn from_number(number: u64) -> Self {
        StreamId(number)
    }

    /// Returns the stream's number.
    #[doc(hidden)]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// Formats the number of the stream's slot and, after a point, the number of earlier streams in
/// that slot: `s3`, `s3.1`.
impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (slot, generation) = self.parts();
        write!(f, "s{slot}")?;
        if generation == 0 { Ok(()) } else { write!(f, ".{generation}") }
    }
}

/// A stream's work up to a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The stream.
    pub stream: StreamId,
    /// The newest ticket.
    pub ticket: Ticket,
}

/// A vector clock. The empty clock allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Clock(Option<Arc<[Use]>>);

impl Clock {
    /// Returns one entry per stream, in the order of the streams' ids.
    #[inline]
    pub fn entries(&self) -> &[Use] {
        self.0.as_deref().unwrap_or_default()
    }

    /// Returns the ticket up to which `stream` is ordered before this clock's owner; `None` if no
    /// edge from it was ever stated.
    #[inline]
    pub fn get(&self, stream: StreamId) -> Option<Ticket> {
        let entries = self.entries();
        if entries.len() <= 8 {
            return entries.iter().find(|entry| entry.stream == stream).map(|entry| entry.ticket);
        }
        entries.binary_search_by_key(&stream, |entry| entry.stream).ok().map(|at| entries[at].ticket)
    }

    /// Returns whether `used` is ordered before this clock's owner.
    #[inline]
    pub fn covers(&self, used: Use) -> bool {
        self.get(used.stream).is_some_and(|ticket| ticket >= used.ticket)
    }

    /// Returns whether merging `point` and the work before it would change nothing. Like
    /// [`merge`](Self::merge), it ignores `owner`'s entries and those that are `over`.
    pub fn implies(&self, owner: StreamId, point: Use, before: &Clock, over: impl Fn(Use) -> bool) -> bool {
        let superfluous = |entry: &Use| entry.stream == owner || over(*entry);
        self.implies_all(before, superfluous) && (superfluous(&point) || self.covers(point))
    }

    fn implies_all(&self, before: &Clock, superfluous: impl Fn(&Use) -> bool) -> bool {
        let mut mine = self.entries().iter().peekable();
        // Both lists are sorted, so one pass through ours is enough for all of theirs.
        before.entries().iter().filter(|entry| !superfluous(entry)).all(|entry| {
            while mine.next_if(|mine| mine.stream < entry.stream).is_some() {}
            mine.peek().is_some_and(|mine| mine.stream == entry.stream && mine.ticket >= entry.ticket)
        })
    }

    /// Merges `point` and the work before it, by maximum. Returns whether anything changed.
    ///
    /// To keep clocks short, `owner`'s own entry is left out. So are the entries that are before
    /// everything anyway, for which `over` returns true: observed by the host, or of a stream that
    /// is gone.
    pub fn merge(&mut self, owner: StreamId, point: Use, before: &Clock, over: impl Fn(Use) -> bool) -> bool {
        let superfluous = |entry: &Use| entry.stream == owner || over(*entry);
        let all_implied = self.implies_all(before, superfluous);
        if all_implied && (superfluous(&point) || self.covers(point)) {
            return false;
        }
        // Mostly, an existing edge now comes from a later point. Then its entry is raised in place.
        if all_implied
            && let Some(mine) = self.0.as_mut().and_then(Arc::get_mut)
            && let Ok(at) = mine.binary_search_by_key(&point.stream, |entry| entry.stream)
        {
            mine[at].ticket = point.ticket;
            return true;
        }
        let mut merged = Vec::with_capacity(self.entries().len() + before.entries().len() + 1);
        let mut push = |entry: Use| {
            if !superfluous(&entry) {
                merged.push(entry);
            }
        };
        let point = [point];
        let (mut a, mut b, mut c) =
            (self.entries().iter().peekable(), before.entries().iter().peekable(), point.iter().peekable());
        loop {
            let next = [a.peek(), b.peek(), c.peek()].into_iter().flatten().map(|entry| entry.stream).min();
            let Some(stream) = next else { break };
            let mut ticket = 0;
            for list in [&mut a, &mut b] {
                if let Some(entry) = list.next_if(|entry| entry.stream == stream) {
                    ticket = ticket.max(entry.ticket);
                }
            }
            if let Some(entry) = c.next_if(|entry| entry.stream == stream) {
                ticket = ticket.max(entry.ticket);
            }
            push(Use { stream, ticket });
        }
        self.0 = if merged.is_empty() { None } else { Some(merged.into()) };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(stream: u64, ticket: u64) -> Use {
        Use { stream: StreamId(stream), ticket }
    }

    fn clock(entries: &[(u64, u64)]) -> Clock {
        Clock(Some(entries.iter().map(|&(s, t)| used(s, t)).collect()))
    }

    #[test]
    fn merge_takes_the_maximum_and_leaves_the_owner_out() {
        let mut mine = clock(&[(2, 5), (4, 1)]);
        assert!(mine.merge(StreamId(9), used(3, 7), &clock(&[(1, 1), (2, 3), (4, 8), (9, 2)]), |_| false));
        assert_eq!(mine.entries(), [used(1, 1), used(2, 5), used(3, 7), used(4, 8)]);
        assert!(!mine.merge(StreamId(9), used(3, 6), &clock(&[(2, 5), (9, 44)]), |_| false));
    }

    #[test]
    fn an_edge_that_comes_from_further_on_grows_where_it_stands_unless_the_clock_is_shared() {
        let mut mine = clock(&[(1, 5), (3, 2)]);
        let before = mine.clone();
        assert!(mine.merge(StreamId(9), used(3, 4), &clock(&[(1, 5)]), |_| false));
        assert_eq!(
            (before.entries(), mine.entries()),
            (&[used(1, 5), used(3, 2)][..], &[used(1, 5), used(3, 4)][..])
        );
        let place = mine.entries().as_ptr();
        assert!(mine.merge(StreamId(9), used(3, 7), &clock(&[(1, 4), (9, 9)]), |_| false));
        assert_eq!((mine.entries(), mine.entries().as_ptr()), (&[used(1, 5), used(3, 7)][..], place));
        assert!(mine.merge(StreamId(9), used(3, 8), &clock(&[(1, 6)]), |_| false));
        assert_eq!(mine.entries(), [used(1, 6), used(3, 8)]);
    }

    #[test]
    fn a_stated_edge_from_an_empty_stream_counts() {
        let mut mine = Clock::default();
        assert!(!mine.covers(used(1, 0)));
        mine.merge(StreamId(2), used(1, 0), &Clock::default(), |_| false);
        assert!(mine.covers(used(1, 0)) && !mine.covers(used(1, 1)));
    }

    #[test]
    fn what_is_before_everything_is_dropped() {
        let mut mine = clock(&[(1, 5)]);
        mine.merge(StreamId(9), used(3, 7), &Clock::default(), |entry| entry.stream == StreamId(1));
        assert_eq!(mine.entries(), [used(3, 7)]);
    }
}
