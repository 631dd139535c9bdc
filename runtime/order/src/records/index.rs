//! Many records of one kind (writes or reads), and the tree in which each of them lies.

use super::super::clock::{Ticket, Use};
use super::super::range::ByteRange;
use super::super::site::Site;
use super::tree::{Axis, Tree, Window};
use super::{Record, Removed};
use arrayvec::ArrayVec;
use std::ops::ControlFlow::{self, Continue};

/// The maximum number of strides that have trees of their own.
const MOST_STRIDES: usize = 2;

/// Records by the bytes that they span. All column views of a matrix span the same rows, so by
/// bytes they look alike. Each of up to two strides therefore has a tree in the order of columns. A
/// tree also takes views whose stride is a multiple of its own, as a reshaped matrix has them.
/// Views of a third stride are in the tree of bytes, and so are views whose runs reach into the
/// next row. That changes no verdict, but a search among them looks at all that it cannot skip
/// because of order.
#[derive(Clone, Debug)]
pub(super) struct Index {
    bytes: Tree,
    columns: ArrayVec<Tree, MOST_STRIDES>,
}

impl Default for Index {
    fn default() -> Self {
        Index { bytes: Tree::new(Axis::Bytes), columns: ArrayVec::new() }
    }
}

impl Index {
    fn trees(&self) -> impl Iterator<Item = &Tree> {
        std::iter::once(&self.bytes).chain(&self.columns)
    }

    fn trees_mut(&mut self) -> impl Iterator<Item = &mut Tree> {
        std::iter::once(&mut self.bytes).chain(&mut self.columns)
    }

    /// Returns the tree for records of `range`.
    fn tree_for(&mut self, range: &ByteRange) -> &mut Tree {
        if range.is_contiguous() {
            return &mut self.bytes;
        }
        if let Some(at) = self.columns.iter().position(|tree| tree.axis().fits(range)) {
            return &mut self.columns[at];
        }
        let axis = Axis::Columns { stride: range.stride() };
        self.columns.retain(|tree| tree.len() > 0);
        if self.columns.is_full() || !axis.fits(range) {
            return &mut self.bytes;
        }
        // The new tree comes first, so later views that fit both go where the moved ones are.
        let mut tree = Tree::new(axis);
        self.columns.iter_mut().for_each(|other| other.move_to(&mut tree));
        self.columns.insert(0, tree);
        &mut self.columns[0]
    }

    pub(super) fn len(&self) -> usize {
        self.trees().map(Tree::len).sum()
    }

    /// Calls `found` with each record that shares bytes with `range` and does not satisfy
    /// `is_before`. If one use of a stream satisfies it, all older ones must too.
    pub(super) fn unordered(
        &self,
        range: &ByteRange,
        is_before: &impl Fn(Use) -> bool,
        mut found: impl FnMut(&Record) -> ControlFlow<()>,
    ) -> bool {
        self.trees().any(|tree| {
            let window = Window::overlapping(tree.axis(), range);
            let looked = tree.search(
                window,
                |users| users.are(is_before),
                |record| match record.range.overlaps(range) && !is_before(record.used) {
                    true => found(record),
                    false => Continue(()),
                },
            );
            looked.is_break()
        })
    }

    /// Calls `look` with each record that `range` covers, until it breaks.
    pub(super) fn covered(
        &self,
        range: &ByteRange,
        mut look: impl FnMut(&Record) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.trees().try_for_each(|tree| {
            let window = Window::covered_by(tree.axis(), range);
            tree.search(
                window,
                |_| false,
                |record| match range.covers(&record.range) {
                    true => look(record),
                    false => Continue(()),
                },
            )
        })
    }

    /// Inserts a record and removes some of those that satisfy `replaces`.
    pub(super) fn insert(
        &mut self,
        record: Record,
        replaces: impl Fn(&Record) -> bool,
        removed: impl FnMut(Removed),
    ) {
        self.tree_for(&record.range).insert(record, |old| replaces(old), removed);
    }

    /// Gives the record of the same stream and range that satisfies `is_it` a new ticket and site,
    /// and returns the old ones.
    pub(super) fn renew(
        &mut self,
        used: Use,
        range: &ByteRange,
        site: &Site,
        is_it: impl Fn(&Record) -> bool,
    ) -> Option<(Ticket, Site)> {
        // The view may have been recorded before its stride had a tree. Then it is in `bytes`.
        self.trees_mut().find_map(|tree| tree.renew(used, range, site, &is_it))
    }

    /// Removes the records that satisfy `which`. `range` covers all of them.
    pub(super) fn remove(
        &mut self,
        range: &ByteRange,
        which: impl Fn(&Record) -> bool,
        mut removed: impl FnMut(Removed),
    ) {
        for tree in self.trees_mut().filter(|tree| tree.len() > 0) {
            tree.remove(range, |old| which(old), &mut removed);
        }
    }

    /// Drops records that satisfy `is_over`, but looks only at a few.
    pub(super) fn sweep(&mut self, is_over: &impl Fn(Use) -> bool) {
        self.trees_mut().for_each(|tree| tree.sweep(is_over));
    }

    pub(super) fn for_each(&self, mut look: impl FnMut(&Record)) {
        self.trees().for_each(|tree| tree.for_each(&mut look));
    }
}

#[cfg(test)]
impl Index {
    pub(super) fn assert_sound(&self) {
        self.trees().for_each(Tree::assert_sound);
    }
}
