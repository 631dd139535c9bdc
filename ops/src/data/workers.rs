//! Several workers that read the batches of one loader at the same time, on tokio's blocking
//! threads.
//!
//! # Rules
//! 1. A worker takes a *job* under the lock of the order: pinned memory, and the indices of the
//!    next batch. So jobs are numbered in the order of their batches, and each number is taken
//!    once.
//! 2. It reads without a lock, and files the result under the job's number. The consumer takes
//!    results in the order of their numbers. So the number of workers and their speed change
//!    neither the batches nor their order. Tests: `tests/tensors/workers.rs`.
//! 3. A worker that finds no pinned memory ends its turn, and occupies no thread. The consumer
//!    starts a turn for returned memory, if fewer workers than allowed are busy. Both decide under
//!    the lock of the state. So returned memory never lies unused while a worker could fill it, and
//!    nothing waits on a blocking thread.
//! 4. Up to `prefetch + 1` pinned batches circulate, as with one reader (`supply.rs`). They alone
//!    limit how far ahead the workers are.
//! 5. After an error and at the end, no further job is taken. Jobs with lower numbers were taken
//!    before, and finish. The consumer therefore gets all batches before the failed one, then the
//!    error. If several jobs fail, it gets the error of the lowest number.
//! 6. When the consumer is dropped, workers stop at the next row, drop their memory and end.
//! 7. A turn that ends in any other way was lost: the tokio runtime was shut down and has dropped
//!    it. The consumer gets the results that are filed without a gap, and then learns of the loss.
//!
//! There are two locks. That of the *order* is for workers alone: the sampler is called under it,
//! since the next indices depend on the earlier ones, and may take long. That of the *state* is
//! short, and a worker may take it while it holds the order. Pinned memory may be dropped under it.
//! Datasets, collate functions and wakers are called without a lock.
//!
//! The consumer's waker is stored by a poll that found nothing, under the lock. Each change that a
//! consumer may wait for takes the waker under the lock and wakes it afterwards. So no wake-up is
//! lost.
// Decision: docs/decisions/0056-workers-take-numbered-jobs.md

use super::indexed::{Indexed, Job, Order};
use super::plan::Plan;
use super::reader::Loaded;
use super::sample::Sample;
use super::supply::{Host, Supply};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::runtime::Handle;
use warpline_runtime::Result;
use warpline_runtime::is_forked;

/// The consumer's end of the workers.
pub(super) struct Workers<S: Sample> {
    shared: Arc<Shared<S>>,
    tokio: Handle,
}

struct Shared<S: Sample> {
    plan: Arc<Plan<S>>,
    indexed: Arc<Indexed<S>>,
    /// The batches that have not been drawn. It is locked before `state`, and not by the consumer.
    order: Mutex<Order<S>>,
    state: Mutex<State<S>>,
    /// `true` if the consumer was dropped.
    unwanted: AtomicBool,
}

struct State<S: Sample> {
    /// Memory that is there to be read into.
    supplies: Vec<Supply<S>>,
    /// The numbers of the workers that have no turn.
    idle: Vec<usize>,
    /// The number of the next job.
    next_job: u64,
    finished: BTreeMap<u64, Result<Loaded<S>>>,
    /// The number of the next result that the consumer takes.
    next_result: u64,
    /// `true` if no further job is taken.
    over: bool,
    lost: bool,
    waker: Option<Waker>,
}

impl<S: Sample> Workers<S> {
    /// Starts the workers.
    pub(super) fn start(
        plan: &Arc<Plan<S>>,
        indexed: &Arc<Indexed<S>>,
        epochs: Range<u64>,
        tokio: Handle,
        supplies: Vec<Supply<S>>,
    ) -> Self {
        let shared = Arc::new(Shared {
            plan: plan.clone(),
            indexed: indexed.clone(),
            order: Mutex::new(Order::new(plan.clone(), indexed.clone(), epochs)),
            state: Mutex::new(State {
                supplies,
                idle: (0..plan.workers).collect(),
                next_job: 0,
                finished: BTreeMap::new(),
                next_result: 0,
                over: false,
                lost: false,
                waker: None,
            }),
            unwanted: AtomicBool::new(false),
        });
        let workers = Workers { shared, tokio };
        (0..plan.workers).for_each(|_| workers.start_turn());
        workers
    }

