//! The bytes of an allocation that an operand touches: evenly spaced runs of equal length.
//!
//! A whole buffer is one run, rows of a matrix are one run, and columns are one run per row.
//! Whether two ranges share a byte is decided exactly. In `deny` mode, this decision keeps the
//! slices handed to twins disjoint.

use smallvec::SmallVec;

/// A range of `count` runs of `len` bytes. The first starts at `offset`, and each other run
/// `stride` bytes after the one before.
///
/// In normal form, an empty range has `len` and `stride` 0. An empty range, a range of one run, and
/// a range of runs that touch have `count` 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteRange {
    offset: u64,
    len: u64,
    stride: u64,
    count: u64,
}

impl ByteRange {
    /// Returns one run of `len` bytes that starts at `offset`.
    #[inline]
    pub const fn contiguous(offset: u64, len: u64) -> Self {
        ByteRange { offset, len, stride: len, count: 1 }
    }

    /// Returns `count` runs of `len` bytes, whose starts are `stride` bytes apart.
    ///
    /// # Panics
    /// If there are several runs and `stride` is less than `len`.
    pub fn strided(offset: u64, len: u64, stride: u64, count: u64) -> Self {
        assert!(stride >= len || count <= 1, "runs of {len} bytes cannot start every {stride} bytes");
        if len == 0 || count == 0 {
            Self::contiguous(offset, 0)
        } else if count == 1 || stride == len {
            Self::contiguous(offset, len * count)
        } else {
            ByteRange { offset, len, stride, count }
        }
    }

    /// Returns the offset of the first byte.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the offset one past the last byte.
    #[inline]
    pub const fn end(&self) -> u64 {
        self.offset + (self.count - 1) * self.stride + self.len
    }

    /// Returns the number of bytes in all runs together.
    pub const fn len_bytes(&self) -> u64 {
        self.len * self.count
    }

    /// Returns the number of bytes of each run.
    pub(crate) const fn run_len(&self) -> u64 {
        self.len
    }

    /// Returns the distance between the starts of two runs. It has no meaning for one run.
    pub(crate) const fn stride(&self) -> u64 {
        self.stride
    }

    /// Returns whether the range has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether the range is one run.
    #[inline]
    pub const fn is_contiguous(&self) -> bool {
        self.count == 1
    }

    /// Returns the runs in order, each as (offset, length).
    pub fn runs(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let ByteRange { offset, len, stride, count } = *self;
        (0..count).map(move |i| (offset + i * stride, len))
    }

    /// Returns the same range, shifted forward by `by` bytes.
    pub const fn shifted(&self, by: u64) -> Self {
        ByteRange { offset: self.offset + by, ..*self }
    }

    /// Returns whether the two ranges share a byte.
    #[inline]
    pub fn overlaps(&self, other: &Self) -> bool {
        if self.is_empty() || other.is_empty() || self.end() <= other.offset || other.end() <= self.offset {
            return false;
        }
        if self.is_contiguous() && other.is_contiguous() {
            return true;
        }
        self.overlaps_strided(other)
    }

    fn overlaps_strided(&self, other: &Self) -> bool {
        if self.stride == other.stride && !self.is_contiguous() && !other.is_contiguous() {
            return self.overlaps_same_stride(other);
        }
        // Each run of the range with fewer runs is looked up in the other range by division.
        let (few, many) = if self.count <= other.count { (self, other) } else { (other, self) };
        few.runs().any(|(offset, len)| many.touches_run(offset, len))
    }

    /// Returns whether two ranges of the same stride share a byte.
    ///
    /// Run i of `self` and run j of `other` share a byte exactly if (i − j)·stride lies strictly
    /// between d − self.len and d + other.len, where d is the distance of the offsets. The function
    /// looks for such an i − j among the existing ones.
    fn overlaps_same_stride(&self, other: &Self) -> bool {
        let (stride, d) = (i128::from(self.stride), i128::from(other.offset) - i128::from(self.offset));
        let lowest = (d - i128::from(self.len)).div_euclid(stride) + 1;
        let least = lowest.max(1 - i128::from(other.count));
        least < i128::from(self.count) && least * stride < d + i128::from(other.len)
    }

    /// Returns whether any run shares a byte with the non-empty run `offset..offset + len`.
    fn touches_run(&self, offset: u64, len: u64) -> bool {
        let end = offset + len;
        if end <= self.offset {
            return false;
        }
        // If any of our runs that start before `end` reaches past `offset`, the last of them does.
        let last = ((end - 1 - self.offset) / self.stride).min(self.count - 1);
        self.offset + last * self.stride + self.len > offset
    }

