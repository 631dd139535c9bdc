//! The worker threads of a backend.
//!
//! Ready strands reach the workers through one run queue per priority, which is a channel. Threads
//! are started when there is work and no worker waits for work, up to a limit, and stay until
//! shutdown. The way they wait is in [`idle`](super::idle).
//!
//! # Shutdown
//! Closing wakes all workers. The worker that is last to park, with empty run queues, knows that
//! nothing can run any more without outside help, unless a host function still runs or is about to.
//! It reports strands that are held at a gate, which fails their devices and wakes the strands to
//! be purged. When there is nothing to report, the workers exit. Work that still arrives after
//! that, from a submit that raced with the shutdown, starts a worker as the first work did.

use super::backend::CpuBackend;
use super::idle::{Bed, Brought, Idle, Rest};
use super::stream::CpuStream;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering, Parker, fence};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use warpline_driver::{Command, Priority};

/// The number of ready strands above which there are many.
const MANY_READY: usize = 16;
/// The time for which a worker spins before it yields. A worker with little patience spins for
/// less, and so never yields. On a busy machine yielding takes milliseconds, while a sleeping
/// worker is woken immediately.
const BEFORE_YIELD: Duration = Duration::from_micros(4);

/// The worker threads and their run queues.
///
/// The fields read on wake-up and on submit come first and share one cache line: the threads that
/// read them find little in their caches.
#[repr(C, align(64))]
pub(super) struct Pool {
    /// The number of strands in each run queue that no worker is taking yet. It is raised after a
    /// strand is put there, and lowered before one is taken.
    ready: [AtomicUsize; 3],
    alive: AtomicUsize,
    pub(super) idle: Idle,
    /// The run queues of high, normal and low priority.
    lanes: [Lane; 3],
    limit: usize,
    awake_for: Duration,
    numbered: AtomicUsize,
    finished: AtomicBool,
}

struct Lane {
    send: Sender<Arc<CpuStream>>,
    receive: Receiver<Arc<CpuStream>>,
}

impl Pool {
    pub(super) fn new(limit: usize, awake_for: Duration) -> Self {
        let lane = || {
            let (send, receive) = unbounded();
            Lane { send, receive }
        };
        Pool {
            idle: Idle::new(),
            alive: AtomicUsize::new(0),
            ready: [const { AtomicUsize::new(0) }; 3],
            lanes: [lane(), lane(), lane()],
            limit,
            awake_for,
            numbered: AtomicUsize::new(0),
            finished: AtomicBool::new(false),
        }
    }

    /// Returns the patience of a thread that serves this pool.
    pub(super) fn patience(&self) -> Patience {
        Patience::new(self.awake_for)
    }

    /// Puts a ready strand into its run queue and makes sure that a worker comes for it.
    pub(super) fn schedule(&self, backend: &Arc<CpuBackend>, stream: Arc<CpuStream>) {
        let lane = match stream.priority {
            Priority::High => 0,
            Priority::Normal => 1,
            Priority::Low => 2,
        };
        self.lanes[lane].send.send(stream).expect("the pool holds the receiving end");
        self.ready[lane].fetch_add(1, Ordering::Release);
        self.bring(backend);
    }

    fn bring(&self, backend: &Arc<CpuBackend>) {
        if self.idle.bring() == Brought::NobodyWaits && self.alive.load(Ordering::Relaxed) < self.limit {
            self.start_worker(backend);
        }
    }

