//! The registers of an op, and how its results depend on them. The checks follow values by this.

use super::op::{Op, Row};
use super::registers::Kind;

/// The kinds of the registers in the fields `d`, `a`, `b`, `c` and `e` of an op.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fields {
    pub(crate) results: [Option<Kind>; 5],
    pub(crate) sources: [Option<Kind>; 5],
}

impl Fields {
    /// Returns the fields of an op with its result in `d`, and its sources in `a`, `b`, `c` and
    /// `e`.
    pub(crate) fn of(result: Option<Kind>, [a, b, c, e]: [Option<Kind>; 4]) -> Self {
        Fields { results: [result, None, None, None, None], sources: [None, a, b, c, e] }
    }
}

/// Returns the registers of those fields of an op that have a kind.
pub(crate) fn registers(op: &Op, kinds: [Option<Kind>; 5]) -> impl Iterator<Item = (Kind, Row)> + use<> {
    let rows = [op.d, op.a, op.b, op.c, op.e];
    kinds.into_iter().zip(rows).filter_map(|(kind, row)| kind.map(|kind| (kind, row)))
}

/// How the results of an op depend on its sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Way {
    /// Not known.
    Hidden,
    /// It uses its sources: it hands them to memory or to other lanes, or decides by them where a
    /// lane goes on.
    Use,
    /// Like [`Way::Use`], with the registers of an instruction on matrices, which loads them or
    /// not.
    Matrix { is_load: bool },
    /// On each source as a whole.
    #[default]
    Whole,
    /// On a part of a source, which may have been joined from several values.
    Cut,
    /// On all sources, each of which keeps its own bits in the result.
    Join,
    /// Both [`Way::Cut`] and [`Way::Join`].
    CutJoin,
    /// `and`, and products: if `a` or `b` is zero, it alone decides.
    Zero,
    /// Like [`Way::Zero`], and each source keeps its own bits in the result.
    ZeroJoin,
    /// `or`: if the predicate `a` or `b` is true, it alone decides.
    One,
    /// `selp`: on the predicate `c`, and on the source that it chooses.
    Select,
    /// `shfl`: on `a` of the lane from which a lane takes it. It uses the other sources.
    Shuffle,
    /// `slct`: on the number `c`, and on the source that it chooses.
    SelectBySign,
}

/// The registers of an op, and how its results depend on its sources.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dependence {
    pub(crate) fields: Fields,
    /// A predicate that it writes besides its fields.
    pub(crate) second: Option<Row>,
    pub(crate) way: Way,
}

impl Dependence {
    /// Returns the registers that an op writes.
    pub(crate) fn results(&self, op: &Op) -> impl Iterator<Item = (Kind, Row)> + use<> {
        registers(op, self.fields.results).chain(self.second.map(|row| (Kind::Predicate, row)))
    }

    /// Returns the registers that an op reads besides its guard.
    pub(crate) fn sources(&self, op: &Op) -> impl Iterator<Item = (Kind, Row)> + use<> {
        registers(op, self.fields.sources)
    }
}
