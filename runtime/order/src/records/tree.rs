//! A tree of records in the order of their bytes or of their columns.
//!
//! Each node knows where its records lie, and which streams made them, each with its newest ticket.
//! So a search skips a node whose records lie elsewhere, and a search for unordered uses also skips
//! a node whose newest uses are all ordered. One stream that has written a million slices is
//! skipped at the root. A node names at most `MOST_USERS` streams. With more, it is never skipped
//! because of order. A search for covered records skips a node whose records, or their runs, are
//! all longer than the covering range: a row covers none of a million columns, and a column no row.
//!
//! A node never knows too little: the start of its records may be too low, their end and the
//! tickets too high, and so on. After a record was replaced or taken back they may stay so for a
//! while.

mod known;
mod position;

use super::super::clock::{Ticket, Use};
use super::super::range::ByteRange;
use super::super::site::Site;
use super::{Record, Removed, visit};
use known::{Known, Users};
use position::{FIRST, Position, Span};
use std::ops::ControlFlow::{self, Continue};
use std::ops::Range;

pub(super) use known::Window;
pub(super) use position::Axis;

/// The maximum number of records of a leaf, and of children of another node.
const MOST: usize = 32;

#[derive(Clone, Debug)]
struct Node {
    /// A place that no record of the node comes before.
    first: Position,
    known: Known,
    below: Below,
}

#[derive(Clone, Debug)]
enum Below {
    Records(Vec<Record>),
    /// All of one height.
    Nodes(Vec<Node>),
}

/// The result of [`Node::sweep`].
struct Swept {
    looked_at: usize,
    dropped: usize,
    /// The first place of the next leaf.
    next: Option<Position>,
}

impl Node {
    fn new(axis: Axis, below: Below) -> Self {
        let mut node = Node { first: FIRST, known: Known::nothing(), below };
        node.learn(axis);
        node
    }

    /// Learns again what lies below.
    fn learn(&mut self, axis: Axis) {
        let mut known = Known::nothing();
        match &self.below {
            Below::Records(records) => {
                visit(records.len());
                records.iter().for_each(|record| known.add(record, axis.place(record).end));
                self.first = records.first().map_or(FIRST, |record| axis.place(record));
            }
            Below::Nodes(nodes) => {
                visit(nodes.len());
                nodes.iter().for_each(|node| known.add_all(&node.known));
                self.first = nodes.first().map_or(FIRST, |node| node.first);
            }
        }
        self.known = known;
    }

    /// Returns the number of records or nodes directly below.
    fn len(&self) -> usize {
        match &self.below {
            Below::Records(records) => records.len(),
            Below::Nodes(nodes) => nodes.len(),
        }
    }

    /// Returns the children that may have records in the window.
    fn reached_by(nodes: &[Node], window: Window) -> Range<usize> {
        // A child's records start no later than the next child's first record.
        let from = nodes.partition_point(|node| node.first.start < window.from).saturating_sub(1);
        from..nodes.partition_point(|node| node.first.start < window.to)
    }

    /// Returns the child in which `place` belongs.
    fn child_at(nodes: &[Node], place: Position) -> usize {
        nodes.partition_point(|node| node.first <= place).saturating_sub(1)
    }

    /// Calls `look` with all records of the leaves that reach into the window, except those below
    /// nodes whose users satisfy `skip`.
    fn search(
        &self,
        window: Window,
        skip: &impl Fn(&Users) -> bool,
        look: &mut impl FnMut(&Record) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        visit(1);
        if window.misses(&self.known) || skip(&self.known.users) {
            return Continue(());
        }
        match &self.below {
            Below::Records(records) => {
                visit(records.len());
                records.iter().try_for_each(look)
            }
            Below::Nodes(nodes) => nodes[Self::reached_by(nodes, window)]
                .iter()
                .try_for_each(|node| node.search(window, skip, look)),
        }
    }

    /// Inserts a record and removes those of the same leaf that satisfy `replaces`. Sets `is_added`
    /// to false if there is a record at that place, of which the newer one stays. Returns the upper
    /// part of a node that was full.
    fn insert(
        &mut self,
        axis: Axis,
        record: Record,
        replaces: &mut impl FnMut(&mut Record) -> bool,
        removed: &mut impl FnMut(Removed),
        is_added: &mut bool,
    ) -> Option<Node> {
        let place = axis.place(&record);
        self.first = if self.len() == 0 { place } else { self.first.min(place) };
        self.known.add(&record, place.end);
        let upper = match &mut self.below {
            Below::Records(records) => {
                visit(records.len());
                records.extract_if(.., replaces).map(Removed::One).for_each(removed);
                let at = records.partition_point(|other| axis.place(other) < place);
                match records.get_mut(at).filter(|other| axis.place(other) == place) {
                    Some(same) => {
                        *is_added = false;
                        if same.used.ticket < record.used.ticket {
                            *same = record;
                        }
                        None
                    }
                    None => insert_or_split(records, at, record).map(Below::Records),
                }
            }
            Below::Nodes(nodes) => {
                let at = Self::child_at(nodes, place);
                let upper = nodes[at].insert(axis, record, replaces, removed, is_added)?;
                insert_or_split(nodes, at + 1, upper).map(Below::Nodes)
            }
        }?;
        self.learn(axis);
        Some(Node::new(axis, upper))
    }

