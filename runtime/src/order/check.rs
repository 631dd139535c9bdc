//! Check and commit of one op, in one step.
//!
//! All ledgers of the op are opened first, in the order of their addresses, then everything is checked, then everything
//! is entered, then they are closed. So of two ops that cross (one reads X and writes Y, the other reads Y and writes X)
//! one comes first entirely, and the other sees it. A refused op has entered nothing.

use super::clock::{Clock, StreamId, Use};
use super::ledger::{Did, Ledger, Page, Record};
use super::mode::OrderMode;
use super::observed::Observed;
use super::range::ByteRange;
use crate::error::Error;
use crate::kernel::AccessMode;
use crate::site::Site;
use crate::timeline::Ticket;
use arrayvec::ArrayVec;

/// One operand, as the check sees it: read where the op keeps it, since copying operands costs as much as checking them.
pub(crate) trait Access {
    fn ledger(&self) -> &Ledger;
    fn range(&self) -> &ByteRange;
    fn mode(&self) -> AccessMode;
}

/// Who wants to do it, and what comes before.
#[derive(Clone, Copy)]
pub(crate) struct Asker<'a> {
    pub(crate) stream: StreamId,
    pub(crate) lane: usize,
    pub(crate) stated: &'a Clock,
    pub(crate) observed: &'a Observed,
}

impl Asker<'_> {
    #[inline]
    fn is_after(&self, earlier: Use) -> bool {
        self.stated.covers(earlier) || self.observed.covers(earlier)
    }
}

/// How strictly.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strictness {
    /// An unordered use refuses the op.
    Refuse,
    /// Unordered uses are found, and the op is entered all the same.
    Find,
    /// Nothing is compared and nothing entered but the use itself.
    Skip,
}

impl Strictness {
    /// That of a first look. With `Wait` the missing edges are put in, where they can be, and it is looked again.
    #[inline]
    pub(crate) fn of(mode: OrderMode) -> Self {
        match mode {
            OrderMode::Deny | OrderMode::Wait => Strictness::Refuse,
            OrderMode::Warn => Strictness::Find,
            OrderMode::Off => Strictness::Skip,
        }
    }
}

/// An earlier use that is not ordered before the op.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finding {
    /// Which operand.
    pub(crate) access: usize,
    pub(crate) earlier: Record,
}

pub(crate) type Findings = Vec<Finding>;

/// Why an op was not entered.
#[derive(Debug)]
pub(crate) enum Refused {
    /// What it reads was never written, because of this error.
    Failed(Error),
    /// Uses that it is not ordered after: all of them.
    Unordered(Findings),
}

/// What an entered op replaced, to be put back if the driver refuses it.
#[derive(Default)]
pub(crate) struct Entered {
    /// Records that only became newer: of which access, and what they said.
    renewed: ArrayVec<(At, Ticket, Site), FEW>,
    /// Records that are gone: of which access.
    removed: Vec<(At, Record)>,
    pub(crate) findings: Findings,
}

/// The most accesses of one op: a graph has those of all its ops.
pub(crate) const MAX_ACCESSES: usize = At::MAX as usize;

/// Which access of an op.
type At = u16;

/// Up to so many operands, each with a ledger of its own, go the short way.
const FEW: usize = 8;

/// No record of the same access.
const NONE: u32 = u32::MAX;

/// Few accesses, each with a ledger of its own, in the order of the ledgers' addresses.
pub(crate) type Apart = ArrayVec<(usize, At), FEW>;

/// An op that would be entered.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) asker: Asker<'a>,
    pub(crate) ticket: Ticket,
    pub(crate) site: Site,
    pub(crate) strictness: Strictness,
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
pub(crate) fn apart<A: Access>(accesses: &[A], order: &mut Apart) -> bool {
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
fn open(ledger: &Ledger, writes: bool, lane: usize) -> Page<'_> {
    if writes { Page::Book(ledger.open()) } else { ledger.open_to_read(lane) }
}

