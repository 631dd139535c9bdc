//! Random histories of a queue against a plain list of its calls.
//!
//! A row's memory is a number, into which a writer puts the number of its call. So the memory of a
//! batch says whose rows it has. Each piece of memory also has an identity, so that none is lost
//! or in two places. A slot that waits looks again only if it was woken or its time has come.

use super::{Block, BlockMemory, Claim, Ended, Next, Queue, Row, Source, TIMER};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;
use tokio::time::Instant;

#[derive(Debug)]
struct Memory {
    id: usize,
    says: Option<usize>,
}

/// The rows of a block that were not cut off.
#[derive(Debug)]
struct Rest(std::ops::Range<usize>);

impl BlockMemory for Rest {
    type Row = Memory;

    fn cut(&mut self) -> Memory {
        Memory { id: self.0.next().expect("a block has no more rows"), says: None }
    }
}

/// The length of the longest row, in histories with rows of different lengths.
const LONGEST: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Told {
    Queued,
    Running,
    Answered,
    Late,
    Failed,
}

struct Known {
    call: super::CallId,
    told: Told,
    len: usize,
    queued_at: Instant,
    deadline: Option<Instant>,
    has_left: bool,
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Writer {
    claim: Claim<Memory>,
    number: usize,
    len: usize,
    deadline: Option<Instant>,
}

enum Slot {
    /// It has just become free.
    Free,
    Waiting(Arc<Flag>, Option<Instant>),
    Ended,
    Moving(Box<Block<Rest>>),
    Running(Box<Block<Rest>>, Instant),
}

struct History {
    dice: u64,
    queue: Queue<Rest, usize>,
    now: Instant,
    max_rows: usize,
    max_elements: Option<usize>,
    /// The rows that a block has room for, whatever their lengths.
    rows_of_block: usize,
    max_wait: Duration,
    permits: usize,
    writers: Vec<Writer>,
    /// By the number that the row says.
    calls: BTreeMap<usize, Known>,
    slots: Vec<Slot>,
    next: usize,
    is_closed: bool,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut dice = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut below = |most: usize| {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            (dice >> 11) as usize % most
        };
        let (max_rows, permits, slots) = (1 + below(5), 1 + below(12), 1 + below(3));
        let max_wait = Duration::from_millis([0, 0, 3, 10][below(4)]);
        let max_elements = [None, Some(LONGEST), Some(LONGEST + below(3 * LONGEST))][below(3)];
        let rows_of_block = max_elements.map_or(max_rows, |most| max_rows.min(most / LONGEST));
        let blocks = permits.div_ceil(rows_of_block) + slots;
        let memory = (0..blocks).map(|block| Rest(block * max_rows..(block + 1) * max_rows));
        let queue = Queue::new(max_rows, max_elements, max_wait, memory.collect());
        let slots = (0..slots).map(|_| Slot::Free).collect();
        let (writers, calls) = (Vec::new(), BTreeMap::new());
        History {
            dice,
            queue,
            now: Instant::now(),
            max_rows,
            max_elements,
            rows_of_block,
            max_wait,
            permits,
            writers,
            calls,
            slots,
            next: 0,
            is_closed: false,
        }
    }

    fn below(&mut self, most: usize) -> usize {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        (self.dice >> 11) as usize % most
    }

    fn told(&self, told: Told) -> Vec<usize> {
        let them = self.calls.iter().filter(|(_, call)| call.told == told && !call.has_left);
        them.map(|(number, _)| *number).collect()
    }

    fn claim(&mut self) {
        if self.permits == 0 {
            return;
        }
        let deadline = (self.below(3) == 0).then(|| self.now + Duration::from_millis(self.below(30) as u64));
        let len = if self.max_elements.is_some() { 1 + self.below(LONGEST) } else { 0 };
        match self.queue.claim(len, deadline, None) {
            Some(claim) => {
                assert!(!self.is_closed);
                assert!(!self.queue.is_taking || claim.at.block > self.queue.first, "a closed block");
                self.permits -= 1;
                self.writers.push(Writer { claim, number: self.next, len, deadline });
                self.next += 1;
            }
            None => assert!(self.is_closed),
        }
    }

    fn write(&mut self) {
        if self.writers.is_empty() {
            return;
        }
        let at = self.below(self.writers.len());
        let Writer { mut claim, number, len, deadline } = self.writers.swap_remove(at);
        claim.memory.says = Some(number);
        if self.below(5) == 0 {
            wake(self.queue.abandon(claim));
            self.permits += 1;
            return;
        }
        let call = claim.call;
        wake(self.queue.queue(claim, self.now, Waker::noop().clone()));
        let queued_at = self.now;
        let known = Known { call, told: Told::Queued, len, queued_at, deadline, has_left: false };
        self.calls.insert(number, known);
    }

