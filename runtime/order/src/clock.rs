//! Vector clocks: for each other stream, the last ticket that is ordered before the clock's owner.
//!
//! # Rules
//! 1. A clock changes only under a new ticket: that of a wait or, for an edge of the runtime, that
//!    of the op. So a stream and a ticket name one clock, and a clock that covers a ticket of a
//!    stream covers all that the clock of that stream covered at that ticket: clocks are
//!    **transitive**, without any search.
//! 2. Entries are never removed one by one. Those of observed work and of streams that are gone are
//!    superfluous, but finding them would cost as much as the clock is long. The whole clock is
//!    dropped when its owner's last wait is observed. Rule 1 then holds for all entries that are
//!    not observed; the others are before everything anyway.
//! 3. The entry of the owner itself may be there or not. No caller asks for it.
//!
//! # Cost
//! A hub that waits for a thousand streams has a thousand entries, and each of these streams gets
//! them all when it waits for the hub. So clocks share their entries. A clock is a persistent tree
//! and a few **points**, which are entries that are newer than the tree. Rule 1 allows to merge two
//! clocks without looking at their trees:
//! * If the other clock covers our last wait, it covers our whole clock. We adopt it.
//! * A tree has an **origin**, which is a ticket whose clock covers the whole tree. If we cover the
//!   origin of the other tree, we add only the points of the other clock.
//!
//! Otherwise the trees are joined, without the parts that they share (`tree.rs`).
// Decision: docs/decisions/0058-clocks-share-their-entries.md

mod tree;

use arrayvec::ArrayVec;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use tree::Tree;

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
pub struct Clock(Option<Arc<Entries>>);

/// The maximum number of points. A clock that is adopted from another one may have that many.
const MOST_POINTS: usize = 16;
/// The number of points that a stream collects before it moves them to the tree. It is lower, so
/// that the streams that adopt its clock can still add their own without changing the tree.
const MOST_OWN_POINTS: usize = MOST_POINTS / 2;

type Points = ArrayVec<Use, MOST_POINTS>;

#[derive(Clone, Debug, Default)]
struct Entries {
    /// The owner's ticket at its last change.
    changed_at: Ticket,
    /// At most one for each stream. The tree may have a greater ticket of that stream, so both are
    /// looked up.
    points: Points,
    tree: Option<Rooted>,
}

/// A tree of entries. The word of a slot is a generation of the slot and a ticket of that stream,
/// so the newest generation wins.
#[derive(Clone, Debug)]
struct Rooted {
    tree: Tree,
    /// A ticket whose clock, with the ticket itself, covers everything in the tree.
    origin: Use,
}

const GENERATION_SHIFT: u32 = 48;

/// Returns the word of an entry in a tree. It is never 0.
fn word_of(entry: Use) -> u64 {
    entry.stream.parts().1 << GENERATION_SHIFT | (entry.ticket + 1)
}

fn entry_of(slot: usize, word: u64) -> Use {
    let ticket = (word & ((1 << GENERATION_SHIFT) - 1)) - 1;
    Use { stream: StreamId::of_slot(slot, word >> GENERATION_SHIFT), ticket }
}

impl Entries {
    fn point(&self, stream: StreamId) -> Option<Ticket> {
        self.points.iter().find(|point| point.stream == stream).map(|point| point.ticket)
    }

    fn in_tree(&self, stream: StreamId) -> Option<Ticket> {
        let (slot, _) = stream.parts();
        let word = self.tree.as_ref()?.tree.get(slot);
        let entry = (word != 0).then(|| entry_of(slot, word))?;
        (entry.stream == stream).then_some(entry.ticket)
    }

    fn covers(&self, used: Use) -> bool {
        visit(self.points.len() + 1);
        self.point(used.stream).is_some_and(|ticket| ticket >= used.ticket)
            || self.in_tree(used.stream).is_some_and(|ticket| ticket >= used.ticket)
    }

    /// Adds an entry that is not covered. `now` is the owner with the ticket of its wait.
    fn add(&mut self, now: Use, entry: Use, most_points: usize) {
        if let Some(point) = self.points.iter_mut().find(|point| point.stream == entry.stream) {
            point.ticket = entry.ticket;
            return;
        }
        if self.points.len() >= most_points {
            self.move_points(now);
        }
        self.points.push(entry);
    }

    /// Moves the points to the tree.
    fn move_points(&mut self, now: Use) {
        let rooted = self.tree.get_or_insert_with(|| Rooted { tree: Tree::new(), origin: now });
        rooted.origin = now;
        for point in self.points.drain(..) {
            rooted.tree.raise(point.stream.parts().0, word_of(point));
        }
    }

