//! The rows that wait for a batch, and the calls that wait for an answer, as pure data.
//!
//! Nothing here touches a device, a clock or a task: callers pass the time, and get wakers to
//! wake. [`Queue`] is used under one lock. `B` is the memory of a block, and `A` an answer.
//!
//! # Rules
//! 1. A call **claims** a row in the first poll of its caller: the first free row of the first
//!    block that takes rows. The caller gets the row's memory, writes it with no lock held, and
//!    puts it back within the same poll. From then on the row is **queued**.
//! 2. A row is free again if its writer fails or panics, or if its caller leaves while it is
//!    queued. The next call may get it, so a row may be answered before older rows of later
//!    blocks.
//! 3. A slot that has no batch **takes** one: the queued rows of the first block, and if these are
//!    fewer than a batch may have, those of the next blocks. The rows become a prefix of the first
//!    block: rows move from its end to where rows were freed, and rows of later blocks behind
//!    them. The slot copies them, with no lock held. The emptied memory then returns to its block.
//! 4. A batch is **due** when as many rows are queued as it may have; `max_wait` after its first
//!    row was queued; early enough for the deadline of each row; immediately for a slot that has
//!    just become free, and while the queue is closed.
//! 5. Taking closes the first block to further calls, and waits until its writers have put their
//!    rows back. Writers run in a poll, so they do not wait for anything.
//! 6. A row whose deadline has passed gets into no batch, nor does one whose deadline would pass
//!    even if its batch were as fast as the fastest of the last ones. After a batch, one taker may
//!    refuse rows for the second reason. Then a batch has to run, so that its time is known.
//! 7. Rows may have different lengths. The lengths of a block's rows add up to no more than a
//!    batch may have, so a block is always a batch, and a row goes to the first block that has
//!    room for it. Rows of one length have the length 0 here.
//! 8. Every call that was queued is answered once, or its caller left. An answer to a caller that
//!    left is dropped.
//! 9. The queue drops no waker and no answer, since a drop may run code of others. Calls return
//!    them. It clones wakers.
//!
//! # Why memory never runs out
//! Each row that is claimed, queued or moving has a permit, and there are `max_queued` of them.
//! All blocks but the first take rows as long as they have free ones. There are as many blocks as
//! hold all rows with a permit, and one more for each slot: a slot holds one block, from the
//! moment at which taking closes it until the batch has been copied to the device. So a call that
//! has a permit finds a free row. If rows have different lengths, a block that has no room for a
//! row has at least as many rows as it could have of the longest, and blocks are counted by these.
// Decision: docs/decisions/0069-callers-write-their-rows.md

mod block;
#[cfg(test)]
mod oracle;

pub(crate) use block::{Block, BlockMemory, Move, Source};

use block::Row;
use slab::Slab;
use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;
use tokio::time::Instant;
use tracing::span;

/// The number of batches whose times decide which deadlines can be met.
const TIMES: usize = 8;
/// The lateness of tokio's timers, which round to milliseconds twice, and a millisecond to spare.
const TIMER: Duration = Duration::from_millis(3);

/// A call that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CallId(usize);

/// A row of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowAt {
    block: u64,
    row: usize,
}

/// The rows and the calls of a batcher.
pub(crate) struct Queue<B: BlockMemory, A> {
    max_rows: usize,
    /// The most that the lengths of a batch's rows may add up to, if they have different lengths.
    max_elements: Option<usize>,
    max_wait: Duration,
    calls: Slab<Call<A>>,
    /// In the order in which they began to take rows.
    blocks: VecDeque<Box<Block<B>>>,
    /// The number of the first block.
    first: u64,
    spare: Vec<Box<Block<B>>>,
    /// The number of rows that are queued.
    queued: usize,
    /// The sum of their lengths.
    elements: usize,
    /// The number of queued rows with a deadline.
    with_deadline: usize,
    /// The number of rows that are being written.
    writing: usize,
    /// True if the first block takes no further rows.
    is_taking: bool,
    is_closed: bool,
    /// The slots that wait for a batch. The last one was the last to run, so its memory is warm,
    /// and it is woken first. It looks again no later than a batch is due.
    takers: Vec<Taker>,
    /// The times of the last batches, the oldest first.
    times: VecDeque<Duration>,
    /// True if a batch has run since rows were refused for want of time.
    may_refuse: bool,
}

