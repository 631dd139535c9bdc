//! The schedule without threads: whoever waits for something runs one op, chosen by a seed.
//!
//! Each [`turn`](Seeded::turn) picks one of the strands that can go on ([`Chooser`]), runs its head, and completes its ticket.
//! What happens depends on the seed and on what the program did before, on nothing else.
//!
//! # Rules
//! 1. One turn lock for all devices of the backend, only ever tried. Ops run under it: it is not a lock that anybody waits
//!    for. A host function that comes back finds it taken and gets `false`.
//! 2. Wakers run, and user values are dropped, after the turn lock is released.
//! 3. A strand is in the list of queued strands from the push that found it idle until it is empty; being in the list is its
//!    running token.
//!
//! # Why a poller that was told `false` may sleep
//! A poller registers its waker before it takes a turn. It is told `false` in two cases, and leaves the mark `dry` each time.
//!
//! *Nothing can run.* Then every queued strand is held at a wait, and since only issued tickets can be waited for, each chain of
//! waits ends at a timeline of somebody else's, a gate. What can change that is a gate that opens, new work (which may open a
//! gate), a failure, or a turn taken by somebody else. Each of them **acts, fences, looks at the mark**; if it is there, takes
//! it and wakes every waiter of every stream. Of a gate's opening we learn by a waker registered with each timeline a strand is
//! held at. The sleeper **leaves the mark, fences, looks** whether something can run now. One of the two sees the other.
//!
//! *The turn was taken.* Whoever had it looks after giving the lock back: at the mark if something ran, at the newly queued
//! work if nothing could; the one told `false` leaves the mark, fences, and tries the lock once more. One of the two sees the
//! other.

use super::Step;
use super::backend::CpuBackend;
use super::choose::Chooser;
use super::failing::drop_quietly;
use super::stream::CpuStream;
use crate::sync::{Arc, AtomicBool, Mutex, MutexGuard, Ordering, fence};
use std::collections::VecDeque;
use std::sync::Weak;
use std::task::{Wake, Waker};
use warpline_driver::timeline::{Registration, Released, Ticket};
use warpline_driver::{Error, Point, Submission};

/// How many steps of the interleaving are kept.
const KEEP_STEPS: usize = 10_000;

pub(super) struct Seeded {
    backend: Weak<CpuBackend>,
    seed: u64,
    turn: Mutex<Turn>,
    /// Strands that became ready since the last turn.
    arrivals: Mutex<Vec<Arc<CpuStream>>>,
    dry: AtomicBool,
    closing: AtomicBool,
    steps: Mutex<VecDeque<Step>>,
}

/// What a step came to; the parts are used after the turn lock is released.
enum Outcome {
    Ran(Released, VecDeque<Submission>),
    Failed(Arc<CpuStream>, Error, VecDeque<Submission>),
    Purged(Vec<(Arc<CpuStream>, VecDeque<Submission>)>),
    /// An op could run, and the seed lets the executor's tasks go on first.
    LeftToTasks,
    Nothing,
}

enum Head {
    Free,
    Held(Point),
    InVain(Error),
}

struct Queued {
    stream: Arc<CpuStream>,
    /// Our place in the list of the timeline it is held at, so that asking again replaces the waker.
    asked: Option<(Point, Option<Registration>)>,
}

/// What whoever has the turn works with.
struct Turn {
    queued: Vec<Queued>,
    chooser: Chooser,
}

impl Seeded {
    pub(super) fn new(backend: Weak<CpuBackend>, seed: u64) -> Self {
        Seeded {
            backend,
            seed,
            turn: Mutex::new(Turn { queued: Vec::new(), chooser: Chooser::new(seed) }),
            arrivals: Mutex::new(Vec::new()),
            dry: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            steps: Mutex::new(VecDeque::new()),
        }
    }

    /// Takes a strand that has become ready.
    pub(super) fn schedule(&self, stream: Arc<CpuStream>) {
        self.arrivals.lock().push(stream);
    }

