//! A stream: a thread that runs one piece of work after another.
//!
//! # Rules
//! 1. The stream's thread completes a ticket after its work, and holds no lock meanwhile.
//! 2. Before each piece of work the thread checks whether the device has failed. If it has, the
//!    thread drops the queued work, and then releases what its timeline keeps: nothing of the
//!    stream runs any more.
//! 3. A waiting thread registers first. Only then does it check the timeline, its device, and
//!    whether the wait can end.

use crate::Shared;
use crate::work::{check, run};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use warpline_driver::op_events::{self, Traced};
use warpline_driver::{
    Command, DriverError, DriverEvent, DriverStream, Error, ErrorKind, Point, Site, StreamOptions,
    Submission, Ticket, Timeline, message_of, reentry, report,
};

/// A handle to a stream.
#[derive(Debug)]
pub(crate) struct ThreadStream {
    shared: Arc<Shared>,
    queue: Sender<Submission>,
    thread: Thread,
}

/// The state of a stream's thread.
struct Runner {
    shared: Arc<Shared>,
    options: StreamOptions,
    timeline: Arc<Timeline>,
}

/// The lock held by work that the order check does not vouch for. All devices share it, because
/// their memory is the host's: two such pieces of work may touch the same bytes.
static UNCHECKED: Mutex<()> = Mutex::new(());

/// The timelines of all streams of this backend. At shutdown, a wait for any other timeline is a
/// wait for the host.
static TIMELINES: Mutex<Vec<Weak<Timeline>>> = Mutex::new(Vec::new());

impl ThreadStream {
    pub(crate) fn start(
        shared: Arc<Shared>,
        options: &StreamOptions,
        timeline: Arc<Timeline>,
    ) -> std::io::Result<Arc<Self>> {
        let mut timelines = TIMELINES.lock().expect("nobody panics under it");
        timelines.retain(|timeline| timeline.strong_count() > 0);
        timelines.push(Arc::downgrade(&timeline));
        drop(timelines);
        let (queue, queued) = channel();
        let runner = Runner { shared: shared.clone(), options: options.clone(), timeline };
        let thread = thread::Builder::new().name(options.label.to_string()).spawn(move || {
            // Wakers run here, and other threads wait for this one: the code it calls must not
            // block it.
            reentry::become_awaited();
            runner.run_all(&queued);
        })?;
        Ok(Arc::new(ThreadStream { shared, queue, thread: thread.thread().clone() }))
    }

    pub(crate) fn wake(&self) {
        self.thread.unpark();
    }
}

// SAFETY: one thread runs the submitted work in submission order, and completes each ticket after
// its work.
unsafe impl DriverStream for ThreadStream {
    unsafe fn submit(&self, work: Submission) -> Result<(), DriverError> {
        if let Some(fault) = self.shared.health.fault() {
            work.command.drop_elsewhere();
            return Err(DriverError::Refused(fault.to_string().into()));
        }
        if let Command::Launch(launch) = &work.command {
            check(launch.kernel)?;
        }
        self.queue.send(work).expect("the thread lives as long as this handle");
        Ok(())
    }

    fn signal(&self, _ticket: Ticket) {}

    fn record(&self) -> Result<Option<DriverEvent>, DriverError> {
        // No event is needed: a wait looks at the timeline.
        Ok(None)
    }
}

impl Runner {
    /// Runs incoming work until the handle is dropped and the queue is empty.
    fn run_all(&self, queued: &Receiver<Submission>) {
        for work in queued {
            if self.shared.health.fault().is_none() {
                let Err(error) = self.run_one(work) else { continue };
                self.shared.health.fail(error);
                self.shared.wake_streams();
            } else if catch_unwind(AssertUnwindSafe(|| drop(work))).is_err() {
                report::drop_panicked();
            }
            // Later work in the queue arrives here as well, and is dropped unrun. A stream of
            // another device that waits for this one finds the reason in the timeline.
            let fault = self.shared.health.fault().expect("it has failed").clone();
            self.timeline.give_up(fault);
            self.timeline.abandon();
            self.timeline.wake_all();
        }
    }

    /// Runs one piece of work. An error is the fault that fails the device.
    fn run_one(&self, work: Submission) -> Result<(), Error> {
        let (ticket, reaches, site) = (work.ticket, work.reaches(), work.site);
        if let Some(point) = work.command.holds_until() {
            self.wait(point, &site)?;
        }
        let (kind, bytes) = (work.command.kind(), work.command.bytes());
        let traced = || Traced {
            runtime: self.options.runtime,
            device: self.shared.id,
            label: &self.options.label,
            stream_key: self.options.key,
            kind,
            bytes,
            caller: work.caller.clone(),
        };
        let is_silent = matches!(work.command, Command::Edge(_) | Command::Elided);
        // A subscriber that observes the op may panic as well.
        let ran = catch_unwind(AssertUnwindSafe(|| {
            let _alone = work.claims.is_some().then(|| UNCHECKED.lock());
            let begin = if is_silent { None } else { op_events::op_started(ticket, &site, traced) };
            // SAFETY: `submit` was promised that everything the command names is valid until the
            // ticket is reached. It was also promised that nothing conflicts with it, except for
            // unchecked work, which runs alone.
            unsafe { run(work.command) }
            if !is_silent {
                op_events::op_finished(ticket, &site, begin, traced);
            }
        }));
        match ran {
            Ok(()) => {
                self.timeline.complete(reaches);
                Ok(())
            }
            Err(panic) => Err(self.fault(&site, &format!("panicked: {}", message_of(panic)))),
        }
    }

    fn fault(&self, site: &Site, why: &str) -> Error {
        let (id, label) = (self.shared.id, &self.options.label);
        let text = format!("{} {why}; {id} accepts no more work in this runtime", site.on(label));
        Error::new(ErrorKind::Fault, text)
    }

    /// Blocks the thread until `point` is reached.
    fn wait(&self, point: &Point, site: &Site) -> Result<(), Error> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut registration = None;
        while point.timeline.register(point.ticket, &waker, &mut registration).is_pending() {
            if let Some(error) = self.is_in_vain(point, site) {
                point.timeline.deregister(&mut registration);
                return Err(error);
            }
            thread::park();
        }
        Ok(())
    }

    /// Returns the error if `point` will not be reached.
    fn is_in_vain(&self, point: &Point, site: &Site) -> Option<Error> {
        if let Some(fault) = self.shared.health.fault().or(point.timeline.fault()) {
            return Some(fault.clone());
        }
        let is_ours = || {
            let timelines = TIMELINES.lock().expect("nobody panics under it");
            timelines.iter().any(|ours| std::ptr::eq(ours.as_ptr(), &raw const *point.timeline))
        };
        (self.shared.stopping.load(Ordering::SeqCst) && !is_ours()).then(|| {
            let label = &self.options.label;
            let text = format!(
                "the runtime was shut down while {} was held at a wait that nothing will release",
                site.on(label)
            );
            Error::new(ErrorKind::ShutDown, text)
        })
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
