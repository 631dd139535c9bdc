//! Marks of refused writes: the bytes that were not written, and the streams that must not read
//! them.
//!
//! A well-formed write that is refused leaves bytes that do not hold what the program expects. The
//! refusal becomes a mark on those bytes, and the refused stream **carries** the mark.
//!
//! # Rules
//! 1. An op fails if it reads marked bytes and its stream carries the mark. Work of other streams
//!    is not affected, because for them the bytes are unchanged.
//! 2. A stated wait hands on the marks that the other stream carries at the awaited point, even if
//!    that wait is refused because the other stream failed. Observing on the host hands nothing on.
//! 3. A mark ends in each of these cases:
//!    * the `Pending` of its own call is looked at, or a `synchronize` returns that error;
//!    * everything it covers is overwritten, accepted as it is (`Tensor::accept_contents`) or
//!      freed;
//!    * no stream carries it. A closed stream carries nothing.
//!
//!    Looking at an inherited error ends only the marks of the op that inherited it.
//! 4. A mark for **everybody** needs no carrier, and looking at the error does not end it, because
//!    the bytes may have changed. Such marks come from work that stopped halfway, foreign work that
//!    failed, and a copy from a device that failed. They also come from every refusal in `wait`
//!    mode, where edges that the runtime adds hand nothing on.
//! 5. Argument errors make no marks. The caller that marks decides which errors these are.
//!
//! A stream has at most [`MOST`] marks of its own, and an allocation has at most about as many on
//! it. Beyond that, marks **join**: they become one mark with the bytes and the carriers of all,
//! which ends only with its bytes. So a stream that was refused once may fail on bytes whose write
//! was refused on another stream. Joining never lets an op pass that would have failed.
//!
//! # Who holds what
//! Streams and errors hold marks. Ledgers hold bytes and a weak reference to their mark; to a mark
//! for everybody they hold a strong one. So a mark without a carrier leaves the ledgers when they
//! are next looked at. A mark without bytes leaves the streams with their next change.
// Decision: docs/decisions/0001-order-check-has-no-error-type.md
// Decision: docs/decisions/0002-refused-write-leaves-a-mark.md

use super::clock::StreamId;
use std::collections::HashSet;
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// The maximum number of marks that are kept apart: a stream's own, and those on one allocation.
pub(super) const MOST: usize = 64;

/// The reason for a refused write, as an error of the code that refused it.
pub type Cause = Arc<dyn Error + Send + Sync>;

/// The mark of a refused write.
#[derive(Debug)]
pub struct Mark {
    origin: StreamId,
    cause: Cause,
    /// True if excess refusals have joined the mark, so that no single `Pending` ends it.
    joined: AtomicBool,
    /// The mark that this mark has joined.
    into: OnceLock<Arc<Mark>>,
    seen: AtomicBool,
    /// The number of ledgers in which the mark has bytes.
    ledgers: AtomicUsize,
}

impl Mark {
    /// Creates the mark of a write on `origin` that was refused because of `cause`.
    pub fn new(origin: StreamId, cause: Cause) -> Arc<Self> {
        Arc::new(Mark {
            origin,
            cause,
            joined: AtomicBool::new(false),
            into: OnceLock::new(),
            seen: AtomicBool::new(false),
            ledgers: AtomicUsize::new(0),
        })
    }

    /// Returns the cause of the refusal.
    pub fn cause(&self) -> &Cause {
        &self.cause
    }

    /// Returns the stream whose write was refused.
    pub fn origin(&self) -> StreamId {
        self.origin
    }

    /// Notes that the error of the refused call itself has been looked at.
    pub fn see(&self) {
        self.seen.store(true, Ordering::Release);
    }

    /// Returns the mark that this mark is now part of.
    fn root(self: &Arc<Self>) -> &Arc<Self> {
        let mut mark = self;
        while let Some(into) = mark.into.get() {
            mark = into;
        }
        mark
    }

    fn has_ended(&self) -> bool {
        self.seen.load(Ordering::Acquire) && !self.has_joined()
    }

