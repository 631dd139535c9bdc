//! The check of one op against the histories of its operands, and its entry in them, in one step.
//!
//! An access conflicts with the earlier uses that share bytes with it: a read with writes, a write
//! with all uses. An op passes if each of these uses is by its own stream, or ordered before it by
//! a stated edge, or observed, or ensured by the runtime.
//!
//! The ledgers of the op are opened in the order of their addresses and stay open until the op is
//! entered or refused. Two ops may cross: one reads X and writes Y, the other reads Y and writes X.
//! One of them is then entered entirely before the other, and the other sees it. The slow path
//! checks all accesses and then enters all. The fast path checks and enters one ledger after the
//! other, and takes its entries back if one access does not pass. If the driver refuses the op
//! later, [`undo`] takes them back.
// Decision: docs/decisions/0003-closed-stream-is-ordered-before-later-work.md
// Decision: docs/decisions/0005-check-enter-submit-undo.md

use super::access::AccessMode;
use super::book::Book;
use super::clock::{Clock, StreamId, Ticket, Use};
use super::ledger::{Ledger, Page};
use super::marks::{FoundMark, Mark, Marks};
use super::observed::Observed;
use super::range::ByteRange;
use super::records::{Did, Record, Removed};
use super::site::Site;
use arrayvec::ArrayVec;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An operand as the check sees it.
///
/// The check reads an operand where the op keeps it, because copying operands costs as much as
/// checking them.
pub trait Access {
    /// Returns the history of the operand's memory.
    fn ledger(&self) -> &Ledger;
    /// Returns the bytes of that memory that the op uses.
    fn range(&self) -> &ByteRange;
    /// Returns the way in which the op uses these bytes.
    fn mode(&self) -> AccessMode;
}

/// The stream that submits an op, and the work ordered before it.
#[derive(Clone, Copy)]
pub struct Asker<'a> {
    /// The stream of the op.
    pub stream: StreamId,
    /// The work ordered before the stream by stated edges.
    pub stated: &'a Clock,
    /// The work ordered before everything.
    pub observed: &'a Observed,
    /// The marks that the stream carries.
    pub marks: &'a Marks,
    /// The uses that the runtime itself has ordered before the op, or found to be finished.
    pub ensured: &'a Ensured,
}

impl Asker<'_> {
    #[inline]
    fn is_after(&self, earlier: Use) -> bool {
        self.stated.covers(earlier) || self.observed.covers(earlier)
    }
}

/// Uses that the runtime itself has ordered before one op: of each stream, all uses up to a ticket.
///
/// Few ops have any, and every op makes an empty set. So an empty one is a null pointer.
#[derive(Default)]
#[expect(clippy::box_collection, reason = "most sets are empty, and are made and dropped for each op")]
pub struct Ensured(Option<Box<BTreeMap<StreamId, Ticket>>>);

impl Ensured {
    /// Creates a set that covers no use.
    pub const fn new() -> Self {
        Self(None)
    }

    /// Covers `used` and all earlier uses by its stream.
    pub fn add(&mut self, used: Use) {
        let upto = self.0.get_or_insert_default().entry(used.stream).or_insert(used.ticket);
        *upto = used.ticket.max(*upto);
    }

    /// Returns whether `used` is covered.
    pub fn covers(&self, used: Use) -> bool {
        let upto = self.0.as_ref().and_then(|tickets| tickets.get(&used.stream));
        upto.is_some_and(|upto| used.ticket <= *upto)
    }

    fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// The strictness of a check.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// Refuses an op that has an unordered use.
    Refuse,
    /// Reports unordered uses and enters the op anyway. Marks, and uses that need an edge of the
    /// runtime, still stop it.
    Find,
    /// Compares no accesses and enters nothing except the use itself. Marks, an earlier owner of
    /// the memory, and uses by closed streams still stop the op. Accesses are not known then, so
    /// each use by a closed stream counts as one of the same bytes.
    Skip,
}