    /// Gives the record at `place`, if it satisfies `is_it`, the ticket of `used` and a new site,
    /// and returns the old ones.
    fn renew(
        &mut self,
        axis: Axis,
        place: Position,
        used: Use,
        site: &Site,
        is_it: &impl Fn(&Record) -> bool,
    ) -> Option<(Ticket, Site)> {
        visit(1);
        let renewed = match &mut self.below {
            Below::Records(records) => {
                let at = records.binary_search_by(|record| axis.place(record).cmp(&place)).ok()?;
                is_it(&records[at]).then(|| records[at].renew(used.ticket, *site))
            }
            Below::Nodes(nodes) => {
                let at = Self::child_at(nodes, place);
                nodes[at].renew(axis, place, used, site, is_it)
            }
        }?;
        self.known.users.add(used);
        Some(renewed)
    }

    /// Removes the records in the window that satisfy `which`. Returns whether there were any.
    fn remove(
        &mut self,
        axis: Axis,
        window: Window,
        which: &mut impl FnMut(&mut Record) -> bool,
        removed: &mut impl FnMut(Removed),
    ) -> bool {
        visit(1);
        if window.misses(&self.known) {
            return false;
        }
        let changed = match &mut self.below {
            Below::Records(records) => {
                let from = records.partition_point(|record| axis.place(record).start < window.from);
                let to = records.partition_point(|record| axis.place(record).start < window.to);
                visit(to - from);
                let before = records.len();
                if to - from == before && records.iter_mut().all(&mut *which) {
                    // The records of a leaf are not copied, because there may be thousands of
                    // leaves.
                    removed(Removed::Leaf(std::mem::take(records)));
                } else {
                    records.extract_if(from..to, which).map(Removed::One).for_each(removed);
                }
                records.len() < before
            }
            Below::Nodes(nodes) => {
                let mut changed = false;
                let concerned = Self::reached_by(nodes, window);
                for node in &mut nodes[concerned] {
                    changed |= node.remove(axis, window, which, removed);
                }
                changed
            }
        };
        if changed {
            self.tidy(axis);
        }
        changed
    }

    /// Drops the records of the leaf at `place` that satisfy `is_over`.
    fn sweep(&mut self, axis: Axis, place: Position, is_over: &impl Fn(Use) -> bool) -> Swept {
        let swept = match &mut self.below {
            Below::Records(records) => {
                visit(records.len());
                let looked_at = records.len();
                records.retain(|record| !is_over(record.used));
                Swept { looked_at, dropped: looked_at - records.len(), next: None }
            }
            Below::Nodes(nodes) => {
                let at = Self::child_at(nodes, place);
                let swept = nodes[at].sweep(axis, place, is_over);
                let next = swept.next.or_else(|| nodes.get(at + 1).map(|node| node.first));
                Swept { next, ..swept }
            }
        };
        if swept.dropped > 0 {
            self.tidy(axis);
        }
        swept
    }

    /// Joins small children, returns memory, and learns what is left.
    fn tidy(&mut self, axis: Axis) {
        match &mut self.below {
            Below::Records(records) => records.shrink_to(2 * records.len()),
            Below::Nodes(nodes) => {
                nodes.retain(|node| node.len() > 0);
                let mut at = 1;
                while at < nodes.len() {
                    if nodes[at - 1].len() + nodes[at].len() > MOST / 2 {
                        at += 1;
                        continue;
                    }
                    let upper = nodes.remove(at);
                    match (&mut nodes[at - 1].below, upper.below) {
                        (Below::Records(lower), Below::Records(upper)) => lower.extend(upper),
                        (Below::Nodes(lower), Below::Nodes(upper)) => lower.extend(upper),
                        _ => unreachable!("children of one node have one height"),
                    }
                    nodes[at - 1].learn(axis);
                }
            }
        }
        self.learn(axis);
    }

    fn for_each(&self, look: &mut impl FnMut(&Record)) {
        match &self.below {
            Below::Records(records) => records.iter().for_each(look),
            Below::Nodes(nodes) => nodes.iter().for_each(|node| node.for_each(look)),
        }
    }
}

/// Inserts an item. Splits a full list, and returns its upper part.
fn insert_or_split<T>(items: &mut Vec<T>, at: usize, item: T) -> Option<Vec<T>> {
    if items.len() < MOST {
        items.insert(at, item);
        return None;
    }
    if at == MOST {
        // Programs often append. Then the list stays full, and more will follow in the new one.
        let mut upper = Vec::with_capacity(MOST);
        upper.push(item);
        return Some(upper);
    }
    let mut upper = items.split_off(MOST / 2);
    match at.checked_sub(MOST / 2) {
        Some(at) => upper.insert(at, item),
        None => items.insert(at, item),
    }
    Some(upper)
}

