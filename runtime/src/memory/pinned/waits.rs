//! The requests that wait for page-locked memory, in the order of their calls.
//!
//! # Rules
//! 1. Memory is **held** if no copy returns it by itself: that of buffers, and of copies that will
//!    give a buffer back to a live `Pending`. So is what a copy behind host code has, since that
//!    code may wait for the thread that asks. The rest comes back, and a read that nobody has
//!    polled makes way (`in_flight.rs`).
//! 2. A request is refused at once if it does not fit beside what is held, and what the requests
//!    before it will hold. Otherwise it joins the queue. Nothing else refuses it.
//! 3. Only the first request is granted memory. While one waits, no other call takes any, even if
//!    a cached block would serve it.
//! 4. A copy joins under its stream's lock, at its ticket. A copy that has its memory already
//!    checks there that no request waits, and otherwise returns it and joins. So the order of the
//!    queue is that of the calls, and no copy that has memory is behind one that waits for some of
//!    the same pool.
//! 5. Whoever returns memory serves the queue. It takes the pool's lock, grants what fits,
//!    releases the lock, and only then wakes tasks and has copies handed over.
//!
//! # Why each wait ends
//! Take the earliest request that waits, of all pools. The copies that have memory of its pool
//! were enqueued before it (3, 4), and so were those that they are behind. None of these waits for
//! memory. So each ends, unless host code holds it up, which was counted as held (1). What is held
//! and this request fit together (2), and what is held grows only by requests before it, which
//! were counted too. So it is granted memory, and then another request is the earliest.
//!
//! # Lock order
//! A stream's lock → the pool's → the list of host code. The lock of a copy's memory → the pool's.
//! Memory is never dropped under the pool's lock.
// Decision: docs/decisions/0066-pinned-memory-waits.md

use super::in_flight::{InFlight, Return};
use super::pool::{HeldUpCopies, Lens, PinnedPool, State, block_lens};
use super::promise::{Promise, Promises};
use crate::memory::{MemoryWaiters, wake_all};
use crate::order::{Site, Use};
use crate::sync::{Arc, MutexGuard, Ordering, fence};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Weak;
use std::time::Instant;
use tokio::sync::futures::Notified;
use warpline_driver::{Error, ErrorKind};

/// Returns the host code that a copy is behind, if there is any. The ticket is 0 if the copy has
/// none yet.
pub(crate) type HeldUpBy<'a> = &'a dyn Fn(Use) -> Option<String>;

/// Gets the memory of a copy that waits for it. Called while no lock is held.
pub(crate) type Grant = Box<dyn FnOnce(Promise) + Send>;

/// A request that is to join the queue. It is for one block, or for several that are granted
/// together.
pub(crate) struct Want<'a> {
    pub(crate) lens_bytes: &'a [usize],
    pub(crate) site: Site,
    pub(crate) asker: Asker,
}

/// The owner of a request.
pub(crate) enum Asker {
    /// A task or a thread, which gets a buffer.
    Task,
    /// A copy, and its end.
    Copy { returns: Option<Arc<Return>>, grant: Grant },
}

/// The requests that wait, and the copies whose memory comes back.
#[derive(Default)]
pub(super) struct Waits {
    queue: VecDeque<Waiter>,
    /// Memory that was granted to tasks which have not taken it yet.
    granted: Vec<(u64, Promises)>,
    /// The number of requests so far.
    joined: u64,
    /// The copies and jobs that return memory, and some that have.
    returns: Recent<Return>,
    /// The reads, and some that are over.
    reads: Recent<InFlight>,
}

/// Values that others own, and some that are gone.
struct Recent<T> {
    list: Vec<Weak<T>>,
    /// The length of the list at which it is next searched for values that are gone.
    search_at: usize,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Recent { list: Vec::new(), search_at: FEW }
    }
}

impl<T> Recent<T> {
    fn push(&mut self, value: &Arc<T>) {
        self.list.push(Arc::downgrade(value));
        if self.list.len() >= self.search_at {
            self.list.retain(|value| value.strong_count() > 0);
            self.search_at = (2 * self.list.len()).max(FEW);
        }
    }

    fn iter(&self) -> impl Iterator<Item = Arc<T>> {
        self.list.iter().filter_map(Weak::upgrade)
    }
}

struct Waiter {
    number: u64,
    lens: SmallVec<[Lens; 1]>,
    asker: Asker,
    site: Site,
    since: Instant,
}

impl Waiter {
    /// Returns the length of its blocks.
    fn len(&self) -> usize {
        len_of(&self.lens)
    }

    fn len_bytes(&self) -> usize {
        self.lens.iter().map(|lens| lens.bytes).sum()
    }
}

fn len_of(lens: &[Lens]) -> usize {
    lens.iter().map(|lens| lens.block).sum()
}