/// An earlier use that is not ordered before the op.
#[derive(Clone, Copy, Debug)]
pub struct Finding {
    /// The index of the op's operand.
    pub access: usize,
    /// The record of the earlier use.
    pub earlier: Record,
}

/// All earlier uses that one op is not ordered after.
pub type Findings = Vec<Finding>;

/// The reason why an op was not entered.
#[derive(Debug)]
pub enum Refused {
    /// The op reads bytes that were never written because of this refused write.
    Marked(FoundMark),
    /// All uses that the op is not ordered after.
    Unordered(Findings),
    /// Uses that the runtime must order before the op. They are uses by closed streams, which no
    /// program can name any more, and uses of the memory before its allocation.
    Needs(Vec<Use>),
}

/// The state that an entered op replaced, to be restored if the driver refuses the op.
#[derive(Default)]
pub struct Entered {
    /// The renewed records: the index of the access, and the record's earlier ticket and site.
    renewed: ArrayVec<(At, Ticket, Site), FEW>,
    /// The removed records, with the index of the access.
    removed: Vec<(At, Removed)>,
    /// The unordered uses of an op that was entered anyway.
    pub findings: Findings,
    /// True if the op overwrites marked bytes.
    pub unmarks: bool,
    /// The stream's newest use until then, by page, for memory that may still be in use from before
    /// its allocation. `Ledger::last_uses` has to tell the allocation from later uses of that
    /// stream.
    used_before: Vec<(usize, Option<Ticket>)>,
}

/// The maximum number of accesses of one op. A graph has the accesses of all its ops.
pub const MAX_ACCESSES: usize = At::MAX as usize;

/// The index of an access in its op.
type At = u16;

/// The maximum number of operands for the fast path, each with a ledger of its own.
const FEW: usize = 8;

/// A few accesses, each with a ledger of its own, in the order of the ledgers' addresses.
pub type Disjoint = ArrayVec<(usize, At), FEW>;

/// An op to be checked and entered.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    /// The stream that submits the op, and the work ordered before it.
    pub asker: Asker<'a>,
    /// The op's ticket on its stream.
    pub ticket: Ticket,
    /// The op's name and source line.
    pub site: &'a Site,
    /// The strictness of the check.
    pub strictness: Strictness,
}

impl Entry<'_> {
    #[inline]
    fn used(&self) -> Use {
        Use { stream: self.asker.stream, ticket: self.ticket }
    }

    /// Returns whether to open a ledger for any kind of access. Without records, the uses have to
    /// show those by closed streams, and a shard has only those of its own readers.
    #[inline]
    fn opens(&self, writes: bool) -> bool {
        writes || self.strictness == Strictness::Skip
    }
}

#[inline]
fn address(access: &impl Access) -> usize {
    std::ptr::from_ref(access.ledger()).addr()
}

/// Returns whether there are few accesses, each with a ledger of its own.
///
/// Fills `order`, which must be empty, with the order in which to open the ledgers.
#[inline]
pub fn disjoint<A: Access>(accesses: &[A], order: &mut Disjoint) -> bool {
    if accesses.len() > FEW {
        return false;
    }
    for (at, access) in accesses.iter().enumerate() {
        let mine = (address(access), at as At);
        order.push(mine);
        let mut to = at;
        while to > 0 && order[to - 1].0 >= mine.0 {
            if order[to - 1].0 == mine.0 {
                return false;
            }
            order[to] = order[to - 1];
            to -= 1;
        }
        order[to] = mine;
    }
    true
}

#[inline]
fn open(ledger: &Ledger, any: bool, stream: StreamId) -> Page<'_> {
    if any { ledger.open() } else { ledger.open_to_read(stream) }
}