    /// What the order of a graph's branches is drawn from when it runs as this op.
    pub(super) fn seed_of(&self, stream: u64, ticket: Ticket) -> u64 {
        self.seed ^ stream.rotate_left(40) ^ ticket.rotate_left(20)
    }

    pub(super) fn interleaving(&self) -> Vec<Step> {
        self.steps.lock().iter().cloned().collect()
    }

    /// Lets the seed decide at each turn whether an op runs or the tasks of an executor go on, who
    /// take turns when they are polled.
    pub(super) fn draw_for_tasks(&self) {
        self.turn.lock().chooser.draw_for_tasks();
    }

    /// Runs one op; whether there was one.
    pub(super) fn turn(&self) -> bool {
        let Some(turn) = self.try_turn() else { return false };
        let did_something = self.step(turn);
        if self.closing.load(Ordering::Relaxed) {
            self.drain();
        }
        did_something
    }

    fn try_turn(&self) -> Option<MutexGuard<'_, Turn>> {
        self.turn.try_lock().or_else(|| {
            self.dry.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            self.turn.try_lock()
        })
    }

    /// One step, and everything that has to follow it outside the turn lock.
    fn step(&self, mut turn: MutexGuard<'_, Turn>) -> bool {
        let outcome = self.step_locked(&mut turn);
        drop(turn);
        match outcome {
            Outcome::Nothing => {
                // Who submitted and was turned away since we looked has left new work behind.
                fence(Ordering::SeqCst);
                if self.arrivals.lock().is_empty() {
                    return false;
                }
                return self.try_turn().is_some_and(|turn| self.step(turn));
            }
            Outcome::LeftToTasks => return true,
            Outcome::Ran(released, work) => {
                drop_quietly(work);
                released.run();
            }
            Outcome::Failed(stream, error, work) => {
                stream.device.fail(error);
                drop_quietly(work);
                // It may have left the list, if this was its last op.
                stream.bury(stream.device.health.fault().expect("it has just failed"));
                // What the device's timelines keep is let go now, not when somebody polls again.
                if let Some(turn) = self.try_turn() {
                    self.step(turn);
                }
            }
            Outcome::Purged(purged) => {
                for (stream, work) in purged {
                    drop_quietly(work);
                    stream.bury(stream.device.health.fault().expect("only failed devices are purged"));
                }
            }
        }
        self.something_changed();
        true
    }

    fn step_locked(&self, turn: &mut Turn) -> Outcome {
        loop {
            self.absorb(turn);
            let purged = purge_failed(turn);
            if !purged.is_empty() {
                return Outcome::Purged(purged);
            }
            let mut free = Vec::new();
            let mut held = Vec::new();
            for (at, queued) in turn.queued.iter().enumerate() {
                match head(&queued.stream) {
                    Head::Free => free.push(at),
                    Head::Held(point) => held.push((at, point)),
                    Head::InVain(error) => {
                        queued.stream.device.health.note(error.clone());
                        return Outcome::Failed(queued.stream.clone(), error, VecDeque::new());
                    }
                }
            }
            if !free.is_empty() {
                if turn.chooser.is_turn_of_tasks() {
                    return Outcome::LeftToTasks;
                }
                let numbers: Vec<_> = free.iter().map(|at| turn.queued[*at].stream.number).collect();
                let at = free[turn.chooser.choose(&numbers)];
                return self.run(turn, at);
            }
            // Ask, leave the mark, look once more.
            let was_dry = self.dry.swap(true, Ordering::Relaxed);
            let mut reached = false;
            for (at, point) in held {
                reached |= self.ask(&mut turn.queued[at], point);
            }
            fence(Ordering::SeqCst);
            if was_dry && !reached && self.arrivals.lock().is_empty() {
                return Outcome::Nothing;
            }
        }
    }

    fn absorb(&self, turn: &mut Turn) {
        let arrivals = std::mem::take(&mut *self.arrivals.lock());
        turn.queued.extend(arrivals.into_iter().map(|stream| Queued { stream, asked: None }));
    }

    /// Runs the head of one strand.
    fn run(&self, turn: &mut Turn, at: usize) -> Outcome {
        let stream = turn.queued[at].stream.clone();
        let mut work = stream.strand.pop().expect("a queued strand has work");
        let ticket = work.reaches();
        // An edge is no step of the program.
        if ticket == work.ticket {
            let (device, stream, site) = (stream.device.id, stream.label.clone(), work.site);
            self.note(Step { device, stream, ticket, site });
        }
        let outcome = stream.run_op(&mut work);
        if stream.strand.rest_if_empty() {
            turn.queued.remove(at);
        }
        match outcome {
            Ok(()) => Outcome::Ran(stream.timeline.complete_quietly(ticket), [work].into()),
            Err(error) => {
                // Known before the turn is over: whoever takes the next one must not run what is behind it.
                stream.device.health.note(error.clone());
                Outcome::Failed(stream, error, [work].into())
            }
        }
    }

    fn note(&self, step: Step) {
        let mut steps = self.steps.lock();
        if steps.len() == KEEP_STEPS {
            steps.pop_front();
        }
        steps.push_back(step);
    }

    /// Registers with the timeline a strand is held at; whether it has been reached.
    fn ask(&self, queued: &mut Queued, point: Point) -> bool {
        let same =
            |asked: &Point| Arc::ptr_eq(&asked.timeline, &point.timeline) && asked.ticket == point.ticket;
        let mut registration = match queued.asked.take() {
            Some((asked, registration)) if same(&asked) => registration,
            _ => None,
        };
        let waker = Waker::from(Arc::new(Opened(self.backend.clone())));
        let reached = point.timeline.register(point.ticket, &waker, &mut registration).is_ready();
        queued.asked = Some((point, registration));
        reached
    }

    /// Something may have become runnable: wakes the pollers that found nothing. Called while no lock is held.
    pub(super) fn something_changed(&self) {
        fence(Ordering::SeqCst);
        if self.dry.load(Ordering::Relaxed) && self.dry.swap(false, Ordering::AcqRel) {
            self.wake_pollers();
        }
    }

    #[cold]
    fn wake_pollers(&self) {
        let Some(backend) = self.backend.upgrade() else { return };
        for stream in backend.timelines.streams(None) {
            stream.timeline.wake_all();
        }
    }

    /// Runs what can run, here and now, and reports the rest.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.drain();
    }

    fn drain(&self) {
        let Some(backend) = self.backend.upgrade() else { return };
        loop {
            // Whoever has the turn sees `closing` when it is over, and drains.
            let Some(turn) = self.try_turn() else { return };
            if !self.step(turn) && !backend.report_stuck() {
                return;
            }
        }
    }
}