    /// A caller polls or leaves.
    fn caller(&mut self) {
        let all: Vec<_> = self.calls.iter().filter(|(_, call)| !call.has_left).map(|(n, _)| *n).collect();
        if all.is_empty() {
            return;
        }
        let number = all[self.below(all.len())];
        let (call, told) = (self.calls[&number].call, self.calls[&number].told);
        if self.below(3) == 0 {
            let left = self.queue.leave(call);
            wake(left.slot);
            match (left.was_queued, left.ended.is_some(), told) {
                (true, false, Told::Queued) => self.permits += 1,
                (false, false, Told::Running) => {
                    self.calls.get_mut(&number).unwrap().has_left = true;
                    return;
                }
                (false, true, Told::Answered | Told::Late | Told::Failed) => {}
                _ => panic!("call {number} left, and was {told:?}"),
            }
            self.calls.remove(&number);
            return;
        }
        let polled = self.queue.poll_answer(call, Waker::noop());
        match (polled, told) {
            (Err(_), Told::Queued | Told::Running) => return,
            (Ok(Ended::Answered(answer)), Told::Answered) => assert_eq!(answer, number),
            (Ok(Ended::Answered(usize::MAX)), Told::Failed) => {}
            (Ok(Ended::Late), Told::Late) => {}
            (polled, _) => panic!("call {number} is {told:?} and got {polled:?}"),
        }
        self.calls.remove(&number);
    }

    fn slot(&mut self) {
        let at = self.below(self.slots.len());
        let mut slot = std::mem::replace(&mut self.slots[at], Slot::Free);
        if let Slot::Free | Slot::Waiting(..) = slot {
            let at_once = matches!(slot, Slot::Free);
            let is_woken = match &slot {
                Slot::Waiting(flag, again) => {
                    flag.0.load(Ordering::Relaxed) || again.is_some_and(|again| again <= self.now)
                }
                _ => true,
            };
            if is_woken {
                slot = self.take(at, at_once && !self.queue.has_taker());
            }
            self.slots[at] = slot;
            return;
        }
        match slot {
            Slot::Moving(batch) => self.slots[at] = self.make_moves(batch),
            Slot::Running(mut batch, since) => {
                let waited = self.waited(&batch, since);
                assert_eq!(self.queue.is_wanted(&batch.calls), !waited.is_empty());
                #[cfg(feature = "metrics")]
                assert_eq!(self.queue.waited(&batch.calls, since), waited);
                wake(self.queue.ran(self.now - since));
                for (row, &call) in batch.rows.iter_mut().zip(&batch.calls) {
                    let number = row.memory_mut().says.expect("its row was written");
                    let is_refused = self.queue.answer(call, number).is_err();
                    match self.calls.get_mut(&number) {
                        Some(known) if known.has_left => {
                            assert!(is_refused);
                            self.calls.remove(&number);
                        }
                        Some(known) if known.told == Told::Running => {
                            assert!(!is_refused);
                            known.told = Told::Answered;
                        }
                        // It was ended before.
                        Some(known) => assert!(is_refused && known.told == Told::Failed),
                        None => assert!(is_refused),
                    }
                }
                make_whole(&mut batch, self.max_rows);
                self.queue.give_back(batch);
            }
            slot => self.slots[at] = slot,
        }
    }

    /// Returns how long the calls of a running batch were queued, but for those that have ended.
    fn waited(&self, batch: &Block<Rest>, taken: Instant) -> Vec<Duration> {
        let numbers = batch.rows.iter().take(batch.calls.len()).map(|row| match row {
            Row::Free(memory) | Row::Queued(memory, _) => memory.says.expect("it was written"),
            Row::Out => panic!("all memory is back"),
        });
        let known = numbers.filter_map(|number| self.calls.get(&number));
        let running = known.filter(|call| call.told == Told::Running && !call.has_left);
        running.map(|call| taken - call.queued_at).collect()
    }