/// Checks all accesses of an op, and enters them if they pass.
///
/// `order` is the result of [`disjoint`] for these accesses. Fills `entered`, which must be empty,
/// with the state that is needed to undo the entry.
#[inline]
pub fn check_and_enter<A: Access>(
    accesses: &[A],
    order: Option<&Disjoint>,
    entry: &Entry<'_>,
    entered: &mut Entered,
) -> Result<(), Refused> {
    debug_assert!(
        accesses.len() <= MAX_ACCESSES
            && entered.renewed.is_empty()
            && entered.removed.is_empty()
            && entered.findings.is_empty()
    );
    match order {
        Some(order) => check_disjoint(accesses, order, entry, entered),
        None => check_together(accesses, entry, entered),
    }
}

/// Checks and enters an op on the fast path, where each access has a ledger of its own.
///
/// Most ops take this path, and most of their accesses repeat an access of the same stream to the
/// same bytes. Then the record of that access is renewed, and no record is removed or added.
///
/// Each access is entered as soon as its ledger is open and it has passed. No other thread sees the
/// entries until all accesses are entered and the ledgers are closed. If an access does not pass,
/// the entries before it are undone. The op then takes the slow path, which finds all conflicts.
/// The uses of the memory are noted once all accesses have passed.
#[inline]
fn check_disjoint<A: Access>(
    accesses: &[A],
    order: &Disjoint,
    entry: &Entry<'_>,
    entered: &mut Entered,
) -> Result<(), Refused> {
    let mut pages = ArrayVec::<Page<'_>, FEW>::new();
    let is_after = |earlier| entry.asker.is_after(earlier);
    for &(_, at) in order {
        let access = &accesses[usize::from(at)];
        let writes = access.mode().writes();
        let mut page = open(access.ledger(), entry.opens(writes), entry.asker.stream);
        let renewed = match (entry.strictness, writes) {
            (Strictness::Skip, _) => None,
            (_, false) => page.renew::<false>(entry.used(), access.range(), entry.site, is_after),
            (_, true) => page.renew::<true>(entry.used(), access.range(), entry.site, is_after),
        };
        if let Some((ticket, site)) = renewed {
            entered.renewed.push((at, ticket, site));
        } else if !check_and_enter_one(at, access, &mut page, entry, entered) {
            drop(page);
            take_back(accesses, order, &mut pages, entry, entered);
            drop(pages);
            return check_together(accesses, entry, entered);
        }
        pages.push(page);
    }
    for page in &mut pages {
        page.note_use(entry.used(), entry.asker.observed);
    }
    Ok(())
}

/// Enters one access if it passes, and returns whether it did.
#[inline(never)]
fn check_and_enter_one(
    at: At,
    access: &impl Access,
    page: &mut Book,
    entry: &Entry<'_>,
    entered: &mut Entered,
) -> bool {
    if !page.is_plain() || unordered_closed(page, entry).next().is_some() {
        return false;
    }
    check(at, access, page, entry, &mut entered.findings);
    if !entered.findings.is_empty() {
        return false;
    }
    enter(at, access, page, entry, entered);
    true
}

