//! A tree of records in the order of their bytes or of their columns.
//!
//! Each node knows where its records lie, and which streams made them, each with its newest ticket.
//! So a search skips a node whose records lie elsewhere, and a search for unordered uses also skips
//! a node whose newest uses are all ordered. One stream that has written a million slices is
//! skipped at the root. A node names at most [`MOST_USERS`] streams. With more, it is never skipped
//! because of order. A search for covered records skips a node whose records, or their runs, are all
//! longer than the covering range: a row covers none of a million columns, and a column no row.
//!
//! A node never knows too little: the start of its records may be too low, their end and the
//! tickets too high, and so on. After a record was replaced or taken back they may stay so for a
//! while.

use super::super::clock::{StreamId, Ticket, Use};
use super::super::range::ByteRange;
use super::super::site::Site;
use super::{Record, Removed, visit};
use arrayvec::ArrayVec;
use std::ops::ControlFlow::{self, Continue};

/// The maximum number of records of a leaf, and of children of another node.
const MOST: usize = 32;

/// The maximum number of streams that a node names.
const MOST_USERS: usize = 16;

/// The axis on which the ranges of a tree lie.
#[derive(Clone, Copy, Debug)]
pub(super) enum Axis {
    /// The bytes of the allocation. A range spans all bytes from its first to its last.
    Bytes,
    /// The bytes of a row, for ranges of one stride.
    Columns { stride: u64 },
}

/// The part of an axis that a range spans.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    start: u64,
    end: u64,
}

impl Axis {
    /// Returns the span of `range`. Ranges that share bytes have spans that overlap, and a range
    /// that covers another has a span that contains the other's start.
    pub(super) fn span(self, range: &ByteRange) -> Span {
        match self {
            Axis::Bytes => Span { start: range.offset(), end: range.end() },
            Axis::Columns { stride } => {
                let (start, len) = (range.offset() % stride, range.run_len());
                // A range that does not fit the rows may touch every column.
                match (range.is_contiguous() || range.stride() == stride) && len <= stride - start {
                    true => Span { start, end: start + len },
                    false => Span { start: 0, end: u64::MAX },
                }
            }
        }
    }

    /// Returns whether `range` belongs into a tree on this axis.
    pub(super) fn fits(self, range: &ByteRange) -> bool {
        match self {
            Axis::Bytes => true,
            Axis::Columns { stride } => {
                !range.is_contiguous()
                    && range.stride() == stride
                    && range.run_len() <= stride - range.offset() % stride
            }
        }
    }

    fn place(self, record: &Record) -> Place {
        let Span { start, end } = self.span(&record.range);
        Place { start, end, stream: record.used.stream, range: record.range }
    }
}

/// The position of a record in a tree. No two records of a tree have the same one, so exactly one
/// leaf can have the record at a place, and no two leaves begin at the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// The start of the range's span.
    start: u64,
    /// The end of the range's span.
    end: u64,
    stream: StreamId,
    range: ByteRange,
}

/// The records that a search is about.
#[derive(Clone, Copy)]
pub(super) struct Window {
    /// Their spans start in `from..to`.
    from: u64,
    to: u64,
    /// Their spans end after it.
    past: u64,
    /// They share some of these bytes.
    bytes: Bytes,
    /// They have at most this many bytes from the first to the last.
    most: u64,
    /// Their runs have at most this many bytes.
    most_in_run: u64,
}

impl Window {
    /// Returns the window of all records that may overlap `range`.
    pub(super) fn overlapping(axis: Axis, range: &ByteRange) -> Self {
        let span = axis.span(range);
        let (bytes, any) = (Bytes::of(range), u64::MAX);
        Window { from: 0, to: span.end, past: span.start, bytes, most: any, most_in_run: any }
    }

    /// Returns the window of all records that `range` may cover.
    pub(super) fn covered_by(axis: Axis, range: &ByteRange) -> Self {
        let span = axis.span(range);
        let (bytes, most_in_run) = (Bytes::of(range), range.run_len());
        Window { from: span.start, to: span.end, past: 0, bytes, most: bytes.len(), most_in_run }
    }

    /// Returns whether none of a node's records is in the window.
    fn misses(self, known: &Known) -> bool {
        known.end <= self.past
            || !self.bytes.meet(known.bytes)
            || known.shortest > self.most
            || known.shortest_run > self.most_in_run
    }

    /// Returns the children that may have records in the window.
    fn of(self, children: &[Node]) -> std::ops::Range<usize> {
        // A child's records start no later than the next child's first record.
        let from = children.partition_point(|child| child.first.start < self.from).saturating_sub(1);
        from..children.partition_point(|child| child.first.start < self.to)
    }
}

