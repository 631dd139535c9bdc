//! Marks of refused writes: which bytes were not written, and whose work is not to read them.
//!
//! A well-formed write that is refused leaves bytes that are not what the program takes them for.
//! The refusal becomes a mark on those bytes, and the stream that was refused **carries** it.
//!
//! # Rules
//! 1. An op fails if it reads marked bytes and its stream carries the mark. Work of other streams
//!    is not touched: for them the bytes are what they were.
//! 2. A stated wait hands on what the other stream carries at the place that is waited for.
//!    Observing on the host hands nothing on.
//! 3. A mark ends when the `Pending` of its own call was looked at, or a `synchronize` returned
//!    that error; when everything it covers was overwritten, accepted or freed; and when no stream
//!    carries it. A closed stream carries nothing. Looking at an inherited error ends only the
//!    marks of the op that inherited it.
//! 4. A mark for **everybody** needs no carrier, and looking at the error does not end it: the
//!    bytes may have changed (work that stopped halfway, foreign work that failed, a copy from a
//!    device that failed; and every refusal in `wait` mode, where edges that the runtime adds hand
//!    nothing on).
//! 5. Errors of the arguments make no marks; which those are says who marks.
//!
//! A stream has at most [`MOST`] marks of its own, and memory at most about as many on it. Beyond
//! that marks **join**: they are one mark then, with the bytes and the carriers of all, that ends
//! only with its bytes. So a stream that was refused once may fail where another was, but never the
//! other way round.
//!
//! # Who holds what
//! Streams and errors hold marks; ledgers hold bytes and, but for everybody's marks, a weak
//! reference. So a mark that nobody carries leaves the ledgers when they are looked at next, and a
//! mark without bytes leaves the streams with their next change.

use super::clock::StreamId;
use std::collections::HashSet;
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// The most marks that are kept apart: by a stream of its own, and on one allocation.
pub(super) const MOST: usize = 64;

/// Why a write was refused, in the words of who refused it.
pub type Cause = Arc<dyn Error + Send + Sync>;

/// A refused write.
#[derive(Debug)]
pub struct Mark {
    origin: StreamId,
    cause: Cause,
    /// True if refusals that were one too many have joined it, so that no single `Pending` ends it.
    joined: AtomicBool,
    /// The mark that it has joined.
    into: OnceLock<Arc<Mark>>,
    seen: AtomicBool,
    /// In how many ledgers it has bytes.
    places: AtomicUsize,
}

impl Mark {
    /// The mark of a write on `origin` that was refused for that reason.
    pub fn new(origin: StreamId, cause: Cause) -> Arc<Self> {
        Arc::new(Mark {
            origin,
            cause,
            joined: AtomicBool::new(false),
            into: OnceLock::new(),
            seen: AtomicBool::new(false),
            places: AtomicUsize::new(0),
        })
    }

    /// The refusal.
    pub fn cause(&self) -> &Cause {
        &self.cause
    }

    /// The stream that was refused.
    pub fn origin(&self) -> StreamId {
        self.origin
    }

    /// Somebody has looked at the error of the call itself.
    pub fn see(&self) {
        self.seen.store(true, Ordering::Release);
    }

    /// The mark that it is one with.
    fn root(self: &Arc<Self>) -> &Arc<Self> {
        let mut mark = self;
        while let Some(into) = mark.into.get() {
            mark = into;
        }
        mark
    }

    fn has_ended(&self) -> bool {
        self.seen.load(Ordering::Acquire) && !self.joined.load(Ordering::Acquire) && self.into.get().is_none()
    }
}

/// The marks that a stream carries. The empty set is no allocation; a set is shared and copied when
/// it changes, which only refusals and waits for marked streams do.
#[derive(Clone, Debug, Default)]
pub struct Marks(Option<Arc<[Arc<Mark>]>>);

impl Marks {
    fn entries(&self) -> &[Arc<Mark>] {
        self.0.as_deref().unwrap_or_default()
    }

    fn carries(&self, mark: &Arc<Mark>) -> bool {
        self.entries().iter().any(|entry| Arc::ptr_eq(entry.root(), mark.root()))
    }

    fn set(&mut self, mut entries: Vec<Arc<Mark>>) {
        entries.iter_mut().for_each(|mark| *mark = mark.root().clone());
        entries.retain(|mark| !mark.has_ended() && mark.places.load(Ordering::Acquire) > 0);
        // In the order in which they came, so that which of them others join is no matter of luck.
        let mut seen = HashSet::with_capacity(entries.len());
        entries.retain(|mark| seen.insert(Arc::as_ptr(mark)));
        self.0 = (!entries.is_empty()).then(|| entries.into());
    }

