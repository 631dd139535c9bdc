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
use smallvec::SmallVec;

/// One operand, as the check sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access<'a> {
    pub(crate) ledger: &'a Ledger,
    pub(crate) range: ByteRange,
    pub(crate) mode: AccessMode,
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
    removed: SmallVec<[(u8, Record); 4]>,
    pub(crate) findings: Findings,
}

type Pages<'a> = SmallVec<[Page<'a>; 6]>;
type PageOf = SmallVec<[u8; 8]>;

/// The most operands of one op.
pub(crate) const MAX_ACCESSES: usize = 255;

fn open<'a>(accesses: &[Access<'a>], lane: usize) -> (Pages<'a>, PageOf) {
    let address = |at: u8| std::ptr::from_ref(accesses[at as usize].ledger) as usize;
    let mut sorted: PageOf = (0..accesses.len() as u8).collect();
    if sorted.len() > 1 {
        sorted.sort_unstable_by_key(|&at| address(at));
    }
    let mut page_of = PageOf::from_elem(0, accesses.len());
    let mut pages = Pages::new();
    let mut start = 0;
    while start < sorted.len() {
        let here = address(sorted[start]);
        let mut end = start;
        let mut writes = false;
        while end < sorted.len() && address(sorted[end]) == here {
            writes |= accesses[sorted[end] as usize].mode.writes();
            page_of[sorted[end] as usize] = pages.len() as u8;
            end += 1;
        }
        let ledger = accesses[sorted[start] as usize].ledger;
        pages.push(if writes { Page::Book(ledger.open()) } else { ledger.open_to_read(lane) });
        start = end;
    }
    (pages, page_of)
}

/// Checks all accesses of an op that would get `ticket`, and enters them if they pass.
#[inline]
pub(crate) fn check_and_enter(
    accesses: &[Access<'_>],
    asker: Asker<'_>,
    ticket: u64,
    site: Site,
    strictness: Strictness,
) -> Result<Entered, Refused> {
    debug_assert!(accesses.len() <= MAX_ACCESSES);
    let (mut pages, page_of) = open(accesses, asker.lane);
    let mut entered = Entered::default();
    for (at, access) in accesses.iter().enumerate() {
        let page = &pages[page_of[at] as usize];
        if access.mode.reads()
            && let Some(error) = page.failed(&access.range)
        {
            return Err(Refused::Failed(error.clone()));
        }
        if strictness != Strictness::Skip {
            find(at, access, page, asker, &mut entered.findings);
        }
    }
    if strictness == Strictness::Refuse && !entered.findings.is_empty() {
        return Err(Refused::Unordered(entered.findings));
    }
    let used = Use { stream: asker.stream, ticket };
    for (at, access) in accesses.iter().enumerate() {
        let page_at = page_of[at];
        let page = &mut pages[page_at as usize];
        if strictness != Strictness::Skip && !access.range.is_empty() {
            let did = if access.mode.writes() { Did::Write } else { Did::Read };
            let record = Record { used, range: access.range, did, site };
            page.enter(record, asker.stated, asker.observed, &mut |old| entered.removed.push((page_at, old)));
        }
        if access.mode.writes() {
            page.overwrite(&access.range);
        }
        page.note_use(used, asker.observed);
    }
    Ok(entered)
}

#[inline]
fn find(at: usize, access: &Access<'_>, page: &Page<'_>, asker: Asker<'_>, findings: &mut Findings) {
    for earlier in page.records() {
        let conflicts = earlier.used.stream != asker.stream
            && (earlier.did != Did::Read || access.mode.writes())
            && earlier.range.overlaps(&access.range)
            && !asker.stated.covers(earlier.used)
            && !asker.observed.covers(earlier.used);
        if conflicts {
            findings.push(Finding { access: at, earlier: *earlier });
        }
    }
}

/// Takes an entered op back whose driver call failed.
#[cold]
pub(crate) fn undo(accesses: &[Access<'_>], asker: Asker<'_>, ticket: u64, entered: Entered) {
    let (mut pages, _) = open(accesses, asker.lane);
    let used = Use { stream: asker.stream, ticket };
    for (page_at, page) in pages.iter_mut().enumerate() {
        let removed = entered.removed.iter().filter(|(at, _)| *at as usize == page_at).map(|(_, old)| *old);
        page.undo(used, removed.filter(|old| old.used != used));
    }
}

/// Marks what a refused op would have written.
#[cold]
pub(crate) fn mark_failed(accesses: &[Access<'_>], error: &Error) {
    for access in accesses.iter().filter(|access| access.mode.writes() && !access.range.is_empty()) {
        access.ledger.open().mark_failed(access.range, error);
    }
}

/// Two operands of one op that share bytes although one is written; identical ones pass if `in_place`.
#[inline]
pub(crate) fn overlap_within(accesses: &[Access<'_>], in_place: bool) -> Option<(usize, usize)> {
    for (at, access) in accesses.iter().enumerate().skip(1) {
        for (before, other) in accesses[..at].iter().enumerate() {
            if std::ptr::eq(access.ledger, other.ledger)
                && (access.mode.writes() || other.mode.writes())
                && access.range.overlaps(&other.range)
                && !(in_place && access.range == other.range)
            {
                return Some((before, at));
            }
        }
    }
    None
}
