//! A persistent radix tree from the slots of streams to 64-bit words, of which 0 means none.
//!
//! A clone shares all nodes. A change copies the nodes on its path that others share. Joining takes
//! the maximum slot by slot, and skips parts that both trees share. So joining costs as much as the
//! parts in which two trees differ, and not as much as the trees.

use super::visit;
use std::sync::Arc;

/// The number of slots of a leaf.
const WIDTH: usize = 64;
/// The number of children of an inner node.
const FANOUT: usize = 16;

/// A tree over the slots `0..WIDTH * FANOUT^height`, which are as many as it needed so far.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    root: Node,
    height: u32,
}

#[derive(Clone, Debug)]
enum Node {
    Leaf(Arc<Leaf>),
    Inner(Arc<[Option<Node>; FANOUT]>),
}

/// The words of neighbouring slots.
///
/// Most leaves are near: their words differ only in the lower half. They take half of the memory,
/// which matters if thousands of streams wait for thousands of others.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a box would be another allocation for almost every leaf")]
enum Leaf {
    /// All words that are not 0 have these upper 32 bits. Their lower 32 bits are not 0, so that 0
    /// stands for a word that is 0.
    Near { upper: u32, lower: [u32; WIDTH] },
    /// Words of any kind.
    Far(Box<[u64; WIDTH]>),
}