    /// Returns whether every byte of `other` is in `self`.
    #[inline]
    pub fn covers(&self, other: &Self) -> bool {
        if other.is_empty() || self == other {
            return true;
        }
        if self.offset > other.offset || self.end() < other.end() {
            return false;
        }
        if self.stride == other.stride && !self.is_contiguous() {
            // `offset` and `end` fit, so the runs pair up and it is enough to look at one.
            return self.covers_run(other.offset, other.len);
        }
        self.is_contiguous() || other.runs().all(|(offset, len)| self.covers_run(offset, len))
    }

    fn covers_run(&self, offset: u64, len: u64) -> bool {
        if offset < self.offset {
            return false;
        }
        let run = ((offset - self.offset) / self.stride).min(self.count - 1);
        let start = self.offset + run * self.stride;
        offset >= start && offset + len <= start + self.len
    }

    /// Returns the bytes of the range that are not in `hole`, as disjoint ranges.
    ///
    /// Returns `None` if that would take too many ranges, as for two different strides over many
    /// rows.
    pub fn minus(&self, hole: &Self) -> Option<Pieces> {
        let mut left = Pieces::new();
        if !self.overlaps(hole) {
            left.extend((!self.is_empty()).then_some(*self));
        } else if self.is_contiguous() {
            self.run_minus(hole, &mut left);
        } else if hole.is_contiguous() {
            self.rows_minus_run(hole, &mut left);
        } else if self.stride == hole.stride {
            self.rows_minus_rows(hole, &mut left);
        } else if self.count <= FEW_ROWS {
            for (offset, len) in self.runs() {
                left.extend(Self::contiguous(offset, len).minus(hole)?);
            }
        } else if hole.count <= FEW_ROWS {
            left.push(*self);
            for (offset, len) in hole.runs() {
                let run = Self::contiguous(offset, len);
                left =
                    left.iter().map(|piece| piece.minus(&run)).collect::<Option<Vec<_>>>()?.concat().into();
            }
        } else {
            return None;
        }
        Some(left)
    }

    /// Subtracts `hole`, which overlaps it, from one run. Adds the part before the hole's runs, the
    /// gaps between them, and the part after them to `left`.
    fn run_minus(&self, hole: &Self, left: &mut Pieces) {
        let (start, end) = (self.offset, self.end());
        // The first run that ends after our start, and the last run that starts before our end.
        let first = match start.checked_sub(hole.offset + hole.len) {
            Some(behind) => behind / hole.stride + 1,
            None => 0,
        };
        let last = ((end - 1 - hole.offset) / hole.stride).min(hole.count - 1);
        let run = |at: u64| hole.offset + at * hole.stride;
        push(left, start, run(first).saturating_sub(start), 0, 1);
        push(left, run(first) + hole.len, hole.stride - hole.len, hole.stride, last - first);
        push(left, run(last) + hole.len, end.saturating_sub(run(last) + hole.len), 0, 1);
    }

    /// Subtracts one run, which overlaps them, from several runs. Adds the runs before it, the rest
    /// of the runs that it cuts, and the runs after it to `left`.
    fn rows_minus_run(&self, hole: &Self, left: &mut Pieces) {
        let (from, to) = (hole.offset, hole.end());
        let run = |at: u64| self.offset + at * self.stride;
        // The number of runs that end before it, and the first run that starts after it.
        let before = match from.checked_sub(self.offset + self.len) {
            Some(behind) => (behind / self.stride + 1).min(self.count),
            None => 0,
        };
        let behind = match to.checked_sub(self.offset) {
            Some(reach) => reach.div_ceil(self.stride).min(self.count),
            None => 0,
        };
        push(left, self.offset, self.len, self.stride, before);
        if before < behind {
            let (first, last) = (run(before), run(behind - 1));
            push(left, first, from.saturating_sub(first), 0, 1);
            push(left, to.max(last), (last + self.len).saturating_sub(to.max(last)), 0, 1);
        }
        push(left, run(behind), self.len, self.stride, self.count - behind);
    }

