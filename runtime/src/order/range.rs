//! Which bytes of an allocation an operand touches: evenly spaced runs of equal length.
//!
//! The whole of a buffer is one run, rows of a matrix are one run, columns are one run per row. Whether two ranges share
//! a byte is decided exactly, because in `deny` mode the verdict is what keeps the slices handed to twins disjoint.

/// `count` runs of `len` bytes, the first at `offset`, each `stride` bytes after the one before.
///
/// Normal form: an empty range is all zeros but the offset; a range of one run, or of runs that touch, has `count` 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByteRange {
    offset: u64,
    len: u64,
    stride: u64,
    count: u64,
}

impl ByteRange {
    /// One run: `len` bytes from `offset` on.
    #[inline]
    pub const fn contiguous(offset: u64, len: u64) -> Self {
        ByteRange { offset, len, stride: len, count: 1 }
    }

    /// `count` runs of `len` bytes, `stride` bytes apart. `stride` is at least `len`.
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

    /// First byte.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// One past the last byte.
    #[inline]
    pub const fn end(&self) -> u64 {
        self.offset + (self.count - 1) * self.stride + self.len
    }

    /// Bytes in all runs together.
    pub const fn len_bytes(&self) -> u64 {
        self.len * self.count
    }

    /// Whether it has no byte.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it is one run.
    #[inline]
    pub const fn is_contiguous(&self) -> bool {
        self.count == 1
    }

    /// The runs, in order: (offset, length).
    pub fn runs(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let ByteRange { offset, len, stride, count } = *self;
        (0..count).map(move |i| (offset + i * stride, len))
    }

    /// The same range, `by` bytes further on.
    pub const fn shifted(&self, by: u64) -> Self {
        ByteRange { offset: self.offset + by, ..*self }
    }

    /// Whether the two share a byte.
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
        // Each run of the one with fewer runs is looked up in the other by division.
        let (few, many) = if self.count <= other.count { (self, other) } else { (other, self) };
        few.runs().any(|(offset, len)| many.touches_run(offset, len))
    }

    /// Run i of `self` and run j of `other` share a byte exactly if (i − j)·stride lies strictly between d − self.len and
    /// d + other.len, d being the distance of the offsets. Looks for such an i − j among those there are.
    fn overlaps_same_stride(&self, other: &Self) -> bool {
        let (stride, d) = (i128::from(self.stride), i128::from(other.offset) - i128::from(self.offset));
        let lowest = (d - i128::from(self.len)).div_euclid(stride) + 1;
        let least = lowest.max(1 - i128::from(other.count));
        least < i128::from(self.count) && least * stride < d + i128::from(other.len)
    }

    /// Whether any run shares a byte with the non-empty run `offset..offset + len`.
    fn touches_run(&self, offset: u64, len: u64) -> bool {
        let end = offset + len;
        if end <= self.offset {
            return false;
        }
        // The last of our runs that starts before `end` is the only one that can reach furthest into it.
        let last = ((end - 1 - self.offset) / self.stride).min(self.count - 1);
        self.offset + last * self.stride + self.len > offset
    }

    /// Whether every byte of `other` is in `self`.
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

    /// What is left of a contiguous range after taking `hole` out, as up to two pieces. `None` where the answer would not be
    /// contiguous pieces.
    pub fn minus(&self, hole: &Self) -> Option<impl Iterator<Item = ByteRange> + use<>> {
        if !self.is_contiguous() || !hole.is_contiguous() {
            return None;
        }
        let (start, end) = (self.offset, self.end());
        let (from, to) = (hole.offset.clamp(start, end), hole.end().clamp(start, end));
        let pieces = [(start, from), (to, end)];
        Some(pieces.into_iter().filter(|(a, b)| a < b).map(|(a, b)| ByteRange::contiguous(a, b - a)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn bytes(range: &ByteRange) -> BTreeSet<u64> {
        range.runs().flat_map(|(offset, len)| offset..offset + len).collect()
    }

    fn any_range() -> impl Strategy<Value = ByteRange> {
        (0u64..40, 0u64..9, 0u64..9, 0u64..7)
            .prop_map(|(offset, len, gap, count)| ByteRange::strided(offset, len, len + gap, count))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

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
            if let Some(rest) = a.minus(&b) {
                let rest: BTreeSet<u64> = rest.flat_map(|piece| bytes(&piece)).collect();
                prop_assert_eq!(rest, &set_a - &set_b);
            }
        }
    }

    #[test]
    fn column_halves_are_disjoint() {
        let (left, right) = (ByteRange::strided(0, 8, 16, 100), ByteRange::strided(8, 8, 16, 100));
        assert!(!left.overlaps(&right));
        assert!(left.overlaps(&ByteRange::strided(7, 8, 16, 100)));
    }
}
