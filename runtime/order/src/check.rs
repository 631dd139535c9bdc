//! Check and commit of one op, in one step.
//!
//! All ledgers of the op are opened first, in the order of their addresses, then everything is checked, then everything
//! is entered, then they are closed. So of two ops that cross (one reads X and writes Y, the other reads Y and writes X)
//! one comes first entirely, and the other sees it. A refused op has entered nothing.

use super::access::AccessMode;
use super::book::{Book, Did, Record};
use super::clock::{Clock, StreamId, Ticket, Use};
use super::ledger::{Ledger, Page};
use super::marks::{Mark, Marks};
use super::observed::Observed;
use super::range::ByteRange;
use super::site::Site;
use arrayvec::ArrayVec;
use std::sync::Arc;

/// One operand, as the check sees it: read where the op keeps it, since copying operands costs as much as checking them.
pub trait Access {
    /// The history of its memory.
    fn ledger(&self) -> &Ledger;
    /// Which bytes of that.
    fn range(&self) -> &ByteRange;
    /// How the op uses them.
    fn mode(&self) -> AccessMode;
}

/// Who wants to do it, and what comes before.
#[derive(Clone, Copy)]
pub struct Asker<'a> {
    /// Its stream.
    pub stream: StreamId,
    /// Which shard of a history it reads in, modulo their number.
    pub shard: usize,
    /// What is before its stream by stated edges.
    pub stated: &'a Clock,
    /// What is before everything.
    pub observed: &'a Observed,
    /// The marks that its stream carries.
    pub marks: &'a Marks,
    /// Uses that the runtime itself has put before the op, or found to be finished.
    pub ensured: &'a [Use],
}

impl Asker<'_> {
    #[inline]
    fn is_after(&self, earlier: Use) -> bool {
        self.stated.covers(earlier) || self.observed.covers(earlier)
    }

    fn is_ensured(&self, earlier: Use) -> bool {
        self.ensured.iter().any(|used| used.stream == earlier.stream && used.ticket >= earlier.ticket)
    }
}

/// How strictly.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// An unordered use refuses the op.
    Refuse,
    /// Unordered uses are found, and the op is entered all the same.
    Find,
    /// Nothing is compared and nothing entered but the use itself.
    Skip,
}

/// An earlier use that is not ordered before the op.
#[derive(Clone, Copy, Debug)]
pub struct Finding {
    /// Which operand.
    pub access: usize,
    /// What the earlier use was.
    pub earlier: Record,
}

/// All earlier uses that one op is not ordered after.
pub type Findings = Vec<Finding>;

/// Why an op was not entered.
#[derive(Debug)]
pub enum Refused {
    /// It reads memory that was never written, because of this refusal.
    Marked(Arc<Mark>),
    /// Uses that it is not ordered after: all of them.
    Unordered(Findings),
    /// Uses that the runtime has to put before it: by streams that are closed, which no program can
    /// name any more, and what its memory was used for before it was allocated.
    Needs(Vec<Use>),
}

/// What an entered op replaced, to be put back if the driver refuses it.
#[derive(Default)]
pub struct Entered {
    /// Records that only became newer: of which access, and what they said.
    renewed: ArrayVec<(At, Ticket, Site), FEW>,
    /// Records that are gone: of which access.
    removed: Vec<(At, Record)>,
    /// What was found although it was entered.
    pub findings: Findings,
    /// True if it overwrites bytes that are marked.
    pub unmarks: bool,
    /// The stream's newest use until then, by page: where the memory may still be in use elsewhere.
    used_before: Vec<(usize, Option<Ticket>)>,
}

/// The most accesses of one op: a graph has those of all its ops.
pub const MAX_ACCESSES: usize = At::MAX as usize;

/// Which access of an op.
type At = u16;

/// Up to so many operands, each with a ledger of its own, go the short way.
const FEW: usize = 8;

/// Few accesses, each with a ledger of its own, in the order of the ledgers' addresses.
pub type Disjoint = ArrayVec<(usize, At), FEW>;

/// An op that would be entered.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    /// Who would do it.
    pub asker: Asker<'a>,
    /// Its number on its stream.
    pub ticket: Ticket,
    /// Its name and line.
    pub site: &'a Site,
    /// How strictly it is checked.
    pub strictness: Strictness,
}