    /// Subtracts rows from rows of the same stride.
    ///
    /// A row begins where a run of ours begins, and is one stride long; the first is row 0. The
    /// first run of `hole` begins in `row`, `phase` bytes after the row's begin, and its last
    /// `spill` bytes are in the next row. So a row of ours may lose its begin (to the run before),
    /// a part from `phase` on (to the run that begins in it), both or nothing. Rows between two
    /// neighbouring cuts lose the same bytes.
    fn rows_minus_rows(&self, hole: &Self, left: &mut Pieces) {
        let stride = i128::from(self.stride);
        let distance = i128::from(hole.offset) - i128::from(self.offset);
        let (row, phase) = (distance.div_euclid(stride), distance.rem_euclid(stride) as u64);
        let spill = (phase + hole.len).saturating_sub(self.stride);
        let rows = i128::from(self.count);
        let has_run = |at: i128| row <= at && at < row + i128::from(hole.count);
        let mut cuts =
            [0, row, row + 1, row + i128::from(hole.count), row + i128::from(hole.count) + 1, rows]
                .map(|cut| cut.clamp(0, rows));
        cuts.sort_unstable();
        for group in cuts.windows(2).filter(|group| group[0] < group[1]) {
            let begin = if has_run(group[0] - 1) { spill } else { 0 };
            let (stop, resume) = match has_run(group[0]) {
                true => (phase, phase + hole.len),
                false => (self.len, self.len),
            };
            let (first, count) = (self.offset + group[0] as u64 * self.stride, (group[1] - group[0]) as u64);
            push(left, first + begin, stop.min(self.len).saturating_sub(begin), self.stride, count);
            let resume = resume.max(begin);
            push(left, first + resume, self.len.saturating_sub(resume), self.stride, count);
        }
    }
}

/// The rest of a range, as disjoint ranges.
pub(crate) type Pieces = SmallVec<[ByteRange; 4]>;

/// The maximum number of rows that are subtracted one by one if two strides do not fit each other.
const FEW_ROWS: u64 = 16;

/// Adds `count` runs of `len` bytes, unless they are empty.
fn push(left: &mut Pieces, offset: u64, len: u64, stride: u64, count: u64) {
    if len > 0 && count > 0 {
        left.push(ByteRange::strided(offset, len, stride.max(len), count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use warpline_test_counts::count;

    fn bytes(range: &ByteRange) -> BTreeSet<u64> {
        range.runs().flat_map(|(offset, len)| offset..offset + len).collect()
    }

    fn any_range() -> impl Strategy<Value = ByteRange> {
        (0u64..40, 0u64..9, 0u64..9, 0u64..7)
            .prop_map(|(offset, len, gap, count)| ByteRange::strided(offset, len, len + gap, count))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(count(2_000, 20_000)))]

        #[test]
        fn agrees_with_sets_of_bytes(a in any_range(), b in any_range()) {
            let (set_a, set_b) = (bytes(&a), bytes(&b));
            prop_assert_eq!(a.len_bytes(), set_a.len() as u64);
            prop_assert_eq!(a.overlaps(&b), !set_a.is_disjoint(&set_b));
            if a.covers(&b) {
                prop_assert!(set_b.is_subset(&set_a));
            }
            if a.is_contiguous() {
                prop_assert_eq!(a.covers(&b), set_b.is_subset(&set_a));
            }
            let rest = a.minus(&b).expect("few rows");
            prop_assert_eq!(rest.iter().map(|piece| piece.len_bytes()).sum::<u64>(), (&set_a - &set_b).len() as u64);
            let rest: BTreeSet<u64> = rest.iter().flat_map(bytes).collect();
            prop_assert_eq!(rest, &set_a - &set_b);
        }
    }

    #[test]
    fn taking_columns_out_of_many_rows_leaves_few_pieces() {
        let whole = ByteRange::contiguous(0, 16 * 100_000);
        let (left, right) = (ByteRange::strided(0, 8, 16, 100_000), ByteRange::strided(8, 8, 16, 100_000));
        let rest = whole.minus(&left).unwrap();
        assert_eq!(rest.len(), 2, "the gaps, and what is behind the last column");
        assert!(rest.iter().all(|piece| piece.minus(&right).unwrap().is_empty()));
        assert_eq!(right.minus(&right).unwrap()[..], []);
        let other = ByteRange::strided(0, 5, 24, 50_000);
        assert_eq!(left.minus(&other), None, "two strides that do not fit");
    }

    #[test]
    fn column_halves_are_disjoint() {
        let (left, right) = (ByteRange::strided(0, 8, 16, 100), ByteRange::strided(8, 8, 16, 100));
        assert!(!left.overlaps(&right));
        assert!(left.overlaps(&ByteRange::strided(7, 8, 16, 100)));
    }
}