/// Undoes the entries in `pages`, which belong to the first accesses of `order`.
#[cold]
#[inline(never)]
fn take_back(
    accesses: &[impl Access],
    order: &Disjoint,
    pages: &mut [Page<'_>],
    entry: &Entry<'_>,
    entered: &mut Entered,
) {
    let entered = std::mem::take(entered);
    for (&(_, at), page) in order.iter().zip(pages) {
        undo_one(at, &accesses[usize::from(at)], page, entry, &entered);
    }
}

/// Checks and enters an op on the slow path.
///
/// The op has many accesses, some of them share a ledger, or the fast path did not enter it.
/// Entering one access may remove or renew the records that another access was compared with. So
/// all accesses are checked before any is entered.
#[cold]
fn check_together<A: Access>(
    accesses: &[A],
    entry: &Entry<'_>,
    entered: &mut Entered,
) -> Result<(), Refused> {
    let (mut pages, page_of) = open_all(accesses, entry);
    let asker = &entry.asker;
    let mut needs: Vec<Use> = Vec::new();
    for page in &mut pages {
        page.drop_ended_marks();
        needs.extend(page.behind().filter(|behind| !asker.ensured.covers(*behind)));
        needs.extend(unordered_closed(page, entry));
    }
    for (at, access) in accesses.iter().enumerate() {
        let page = &pages[usize::from(page_of[at])];
        if access.mode().reads()
            && let Some(mark) = page.mark_on(access.range(), asker.marks)
        {
            entered.findings.clear();
            return Err(Refused::Marked(mark));
        }
        entered.unmarks |= page.is_marked(access.range()) && overwrites(accesses, access);
        check(at as At, access, page, entry, &mut entered.findings);
    }
    // A closed stream has no handle that a program could wait on.
    entered.findings.retain(|finding| {
        let by_closed = asker.observed.is_closed(finding.earlier.used.stream);
        needs.extend(by_closed.then_some(finding.earlier.used));
        !by_closed
    });
    if !entered.findings.is_empty() && entry.strictness == Strictness::Refuse {
        return Err(Refused::Unordered(std::mem::take(&mut entered.findings)));
    }
    if !needs.is_empty() {
        *entered = Entered::default();
        return Err(Refused::Needs(needs));
    }
    for (at, access) in accesses.iter().enumerate() {
        enter(at as At, access, &mut pages[usize::from(page_of[at])], entry, entered);
    }
    for (at, page) in pages.iter_mut().enumerate() {
        if page.behind().is_some() {
            entered.used_before.push((at, page.use_by(entry.asker.stream)));
        }
        page.note_use(entry.used(), entry.asker.observed);
    }
    Ok(())
}

/// Returns the uses by closed streams that the op is not ordered after, if it compares no accesses.
/// A check that does finds them among the accesses.
#[inline]
fn unordered_closed<'a>(page: &'a Book, entry: &'a Entry<'_>) -> impl Iterator<Item = Use> + 'a {
    let asker = &entry.asker;
    let uses = if entry.strictness == Strictness::Skip { page.uses() } else { &[] };
    uses.iter().copied().filter(move |used| {
        let by_other = used.stream != asker.stream && asker.observed.is_closed(used.stream);
        by_other && !asker.is_after(*used) && !asker.ensured.covers(*used)
    })
}

/// Opens each ledger once, in the order of their addresses. Returns the pages, and for each access
/// the index of its page.
fn open_all<'a, A: Access>(accesses: &'a [A], entry: &Entry<'_>) -> (Vec<Page<'a>>, Vec<At>) {
    let mut sorted: Vec<usize> = (0..accesses.len()).collect();
    sorted.sort_by_key(|&at| address(&accesses[at]));
    let mut page_of = vec![0; accesses.len()];
    let mut pages = Vec::new();
    for same in sorted.chunk_by(|&a, &b| address(&accesses[a]) == address(&accesses[b])) {
        let writes = same.iter().any(|&at| accesses[at].mode().writes());
        same.iter().for_each(|&at| page_of[at] = pages.len() as At);
        pages.push(open(accesses[same[0]].ledger(), entry.opens(writes), entry.asker.stream));
    }
    (pages, page_of)
}

/// Checks one access against its opened ledger. Adds the uses that it is not ordered after to
/// `findings`.
#[inline]
fn check(at: At, access: &impl Access, page: &Book, entry: &Entry<'_>, findings: &mut Findings) {
    if entry.strictness == Strictness::Skip {
        return;
    }
    let asker = &entry.asker;
    let is_before = |earlier: Use| earlier.stream == asker.stream || asker.is_after(earlier);
    page.records.unordered(access.mode().writes(), access.range(), is_before, |earlier| {
        if !asker.ensured.covers(earlier.used) {
            findings.push(Finding { access: at.into(), earlier: *earlier });
        }
    });
}