/// A slot that waits for a batch.
struct Taker {
    slot: usize,
    waker: Waker,
    /// The time at which it looks again by itself.
    looks_again_at: Option<Instant>,
}

struct Call<A> {
    state: State<A>,
    /// The length of its row.
    len: usize,
    deadline: Option<Instant>,
    waker: Option<Waker>,
    /// The span of its caller, if a subscriber listens to the spans of batches.
    span: Option<span::Id>,
}

enum State<A> {
    Writing,
    /// Since this time.
    Queued(RowAt, Instant),
    /// It was queued at this time.
    #[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "figures read it"))]
    Running(Instant),
    /// Its caller left while it was running.
    Left,
    Answered(Ended<A>),
}

/// The end of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended<A> {
    Answered(A),
    /// No batch would have met its deadline.
    Late,
}

/// The remains of a call whose caller left. They are dropped without the lock.
pub(crate) struct Left<A> {
    /// True if the row was queued, and its permit is free.
    pub(crate) was_queued: bool,
    /// The slot to wake.
    pub(crate) slot: Option<Waker>,
    /// The waker of the caller.
    #[allow(dead_code, reason = "it is dropped")]
    pub(crate) waker: Option<Waker>,
    /// The answer, if there was one.
    pub(crate) ended: Option<Ended<A>>,
}

/// A row that its caller is about to write.
pub(crate) struct Claim<M> {
    pub(crate) call: CallId,
    pub(crate) at: RowAt,
    pub(crate) memory: M,
}

/// The outcome of [`Queue::take`].
pub(crate) struct Take<B: BlockMemory> {
    pub(crate) next: Next<B>,
    /// Calls that were late and another slot, to be woken.
    pub(crate) wakers: Vec<Waker>,
    /// The number of permits that late calls left.
    pub(crate) freed: usize,
    /// A waker to be dropped.
    #[allow(dead_code, reason = "it is dropped")]
    pub(crate) replaced: Option<Waker>,
}

pub(crate) enum Next<B: BlockMemory> {
    Batch(Box<Block<B>>),
    /// There is no batch yet. The waker is woken when there may be one, and the slot is to look
    /// again at this time.
    Wait(Option<Instant>),
    /// The queue is closed, and no row is left.
    End,
}

impl<B: BlockMemory, A> Queue<B, A> {
    /// Creates a queue with blocks of `max_rows` rows each.
    pub(crate) fn new(
        max_rows: usize,
        max_elements: Option<usize>,
        max_wait: Duration,
        memory: Vec<B>,
    ) -> Self {
        Queue {
            max_rows,
            max_elements,
            max_wait,
            calls: Slab::new(),
            blocks: VecDeque::new(),
            first: 0,
            spare: memory.into_iter().map(|memory| Box::new(Block::of(memory))).collect(),
            queued: 0,
            elements: 0,
            with_deadline: 0,
            writing: 0,
            is_taking: false,
            is_closed: false,
            takers: Vec::new(),
            times: VecDeque::with_capacity(TIMES),
            may_refuse: false,
        }
    }

    /// Claims a row of this length for a caller that has a permit, unless the queue is closed.
    pub(crate) fn claim(
        &mut self,
        len: usize,
        deadline: Option<Instant>,
        span: Option<span::Id>,
    ) -> Option<Claim<B::Row>> {
        if self.is_closed {
            return None;
        }
        let (at, memory) = self.free_row(len);
        self.writing += 1;
        let call = Call { state: State::Writing, len, deadline, waker: None, span };
        Some(Claim { call: CallId(self.calls.insert(call)), at, memory })
    }