    /// Starts a turn of an idle worker, if there is one.
    fn start_turn(&self) {
        let Some(worker) = self.shared.state.lock().idle.pop() else { return };
        let turn = Shift { shared: self.shared.clone(), worker: Some(worker) };
        // A runtime that is shutting down drops the turn.
        drop(self.tokio.spawn_blocking(move || turn.run()));
    }

    /// Returns pinned memory to the workers, which read into it again.
    pub(super) fn give_back(&self, host: Host<S>) {
        let mut state = self.shared.state.lock();
        if state.over {
            return;
        }
        state.supplies.push(Supply::Memory(host));
        drop(state);
        self.start_turn();
    }

    /// Returns the next result, like [`Ahead::poll`](super::ahead::Ahead::poll).
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Loaded<S>>>> {
        let mut state = self.shared.state.lock();
        let next = state.next_result;
        if let Some(loaded) = state.finished.remove(&next) {
            state.next_result += 1;
            return Poll::Ready(Some(loaded));
        }
        if state.over && next == state.next_job {
            return Poll::Ready(Some(Ok(Loaded { batch: None, reading: Duration::ZERO })));
        }
        if state.lost {
            return Poll::Ready(None);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<S: Sample> Drop for Workers<S> {
    fn drop(&mut self) {
        if is_forked() {
            // The workers do not exist here, and one of them may have held the lock.
            std::mem::forget(self.shared.clone());
            return;
        }
        self.shared.unwanted.store(true, Ordering::Relaxed);
        // Turns in progress may keep the state for as long as their current row takes.
        let mut state = self.shared.state.lock();
        state.over = true;
        let unused = (std::mem::take(&mut state.supplies), std::mem::take(&mut state.finished));
        drop(state);
        drop(unused);
    }
}

/// The turn of one worker, which lasts until there is nothing to do.
struct Shift<S: Sample> {
    shared: Arc<Shared<S>>,
    /// The worker's number, until the turn has ended as it should.
    worker: Option<usize>,
}

impl<S: Sample> Shift<S> {
    fn run(mut self) {
        while let Some((number, job, supply)) = self.next_job() {
            let result = job.and_then(|job| self.read(&job, supply));
            self.file(number, result);
        }
    }

    /// Takes the next job, and memory for it, or ends the turn.
    fn next_job(&mut self) -> Option<(u64, Result<Job>, Supply<S>)> {
        let mut order = self.shared.order.lock();
        let mut state = self.shared.state.lock();
        if !state.over
            && let Some(supply) = state.supplies.pop()
        {
            drop(state);
            let job = order.next().transpose();
            state = self.shared.state.lock();
            if let Some(job) = job.filter(|_| !state.over) {
                state.over = job.is_err();
                state.next_job += 1;
                return Some((state.next_job - 1, job, supply));
            }
            // All pinned memory is back in its pool before the consumer sees the end, so that the
            // next epoch finds it there.
            let unused = std::mem::take(&mut state.supplies);
            drop(state);
            drop((supply, unused));
            state = self.shared.state.lock();
            state.over = true;
        }
        state.idle.extend(self.worker.take());
        let ended = state.over && state.next_result == state.next_job;
        let waker = if ended { state.waker.take() } else { None };
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        None
    }

    fn read(&self, job: &Job, supply: Supply<S>) -> Result<Loaded<S>> {
        let Shared { plan, indexed, unwanted, .. } = &*self.shared;
        let track = &plan.worker_tracks[self.worker.expect("the turn has not ended")];
        let stop = || unwanted.load(Ordering::Relaxed);
        Loaded::read(plan, track, supply, &stop, |host| {
            Ok(indexed.fill(job, host, &stop)?.then_some(job.place))
        })
    }

    /// Files the result of a job, and wakes the consumer if it waits for this one.
    fn file(&self, number: u64, result: Result<Loaded<S>>) {
        let mut state = self.shared.state.lock();
        state.over |= result.is_err();
        state.finished.insert(number, result);
        let waker = if state.next_result == number { state.waker.take() } else { None };
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl<S: Sample> Drop for Shift<S> {
    /// Reports a lost turn.
    fn drop(&mut self) {
        if self.worker.is_none() || is_forked() {
            return;
        }
        let mut state = self.shared.state.lock();
        state.lost = true;
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}
