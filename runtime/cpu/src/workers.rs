//! The worker threads of a backend.
//!
//! Ready strands travel to workers through one channel a priority. Threads are started when there is work and nobody waits
//! for some, up to a limit, and stay until shutdown. How they wait is in [`idle`](super::idle).
//!
//! # Shutdown
//! Closing wakes everybody. A worker that goes to bed last, with empty run queues, knows that nothing can run any more except
//! by outside help: it reports strands that are held at a gate, which fails their devices and wakes them to be purged. When
//! there is nothing to report the workers leave. Work that still comes after that (from a submit that raced with the
//! shutdown) starts a worker as the first work did.

use super::backend::CpuBackend;
use super::idle::{Bed, Brought, Idle, Rest};
use super::stream::CpuStream;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering, Parker, fence};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use warpline_driver::{Command, Priority};

/// How many ready strands are a backlog.
const BACKLOG: usize = 16;
/// How long a worker spins before it yields. Longer than who has little patience spins at all: on a busy machine yielding takes
/// milliseconds, where who goes to sleep is woken at once.
const BEFORE_YIELD: Duration = Duration::from_micros(4);

/// What is looked at by who gets up, by who wakes and by who brings work comes first, in one line: they find little in their caches.
#[repr(C, align(64))]
pub(super) struct Pool {
    /// How many strands of each lane nobody is taking yet: counted up once one is there, and down before one is taken.
    ready: [AtomicUsize; 3],
    alive: AtomicUsize,
    pub(super) idle: Idle,
    /// High, normal, low.
    lanes: [Lane; 3],
    limit: usize,
    awake_for: Duration,
    numbered: AtomicUsize,
    closing: AtomicBool,
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
            closing: AtomicBool::new(false),
            finished: AtomicBool::new(false),
        }
    }

    /// Puts a ready strand into its run queue and sees to it that somebody comes.
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

    /// Whether a strand is ready to be run.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.ready.iter().any(|ready| ready.load(Ordering::Relaxed) > 0)
    }

    /// Whether so many strands are ready that no worker should wait for more work on one of them.
    #[inline]
    pub(super) fn is_behind(&self) -> bool {
        self.ready.iter().any(|ready| ready.load(Ordering::Relaxed) > BACKLOG)
    }

    fn pop(&self) -> Option<Arc<CpuStream>> {
        let one_fewer = |ready: usize| ready.checked_sub(1);
        let lane = self.ready.iter().position(|ready| {
            ready.load(Ordering::Relaxed) > 0
                && ready.fetch_update(Ordering::Acquire, Ordering::Relaxed, one_fewer).is_ok()
        })?;
        Some(self.lanes[lane].receive.try_recv().expect("who counts a strand down has one coming"))
    }

    /// Whether a worker is awake.
    pub(super) fn rest(&self) -> Rest {
        self.idle.rest(self.alive.load(Ordering::Relaxed))
    }

    /// Whether no strand is in a lane, counted or not. A strand is put there first and counted second, and whoever counts one down takes
    /// what comes first, which may be one that is not counted yet: then its own is still there when the counts are at zero.
    fn lanes_are_empty(&self) -> bool {
        self.lanes.iter().all(|lane| lane.receive.is_empty())
    }

    /// How many threads there are, for tests.
    #[cfg(test)]
    pub(super) fn alive(&self) -> usize {
        self.alive.load(Ordering::Relaxed)
    }

    /// By the attentive one, who has got busy: what came meanwhile woke nobody, so somebody else is sent for it.
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
            // Whoever is alive takes the work, and the next work tries again. If nobody is, nothing would ever run.
            if self.alive.fetch_sub(1, Ordering::AcqRel) == 1 {
                backend.fail_all(&error);
            }
        }
    }

    /// Asks the workers to leave once nothing can run any more.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        self.idle.wake_everybody();
    }

    /// Spins until there is work, or `also` says so; `false` if it took longer than `limit`.
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
                // Somebody who is about to bring work may want this very core.
                std::thread::yield_now();
                here_since = Instant::now();
            }
        }
    }
}