    fn take(&mut self, slot: usize, at_once: bool) -> Slot {
        let fastest = self.queue.times.iter().min().copied().unwrap_or_default();
        let earliest = if self.queue.may_refuse { self.now + fastest } else { self.now };
        let flag = Arc::new(Flag::default());
        let waker = Waker::from(flag.clone());
        let take = self.queue.take(slot, self.now, at_once, &waker);
        wake(take.wakers);
        let is_late = |call: &Known| call.deadline.is_some_and(|deadline| deadline <= earliest);
        let late: Vec<_> =
            self.told(Told::Queued).into_iter().filter(|number| is_late(&self.calls[number])).collect();
        assert_eq!(take.freed, late.len());
        for number in &late {
            self.calls.get_mut(number).unwrap().told = Told::Late;
        }
        self.permits += late.len();

        let queued = self.told(Told::Queued);
        match take.next {
            Next::Batch(batch) => {
                self.is_as_full_as_it_can_be(&batch, &queued);
                assert!(batch.calls.len() <= batch.rows.len() && batch.rows.len() <= self.max_rows);
                for known in self.calls.values_mut().filter(|known| known.told == Told::Queued) {
                    if batch.calls.contains(&known.call) {
                        known.told = Told::Running;
                    }
                }
                Slot::Moving(batch)
            }
            Next::End => {
                assert!(self.is_closed && queued.is_empty() && self.writers.is_empty());
                Slot::Ended
            }
            Next::Wait(again) => {
                let is_moving = |slot: &Slot| matches!(slot, Slot::Moving(_));
                if self.writers.is_empty() && !self.slots.iter().any(is_moving) {
                    assert!(queued.is_empty() || !at_once, "it was due");
                }
                Slot::Waiting(flag, again)
            }
        }
    }

    /// Checks the number and the lengths of a batch's rows against those that were queued.
    fn is_as_full_as_it_can_be(&self, batch: &Block<Rest>, queued: &[usize]) {
        let most = queued.len().min(self.max_rows);
        let Some(max_elements) = self.max_elements else {
            assert!(batch.calls.len() == most && batch.lens.is_empty());
            return;
        };
        let len_of = |call: &super::CallId| {
            let mut known = queued.iter().map(|number| &self.calls[number]);
            known.find(|known| known.call == *call).expect("it was queued").len
        };
        assert!(batch.calls.iter().map(len_of).eq(batch.lens.iter().copied()), "{:?}", batch.lens);
        let taken: usize = batch.lens.iter().sum();
        assert!(taken <= max_elements && !batch.calls.is_empty());
        let left = queued.iter().map(|number| &self.calls[number]);
        let mut left = left.filter(|known| !batch.calls.contains(&known.call));
        assert!(batch.calls.len() == most || left.any(|known| taken + known.len > max_elements));
    }

    fn make_moves(&mut self, mut batch: Box<Block<Rest>>) -> Slot {
        let mut emptied = Vec::new();
        for made in std::mem::take(&mut batch.moves) {
            match made.from {
                Source::Row(row) => {
                    batch.rows[made.to].memory_mut().says = batch.rows[row].memory_mut().says.take();
                }
                Source::Later(at, mut memory) => {
                    batch.rows[made.to].memory_mut().says = memory.says.take();
                    emptied.push((at, memory));
                }
            }
        }
        wake(self.queue.moved(emptied));
        self.permits += batch.calls.len();
        let mut seen = BTreeSet::new();
        for (row, call) in batch.rows.iter_mut().zip(&batch.calls) {
            let number = row.memory_mut().says.expect("the batch is a prefix");
            assert!(seen.insert(number), "a row is there once");
            // It may have been ended meanwhile.
            if let Some(known) = self.calls.get(&number) {
                assert_eq!(known.call, *call, "the row of call {number}");
                assert!(known.told == Told::Running || self.is_closed && known.told == Told::Failed);
            }
        }
        Slot::Running(batch, self.now)
    }

    fn step(&mut self) {
        self.act();
        self.nothing_is_overslept();
    }

