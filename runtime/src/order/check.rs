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
    removed: SmallVec<[(u8, Record); 4]>,
    pub(crate) findings: Findings,
}

type Pages<'a> = SmallVec<[Page<'a>; 6]>;

/// The most operands of one op.
pub(crate) const MAX_ACCESSES: usize = 255;

/// Room for two small numbers for each of so many accesses. Eight accesses need no allocation.
struct Room {
    few: [u8; 16],
    many: Vec<u8>,
}

impl Room {
    #[inline]
    fn new() -> Self {
        Room { few: [0; 16], many: Vec::new() }
    }

    #[inline]
    fn halves(&mut self, len: usize) -> (&mut [u8], &mut [u8]) {
        if len <= 8 {
            let (one, two) = self.few.split_at_mut(8);
            return (&mut one[..len], &mut two[..len]);
        }
        self.many = vec![0; 2 * len];
        self.many.split_at_mut(len)
    }
}

/// Opens the ledgers, each once, in the order of their addresses; and says which page is whose.
#[inline]
fn open<'a, 'r, A: Access>(accesses: &'a [A], lane: usize, room: &'r mut Room) -> (Pages<'a>, &'r [u8]) {
    let address = |at: u8| std::ptr::from_ref(accesses[usize::from(at)].ledger()).addr();
    let (sorted, page_of) = room.halves(accesses.len());
    for at in 0..sorted.len() {
        let here = address(at as u8);
        let mut to = at;
        while to > 0 && address(sorted[to - 1]) > here {
            sorted[to] = sorted[to - 1];
            to -= 1;
        }
        sorted[to] = at as u8;
    }
    let mut pages = Pages::new();
    let mut left = &*sorted;
    while let Some(&first) = left.first() {
        let ledger = accesses[usize::from(first)].ledger();
        let mut writes = false;
        while let Some((&at, rest)) = left.split_first() {
            let access = &accesses[usize::from(at)];
            if !std::ptr::eq(access.ledger(), ledger) {
                break;
            }
            writes |= access.mode().writes();
            page_of[usize::from(at)] = pages.len() as u8;
            left = rest;
        }
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
        accesses.len() <= MAX_ACCESSES && entered.removed.is_empty() && entered.findings.is_empty()
    );
    let mut room = Room::new();
    let (mut pages, page_of) = open(accesses, asker.lane, &mut room);
    for (at, (access, &page)) in accesses.iter().zip(page_of).enumerate() {
        let page = &pages[usize::from(page)];
        if access.mode().reads()
            && let Some(error) = page.failed(access.range())
        {
            entered.findings.clear();
            return Err(Refused::Failed(error.clone()));
        }
        if strictness != Strictness::Skip {
            find(at, access, page, asker, &mut entered.findings);
        }
    }
    if strictness == Strictness::Refuse && !entered.findings.is_empty() {
        return Err(Refused::Unordered(std::mem::take(&mut entered.findings)));
    }
    let used = Use { stream: asker.stream, ticket };
    for (access, &page_at) in accesses.iter().zip(page_of) {
        let page = &mut pages[usize::from(page_at)];
        let (mode, range) = (access.mode(), access.range());
        if mode.writes() {
            page.overwrite(range);
        }
        let history = page.history();
        if strictness != Strictness::Skip && !range.is_empty() {
            let did = if mode.writes() { Did::Write } else { Did::Read };
            let record = Record { used, range: *range, did, site };
            history.enter(record, asker.stated, asker.observed, |old| entered.removed.push((page_at, old)));
        }
        history.note_use(used, asker.observed);
    }
    Ok(())
}

#[inline]
fn find(at: usize, access: &impl Access, page: &Page<'_>, asker: Asker<'_>, findings: &mut Findings) {
    let (writes, range) = (access.mode().writes(), access.range());
    for earlier in page.records() {
        if earlier.used.stream == asker.stream {
            continue;
        }
        let conflicts = (earlier.did != Did::Read || writes)
            && earlier.range.overlaps(range)
            && !asker.stated.covers(earlier.used)
            && !asker.observed.covers(earlier.used);
        if conflicts {
            findings.push(Finding { access: at, earlier: *earlier });
        }
    }
}

/// Takes an entered op back whose driver call failed.
#[cold]
pub(crate) fn undo<A: Access>(accesses: &[A], asker: Asker<'_>, ticket: u64, entered: Entered) {
    let mut room = Room::new();
    let (mut pages, _) = open(accesses, asker.lane, &mut room);
    let used = Use { stream: asker.stream, ticket };
    for (page_at, page) in pages.iter_mut().enumerate() {
        let removed = entered.removed.iter().filter(|(at, _)| *at as usize == page_at).map(|(_, old)| *old);
        page.history().undo(used, removed.filter(|old| old.used != used));
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