/// All bytes from a first one to a last one, over gaps between runs.
#[derive(Clone, Copy, Debug)]
struct Bytes {
    start: u64,
    end: u64,
}

impl Bytes {
    const NONE: Bytes = Bytes { start: u64::MAX, end: 0 };

    fn of(range: &ByteRange) -> Self {
        Bytes { start: range.offset(), end: range.end() }
    }

    fn len(self) -> u64 {
        self.end - self.start
    }

    fn and(self, other: Bytes) -> Self {
        Bytes { start: self.start.min(other.start), end: self.end.max(other.end) }
    }

    fn meet(self, other: Bytes) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// The streams that made some records, each with its newest ticket.
#[derive(Clone, Debug, Default)]
pub(super) struct Users {
    few: ArrayVec<Use, MOST_USERS>,
    /// True if there are more streams than `few` can name.
    more: bool,
}

impl Users {
    fn add(&mut self, used: Use) {
        match self.few.iter_mut().find(|user| user.stream == used.stream) {
            Some(user) => user.ticket = user.ticket.max(used.ticket),
            None => self.more |= self.few.try_push(used).is_err(),
        }
    }

    fn add_all(&mut self, other: &Users) {
        other.few.iter().for_each(|used| self.add(*used));
        self.more |= other.more;
    }

    /// Returns whether all uses satisfy `is_before`, if that can be told.
    pub(super) fn are(&self, is_before: impl Fn(Use) -> bool) -> bool {
        !self.more && self.few.iter().all(|used| is_before(*used))
    }
}

#[derive(Clone, Debug)]
struct Node {
    /// A place that no record of the node comes before.
    first: Place,
    known: Known,
    below: Below,
}

/// What a node knows of its records.
#[derive(Clone, Debug)]
struct Known {
    /// No record's span ends after it.
    end: u64,
    /// All records lie in it.
    bytes: Bytes,
    /// No record has fewer bytes from its first one to its last.
    shortest: u64,
    /// No record has a shorter run.
    shortest_run: u64,
    users: Users,
}

impl Known {
    fn nothing() -> Self {
        let (shortest, shortest_run) = (u64::MAX, u64::MAX);
        Known { end: 0, bytes: Bytes::NONE, shortest, shortest_run, users: Users::default() }
    }

    /// Adds a record whose span ends at `end`.
    fn add(&mut self, record: &Record, end: u64) {
        let bytes = Bytes::of(&record.range);
        self.end = self.end.max(end);
        self.bytes = self.bytes.and(bytes);
        self.shortest = self.shortest.min(bytes.len());
        self.shortest_run = self.shortest_run.min(record.range.run_len());
        self.users.add(record.used);
    }

    fn add_all(&mut self, other: &Known) {
        self.end = self.end.max(other.end);
        self.bytes = self.bytes.and(other.bytes);
        self.shortest = self.shortest.min(other.shortest);
        self.shortest_run = self.shortest_run.min(other.shortest_run);
        self.users.add_all(&other.users);
    }
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
    next: Option<Place>,
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

    /// Returns the child in which `place` belongs.
    fn child_at(nodes: &[Node], place: Place) -> usize {
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
            Below::Nodes(nodes) => {
                nodes[window.of(nodes)].iter().try_for_each(|node| node.search(window, skip, look))
            }
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
        place: Place,
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
                let concerned = window.of(nodes);
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
    fn sweep(&mut self, axis: Axis, place: Place, is_over: &impl Fn(Use) -> bool) -> Swept {
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

/// A place before all others.
const FIRST: Place = Place { start: 0, end: 0, stream: StreamId(0), range: ByteRange::contiguous(0, 0) };

/// Records whose ranges lie on one axis.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    axis: Axis,
    root: Node,
    len: usize,
    /// The place of the leaf that is swept next.
    swept_to: Place,
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
        let place = Place { start, end, stream: used.stream, range: *range };
        self.root.renew(self.axis, place, used, site, &is_it)
    }

    /// Removes the records that satisfy `which`. `range` covers all of them. `which` may be called
    /// twice for one record, and with records that are not covered.
    pub(super) fn remove(
        &mut self,
        range: &ByteRange,
        mut which: impl FnMut(&mut Record) -> bool,
        mut removed: impl FnMut(Removed),
    ) {
        let mut gone = 0;
        let window = Window::covered_by(self.axis, range);
        self.root.remove(self.axis, window, &mut which, &mut |old| {
            gone += old.records().len();
            removed(old);
        });
        self.len -= gone;
        self.lower();
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
