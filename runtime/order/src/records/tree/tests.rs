//! The rules that hold in a tree at all times.

use super::*;

impl Tree {
    /// Asserts that each node is within its limits and knows what lies below it.
    pub(in super::super) fn assert_sound(&self) {
        let mut records = Vec::new();
        self.root.assert_sound(self.axis, true, &mut records);
        assert_eq!(records.len(), self.len);
    }
}

impl Node {
    /// Returns the height, and adds the records below to `records`.
    fn assert_sound(&self, axis: Axis, is_root: bool, records: &mut Vec<Record>) -> usize {
        let from = records.len();
        assert!(self.len() <= MOST && (is_root || self.len() > 0), "{} records or nodes", self.len());
        let height = match &self.below {
            Below::Records(here) => {
                records.extend(here);
                0
            }
            Below::Nodes(nodes) => {
                let below = |node: &Node| node.assert_sound(axis, false, records);
                let heights: Vec<usize> = nodes.iter().map(below).collect();
                assert!(heights.iter().all(|height| *height == heights[0]), "heights {heights:?}");
                heights[0] + 1
            }
        };
        let mine = &records[from..];
        assert!(mine.is_sorted_by(|a, b| axis.place(a) < axis.place(b)));
        for record in mine {
            let place = axis.place(record);
            assert!(self.first <= place && self.known.includes(record, place.end));
        }
        height
    }
}