/// Whether a queued strand can go on.
fn head(stream: &CpuStream) -> Head {
    stream.strand.peek(|mut queued| match queued.next() {
        Some(work) => match work.command.holds_until() {
            Some(point) if !point.timeline.reached(point.ticket) => {
                match stream.wait_is_in_vain(work, point) {
                    Some(error) => Head::InVain(error),
                    None => Head::Held(point.clone()),
                }
            }
            _ => Head::Free,
        },
        None => unreachable!("a queued strand has work"),
    })
}

/// Takes the work of failed devices out of the list.
fn purge_failed(turn: &mut Turn) -> Vec<(Arc<CpuStream>, VecDeque<Submission>)> {
    let mut purged = Vec::new();
    turn.queued.retain(|queued| {
        let stream = &queued.stream;
        if stream.device.health.fault().is_none() {
            return true;
        }
        purged.push((stream.clone(), stream.strand.pop_all()));
        // Work that came in between stays for the next look.
        !stream.strand.rest_if_empty()
    });
    purged
}

/// Woken when a timeline that a strand is held at gets there.
struct Opened(Weak<CpuBackend>);

impl Wake for Opened {
    fn wake(self: Arc<Self>) {
        if let Some(backend) = self.0.upgrade() {
            backend.something_changed();
        }
    }
}