    /// Returns whether a strand is ready to be run.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.ready.iter().any(|ready| ready.load(Ordering::Relaxed) > 0)
    }

    /// Returns whether so many strands are ready that no worker should wait for more work on one of
    /// them.
    #[inline]
    pub(super) fn is_behind(&self) -> bool {
        self.ready.iter().any(|ready| ready.load(Ordering::Relaxed) > MANY_READY)
    }

    fn pop(&self) -> Option<Arc<CpuStream>> {
        let one_fewer = |ready: usize| ready.checked_sub(1);
        let lane = self.ready.iter().position(|ready| {
            ready.load(Ordering::Relaxed) > 0
                && ready.fetch_update(Ordering::Acquire, Ordering::Relaxed, one_fewer).is_ok()
        })?;
        Some(self.lanes[lane].receive.try_recv().expect("a strand that is counted down was queued"))
    }

    /// Returns whether the workers are awake, waking up or asleep.
    pub(super) fn rest(&self) -> Rest {
        self.idle.rest(self.alive.load(Ordering::Relaxed))
    }

    /// Returns whether no strand is in a run queue, counted or not.
    ///
    /// A strand is put there first and counted second. A worker that lowers the count takes the
    /// first strand in the queue, which may be one that is not counted yet. The counted one is then
    /// still there when the counts are at zero.
    fn lanes_are_empty(&self) -> bool {
        self.lanes.iter().all(|lane| lane.receive.is_empty())
    }

    /// Returns the number of threads, for tests.
    #[cfg(test)]
    pub(super) fn alive(&self) -> usize {
        self.alive.load(Ordering::Relaxed)
    }

    /// Ends the attention of the attentive worker, which has got busy. Work that arrived meanwhile
    /// woke no worker, so another one is sent for it.
    #[inline]
    pub(super) fn stop_attending(&self, backend: &Arc<CpuBackend>) {
        self.idle.stop_attending();
        if self.has_work() {
            self.bring(backend);
        }
    }

    #[cold]
    fn start_worker(&self, backend: &Arc<CpuBackend>) {
        let below_limit = |alive: usize| (alive < self.limit).then_some(alive + 1);
        if self.alive.fetch_update(Ordering::AcqRel, Ordering::Relaxed, below_limit).is_err() {
            return;
        }
        let worker = self.numbered.fetch_add(1, Ordering::Relaxed);
        let body = {
            let backend = backend.clone();
            move || work(&backend, worker)
        };
        if let Err(error) = std::thread::Builder::new().name(format!("warpline-cpu-{worker}")).spawn(body) {
            crate::report::worker_not_started(&error);
            // Any worker that is alive takes the work, and the next work tries again. If none is
            // alive, nothing would ever run.
            if self.alive.fetch_sub(1, Ordering::AcqRel) == 1 {
                backend.fail_all(&error);
            }
        }
    }

    /// Spins until there is work or `also` returns `true`. Returns `false` if that takes longer
    /// than `limit`.
    fn stay_awake(&self, limit: Duration, also: impl Fn() -> bool) -> bool {
        let start = Instant::now();
        let mut here_since = start;
        loop {
            for _ in 0..64 {
                if also() || self.has_work() {
                    return true;
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if now - start > limit {
                return false;
            }
            if now - here_since > BEFORE_YIELD {
                // A thread that is about to bring work may want this core.
                std::thread::yield_now();
                here_since = Instant::now();
            }
        }
    }
}

/// A worker's part in watching the run queues.
pub(super) struct Attention {
    /// Set while this worker is the attentive one.
    on: bool,
    /// The bytes of work that it may still run before it stops being attentive.
    left_bytes: usize,
    patience: Patience,
    /// Set until this worker has run an op since it woke up.
    just_up: bool,
}

impl Attention {
    /// The bytes that the attentive worker may copy and fill since it last found the run queues
    /// empty: some ten microseconds' worth. A worker woken for the ops behind them would arrive no
    /// sooner.
    const QUICK_BYTES: usize = 128 << 10;
    /// The cost of an op besides its bytes, in bytes.
    const OP_BYTES: usize = 1 << 10;

    fn new(most: Duration) -> Self {
        Attention { on: false, left_bytes: 0, patience: Patience::new(most), just_up: true }
    }

    /// Makes a worker without work attentive, if no other worker is. Returns whether it is
    /// attentive.
    #[inline]
    pub(super) fn pay(&mut self, pool: &Pool) -> bool {
        self.on = self.on || pool.idle.attend();
        self.left_bytes = Self::QUICK_BYTES;
        self.on
    }

    /// Spins for a while until there is work or `also` returns `true`, unless another worker is
    /// attentive.
    pub(super) fn stay_awake(&mut self, pool: &Pool, also: impl Fn() -> bool) {
        if self.pay(pool) {
            self.patience.found_none();
            pool.stay_awake(self.patience.limit(), &also);
            if also() {
                self.patience.found_work();
            }
        }
    }

    /// Returns whether the op that just ran was the worker's first since it woke up.
    #[inline]
    pub(super) fn take_first(&mut self) -> bool {
        std::mem::take(&mut self.just_up)
    }

    /// Stops being attentive, before something that may take long or wait for other streams.
    #[inline]
    pub(super) fn stop(&mut self, pool: &Pool, backend: &Arc<CpuBackend>) {
        if std::mem::take(&mut self.on) {
            pool.stop_attending(backend);
        }
    }

    /// Runs something that is mostly quick but may take long, or wait for other streams. The worker
    /// is not attentive meanwhile.
    pub(super) fn aside(&mut self, pool: &Pool, backend: &Arc<CpuBackend>, run: impl FnOnce()) {
        let was_on = self.on;
        self.stop(pool, backend);
        run();
        self.on = was_on && pool.idle.attend();
    }

    /// Stops being attentive before `command` runs, unless the command is quick.
    #[inline]
    pub(super) fn spend_on(&mut self, command: &Command, pool: &Pool, backend: &Arc<CpuBackend>) {
        if !self.on {
            return;
        }
        let bytes = match command {
            Command::Copy(_) | Command::Fill(_) => Some(command.bytes()),
            Command::Wait(_) | Command::Edge(_) | Command::Elided | Command::Stamp(_) | Command::Foreign => {
                Some(0)
            }
            // The duration of a kernel is unknown, and a function may wait for another stream.
            Command::Launch(_)
            | Command::Call(_)
            | Command::HostWork(_)
            | Command::Graph(_)
            | Command::StagedCopy(_) => None,
        };
        let left = bytes.and_then(|bytes| self.left_bytes.checked_sub(bytes as usize + Self::OP_BYTES));
        match left {
            Some(left) => self.left_bytes = left,
            None => self.stop(pool, backend),
        }
    }
}

/// The time for which staying awake is likely to be worth it. It is somewhat longer than recent
/// work took to arrive, as far as that arrived within the longest time that a worker stays awake.
///
/// A worker does not wait for work that arrives later than that. Staying awake in vain takes a core
/// from the thread that is about to bring the work.
pub(super) struct Patience {
    most: Duration,
    /// The longest of the latest short waits. It fades over time.
    lately: Duration,
    since: Option<Instant>,
}

impl Patience {
    /// The minimum, enough for a thread that brings one op after the other.
    const LEAST: Duration = Duration::from_micros(2);

    fn new(most: Duration) -> Self {
        Patience { most, lately: most, since: None }
    }

    fn found_none(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// Returns whether to look for work again, after there was none.
    pub(super) fn lasts(&mut self) -> bool {
        self.found_none();
        std::thread::yield_now();
        self.since.is_some_and(|since| since.elapsed() < self.limit())
    }

    pub(super) fn found_work(&mut self) {
        let Some(since) = self.since.take() else { return };
        let waited = since.elapsed();
        self.lately = self.lately * 7 / 8;
        if waited <= self.most {
            self.lately = self.lately.max(waited);
        }
    }

    fn limit(&self) -> Duration {
        (Self::LEAST + self.lately * 2).min(self.most)
    }
}

/// Runs a worker from its start to its exit.
fn work(backend: &Arc<CpuBackend>, me: usize) {
    warpline_driver::affinity::follow_main_thread();
    warpline_driver::reentry::become_awaited();
    let _twin_threads = backend.twin_threads.enter();
    let pool = backend.pool().expect("only a backend with a pool starts workers");
    let parker = Parker::here();
    let mut batch = VecDeque::new();
    let mut attention = Attention::new(pool.awake_for);
    let mut is_up = true;
    loop {
        if let Some(stream) = pool.pop() {
            attention.patience.found_work();
            if std::mem::take(&mut is_up) && !attention.on && pool.has_work() {
                pool.bring(backend);
            }
            let ran = catch_unwind(AssertUnwindSafe(|| stream.run(&mut batch, pool, &mut attention)));
            if ran.is_err() {
                attention.stop(pool, backend);
                stream.end_after_panic(&mut batch);
            }
            continue;
        }
        attention.patience.found_none();
        if attention.pay(pool) {
            if pool.stay_awake(attention.patience.limit(), || false) {
                continue;
            }
            attention.on = false;
            pool.idle.stop_attending();
        }
        is_up = true;
        let Bed::Made(in_bed) = pool.idle.make_bed(me, parker.unparker(), || pool.has_work()) else {
            continue;
        };
        if pool.idle.is_closing() && !pool.idle.is_work_away() {
            if in_bed == pool.alive.load(Ordering::Acquire) {
                pool.idle.leave_bed(me);
                if !pool.lanes_are_empty() || backend.report_stuck() || pool.has_work() {
                    continue;
                }
                pool.finished.store(true, Ordering::Release);
                pool.idle.wake_everybody();
                break;
            }
            if pool.finished.load(Ordering::Acquire) {
                pool.idle.leave_bed(me);
                break;
            }
        }
        parker.park();
        // Work brought meanwhile woke no other worker. This worker looks for it below and, once it
        // gets busy, again.
        attention.pay(pool);
        attention.just_up = true;
        pool.idle.leave_bed(me);
    }
    pool.alive.fetch_sub(1, Ordering::AcqRel);
    fence(Ordering::SeqCst);
    if pool.has_work() {
        pool.bring(backend);
    }
}