impl Entry<'_> {
    #[inline]
    fn used(&self) -> Use {
        Use { stream: self.asker.stream, ticket: self.ticket }
    }
}

#[inline]
fn address(access: &impl Access) -> usize {
    std::ptr::from_ref(access.ledger()).addr()
}

/// Whether there are few accesses, each with a ledger of its own; `order`, empty before, gets the order in which to open
/// them.
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
fn open(ledger: &Ledger, writes: bool, shard: usize) -> Page<'_> {
    if writes { ledger.open() } else { ledger.open_to_read(shard) }
}

/// Checks all accesses of an op, and enters them if they pass. `order` is what [`disjoint`] says of them. `entered`, empty
/// before, gets what has to be known to take that back.
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

/// Most ops are so, and most of what they do was done before by the same stream to the same bytes: then the record of that
/// becomes newer, and none is removed or added.
///
/// Each access is entered as soon as its ledger is open and it has passed. Nobody sees that before all are entered and the
/// ledgers are closed, so where one does not pass, the records of those before it are taken back, and the op goes the long way,
/// which finds all there is to say against it. Who used the memory is noted once all have passed.
#[inline]
fn check_disjoint<A: Access>(
    accesses: &[A],
    order: &Disjoint,
    entry: &Entry<'_>,
    entered: &mut Entered,
) -> Result<(), Refused> {
    let mut pages = ArrayVec::<Page<'_>, FEW>::new();
    for &(_, at) in order {
        let access = &accesses[usize::from(at)];
        let writes = access.mode().writes();
        let mut page = open(access.ledger(), writes, entry.asker.shard);
        let renewed = match (entry.strictness, writes) {
            (Strictness::Skip, _) => None,
            (_, false) => page.renew::<false>(entry.used(), access.range(), entry.site, |earlier| {
                passes(earlier, access.range(), &entry.asker)
            }),
            (_, true) => page.renew::<true>(entry.used(), access.range(), entry.site, |earlier| {
                passes(earlier, access.range(), &entry.asker) && !access.range().covers(&earlier.range)
            }),
        };
        if let Some((ticket, site)) = renewed {
            entered.renewed.push((at, ticket, site));
        } else if !check_and_enter_one(at, access, &mut page, entry, entered) {
            drop(page);
            take_back(order, &mut pages, entry, entered);
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

/// Enters one access if it passes, and says whether it did.
#[inline(never)]
fn check_and_enter_one(
    at: At,
    access: &impl Access,
    page: &mut Book,
    entry: &Entry<'_>,
    entered: &mut Entered,
) -> bool {
    if !page.is_plain() {
        return false;
    }
    check(at, access, page, entry, &mut entered.findings);
    if !entered.findings.is_empty() {
        return false;
    }
    enter(at, access, page, entry, entered);
    true
}

/// Takes back what was entered in `pages`, which are the first of `order`.
#[cold]
#[inline(never)]
fn take_back(order: &Disjoint, pages: &mut [Page<'_>], entry: &Entry<'_>, entered: &mut Entered) {
    let entered = std::mem::take(entered);
    for (&(_, at), page) in order.iter().zip(pages) {
        undo_in(page, |other| other == at, entry, &entered);
    }
}

/// Many accesses, or some that share a ledger: entering one may move the records that another was compared with, so all are
/// entered the long way.
#[cold]
fn check_together<A: Access>(
    accesses: &[A],
    entry: &Entry<'_>,
    entered: &mut Entered,
) -> Result<(), Refused> {
    let (mut pages, page_of) = open_all(accesses, entry.asker.shard);
    let asker = &entry.asker;
    let mut needs: Vec<Use> = Vec::new();
    for page in &mut pages {
        page.drop_ended_marks();
        needs.extend(page.behind().filter(|behind| !asker.is_ensured(*behind)));
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
    // A stream that is closed has no handle that a program could wait for.
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

/// Opens the ledgers, each once, in the order of their addresses; and says which page is whose.
fn open_all<A: Access>(accesses: &[A], shard: usize) -> (Vec<Page<'_>>, Vec<At>) {
    let mut sorted: Vec<usize> = (0..accesses.len()).collect();
    sorted.sort_by_key(|&at| address(&accesses[at]));
    let mut page_of = vec![0; accesses.len()];
    let mut pages = Vec::new();
    for same in sorted.chunk_by(|&a, &b| address(&accesses[a]) == address(&accesses[b])) {
        let writes = same.iter().any(|&at| accesses[at].mode().writes());
        same.iter().for_each(|&at| page_of[at] = pages.len() as At);
        pages.push(open(accesses[same[0]].ledger(), writes, shard));
    }
    (pages, page_of)
}

/// Whether an access to `range` is ordered after what another stream did, or apart from it.
#[inline(never)]
fn passes(earlier: &Record, range: &ByteRange, asker: &Asker<'_>) -> bool {
    !earlier.range.overlaps(range) || asker.is_after(earlier.used)
}

/// Checks one access against its opened ledger. What it is not ordered after is added to the findings.
#[inline]
fn check(at: At, access: &impl Access, page: &Book, entry: &Entry<'_>, findings: &mut Findings) {
    let (writes, range, asker) = (access.mode().writes(), access.range(), &entry.asker);
    if entry.strictness == Strictness::Skip {
        return;
    }
    for earlier in page.records() {
        let concerned = writes || earlier.did != Did::Read;
        if concerned
            && earlier.used.stream != asker.stream
            && !passes(earlier, range, asker)
            && !asker.is_ensured(earlier.used)
        {
            findings.push(Finding { access: at.into(), earlier: *earlier });
        }
    }
}

/// Enters an access the long way.
fn enter(at: At, access: &impl Access, page: &mut Book, entry: &Entry<'_>, entered: &mut Entered) {
    let (mode, range, asker) = (access.mode(), access.range(), &entry.asker);
    if entry.strictness != Strictness::Skip && !range.is_empty() {
        let did = if mode.writes() { Did::Write } else { Did::Read };
        let record = Record { used: entry.used(), range: *range, did, site: *entry.site };
        page.enter(record, asker.stated, asker.observed, |old| entered.removed.push((at, old)));
    }
}

/// Takes an entered op back whose driver call failed.
#[cold]
pub fn undo<A: Access>(accesses: &[A], entry: &Entry<'_>, entered: Entered) {
    let (mut pages, page_of) = open_all(accesses, entry.asker.shard);
    for (page_at, page) in pages.iter_mut().enumerate() {
        undo_in(page, |at| usize::from(page_of[usize::from(at)]) == page_at, entry, &entered);
        let before = entered.used_before.iter().find(|(at, _)| *at == page_at).map(|(_, before)| *before);
        page.forget_use(entry.used(), before);
    }
}

/// Takes back what was entered in a page; `mine`: whether an access is there.
fn undo_in(page: &mut Book, mine: impl Fn(At) -> bool, entry: &Entry<'_>, entered: &Entered) {
    let used = entry.used();
    let renewed = entered.renewed.iter().find(|(at, ..)| mine(*at)).map(|&(_, ticket, site)| (ticket, site));
    let removed = entered.removed.iter().filter(|(at, old)| mine(*at) && old.used != used);
    page.undo(used, renewed, removed.map(|(_, old)| *old));
}

/// Returns whether what was in the bytes of `access` is lost without the op having read it.
pub fn overwrites<A: Access>(accesses: &[A], access: &A) -> bool {
    let reads_it = |other: &A| {
        other.mode().reads() && address(other) == address(access) && other.range().overlaps(access.range())
    };
    access.mode().writes() && !accesses.iter().any(reads_it)
}

/// Takes the marks off what an op, which the driver has taken, overwrites.
#[cold]
pub fn overwritten<A: Access>(accesses: &[A]) {
    for access in accesses.iter().filter(|access| overwrites(accesses, access)) {
        access.ledger().open().clear_marks(access.range());
    }
}

/// Takes those of `marks` off what an op, which the driver has taken, overwrites.
#[cold]
pub fn overwritten_of<A: Access>(accesses: &[A], marks: &Marks) {
    for access in accesses.iter().filter(|access| overwrites(accesses, access)) {
        access.ledger().open().clear_marks_of(access.range(), marks);
    }
}

/// Puts `mark` on what a refused op would have written.
#[cold]
pub fn mark<A: Access>(written: &[&A], mark: &Arc<Mark>, everybodys: bool) {
    for access in written {
        access.ledger().open().mark(*access.range(), mark, everybodys);
    }
}

/// Two operands of one op that share bytes although one is written; identical ones pass if `in_place`.
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