    /// Checks that a slot was woken, or its time has come, if there is a batch for it.
    fn nothing_is_overslept(&self) {
        let is_waiting = |slot: &&Slot| matches!(slot, Slot::Waiting(..));
        if self.queue.is_taking && !self.is_closed {
            assert!(!self.queue.blocks.is_empty());
        }
        let will_look = self.slots.iter().any(|slot| match slot {
            Slot::Waiting(flag, again) => {
                flag.0.load(Ordering::Relaxed) || again.is_some_and(|again| again <= self.now)
            }
            Slot::Free => true,
            _ => false,
        });
        let waiting = self.slots.iter().filter(is_waiting).count();
        if will_look || waiting == 0 {
            return;
        }
        let queued = self.told(Told::Queued);
        // A slot that runs ends later, and wakes the next.
        let is_running = |slot: &Slot| matches!(slot, Slot::Running(..) | Slot::Moving(_));
        if self.is_closed && !self.slots.iter().any(is_running) {
            assert!(!queued.is_empty() || !self.writers.is_empty(), "it has to end");
        }
        let is_moving = |slot: &Slot| matches!(slot, Slot::Moving(_));
        if !self.writers.is_empty() || self.slots.iter().any(is_moving) || queued.is_empty() {
            return;
        }
        assert!(!self.is_closed && !self.queue.is_taking && queued.len() < self.max_rows);
        let elements: usize = queued.iter().map(|number| self.calls[number].len).sum();
        assert!(self.max_elements.is_none_or(|most| elements < most), "a full batch is overslept");
        let first = self.slots.iter().filter_map(|slot| match slot {
            Slot::Waiting(_, again) => *again,
            _ => None,
        });
        let first = first.min();
        for number in queued {
            let due = self.due(number);
            assert!(self.now < due && first.is_some_and(|first| first <= due), "call {number} is overslept");
        }
    }

    /// Returns when the batch of a call is due, so that a batch as slow as the slowest answers it.
    fn due(&self, number: usize) -> Instant {
        let longest = self.queue.times.iter().max().copied().unwrap_or_default();
        let call = &self.calls[&number];
        let due = call.queued_at + self.max_wait;
        let for_deadline = call.deadline.map(|at| at.checked_sub(longest + TIMER).unwrap_or(call.queued_at));
        for_deadline.map_or(due, |at| due.min(at))
    }

    fn act(&mut self) {
        match self.below(40) {
            0..10 => self.claim(),
            10..20 => self.write(),
            20..28 => self.caller(),
            28..36 => self.slot(),
            36..39 => {
                let passed = self.below(8) as u64;
                self.now += Duration::from_millis(passed);
            }
            _ if self.below(8) == 0 => {
                wake(self.queue.close());
                self.is_closed = true;
            }
            _ if self.is_closed && self.below(2) == 0 => {
                wake(self.queue.end_running(|| usize::MAX));
                for number in self.told(Told::Running) {
                    self.calls.get_mut(&number).unwrap().told = Told::Failed;
                }
            }
            _ if self.below(4) == 0 => {
                let (wakers, freed) = self.queue.end_queued(|| usize::MAX);
                wake(wakers);
                let queued = self.told(Told::Queued);
                assert_eq!(freed, queued.len());
                self.permits += freed;
                for number in queued {
                    self.calls.get_mut(&number).unwrap().told = Told::Failed;
                }
            }
            _ => {}
        }
    }

    /// Every call ends, and all memory is back.
    fn end(mut self, permits: usize) {
        if self.below(2) == 0 {
            wake(self.queue.close());
            self.is_closed = true;
        }
        for _ in 0..5000 {
            self.write();
            self.caller();
            self.slot();
            self.now += Duration::from_millis(1);
        }
        assert!(self.calls.is_empty(), "every call ends");
        wake(self.queue.close());
        self.is_closed = true;
        (0..200).for_each(|_| self.slot());
        assert!(self.slots.iter().all(|slot| matches!(slot, Slot::Ended)), "every slot ends");
        assert_eq!(self.permits, permits);
        assert!(self.queue.calls.is_empty());
        let mut firsts = BTreeSet::new();
        for mut block in self.queue.spare {
            make_whole(&mut block, self.max_rows);
            firsts.insert(block.memory.0.start);
        }
        let blocks = permits.div_ceil(self.rows_of_block) + self.slots.len();
        assert_eq!(firsts.len(), blocks, "all blocks are back");
    }
}

/// Makes one piece of a block's memory, all of which is there.
fn make_whole(block: &mut Block<Rest>, max_rows: usize) {
    let cut = block.rows.iter_mut().map(|row| row.memory_mut().id);
    let mut ids: Vec<_> = cut.chain(block.memory.0.clone()).collect();
    ids.sort_unstable();
    let first = ids[0];
    assert!(first.is_multiple_of(max_rows) && ids.iter().copied().eq(first..first + max_rows), "{ids:?}");
    block.memory = Rest(first..first + max_rows);
}

fn wake(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}

#[test]
fn every_call_gets_its_own_answer() {
    for seed in 1..3000 {
        let mut history = History::new(seed);
        let permits = history.permits;
        let steps = 20 + history.below(300);
        for _ in 0..steps {
            history.step();
        }
        history.end(permits);
    }
}