    /// Returns whether the mark stands for others too, or another mark for it.
    pub(super) fn has_joined(&self) -> bool {
        self.joined.load(Ordering::Acquire) || self.into.get().is_some()
    }
}

/// The marks that a stream carries. The empty set allocates nothing. A set is shared, and copied
/// when it changes. Only refusals and waits for marked streams change it.
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
        entries.retain(|mark| !mark.has_ended() && mark.ledgers.load(Ordering::Acquire) > 0);
        // In the order of arrival, so that it does not depend on chance which mark is used again.
        let mut seen = HashSet::with_capacity(entries.len());
        entries.retain(|mark| seen.insert(Arc::as_ptr(mark)));
        self.0 = (!entries.is_empty()).then(|| entries.into());
    }

    /// Adds the marks that another stream carries. Returns whether any of them was new.
    pub fn merge(&mut self, other: &Marks) -> bool {
        let new = |mark: &&Arc<Mark>| !mark.has_ended() && !self.carries(mark);
        let new: Vec<_> = other.entries().iter().filter(new).cloned().collect();
        if new.is_empty() {
            return false;
        }
        self.set(self.entries().iter().cloned().chain(new).collect());
        true
    }

    /// Returns the mark for a refusal on `origin`: a new one, or the one that excess marks join.
    /// The caller has to put it on its bytes and then [add](Self::add) it.
    pub fn mark_for(&self, origin: StreamId, cause: Cause) -> Arc<Mark> {
        let own = |mark: &&Arc<Mark>| mark.origin == origin && !mark.has_ended();
        if self.entries().iter().filter(own).count() < MOST {
            return Mark::new(origin, cause);
        }
        let joins = self.entries().iter().filter(own).find(|mark| mark.joined.load(Ordering::Relaxed));
        let mark =
            joins.or_else(|| self.entries().iter().rfind(own)).expect("fewer marks than the limit").clone();
        mark.joined.store(true, Ordering::Release);
        mark
    }

    /// Adds `mark` to the marks that the stream carries.
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

/// The mark that keeps an op from reading bytes.
#[derive(Debug)]
pub struct FoundMark {
    /// The mark, with the refusal that made it.
    pub mark: Arc<Mark>,
    /// True if it ends once the program has seen that refusal. Otherwise it stays until the bytes
    /// are overwritten or accepted.
    pub ends_when_seen: bool,
}

impl OnBytes {
    pub(super) fn new(mark: &Arc<Mark>, everybodys: bool) -> Self {
        mark.ledgers.fetch_add(1, Ordering::Release);
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

    /// Returns the mark, unless it has ended.
    pub(super) fn live(&self) -> Option<Arc<Mark>> {
        match self {
            OnBytes::Carried(mark) => mark.upgrade().filter(|mark| !mark.has_ended()),
            OnBytes::Everybodys(mark) => Some(mark.clone()),
        }
    }

    pub(super) fn is_one_of(&self, marks: &Marks) -> bool {
        self.live().is_some_and(|mark| marks.carries(&mark))
    }

    /// Returns the mark if it keeps work that carries `marks` from reading the bytes.
    pub(super) fn concerns(&self, marks: &Marks) -> Option<Arc<Mark>> {
        self.live().filter(|mark| self.is_everybodys() || marks.carries(mark))
    }
}

/// Joins several carried marks on the bytes of one allocation into one. Returns `None` if there are
/// none.
///
/// A mark joins another mark at a lower address, and only once. So joins form no cycle, even if the
/// marks of two allocations are joined at the same time.
pub(super) fn join(marks: &[Arc<Mark>]) -> Option<Arc<Mark>> {
    loop {
        let first = marks.iter().map(Mark::root).min_by_key(|mark| Arc::as_ptr(mark))?.clone();
        first.joined.store(true, Ordering::Release);
        let joins = |mark: &Arc<Mark>| {
            let root = mark.root();
            Arc::ptr_eq(root, &first) || root.into.set(first.clone()).is_ok()
        };
        // If another thread was first, a mark has another root now.
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
            mark.ledgers.fetch_sub(1, Ordering::Release);
        }
    }
}