    fn free_row(&mut self, len: usize) -> (RowAt, B::Row) {
        let closed = usize::from(self.is_taking);
        let has_room = |block: &Block<B>| {
            let fits = self.max_elements.is_none_or(|most| block.elements + len <= most);
            fits && block.out + block.queued < self.max_rows
        };
        let at = (closed..self.blocks.len()).find(|at| has_room(&self.blocks[*at]));
        let at = at.unwrap_or(self.blocks.len());
        if at == self.blocks.len() {
            let block = self.spare.pop().expect("there are rows for all permits");
            self.blocks.push_back(block);
        }
        let block = &mut self.blocks[at];
        block.elements += len;
        let (row, memory) = block.take_free();
        (RowAt { block: self.first + at as u64, row }, memory)
    }

    fn block(&mut self, at: RowAt) -> &mut Block<B> {
        &mut self.blocks[(at.block - self.first) as usize]
    }

    /// Queues a row that was written, and keeps the caller's waker. Returns the slot to wake.
    pub(crate) fn queue(&mut self, row: Claim<B::Row>, now: Instant, waker: Waker) -> Option<Waker> {
        let Claim { call, at, memory } = row;
        self.block(at).put(at.row, Row::Queued(memory, call));
        let entry = &mut self.calls[call.0];
        entry.state = State::Queued(at, now);
        entry.waker = Some(waker);
        self.with_deadline += usize::from(entry.deadline.is_some());
        self.writing -= 1;
        self.queued += 1;
        self.elements += entry.len;
        let looks_again_at = self.takers.last()?.looks_again_at;
        let wakes = match (self.is_taking, self.due_of(call), looks_again_at) {
            (true, ..) => self.is_whole(),
            (false, Some(due), Some(at)) => due < at,
            (false, Some(_), None) => true,
            (false, None, _) => false,
        };
        if wakes || self.is_full() { self.wake_taker() } else { None }
    }

    /// Returns a row whose writer failed. Returns the slot to wake.
    pub(crate) fn abandon(&mut self, row: Claim<B::Row>) -> Option<Waker> {
        let Claim { call, at, memory } = row;
        let len = self.calls.remove(call.0).len;
        let block = self.block(at);
        block.put(at.row, Row::Free(memory));
        block.elements -= len;
        self.writing -= 1;
        self.after_return()
    }

    /// Returns memory of later blocks whose rows were moved. Returns the slot to wake.
    pub(crate) fn moved(&mut self, emptied: impl IntoIterator<Item = (RowAt, B::Row)>) -> Option<Waker> {
        for (at, memory) in emptied {
            self.block(at).put(at.row, Row::Free(memory));
        }
        self.after_return()
    }

    /// Returns whether a slot waits for the first block and its memory is back.
    fn is_whole(&self) -> bool {
        self.is_taking && self.blocks.front().is_some_and(|block| block.out == 0)
    }

    fn after_return(&mut self) -> Option<Waker> {
        if self.is_whole() || self.is_at_end() { self.wake_taker() } else { None }
    }

    fn is_at_end(&self) -> bool {
        self.is_closed && self.queued == 0 && self.writing == 0
    }

    fn wake_taker(&mut self) -> Option<Waker> {
        self.takers.pop().map(|taker| taker.waker)
    }

    /// Returns the answer of a call, and forgets the call. Otherwise keeps the waker, and returns
    /// the one that it replaces.
    pub(crate) fn poll_answer(&mut self, call: CallId, waker: &Waker) -> Result<Ended<A>, Option<Waker>> {
        let entry = &mut self.calls[call.0];
        match &entry.state {
            State::Answered(_) => Ok(self.remove_answered(call)),
            _ if entry.waker.as_ref().is_some_and(|kept| kept.will_wake(waker)) => Err(None),
            _ => Err(entry.waker.replace(waker.clone())),
        }
    }

    /// Notes that the caller of a queued call left.
    pub(crate) fn leave(&mut self, call: CallId) -> Left<A> {
        let entry = &mut self.calls[call.0];
        let waker = entry.waker.take();
        match entry.state {
            State::Writing | State::Left => unreachable!("it leaves once, and not while it writes"),
            State::Queued(at, _) => {
                self.unqueue(at);
                self.calls.remove(call.0);
                Left { was_queued: true, slot: self.after_return(), waker, ended: None }
            }
            State::Running(_) => {
                entry.state = State::Left;
                Left { was_queued: false, slot: None, waker, ended: None }
            }
            State::Answered(_) => {
                let ended = Some(self.remove_answered(call));
                Left { was_queued: false, slot: None, waker, ended }
            }
        }
    }