/// Records whose ranges lie on one axis.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    axis: Axis,
    root: Node,
    len: usize,
    /// The place of the leaf that is swept next.
    swept_to: Position,
}

impl Tree {
    pub(super) fn new(axis: Axis) -> Self {
        Tree { axis, root: Node::new(axis, Below::Records(Vec::new())), len: 0, swept_to: FIRST }
    }

    pub(super) fn axis(&self) -> Axis {
        self.axis
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Calls `look` with each record in the window, until it breaks. May leave out records of nodes
    /// whose users satisfy `skip`, and may call it with records outside of the window.
    pub(super) fn search(
        &self,
        window: Window,
        skip: impl Fn(&Users) -> bool,
        mut look: impl FnMut(&Record) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.root.search(window, &skip, &mut look)
    }

    /// Inserts a record. Removes those that satisfy `replaces`, but looks only where the new record
    /// is inserted, at the records that start and end nearby. If the same stream has a record of
    /// the same range, only the newer one stays.
    pub(super) fn insert(
        &mut self,
        record: Record,
        mut replaces: impl FnMut(&mut Record) -> bool,
        mut removed: impl FnMut(Removed),
    ) {
        let (mut gone, mut is_added) = (0, true);
        let mut remove = |old: Removed| {
            gone += old.records().len();
            removed(old);
        };
        let upper = self.root.insert(self.axis, record, &mut replaces, &mut remove, &mut is_added);
        self.len = self.len + usize::from(is_added) - gone;
        if let Some(upper) = upper {
            let lower = std::mem::replace(&mut self.root, Node::new(self.axis, Below::Nodes(Vec::new())));
            self.root = Node::new(self.axis, Below::Nodes(vec![lower, upper]));
        }
    }

    /// Gives the record of `used.stream` at `range`, if it satisfies `is_it`, the ticket of `used`
    /// and a new site, and returns the old ones.
    pub(super) fn renew(
        &mut self,
        used: Use,
        range: &ByteRange,
        site: &Site,
        is_it: impl Fn(&Record) -> bool,
    ) -> Option<(Ticket, Site)> {
        let Span { start, end } = self.axis.span(range);
        let place = Position { start, end, stream: used.stream, range: *range };
        self.root.renew(self.axis, place, used, site, &is_it)
    }

    /// Removes the records that satisfy `which`. `range` covers all of them. `which` may be called
    /// twice for one record, and with records that are not covered.
    pub(super) fn remove(
        &mut self,
        range: &ByteRange,
        which: impl FnMut(&mut Record) -> bool,
        removed: impl FnMut(Removed),
    ) {
        self.take(Window::covered_by(self.axis, range), which, removed);
    }

    /// Removes the records in the window that satisfy `which`, under the rules of
    /// [`remove`](Self::remove).
    fn take(
        &mut self,
        window: Window,
        mut which: impl FnMut(&mut Record) -> bool,
        mut removed: impl FnMut(Removed),
    ) {
        let mut gone = 0;
        self.root.remove(self.axis, window, &mut which, &mut |old| {
            gone += old.records().len();
            removed(old);
        });
        self.len -= gone;
        self.lower();
    }

    /// Moves the records that belong on the axis of `other` there.
    pub(super) fn move_to(&mut self, other: &mut Tree) {
        let axis = other.axis;
        self.take(
            Window::of_runs_up_to(axis.most_in_run()),
            |record| axis.fits(&record.range),
            |moved| {
                moved.records().iter().for_each(|record| other.insert(*record, |_| false, |_| ()));
            },
        );
    }

    /// Drops the records of one leaf that satisfy `is_over`, and of the next ones as long as at
    /// least half of their records are dropped.
    pub(super) fn sweep(&mut self, is_over: impl Fn(Use) -> bool) {
        while self.len > 0 {
            let swept = self.root.sweep(self.axis, self.swept_to, &is_over);
            self.swept_to = swept.next.unwrap_or(FIRST);
            self.len -= swept.dropped;
            self.lower();
            if 2 * swept.dropped < swept.looked_at.max(1) {
                break;
            }
        }
    }

    /// Removes roots that have one child.
    fn lower(&mut self) {
        while let Below::Nodes(nodes) = &mut self.root.below
            && nodes.len() <= 1
        {
            self.root = nodes.pop().unwrap_or_else(|| Node::new(self.axis, Below::Records(Vec::new())));
        }
    }

    pub(super) fn for_each(&self, mut look: impl FnMut(&Record)) {
        self.root.for_each(&mut look);
    }
}

#[cfg(test)]
mod tests;
