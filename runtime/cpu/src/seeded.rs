//! The schedule without threads: a thread that waits for something runs one op, chosen by a seed.
//!
//! Each [`turn`](Seeded::turn) picks one of the strands that can continue ([`Chooser`]), runs its
//! head, and completes its ticket. The result depends on the seed and on what the program did
//! before, and on nothing else.
//!
//! # Rules
//! 1. All devices of the backend share one turn lock, which is only ever tried. Ops run under it,
//!    because no thread waits for it. A host function that re-enters the schedule finds the lock
//!    taken and gets `false`.
//! 2. Wakers run, and user values are dropped, after the turn lock is released.
//! 3. A strand is in the list of queued strands from the push that found it idle until it is empty.
//!    Being in the list is its running token.
//!
//! # Why a poller that was told `false` may sleep
//! A poller registers its waker before it takes a turn. It gets `false` in two cases, and sets the
//! flag `dry` in each.
//!
//! *Nothing can run.* Every queued strand is then held at a wait. Only issued tickets can be waited
//! for, so each chain of waits ends at a timeline from outside this backend, a gate. This can
//! change in four ways: a gate opens, new work arrives (which may open a gate), a device fails, or
//! another thread takes a turn. Each of them **acts, fences, looks at the flag**. If the flag is
//! set, it clears the flag and wakes every waiter of every stream. The opening of a gate is
//! observed by a waker, registered with each timeline at which a strand is held. The poller **sets
//! the flag, fences, looks** whether something can run now. One of the two sees the other.
//!
//! *The turn was taken.* The thread that had it looks again after it releases the lock. It looks at
//! the flag if something ran, and at the newly queued work if nothing could. Before it gets
//! `false`, the poller sets the flag, fences, and tries the lock once more. One of the two sees the
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

/// The number of steps of the interleaving that are kept.
const KEEP_STEPS: usize = 10_000;

pub(super) struct Seeded {
    backend: Weak<CpuBackend>,
    seed: u64,
    turn: Mutex<Choices>,
    /// Strands that became ready since the last turn.
    arrivals: Mutex<Vec<Arc<CpuStream>>>,
    dry: AtomicBool,
    closing: AtomicBool,
    steps: Mutex<VecDeque<Step>>,
}

/// The outcome of a step. Its parts are used after the turn lock is released.
enum Outcome {
    Ran(Released, VecDeque<Submission>),
    Failed(Arc<CpuStream>, Error, VecDeque<Submission>),
    Purged(Vec<(Arc<CpuStream>, VecDeque<Submission>)>),
    /// An op could run, but the seed lets the executor's tasks continue first.
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
    /// The point at which the strand is held, and our place in that timeline's list of waiters.
    /// With that place, registering again replaces the waker.
    asked: Option<(Point, Option<Registration>)>,
}

/// The state protected by the turn lock.
struct Choices {
    queued: Vec<Queued>,
    chooser: Chooser,
}

impl Seeded {
    pub(super) fn new(backend: Weak<CpuBackend>, seed: u64) -> Self {
        Seeded {
            backend,
            seed,
            turn: Mutex::new(Choices { queued: Vec::new(), chooser: Chooser::new(seed) }),
            arrivals: Mutex::new(Vec::new()),
            dry: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            steps: Mutex::new(VecDeque::new()),
        }
    }

    /// Accepts a strand that has become ready.
    pub(super) fn schedule(&self, stream: Arc<CpuStream>) {
        self.arrivals.lock().push(stream);
    }

    /// Returns the seed for the order of a graph's branches, when the graph runs as this op.
    pub(super) fn seed_of(&self, stream: u64, ticket: Ticket) -> u64 {
        self.seed ^ stream.rotate_left(40) ^ ticket.rotate_left(20)
    }

    pub(super) fn interleaving(&self) -> Vec<Step> {
        self.steps.lock().iter().cloned().collect()
    }

    /// Lets the seed decide at each turn whether an op runs or the tasks of an executor continue.
    /// Those tasks take turns when they are polled.
    pub(super) fn draw_for_tasks(&self) {
        self.turn.lock().chooser.draw_for_tasks();
    }

    /// Runs one op. Returns whether there was one.
    pub(super) fn turn(&self) -> bool {
        let Some(turn) = self.try_turn() else { return false };
        let did_something = self.step(turn);
        if self.closing.load(Ordering::Relaxed) {
            self.drain();
        }
        did_something
    }

    fn try_turn(&self) -> Option<MutexGuard<'_, Choices>> {
        self.turn.try_lock().or_else(|| {
            self.dry.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            self.turn.try_lock()
        })
    }

    /// Runs one step, and everything that has to follow it outside the turn lock.
    fn step(&self, mut turn: MutexGuard<'_, Choices>) -> bool {
        let outcome = self.step_locked(&mut turn);
        drop(turn);
        match outcome {
            Outcome::Nothing => {
                // A thread that submitted work since our look, and was refused the turn, has left
                // that work behind.
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
                // The strand may have left the list, if this was its last op.
                stream.bury(stream.device.health.fault().expect("it has just failed"));
                // Release what the device's timelines keep now, not at some later poll.
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

    fn step_locked(&self, turn: &mut Choices) -> Outcome {
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
            // Set the flag, ask, look once more.
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

    fn absorb(&self, turn: &mut Choices) {
        let arrivals = std::mem::take(&mut *self.arrivals.lock());
        turn.queued.extend(arrivals.into_iter().map(|stream| Queued { stream, asked: None }));
    }

    /// Runs the head of one strand.
    fn run(&self, turn: &mut Choices, at: usize) -> Outcome {
        let stream = turn.queued[at].stream.clone();
        let mut work = stream.strand.pop().expect("a queued strand has work");
        let ticket = work.reaches();
        // An edge is not a step of the program.
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
                // Record the fault before the turn ends: the next turn must not run the work behind
                // this op.
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

    /// Registers with the timeline at which a strand is held. Returns whether the point has been
    /// reached.
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

    /// Wakes the pollers that found nothing, because something may have become runnable. Called
    /// while no lock is held.
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
        backend.wake_other_backends();
    }

    /// Runs everything that can run on the calling thread now, and reports the rest.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.drain();
    }

    fn drain(&self) {
        let Some(backend) = self.backend.upgrade() else { return };
        loop {
            // The thread that has the turn sees `closing` when the turn ends, and drains.
            let Some(turn) = self.try_turn() else { return };
            if !self.step(turn) && !backend.report_stuck() {
                return;
            }
        }
    }
}

/// Returns the state of a queued strand's head: free to run, held at a wait, or waiting in vain.
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

/// Takes the work of failed devices out of the list and returns it.
fn purge_failed(turn: &mut Choices) -> Vec<(Arc<CpuStream>, VecDeque<Submission>)> {
    let mut purged = Vec::new();
    turn.queued.retain(|queued| {
        let stream = &queued.stream;
        if stream.device.health.fault().is_none() {
            return true;
        }
        purged.push((stream.clone(), stream.strand.pop_all()));
        // Work that arrived in between stays for the next look.
        !stream.strand.rest_if_empty()
    });
    purged
}

/// A waker that is called when the timeline at which a strand is held reaches the awaited ticket.
struct Opened(Weak<CpuBackend>);

impl Wake for Opened {
    fn wake(self: Arc<Self>) {
        if let Some(backend) = self.0.upgrade() {
            backend.something_changed();
        }
    }
}