    /// Adds the entries of `before`, a clock that does not cover this one.
    fn join(&mut self, now: Use, before: &Entries) {
        // This clock covers the entries that its own stream put into a tree.
        if let Some(theirs) = &before.tree
            && theirs.origin.stream != now.stream
            && !self.covers(theirs.origin)
        {
            match &mut self.tree {
                None => self.tree = Some(theirs.clone()),
                Some(mine) => {
                    mine.tree.join(&theirs.tree);
                    mine.origin = now;
                }
            }
        }
        for point in &before.points {
            if point.stream != now.stream && !self.covers(*point) {
                self.add(now, *point, MOST_OWN_POINTS);
            }
        }
    }
}

impl Clock {
    /// Returns the ticket up to which `stream` is ordered before this clock's owner; `None` if the
    /// clock has no entry for it.
    #[inline]
    pub fn get(&self, stream: StreamId) -> Option<Ticket> {
        let entries = self.0.as_ref()?;
        entries.point(stream).max(entries.in_tree(stream))
    }

    /// Returns whether `used` is ordered before this clock's owner. Then everything that was
    /// ordered before `used` is, too.
    #[inline]
    pub fn covers(&self, used: Use) -> bool {
        self.0.as_ref().is_some_and(|entries| entries.covers(used))
    }

    /// Merges `point` and the work before it, by maximum. Returns whether anything changed.
    ///
    /// `now` is the clock's owner, with its new ticket. `before` is the clock of the other stream
    /// at `point`. If that covers this clock, it is adopted. Otherwise its entries are added,
    /// without the tree if this clock covers the tree's origin. The entry of `point` itself comes
    /// last.
    pub fn merge(&mut self, now: Use, point: Use, before: &Clock) -> bool {
        if self.covers(point) {
            return false;
        }
        let adopted = before.0.as_deref().filter(|before| is_covered(self.0.as_deref(), now.stream, before));
        let mine = self.0.get_or_insert_default();
        let (mine, most_points) = match (adopted, &before.0) {
            (Some(before), _) => {
                let mine = match Arc::get_mut(mine) {
                    Some(mine) => {
                        mine.clone_from(before);
                        mine
                    }
                    None => {
                        *mine = Arc::new(before.clone());
                        Arc::get_mut(mine).expect("it is new")
                    }
                };
                (mine, MOST_POINTS)
            }
            (None, before) => {
                let mine = Arc::make_mut(mine);
                if let Some(before) = before {
                    mine.join(now, before);
                }
                (mine, MOST_OWN_POINTS)
            }
        };
        mine.changed_at = now.ticket;
        mine.add(now, point, most_points);
        true
    }

    /// Returns the owner's ticket at the last change of the clock; `None` if the clock is empty.
    #[inline]
    pub fn changed_at(&self) -> Option<Ticket> {
        self.0.as_ref().map(|entries| entries.changed_at)
    }

    /// Calls `f` with each entry. A stream may have several entries; the last ticket is the
    /// greatest of them.
    #[inline]
    pub fn for_each(&self, mut f: impl FnMut(Use)) {
        let Some(entries) = &self.0 else { return };
        if let Some(rooted) = &entries.tree {
            rooted.tree.for_each(|slot, word| f(entry_of(slot, word)));
        }
        entries.points.iter().for_each(|point| f(*point));
    }

    /// Returns the newest ticket of each stream, for statistics and tests.
    pub fn entries(&self) -> BTreeMap<StreamId, Ticket> {
        let mut entries = BTreeMap::new();
        self.for_each(|entry| {
            let ticket: &mut Ticket = entries.entry(entry.stream).or_default();
            *ticket = entry.ticket.max(*ticket);
        });
        entries
    }
}

/// Returns whether `before` covers all entries of `owner`'s clock.
fn is_covered(mine: Option<&Entries>, owner: StreamId, before: &Entries) -> bool {
    mine.is_none_or(|mine| before.covers(Use { stream: owner, ticket: mine.changed_at }))
}

#[cfg(test)]
thread_local! {
    /// The number of entries that the clocks of this thread have looked at.
    static VISITED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts entries that are looked at, for tests of how the costs grow.
#[inline(always)]
fn visit(_entries: usize) {
    #[cfg(test)]
    VISITED.set(VISITED.get() + _entries);
}

#[cfg(test)]
mod tests;