/// How a worker looks after the run queues.
pub(super) struct Attention {
    /// Whether this worker is the attentive one.
    on: bool,
    /// What it may still run before it stops being so.
    left_bytes: usize,
    patience: Patience,
    /// Whether this worker has run no op yet since it got up.
    just_up: bool,
}

impl Attention {
    /// What the attentive one may copy and fill since it last found the run queues empty: some ten microseconds' worth. Who
    /// was woken for the ops behind would come no sooner.
    const QUICK_BYTES: usize = 128 << 10;
    /// What an op costs besides its bytes.
    const OP_BYTES: usize = 1 << 10;

    fn new(most: Duration) -> Self {
        Attention { on: false, left_bytes: 0, patience: Patience::new(most), just_up: true }
    }

    /// By a worker that has no work: becomes attentive, if nobody is.
    #[inline]
    pub(super) fn pay(&mut self, pool: &Pool) -> bool {
        self.on = self.on || pool.idle.attend();
        self.left_bytes = Self::QUICK_BYTES;
        self.on
    }

    /// Spins for a while until there is work, or `also` says so, with the right to do so if nobody else has it.
    pub(super) fn stay_awake(&mut self, pool: &Pool, also: impl Fn() -> bool) {
        if self.pay(pool) {
            self.patience.found_none();
            pool.stay_awake(self.patience.limit(), &also);
            if also() {
                self.patience.found_work();
            }
        }
    }

    /// By a worker that has run an op: whether it was the first since it got up.
    #[inline]
    pub(super) fn take_first(&mut self) -> bool {
        std::mem::take(&mut self.just_up)
    }

    /// Before something that may take long, or wait for other streams.
    #[inline]
    pub(super) fn stop(&mut self, pool: &Pool, backend: &Arc<CpuBackend>) {
        if std::mem::take(&mut self.on) {
            pool.stop_attending(backend);
        }
    }

    /// Runs something that may take long, or wait for other streams, but mostly does not: is not attentive meanwhile.
    pub(super) fn aside(&mut self, pool: &Pool, backend: &Arc<CpuBackend>, run: impl FnOnce()) {
        let was_on = self.on;
        self.stop(pool, backend);
        run();
        self.on = was_on && pool.idle.attend();
    }

    /// Before `command` is run: stops being attentive, unless that is quick.
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
            // A kernel's length is its own affair, and a function may wait for another stream.
            Command::Launch(_) | Command::Call(_) | Command::Graph(_) => None,
        };
        let left = bytes.and_then(|bytes| self.left_bytes.checked_sub(bytes as usize + Self::OP_BYTES));
        match left {
            Some(left) => self.left_bytes = left,
            None => self.stop(pool, backend),
        }
    }
}

/// How long staying awake is likely to be worth it: somewhat longer than work lately took to come, as far as it came within the time
/// that a worker stays awake at most.
///
/// Work that comes later than that is not waited for: staying awake in vain takes a core from whoever is about to bring the work.
struct Patience {
    most: Duration,
    /// The longest of the latest waits that were short, fading.
    lately: Duration,
    since: Option<Instant>,
}

impl Patience {
    /// Enough for who brings one op after the other.
    const LEAST: Duration = Duration::from_micros(2);

    fn new(most: Duration) -> Self {
        Patience { most, lately: most, since: None }
    }

    fn found_none(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    fn found_work(&mut self) {
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

/// A worker's life.
fn work(backend: &Arc<CpuBackend>, me: usize) {
    warpline_driver::reentry::become_awaited();
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
                // Not a twin or host function, whose panics are caught where they run: a `tracing` subscriber, say. What the
                // op did is unknown, so its device cannot go on; this worker and the other devices can.
                attention.stop(pool, backend);
                stream.device.fail(stream.broken());
                let _ = catch_unwind(AssertUnwindSafe(|| stream.give_up(&mut batch)));
                batch.clear();
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
        if pool.closing.load(Ordering::Acquire) {
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
        // What was brought meanwhile woke nobody else. It is looked for below and, once this worker gets busy, again.
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