fn split(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

impl Leaf {
    fn of(words: &[u64; WIDTH]) -> Self {
        let upper = words.iter().find(|word| **word != 0).map_or(0, |word| split(*word).0);
        let is_near = |word: &u64| *word == 0 || split(*word).0 == upper && split(*word).1 != 0;
        if words.iter().all(is_near) {
            Leaf::Near { upper, lower: words.map(|word| split(word).1) }
        } else {
            Leaf::Far(Box::new(*words))
        }
    }

    fn get(&self, slot: usize) -> u64 {
        match self {
            Leaf::Near { lower, .. } if lower[slot] == 0 => 0,
            Leaf::Near { upper, lower } => u64::from(*upper) << 32 | u64::from(lower[slot]),
            Leaf::Far(words) => words[slot],
        }
    }

    fn raise(&mut self, slot: usize, word: u64) {
        if let Leaf::Near { upper, lower } = self
            && split(word).0 == *upper
            && split(word).1 != 0
        {
            lower[slot] = lower[slot].max(split(word).1);
            return;
        }
        let mut words = std::array::from_fn(|slot| self.get(slot));
        words[slot] = words[slot].max(word);
        *self = Leaf::of(&words);
    }

    fn joined(&self, other: &Leaf) -> Leaf {
        match (self, other) {
            (Leaf::Near { upper, lower }, Leaf::Near { upper: same, lower: other }) if upper == same => {
                Leaf::Near { upper: *upper, lower: std::array::from_fn(|slot| lower[slot].max(other[slot])) }
            }
            _ => Leaf::of(&std::array::from_fn(|slot| self.get(slot).max(other.get(slot)))),
        }
    }
}

impl Node {
    fn empty(height: u32) -> Self {
        if height == 0 {
            Node::Leaf(Arc::new(Leaf::Near { upper: 0, lower: [0; WIDTH] }))
        } else {
            Node::Inner(Arc::new([const { None }; FANOUT]))
        }
    }

    fn is_same(&self, other: &Node) -> bool {
        match (self, other) {
            (Node::Leaf(a), Node::Leaf(b)) => Arc::ptr_eq(a, b),
            (Node::Inner(a), Node::Inner(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    fn join(&mut self, other: &Node) {
        if self.is_same(other) {
            return;
        }
        match (&mut *self, other) {
            (Node::Leaf(mine), Node::Leaf(theirs)) => {
                visit(WIDTH);
                let joined = mine.joined(theirs);
                // Sharing saves memory, and the next join skips this leaf.
                if joined == **theirs {
                    *mine = theirs.clone();
                } else if joined != **mine {
                    match Arc::get_mut(mine) {
                        Some(mine) => *mine = joined,
                        None => *mine = Arc::new(joined),
                    }
                }
            }
            (Node::Inner(mine), Node::Inner(theirs)) => {
                visit(FANOUT);
                let children = Arc::make_mut(mine);
                for (mine, theirs) in children.iter_mut().zip(theirs.iter()) {
                    match (mine, theirs) {
                        (_, None) => {}
                        (Some(mine), Some(theirs)) => mine.join(theirs),
                        (mine, Some(theirs)) => *mine = Some(theirs.clone()),
                    }
                }
                let same = |(mine, theirs): (&Option<Node>, &Option<Node>)| match (mine, theirs) {
                    (Some(mine), Some(theirs)) => mine.is_same(theirs),
                    (mine, theirs) => mine.is_none() && theirs.is_none(),
                };
                if mine.iter().zip(theirs.iter()).all(same) {
                    *mine = theirs.clone();
                }
            }
            _ => unreachable!("both have the same height"),
        }
    }

    fn for_each(&self, first: usize, width: usize, f: &mut impl FnMut(usize, u64)) {
        match self {
            Node::Leaf(leaf) => {
                for slot in 0..WIDTH {
                    let word = leaf.get(slot);
                    if word != 0 {
                        f(first + slot, word);
                    }
                }
            }
            Node::Inner(children) => {
                let width = width / FANOUT;
                for (at, child) in children.iter().enumerate() {
                    if let Some(child) = child {
                        child.for_each(first + at * width, width, f);
                    }
                }
            }
        }
    }
}

impl Tree {
    pub(super) fn new() -> Self {
        Tree { root: Node::empty(0), height: 0 }
    }

    /// Returns the number of slots that the tree can hold.
    fn width(&self) -> usize {
        WIDTH * FANOUT.pow(self.height)
    }

    #[inline]
    pub(super) fn get(&self, slot: usize) -> u64 {
        if slot >= self.width() {
            return 0;
        }
        let (mut node, mut width) = (&self.root, self.width());
        loop {
            match node {
                Node::Leaf(leaf) => return leaf.get(slot % WIDTH),
                Node::Inner(children) => {
                    width /= FANOUT;
                    match &children[slot / width % FANOUT] {
                        Some(child) => node = child,
                        None => return 0,
                    }
                }
            }
        }
    }

    /// Adds a level above the root.
    fn grow(&mut self) {
        let mut children = [const { None }; FANOUT];
        children[0] = Some(std::mem::replace(&mut self.root, Node::empty(0)));
        self.root = Node::Inner(Arc::new(children));
        self.height += 1;
    }

    /// Sets the word of `slot` to the greater of its word and `word`.
    pub(super) fn raise(&mut self, slot: usize, word: u64) {
        while slot >= self.width() {
            self.grow();
        }
        visit(1);
        let (mut width, mut height) = (self.width(), self.height);
        let mut node = &mut self.root;
        loop {
            match node {
                Node::Leaf(leaf) => return Arc::make_mut(leaf).raise(slot % WIDTH, word),
                Node::Inner(children) => {
                    (width, height) = (width / FANOUT, height - 1);
                    let child = &mut Arc::make_mut(children)[slot / width % FANOUT];
                    node = child.get_or_insert_with(|| Node::empty(height));
                }
            }
        }
    }

    /// Sets each word to the greater of its word and that of `other`.
    pub(super) fn join(&mut self, other: &Tree) {
        while self.height < other.height {
            self.grow();
        }
        if self.height == other.height {
            return self.root.join(&other.root);
        }
        let mut other = other.clone();
        while other.height < self.height {
            other.grow();
        }
        self.root.join(&other.root);
    }

    /// Calls `f` with each slot that has a word, in order, and the word.
    pub(super) fn for_each(&self, mut f: impl FnMut(usize, u64)) {
        self.root.for_each(0, self.width(), &mut f);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Slots of several leaves and heights, and words of several upper halves, among them words
    /// whose lower half is 0.
    fn changes() -> impl Strategy<Value = Vec<(usize, u64)>> {
        let slot = prop_oneof![0..3_usize, 60..70_usize, 1020..1030_usize, Just((1 << 20) - 1)];
        let word = (0..3_u64, 0..4_u64).prop_map(|(upper, lower)| (upper << 32 | lower).max(1));
        prop::collection::vec((slot, word), 0..40)
    }

    fn words(tree: &Tree) -> Vec<(usize, u64)> {
        let mut words = Vec::new();
        tree.for_each(|slot, word| words.push((slot, word)));
        words
    }

    fn raised(changes: &[(usize, u64)], tree: &mut Tree, model: &mut BTreeMap<usize, u64>) {
        for &(slot, word) in changes {
            tree.raise(slot, word);
            let of_slot = model.entry(slot).or_default();
            *of_slot = word.max(*of_slot);
        }
    }

    proptest! {
        #[test]
        fn a_tree_is_a_map_and_a_clone_keeps_its_words(
            shared in changes(), one in changes(), two in changes(), more in changes(),
        ) {
            let (mut base, mut of_base) = (Tree::new(), BTreeMap::new());
            raised(&shared, &mut base, &mut of_base);
            let (mut a, mut of_a) = (base.clone(), of_base.clone());
            raised(&one, &mut a, &mut of_a);
            let (mut b, mut of_b) = (base.clone(), of_base.clone());
            raised(&two, &mut b, &mut of_b);
            let before = a.clone();
            a.join(&b);
            let of_before = of_a.clone();
            for (slot, word) in &of_b {
                let of_slot = of_a.entry(*slot).or_default();
                *of_slot = (*word).max(*of_slot);
            }
            prop_assert_eq!(words(&a), of_a.clone().into_iter().collect::<Vec<_>>());
            raised(&more, &mut a, &mut of_a);
            for (tree, model) in [(&base, of_base), (&before, of_before), (&b, of_b), (&a, of_a)] {
                for slot in [0, 1, 63, 64, 69, 1023, 1024, 70_000, (1 << 20) - 1] {
                    prop_assert_eq!(tree.get(slot), model.get(&slot).copied().unwrap_or(0));
                }
                prop_assert_eq!(words(tree), model.into_iter().collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn what_is_covered_is_shared_and_is_skipped_afterwards() {
        let mut large = Tree::new();
        (0..2000).for_each(|slot| large.raise(slot, 7));
        let mut small = Tree::new();
        (0..2000).step_by(3).for_each(|slot| small.raise(slot, 5));
        small.join(&large);
        assert!(small.root.is_same(&large.root));
        super::super::VISITED.set(0);
        small.join(&large);
        assert_eq!(super::super::VISITED.get(), 0);
    }
}