/// Enters an access as a new record.
fn enter(at: At, access: &impl Access, page: &mut Book, entry: &Entry<'_>, entered: &mut Entered) {
    let (mode, range, asker) = (access.mode(), access.range(), &entry.asker);
    if entry.strictness != Strictness::Skip && !range.is_empty() {
        let did = if mode.writes() { Did::Write } else { Did::Read };
        let record = Record { used: entry.used(), range: *range, did, site: *entry.site };
        // A strict check has found that the op is ordered after everything that it shares bytes
        // with. Uses that are ordered before it only by edges of the runtime stay on record:
        // otherwise no error would show that the program does not wait for them.
        let all_are = entry.strictness == Strictness::Refuse && asker.ensured.is_empty();
        let is_ordered = |earlier| all_are || asker.stated.covers(earlier);
        page.records.enter(record, is_ordered, asker.observed, |old| entered.removed.push((at, old)));
    }
}

/// Undoes the entry of an op whose driver call failed. Other ops may have been entered in between.
///
/// Observed records that are dropped already, uses by streams that are gone, and marks that have
/// ended do not come back.
#[cold]
pub fn undo<A: Access>(accesses: &[A], entry: &Entry<'_>, entered: Entered) {
    let (mut pages, page_of) = open_all(accesses, entry);
    for (at, access) in accesses.iter().enumerate() {
        undo_one(at as At, access, &mut pages[usize::from(page_of[at])], entry, &entered);
    }
    for (page_at, page) in pages.iter_mut().enumerate() {
        let before = entered.used_before.iter().find(|(at, _)| *at == page_at).map(|(_, before)| *before);
        page.forget_use(entry.used(), before);
    }
}

/// Undoes the entry of one access.
fn undo_one(at: At, access: &impl Access, page: &mut Book, entry: &Entry<'_>, entered: &Entered) {
    let (used, range) = (entry.used(), access.range());
    let is_write = access.mode().writes();
    match entered.renewed.iter().find(|renewed| renewed.0 == at) {
        Some(&(_, ticket, site)) => page.records.undo_renew(used, range, is_write, (ticket, site)),
        None => page.records.remove(used, range, is_write),
    }
    for (_, old) in entered.removed.iter().filter(|(of, _)| *of == at) {
        old.records().iter().for_each(|old| page.records.push(*old));
    }
}

/// Returns whether the op overwrites the bytes of `access` without reading them.
pub fn overwrites<A: Access>(accesses: &[A], access: &A) -> bool {
    let reads_it = |other: &A| {
        other.mode().reads() && address(other) == address(access) && other.range().overlaps(access.range())
    };
    access.mode().writes() && !accesses.iter().any(reads_it)
}

/// Removes all marks from the bytes that an op overwrites, after the driver has accepted the op.
#[cold]
pub fn overwritten<A: Access>(accesses: &[A]) {
    for access in accesses.iter().filter(|access| overwrites(accesses, access)) {
        access.ledger().open().clear_marks(access.range());
    }
}

/// Removes `marks` from the bytes that an op overwrites, after the driver has accepted the op.
#[cold]
pub fn overwritten_of<A: Access>(accesses: &[A], marks: &Marks) {
    for access in accesses.iter().filter(|access| overwrites(accesses, access)) {
        access.ledger().open().clear_marks_of(access.range(), marks);
    }
}

/// Puts `mark` on the bytes that a refused op would have written.
#[cold]
pub fn mark<A: Access>(written: &[&A], mark: &Arc<Mark>, everybodys: bool) {
    for access in written {
        access.ledger().open().mark(*access.range(), mark, everybodys);
    }
}

/// Returns two operands of one op that share bytes although one of them is written. Identical
/// operands pass if `in_place` is true.
#[inline]
pub fn overlap_within<A: Access>(accesses: &[A], in_place: bool) -> Option<(usize, usize)> {
    for (at, access) in accesses.iter().enumerate().skip(1) {
        for (before, other) in accesses[..at].iter().enumerate() {
            if std::ptr::eq(access.ledger(), other.ledger())
                && (access.mode().writes() || other.mode().writes())
                && access.range().overlaps(other.range())
                && !(in_place && access.range() == other.range())
            {
                return Some((before, at));
            }
        }
    }
    None
}