    fn remove_answered(&mut self, call: CallId) -> Ended<A> {
        match self.calls.remove(call.0).state {
            State::Answered(answer) => answer,
            _ => unreachable!("it has an answer"),
        }
    }

    /// Frees the row of a queued call.
    fn unqueue(&mut self, at: RowAt) {
        let call = self.block(at).free(at.row);
        let Call { len, deadline, .. } = self.calls[call.0];
        self.block(at).elements -= len;
        self.queued -= 1;
        self.elements -= len;
        self.with_deadline -= usize::from(deadline.is_some());
    }

    /// Takes the next batch for a slot if it is due. `at_once` says that the slot has just become
    /// free.
    pub(crate) fn take(&mut self, slot: usize, now: Instant, at_once: bool, waker: &Waker) -> Take<B> {
        let was_waiting = self.takers.iter().position(|taker| taker.slot == slot);
        let replaced = was_waiting.map(|at| self.takers.remove(at).waker);
        let (mut wakers, freed) = self.refuse_late(now);
        let next = self.next(now, at_once);
        match next {
            Next::Wait(looks_again_at) => {
                self.takers.push(Taker { slot, waker: waker.clone(), looks_again_at });
            }
            // Another slot ends too, or takes the other rows.
            Next::End => wakers.extend(self.wake_taker()),
            Next::Batch(_) if self.queued > 0 => wakers.extend(self.wake_taker()),
            Next::Batch(_) => {}
        }
        Take { next, wakers, freed, replaced }
    }

    fn next(&mut self, now: Instant, at_once: bool) -> Next<B> {
        self.skip_empty();
        if self.is_at_end() {
            return Next::End;
        }
        let waits = !self.max_wait.is_zero() && !self.is_closed && !self.is_full();
        let is_due = at_once || self.is_taking || !waits;
        // The time of the earliest row. If this is `None`, there is no row.
        let due = if is_due && self.queued > 0 { Some(now) } else { self.due() };
        let mut looks_again_at = due;
        if due.is_some_and(|due| due <= now) {
            if self.blocks[0].out == 0 {
                return Next::Batch(self.assemble());
            }
            self.is_taking = true;
            looks_again_at = None;
        }
        Next::Wait(looks_again_at)
    }

    /// Sets aside first blocks that have no row.
    fn skip_empty(&mut self) {
        while self.blocks.front().is_some_and(|block| block.queued == 0 && block.out == 0) {
            let block = self.blocks.pop_front().expect("there is one");
            self.first += 1;
            self.is_taking = false;
            self.spare.push(block);
        }
    }

    /// Returns the time at which the queued rows are due.
    fn due(&self) -> Option<Instant> {
        let calls = self.blocks.iter().flat_map(|block| block.queued_calls());
        calls.filter_map(|(_, call)| self.due_of(call)).min()
    }

    /// Returns the time at which the batch of a queued call is due, if only time is missing.
    fn due_of(&self, call: CallId) -> Option<Instant> {
        let call = &self.calls[call.0];
        let State::Queued(_, since) = call.state else { unreachable!("its row is queued") };
        let due = since.checked_add(self.max_wait);
        let Some(deadline) = call.deadline else { return due };
        let for_deadline = deadline.checked_sub(self.longest() + TIMER).unwrap_or(since);
        Some(due.map_or(for_deadline, |due| due.min(for_deadline)))
    }

    fn longest(&self) -> Duration {
        self.times.iter().max().copied().unwrap_or_default()
    }

    /// Ends the calls of queued rows whose deadline cannot be met.
    fn refuse_late(&mut self, now: Instant) -> (Vec<Waker>, usize) {
        if self.with_deadline == 0 {
            return (Vec::new(), 0);
        }
        let fastest = self.times.iter().min().copied().unwrap_or_default();
        let earliest = if self.may_refuse { now + fastest } else { now };
        let is_late = |call: &Call<A>| call.deadline.is_some_and(|deadline| deadline <= earliest);
        let late: Vec<_> = self.queued_calls().filter(|(_, call)| is_late(&self.calls[call.0])).collect();
        let mut wakers = Vec::new();
        for &(at, call) in &late {
            self.unqueue(at);
            wakers.extend(self.end(call, Ended::Late));
        }
        self.may_refuse &= late.is_empty();
        (wakers, late.len())
    }