    /// Takes over what another stream carries. Whether there was anything new.
    pub fn merge(&mut self, other: &Marks) -> bool {
        let new = |mark: &&Arc<Mark>| !mark.has_ended() && !self.carries(mark);
        let new: Vec<_> = other.entries().iter().filter(new).cloned().collect();
        if new.is_empty() {
            return false;
        }
        self.set(self.entries().iter().cloned().chain(new).collect());
        true
    }

    /// The mark that a refusal on `origin` gets: its own, or the one that what is too
    /// many joins. It has to get its bytes, and then to be [added](Self::add).
    pub fn mark_for(&self, origin: StreamId, cause: Cause) -> Arc<Mark> {
        let own = |mark: &&Arc<Mark>| mark.origin == origin && !mark.has_ended();
        if self.entries().iter().filter(own).count() < MOST {
            return Mark::new(origin, cause);
        }
        let joins = self.entries().iter().filter(own).find(|mark| mark.joined.load(Ordering::Relaxed));
        let mark = joins.or_else(|| self.entries().iter().rfind(own)).expect("there are so many").clone();
        mark.joined.store(true, Ordering::Release);
        mark
    }

    /// Carries `mark` too.
    pub fn add(&mut self, mark: Arc<Mark>) {
        self.set(self.entries().iter().cloned().chain([mark]).collect());
    }
}

/// A mark on bytes of one allocation.
#[derive(Debug)]
pub(super) enum OnBytes {
    Carried(Weak<Mark>),
    Everybodys(Arc<Mark>),
}

impl OnBytes {
    pub(super) fn new(mark: &Arc<Mark>, everybodys: bool) -> Self {
        mark.places.fetch_add(1, Ordering::Release);
        if everybodys { OnBytes::Everybodys(mark.clone()) } else { OnBytes::Carried(Arc::downgrade(mark)) }
    }

    pub(super) fn is(&self, mark: &Arc<Mark>) -> bool {
        match self {
            OnBytes::Carried(own) => std::ptr::eq(own.as_ptr(), Arc::as_ptr(mark)),
            OnBytes::Everybodys(own) => Arc::ptr_eq(own, mark),
        }
    }

    pub(super) fn is_everybodys(&self) -> bool {
        matches!(self, OnBytes::Everybodys(_))
    }

    /// The mark, unless it has ended.
    pub(super) fn live(&self) -> Option<Arc<Mark>> {
        match self {
            OnBytes::Carried(mark) => mark.upgrade().filter(|mark| !mark.has_ended()),
            OnBytes::Everybodys(mark) => Some(mark.clone()),
        }
    }

    pub(super) fn is_one_of(&self, marks: &Marks) -> bool {
        self.live().is_some_and(|mark| marks.carries(&mark))
    }

    /// The mark, if it keeps work from reading that carries `marks`.
    pub(super) fn concerns(&self, marks: &Marks) -> Option<Arc<Mark>> {
        self.live().filter(|mark| self.is_everybodys() || marks.carries(mark))
    }
}

/// Makes one mark of several that are carried, on the bytes of one allocation. `None` if there are
/// none.
///
/// A mark joins one at a lower address, once. So there is no circle, also where two allocations
/// have their marks joined at a time.
pub(super) fn join(marks: &[Arc<Mark>]) -> Option<Arc<Mark>> {
    loop {
        let first = marks.iter().map(Mark::root).min_by_key(|mark| Arc::as_ptr(mark))?.clone();
        first.joined.store(true, Ordering::Release);
        let joins = |mark: &Arc<Mark>| {
            let root = mark.root();
            Arc::ptr_eq(root, &first) || root.into.set(first.clone()).is_ok()
        };
        // Where another thread was first, a mark has another root now.
        if marks.iter().all(joins) {
            return Some(first);
        }
    }
}

impl Drop for OnBytes {
    fn drop(&mut self) {
        let mark = match self {
            OnBytes::Carried(mark) => mark.upgrade(),
            OnBytes::Everybodys(mark) => Some(mark.clone()),
        };
        if let Some(mark) = mark {
            mark.places.fetch_sub(1, Ordering::Release);
        }
    }
}