/// Checks all accesses of an op, and enters them if they pass. `order` is what [`apart`] says of them. `entered`, empty
/// before, gets what has to be known to take that back.
#[inline]
pub(crate) fn check_and_enter<A: Access>(
    accesses: &[A],
    order: Option<&Apart>,
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
        Some(order) => check_apart(accesses, order, entry, entered),
        None => check_together(accesses, entry, entered),
    }
}

/// Most ops are so, and most of what they do was done before by the same stream to the same bytes: then the record of that
/// becomes newer, and none is removed or added. Each ledger is checked when it is opened; what is found does not count before
/// all are open.
#[inline]
fn check_apart<A: Access>(
    accesses: &[A],
    order: &Apart,
    entry: &Entry<'_>,
    entered: &mut Entered,
) -> Result<(), Refused> {
    let mut pages = ArrayVec::<(At, u32, Page<'_>), FEW>::new();
    for &(_, at) in order {
        let access = &accesses[usize::from(at)];
        let page = open(access.ledger(), access.mode().writes(), entry.asker.lane);
        let Ok(same) = check(at, access, &page, entry, entered) else {
            // Of several errors the first operand's is told, wherever its memory lies.
            drop((page, pages));
            return check_together(accesses, entry, entered);
        };
        pages.push((at, same, page));
    }
    if !entered.findings.is_empty() {
        judge(entry, entered)?;
    }
    for (at, same, page) in &mut pages {
        let (at, same, access) = (*at, *same, &accesses[usize::from(*at)]);
        if same == NONE {
            enter(at, access, page, entry, entered);
            continue;
        }
        if access.mode().writes() {
            page.overwrite(access.range());
        }
        let history = page.history();
        let (ticket, site) = history.renew(same as usize, entry.ticket, entry.site);
        entered.renewed.push((at, ticket, site));
        history.note_use(entry.used(), entry.asker.observed);
    }
    Ok(())
}

/// Many accesses, or some that share a ledger: entering one may move the records that another was compared with, so all are
/// entered the long way.
#[cold]
fn check_together<A: Access>(
    accesses: &[A],
    entry: &Entry<'_>,
    entered: &mut Entered,
) -> Result<(), Refused> {
    let (mut pages, page_of) = open_all(accesses, entry.asker.lane);
    for (at, access) in accesses.iter().enumerate() {
        check(at as At, access, &pages[usize::from(page_of[at])], entry, entered)?;
    }
    if !entered.findings.is_empty() {
        judge(entry, entered)?;
    }
    for (at, access) in accesses.iter().enumerate() {
        enter(at as At, access, &mut pages[usize::from(page_of[at])], entry, entered);
    }
    Ok(())
}

/// Opens the ledgers, each once, in the order of their addresses; and says which page is whose.
fn open_all<A: Access>(accesses: &[A], lane: usize) -> (Vec<Page<'_>>, Vec<At>) {
    let mut sorted: Vec<usize> = (0..accesses.len()).collect();
    sorted.sort_by_key(|&at| address(&accesses[at]));
    let mut page_of = vec![0; accesses.len()];
    let mut pages = Vec::new();
    for same in sorted.chunk_by(|&a, &b| address(&accesses[a]) == address(&accesses[b])) {
        let writes = same.iter().any(|&at| accesses[at].mode().writes());
        same.iter().for_each(|&at| page_of[at] = pages.len() as At);
        pages.push(open(accesses[same[0]].ledger(), writes, lane));
    }
    (pages, page_of)
}

/// Whether an op with findings may be entered. They are in the order of the operands then, wherever their memory lies.
#[cold]
fn judge(entry: &Entry<'_>, entered: &mut Entered) -> Result<(), Refused> {
    entered.findings.sort_by_key(|finding| finding.access);
    match entry.strictness {
        Strictness::Refuse => Err(Refused::Unordered(std::mem::take(&mut entered.findings))),
        Strictness::Find | Strictness::Skip => Ok(()),
    }
}

/// Checks one access against its opened ledger: what it is not ordered after is added to the findings. Returns the record of
/// the same access by the same stream, if making that one newer is all there is to enter, else `NONE`.
#[inline]
fn check(
    at: At,
    access: &impl Access,
    page: &Page<'_>,
    entry: &Entry<'_>,
    entered: &mut Entered,
) -> Result<u32, Refused> {
    let (mode, range) = (access.mode(), access.range());
    if mode.reads()
        && let Some(error) = page.failed(range)
    {
        entered.findings.clear();
        return Err(Refused::Failed(error.clone()));
    }
    let (records, findings) = (page.records(), &mut entered.findings);
    Ok(match (entry.strictness, mode.writes()) {
        (Strictness::Skip, _) => NONE,
        (_, false) => check_read(at, range, records, &entry.asker, findings),
        (_, true) => check_write(at, range, records, &entry.asker, findings),
    })
}

#[inline]
fn check_read(
    at: At,
    range: &ByteRange,
    records: &[Record],
    asker: &Asker<'_>,
    findings: &mut Findings,
) -> u32 {
    let mut same = NONE;
    for (index, earlier) in records.iter().enumerate() {
        let mine = earlier.used.stream == asker.stream;
        if earlier.did == Did::Read {
            if mine && earlier.range == *range {
                same = index as u32;
            }
        } else if !mine && earlier.range.overlaps(range) && !asker.is_after(earlier.used) {
            findings.push(Finding { access: at.into(), earlier: *earlier });
        }
    }
    same
}

#[inline]
fn check_write(
    at: At,
    range: &ByteRange,
    records: &[Record],
    asker: &Asker<'_>,
    findings: &mut Findings,
) -> u32 {
    let (mut same, mut replaces_others) = (NONE, false);
    for (index, earlier) in records.iter().enumerate() {
        let mine = earlier.used.stream == asker.stream;
        if mine && earlier.did == Did::Write && earlier.range == *range {
            same = index as u32;
        } else if mine || !earlier.range.overlaps(range) || asker.is_after(earlier.used) {
            replaces_others |= range.covers(&earlier.range);
        } else {
            findings.push(Finding { access: at.into(), earlier: *earlier });
        }
    }
    if replaces_others { NONE } else { same }
}

/// Enters an access the long way.
fn enter(at: At, access: &impl Access, page: &mut Page<'_>, entry: &Entry<'_>, entered: &mut Entered) {
    let (mode, range, asker) = (access.mode(), access.range(), &entry.asker);
    if mode.writes() {
        page.overwrite(range);
    }
    let history = page.history();
    if entry.strictness != Strictness::Skip && !range.is_empty() {
        let did = if mode.writes() { Did::Write } else { Did::Read };
        let record = Record { used: entry.used(), range: *range, did, site: entry.site };
        history.enter(record, asker.stated, asker.observed, |old| entered.removed.push((at, old)));
    }
    history.note_use(entry.used(), asker.observed);
}

/// Takes an entered op back whose driver call failed.
#[cold]
pub(crate) fn undo<A: Access>(accesses: &[A], entry: &Entry<'_>, entered: Entered) {
    let (mut pages, page_of) = open_all(accesses, entry.asker.lane);
    let used = entry.used();
    for (page_at, page) in pages.iter_mut().enumerate() {
        let mine = |at: At| usize::from(page_of[usize::from(at)]) == page_at;
        let renewed =
            entered.renewed.iter().find(|(at, ..)| mine(*at)).map(|&(_, ticket, site)| (ticket, site));
        let removed = entered.removed.iter().filter(|(at, old)| mine(*at) && old.used != used);
        page.history().undo(used, renewed, removed.map(|(_, old)| *old));
    }
}

/// Marks what a refused op would have written.
#[cold]
pub(crate) fn mark_failed<A: Access>(accesses: &[A], error: &Error) {
    for access in accesses.iter().filter(|access| access.mode().writes() && !access.range().is_empty()) {
        access.ledger().open().mark_failed(*access.range(), error);
    }
}

/// Two operands of one op that share bytes although one is written; identical ones pass if `in_place`.
#[inline]
pub(crate) fn overlap_within<A: Access>(accesses: &[A], in_place: bool) -> Option<(usize, usize)> {
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