/// The least length of a list that is searched.
const FEW: usize = 64;

impl Waits {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Notes what returns so many bytes to the pool.
    pub(super) fn note_return(&mut self, returns: &Arc<Return>, bytes: usize) {
        returns.bytes.store(bytes, Ordering::Relaxed);
        self.returns.push(returns);
    }

    fn take_granted(&mut self, number: u64) -> Option<Promises> {
        let at = self.granted.iter().position(|(of, _)| *of == number)?;
        Some(self.granted.swap_remove(at).1)
    }
}

/// The sum of what the requests before one need, and of what no copy returns.
struct Held {
    bytes: usize,
    held_up: Option<HeldUpCopies>,
}

impl Held {
    fn add_held_up(&mut self, bytes: usize, code: String) {
        let held_up = self.held_up.get_or_insert(HeldUpCopies { bytes: 0, code });
        held_up.bytes += bytes;
    }
}

impl PinnedPool {
    /// Returns true while requests wait.
    #[inline]
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::Acquire)
    }

    /// Returns a future that is ready after tasks were granted memory.
    pub(crate) fn granted(&self) -> Notified<'_> {
        self.granted.notified()
    }

    /// Notes a read, which makes way for requests that wait.
    pub(crate) fn note_read(&self, copy: &Arc<InFlight>) {
        self.state.lock().waits.reads.push(copy);
    }

    /// Does the same with the pool's lock.
    pub(super) fn note_return(&self, returns: &Arc<Return>, bytes: usize) {
        self.state.lock().waits.note_return(returns, bytes);
    }

    /// Adds a request at the end of the queue, and returns its number. The caller
    /// [serves](Self::serve_now) the queue once it holds no lock.
    ///
    /// # Errors
    /// `OutOfMemory` if it does not fit beside what is held.
    pub(crate) fn join(&self, want: Want<'_>, held_up_by: HeldUpBy<'_>) -> Result<u64, Error> {
        let Want { lens_bytes, site, asker } = want;
        let len_bytes = lens_bytes.iter().fold(0usize, |sum, &bytes| sum.saturating_add(bytes));
        let Some(lens) = block_lens(lens_bytes) else {
            return Err(self.over_cap(len_bytes, self.stats().allocated_bytes, None));
        };
        let mut state = self.state.lock();
        let held = self.held(&state, usize::MAX, held_up_by);
        if len_of(&lens) > self.cap_of(&state).saturating_sub(held.bytes) {
            drop(state);
            return Err(self.over_cap(len_bytes, held.bytes, held.held_up));
        }
        let waits = &mut state.waits;
        waits.joined += 1;
        let (number, since) = (waits.joined, Instant::now());
        waits.queue.push_back(Waiter { number, lens, asker, site, since });
        self.awaited.store(true, Ordering::Release);
        drop(state);
        Ok(number)
    }

    /// Checks that a request would be accepted.
    ///
    /// # Errors
    /// `OutOfMemory` if it does not fit beside what is held.
    pub(crate) fn judge(&self, lens_bytes: &[usize], held_up_by: HeldUpBy<'_>) -> Result<(), Error> {
        let len_bytes = lens_bytes.iter().fold(0usize, |sum, &bytes| sum.saturating_add(bytes));
        let state = self.state.lock();
        let held = self.held(&state, usize::MAX, held_up_by);
        let free = self.cap_of(&state).saturating_sub(held.bytes);
        drop(state);
        match block_lens(lens_bytes) {
            Some(lens) if len_of(&lens) <= free => Ok(()),
            _ => Err(self.over_cap(len_bytes, held.bytes, held.held_up)),
        }
    }

    /// Checks again that a request which waits fits beside what is held.
    ///
    /// # Errors
    /// `OutOfMemory` if it does not.
    pub(crate) fn judge_again(&self, number: u64, held_up_by: HeldUpBy<'_>) -> Result<(), Error> {
        let state = self.state.lock();
        let Some(at) = state.waits.queue.iter().position(|waiter| waiter.number == number) else {
            return Ok(());
        };
        let held = self.held(&state, at, held_up_by);
        let waiter = &state.waits.queue[at];
        let (len, len_bytes) = (waiter.len(), waiter.len_bytes());
        let fits = len <= self.cap_of(&state).saturating_sub(held.bytes);
        drop(state);
        if fits { Ok(()) } else { Err(self.over_cap(len_bytes, held.bytes, held.held_up)) }
    }

    /// Returns what is held, and what the first `before` requests will hold.
    fn held(&self, state: &State, before: usize, held_up_by: HeldUpBy<'_>) -> Held {
        let waits = &state.waits;
        // A block that is made ahead will be cached.
        let mut held = Held { bytes: self.in_use(state) - state.growing, held_up: None };
        for returns in waits.returns.iter() {
            let bytes = returns.bytes.load(Ordering::Relaxed);
            if bytes > 0 && returns.is_left() {
                match returns.place().and_then(held_up_by) {
                    Some(code) => held.add_held_up(bytes, code),
                    None => held.bytes = held.bytes.saturating_sub(bytes),
                }
            }
        }
        for waiter in waits.queue.iter().take(before) {
            match &waiter.asker {
                Asker::Copy { returns: Some(returns), .. } if returns.is_left() => {
                    if let Some(code) = returns.place().and_then(held_up_by) {
                        held.bytes += waiter.len();
                        held.add_held_up(waiter.len(), code);
                    }
                }
                Asker::Copy { .. } | Asker::Task => held.bytes += waiter.len(),
            }
        }
        held
    }

    /// Takes what a task's request was granted.
    pub(crate) fn take_granted(&self, number: u64) -> Option<Promises> {
        self.state.lock().waits.take_granted(number)
    }

    /// Removes a request, with what it was granted.
    pub(crate) fn leave(self: &Arc<Self>, number: u64) {
        // One lock for both, because another thread may grant it memory at any time.
        let mut state = self.state.lock();
        let granted = state.waits.take_granted(number); // weaken: leave-with-the-grant
        let at = state.waits.queue.iter().position(|waiter| waiter.number == number);
        let gone = at.and_then(|at| state.waits.queue.remove(at));
        if state.waits.is_empty() {
            self.awaited.store(false, Ordering::Release);
        }
        self.serve(state); // weaken: leave-then-serve
        drop((granted, gone));
    }

    /// Grants memory to the requests in their order, as far as it is there. Called while no lock
    /// is held.
    pub(crate) fn serve_now(self: &Arc<Self>) {
        self.serve(self.state.lock());
    }

    /// Does the same, with the pool's lock.
    pub(super) fn serve(self: &Arc<Self>, state: MutexGuard<'_, State>) {
        if !state.waits.is_empty() {
            self.serve_queue(state);
        }
    }

    #[cold]
    fn serve_queue(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let (mut grants, mut tasks) = (Vec::new(), false);
        while let Some(Waiter { lens, asker, .. }) = state.waits.queue.front() {
            let returns = if let Asker::Copy { returns, .. } = asker { returns.clone() } else { None };
            let lens = lens.clone();
            let Some(promises) = self.promised(&mut state, &lens, returns.as_ref()) else { break };
            match state.waits.queue.pop_front() {
                Some(Waiter { number, asker: Asker::Task, .. }) => {
                    state.waits.granted.push((number, promises));
                    tasks = true;
                }
                Some(Waiter { asker: Asker::Copy { grant, .. }, .. }) => {
                    grants.extend(promises.into_iter().next().map(|promise| (promise, grant)));
                }
                None => unreachable!("it was looked at under the same lock"),
            }
        }
        if state.waits.is_empty() {
            self.awaited.store(false, Ordering::Release);
        }
        drop(state);
        grants.into_iter().for_each(|(promise, grant)| grant(promise));
        if tasks {
            wake_all(&self.granted); // weaken: grant-then-wake
        }
    }

    /// Makes reads that have finished and that nobody has polled return their memory, if requests
    /// wait.
    pub(crate) fn make_way(&self) {
        if !self.is_awaited() {
            return;
        }
        // The end of a read looks for requests behind such a fence too, so one of the two sees the
        // other.
        fence(Ordering::SeqCst); // weaken: join-then-make-way
        let reads: Vec<_> = self.state.lock().waits.reads.iter().collect();
        reads.iter().for_each(|read| read.make_way());
    }

    /// Returns the error of a request that may not wait.
    #[cold]
    pub(crate) fn refusal(&self, len_bytes: usize, why: &str) -> Error {
        let state = self.state.lock();
        let (in_use, waiting) = (self.in_use(&state), state.waits.queue.len());
        drop(state);
        let error = self.over_cap(len_bytes, in_use, None);
        let before = match waiting {
            0 => String::new(),
            1 => "; one request waits before it".into(),
            _ => format!("; {waiting} requests wait before it"),
        };
        Error::new(ErrorKind::OutOfMemory, format!("{error}{before}; {why}"))
    }

    /// Returns the requests that wait, for reports.
    pub(crate) fn waiters(&self) -> Option<MemoryWaiters> {
        let state = self.state.lock();
        let queue = &state.waits.queue;
        let first = queue.front()?;
        Some(MemoryWaiters {
            requests: queue.len(),
            bytes: queue.iter().map(Waiter::len).sum(),
            first_bytes: first.len_bytes(),
            first_site: first.site,
            first_since: first.since.elapsed(),
        })
    }
}

impl fmt::Debug for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waits").field("waiting", &self.queue.len()).finish_non_exhaustive()
    }
}