    fn queued_calls(&self) -> impl Iterator<Item = (RowAt, CallId)> {
        (self.first..).zip(&self.blocks).flat_map(|(block, rows)| {
            rows.queued_calls().map(move |(row, call)| (RowAt { block, row }, call))
        })
    }

    fn end(&mut self, call: CallId, answer: Ended<A>) -> Option<Waker> {
        let entry = &mut self.calls[call.0];
        entry.state = State::Answered(answer);
        entry.waker.take()
    }

    /// Takes the first block with its rows, and the rows of later blocks that have room in it.
    fn assemble(&mut self) -> Box<Block<B>> {
        let mut block = self.blocks.pop_front().expect("it has a row");
        self.first += 1;
        self.is_taking = false;
        let mut later = self.pull(self.max_rows - block.queued, block.elements);
        let count = block.queued + later.len();
        block.cut_up_to(count);
        let mut last = block.rows.len();
        for to in 0..count {
            let call = block.rows[to].call().unwrap_or_else(|| {
                // Rows behind the prefix first: each of them has to move.
                let queued = |at: usize| Some((at, block.rows[at].call()?));
                let (from, call) = match (count..last).rev().find_map(queued) {
                    Some((at, call)) => {
                        last = at;
                        (Source::Row(at), call)
                    }
                    None => {
                        let (at, memory, call) = later.pop().expect("as many rows as were counted");
                        (Source::Later(at, memory), call)
                    }
                };
                block.moves.push(Move { to, from });
                call
            });
            block.calls.push(call);
            let call = &mut self.calls[call.0];
            let State::Queued(_, since) = call.state else { unreachable!("its row was queued") };
            call.state = State::Running(since);
            self.elements -= call.len;
            self.with_deadline -= usize::from(call.deadline.is_some());
            if self.max_elements.is_some() {
                block.lens.push(call.len);
            }
        }
        self.queued -= count;
        block
    }

    /// Takes the rows of the blocks, the oldest block first, and not more than `most`: those up to
    /// the first that does not fit beside rows with `elements` elements.
    fn pull(&mut self, most: usize, mut elements: usize) -> Vec<(RowAt, B::Row, CallId)> {
        let (calls, max_elements) = (&self.calls, self.max_elements);
        let mut fits = |call: CallId| {
            elements += calls[call.0].len;
            max_elements.is_none_or(|most| elements <= most)
        };
        let mut pulled = Vec::new();
        for (block, rows) in (self.first..).zip(&mut self.blocks) {
            let left = most - pulled.len();
            let queued: Vec<_> = rows.queued_calls().take(left).take_while(|(_, call)| fits(*call)).collect();
            let is_last = queued.len() < rows.queued;
            pulled.extend(queued.into_iter().map(|(row, call)| {
                let (memory, _) = rows.take_queued(row);
                rows.elements -= calls[call.0].len;
                (RowAt { block, row }, memory, call)
            }));
            if is_last {
                break;
            }
        }
        pulled
    }

    /// Returns a block that a slot no longer needs. Its memory is whole again.
    pub(crate) fn give_back(&mut self, mut block: Box<Block<B>>) {
        block.empty();
        self.spare.push(block);
    }

    /// Returns whether a caller still waits for one of these running calls.
    pub(crate) fn is_wanted(&self, calls: &[CallId]) -> bool {
        calls.iter().any(|call| matches!(self.state(*call), Some(State::Running(_))))
    }

    /// Returns the state of a running call, if it has not been ended with all calls since.
    fn state(&self, call: CallId) -> Option<&State<A>> {
        self.calls.get(call.0).map(|call| &call.state)
    }

    /// Returns the spans of the callers of these running calls, as far as there are any.
    pub(crate) fn spans(&self, calls: &[CallId]) -> Vec<span::Id> {
        calls.iter().filter_map(|call| self.calls.get(call.0)?.span.clone()).collect()
    }

