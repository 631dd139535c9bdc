//! Check and commit of one op, in one step.
//!
//! All ledgers of the op are opened first, in the order of their addresses, then everything is checked, then everything
//! is entered, then they are closed. So of two ops that cross (one reads X and writes Y, the other reads Y and writes X)
//! one comes first entirely, and the other sees it. A refused op has entered nothing.

use super::clock::{Clock, StreamId, Use};
use super::ledger::{Did, Ledger, Page, Record};
use super::observed::Observed;
use super::range::ByteRange;
use crate::error::Error;
use crate::kernel::AccessMode;
use crate::site::Site;
use crate::timeline::Ticket;
use smallvec::SmallVec;

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
    /// Records that only became newer: whose page, and what they said.
    renewed: SmallVec<[(u8, Ticket, Site); 4]>,
    /// Records that are gone.
    removed: Vec<(u8, Record)>,
    pub(crate) findings: Findings,
}

type Pages<'a> = SmallVec<[Page<'a>; 6]>;

/// The most operands of one op.
pub(crate) const MAX_ACCESSES: usize = 255;

/// Which page is whose.
type PageOf = SmallVec<[u8; 8]>;

/// Opens the ledgers, each once, in the order of their addresses; and says which page is whose.
#[inline]
fn open<'a, A: Access>(accesses: &'a [A], lane: usize) -> (Pages<'a>, PageOf) {
    let mut sorted: SmallVec<[(usize, u8); 8]> = SmallVec::new();
    for (at, access) in accesses.iter().enumerate() {
        sorted.push((std::ptr::from_ref(access.ledger()).addr(), at as u8));
        let mut to = at;
        while to > 0 && sorted[to - 1].0 > sorted[to].0 {
            sorted.swap(to - 1, to);
            to -= 1;
        }
    }
    let mut page_of = PageOf::from_elem(0, accesses.len());
    let mut pages = Pages::new();
    let mut left = &sorted[..];
    while let Some(&(address, first)) = left.first() {
        let mut writes = false;
        while let Some((&(_, at), rest)) = left.split_first().filter(|(next, _)| next.0 == address) {
            writes |= accesses[usize::from(at)].mode().writes();
            page_of[usize::from(at)] = pages.len() as u8;
            left = rest;
        }
        let ledger = accesses[usize::from(first)].ledger();
        pages.push(if writes { Page::Book(ledger.open()) } else { ledger.open_to_read(lane) });
    }
    (pages, page_of)
}

/// Checks all accesses of an op that would get `ticket`, and enters them if they pass. `entered`, empty before, gets what has
/// to be known to take that back.
pub(crate) fn check_and_enter<A: Access>(
    accesses: &[A],
    asker: Asker<'_>,
    ticket: u64,
    site: Site,
    strictness: Strictness,
    entered: &mut Entered,
) -> Result<(), Refused> {
    debug_assert!(
        accesses.len() <= MAX_ACCESSES
            && entered.renewed.is_empty()
            && entered.removed.is_empty()
            && entered.findings.is_empty()
    );
    let (mut pages, page_of) = open(accesses, asker.lane);
    // Where two accesses share a page, entering one moves the records that the other was compared with.
    let apart = pages.len() == accesses.len();
    let mut renews: SmallVec<[Option<u32>; 6]> = SmallVec::new();
    for (at, (access, &page)) in accesses.iter().zip(&page_of).enumerate() {
        let page = &pages[usize::from(page)];
        if access.mode().reads()
            && let Some(error) = page.failed(access.range())
        {
            entered.findings.clear();
            return Err(Refused::Failed(error.clone()));
        }
        if strictness != Strictness::Skip {
            renews.push(compare(at, access, page, asker, &mut entered.findings).filter(|_| apart));
        }
    }
    if strictness == Strictness::Refuse && !entered.findings.is_empty() {
        return Err(Refused::Unordered(std::mem::take(&mut entered.findings)));
    }
    let used = Use { stream: asker.stream, ticket };
    for (at, (access, &page_at)) in accesses.iter().zip(&page_of).enumerate() {
        let page = &mut pages[usize::from(page_at)];
        let (mode, range) = (access.mode(), access.range());
        if mode.writes() {
            page.overwrite(range);
        }
        let history = page.history();
        match renews.get(at) {
            Some(Some(old)) => {
                let (ticket, site) = history.renew(*old as usize, used.ticket, site);
                entered.renewed.push((page_at, ticket, site));
            }
            Some(None) if !range.is_empty() => {
                let did = if mode.writes() { Did::Write } else { Did::Read };
                let record = Record { used, range: *range, did, site };
                let removed = &mut entered.removed;
                history.enter(record, asker.stated, asker.observed, |old| removed.push((page_at, old)));
            }
            _ => {}
        }
        history.note_use(used, asker.observed);
    }
    Ok(())
}

/// Adds the earlier uses that `access` is not ordered after to `findings`. Returns the record of the same access by the same
/// stream, if making that one newer is all there is to enter.
#[inline]
fn compare(
    at: usize,
    access: &impl Access,
    page: &Page<'_>,
    asker: Asker<'_>,
    findings: &mut Findings,
) -> Option<u32> {
    let (writes, range) = (access.mode().writes(), access.range());
    let did = if writes { Did::Write } else { Did::Read };
    let mut same = None;
    let mut replaces_others = false;
    for (index, earlier) in page.records().iter().enumerate() {
        if earlier.used.stream == asker.stream {
            if earlier.did == did && earlier.range == *range {
                same = Some(index as u32);
            } else if writes {
                replaces_others |= range.covers(&earlier.range);
            }
        } else if (earlier.did != Did::Read || writes) && earlier.range.overlaps(range) {
            if asker.stated.covers(earlier.used) || asker.observed.covers(earlier.used) {
                replaces_others |= writes && range.covers(&earlier.range);
            } else {
                findings.push(Finding { access: at, earlier: *earlier });
            }
        }
    }
    same.filter(|_| !replaces_others)
}

/// Takes an entered op back whose driver call failed.
#[cold]
pub(crate) fn undo<A: Access>(accesses: &[A], asker: Asker<'_>, ticket: u64, entered: Entered) {
    let (mut pages, _) = open(accesses, asker.lane);
    let used = Use { stream: asker.stream, ticket };
    for (page_at, page) in pages.iter_mut().enumerate() {
        let mine = |at: u8| usize::from(at) == page_at;
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