    /// Returns how long each of these running calls was queued, if they were taken at `taken`. A
    /// call whose caller has left since then is left out.
    #[cfg(feature = "metrics")]
    pub(crate) fn waited(&self, calls: &[CallId], taken: Instant) -> Vec<Duration> {
        let waited = |call: &CallId| match self.state(*call) {
            Some(State::Running(since)) => Some(taken.saturating_duration_since(*since)),
            _ => None,
        };
        calls.iter().filter_map(waited).collect()
    }

    /// Answers a running call. Returns its task, or the answer if its caller left or has another
    /// answer.
    pub(crate) fn answer(&mut self, call: CallId, answer: A) -> Result<Option<Waker>, A> {
        match self.calls.get_mut(call.0) {
            Some(entry) if matches!(entry.state, State::Running(_)) => {
                entry.state = State::Answered(Ended::Answered(answer));
                Ok(entry.waker.take())
            }
            Some(Call { state: State::Left, .. }) => {
                self.calls.remove(call.0);
                Err(answer)
            }
            // All calls were ended. Since then, the queue is closed and no number is used again.
            _ => Err(answer),
        }
    }

    /// Notes the time of a batch that was computed, from its taking to its answer. Returns the
    /// slot to wake, because a slower batch has to be taken earlier before a deadline.
    pub(crate) fn ran(&mut self, time: Duration) -> Option<Waker> {
        let is_late = self.with_deadline > 0 && time > self.longest();
        if self.times.len() == TIMES {
            self.times.pop_front();
        }
        self.times.push_back(time);
        self.may_refuse = true;
        if is_late { self.wake_taker() } else { None }
    }

    /// Returns whether a batch would have all rows that it may have.
    fn is_full(&self) -> bool {
        self.queued >= self.max_rows || self.max_elements.is_some_and(|most| self.elements >= most)
    }

    /// Returns whether rows are queued, and fewer than a batch may have.
    pub(crate) fn is_filling(&self) -> bool {
        self.queued > 0 && !self.is_full()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Takes no further calls. Returns the slot to wake.
    pub(crate) fn close(&mut self) -> Option<Waker> {
        self.is_closed = true;
        self.wake_taker()
    }

    /// Ends all queued calls with this answer. Returns the tasks to wake and the number of permits
    /// that are free.
    pub(crate) fn end_queued(&mut self, answer: impl Fn() -> A) -> (Vec<Waker>, usize) {
        let queued: Vec<_> = self.queued_calls().collect();
        let mut wakers = Vec::new();
        for &(at, call) in &queued {
            self.unqueue(at);
            wakers.extend(self.end(call, Ended::Answered(answer())));
        }
        wakers.extend(self.after_return());
        (wakers, queued.len())
    }

    /// Ends all running calls with this answer. The queue is closed. Returns the tasks to wake.
    pub(crate) fn end_running(&mut self, answer: impl Fn() -> A) -> Vec<Waker> {
        debug_assert!(self.is_closed);
        let is_running = |call: &Call<A>| matches!(call.state, State::Running(_));
        let running: Vec<_> =
            self.calls.iter().filter(|(_, call)| is_running(call)).map(|(call, _)| CallId(call)).collect();
        running.into_iter().filter_map(|call| self.end(call, Ended::Answered(answer()))).collect()
    }

    /// Returns the number of calls whose batch runs.
    pub(crate) fn running(&self) -> usize {
        self.calls.iter().filter(|(_, call)| matches!(call.state, State::Running(_))).count()
    }

    /// Returns the time since which the oldest queued row has waited.
    #[cfg(feature = "metrics")]
    pub(crate) fn oldest(&self) -> Option<Instant> {
        let since = |(_, call): (RowAt, CallId)| match self.calls[call.0].state {
            State::Queued(_, since) => Some(since),
            _ => None,
        };
        self.queued_calls().filter_map(since).min()
    }

    /// Returns whether a slot waits for a batch.
    pub(crate) fn has_taker(&self) -> bool {
        !self.takers.is_empty()
    }
}
