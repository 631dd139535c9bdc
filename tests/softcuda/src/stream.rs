//! Streams: queues whose work runs one after the other.
//!
//! Every piece of work has a ticket, counted per slot and never reset, so that "stream, ticket" names a moment for ever:
//! that is all an event keeps.
//!
//! # Rules
//! 1. A stream with work is *scheduled*: exactly one of a run queue, a worker, the timer, the
//!    host-function thread, its connection or another stream's list of waiters has it. Only the
//!    holder looks at the front of the queue.
//! 2. `completed` grows under the queue's lock; whoever finds a ticket not reached under that lock may leave a request
//!    there and will be heard.
//! 3. No two queues are locked at once, and nothing is executed or dropped under a lock.
//! 4. In a poisoned context nothing starts and nothing completes. Waiting hosts are woken, waiting streams are not: a
//!    stream of a healthy context that waits for a lost one waits for ever, as nobody will store what it waits for.
//! 5. A destroyed stream runs what it has. Its slot is free when its queue is empty.

use crate::abi::{CUcontext, CUstream};
use crate::capture;
use crate::connection::Connection;
use crate::context::{self, Context};
use crate::device::PRIORITIES;
use crate::errors::{Code, Outcome, refuse};
use crate::graph::Node;
use crate::op::Op;
use crate::plan;
use crate::slab::Slab;
use crate::timer;
use crate::work::{HostRange, Ready, Work};
use crate::worker;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// `CU_STREAM_NON_BLOCKING`.
pub(crate) const NON_BLOCKING: u32 = 1;

/// Pieces of work that a stream runs before others get the worker.
const TURN: usize = 64;

/// A stream. Aligned, so that two streams' submitters do not share a cache line.
#[repr(align(128))]
pub(crate) struct Stream {
    /// Its slot.
    pub(crate) index: u32,
    context: AtomicU32,
    handle: AtomicU64,
    flags: AtomicU32,
    priority: AtomicI32,
    /// The capture it is part of, 0 if none.
    pub(crate) capture: AtomicU64,
    /// The number of its connection in its context.
    connection: AtomicUsize,
    /// True once its work has poisoned the context.
    faulted: AtomicBool,
    submitted: AtomicU64,
    completed: AtomicU64,
    queue: Mutex<Queue>,
    done: Condvar,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Work>,
    scheduled: bool,
    /// Page-locked memory that the running work touches.
    running: Vec<HostRange>,
    /// True if the front has left the connection.
    left: bool,
    /// When the front was first asked whether it can start.
    since: Option<Instant>,
    /// Streams to be scheduled when a ticket is reached.
    waiters: Vec<(u64, &'static Stream)>,
    /// Host threads that wait.
    watchers: u32,
    /// Whether the slot is to be freed with the last work.
    destroyed: bool,
}

static STREAMS: Slab<Stream> = Slab::new(2);
/// The number of calls that have found a stream full.
static WITHOUT_ROOM: AtomicU64 = AtomicU64::new(0);

pub(crate) fn waits_for_room() -> u64 {
    WITHOUT_ROOM.load(Ordering::Relaxed)
}

/// A new stream of the current context.
pub(crate) fn create(flags: u32, priority: i32) -> Outcome<CUstream> {
    let context = context::current()?;
    if flags & !NON_BLOCKING != 0 {
        refuse!(INVALID_VALUE, "flags {flags:#x}");
    }
    let stream = Stream::new(context, flags, priority.clamp(PRIORITIES[1], PRIORITIES[0]));
    let handle = STREAMS.publish(stream.index);
    stream.handle.store(handle, Ordering::Relaxed);
    Ok(CUstream(handle))
}

/// The stream a call names, if its context and the current one are usable. Null is the current context's own.
#[inline]
pub(crate) fn named(handle: CUstream) -> Outcome<&'static Stream> {
    let current = context::current()?;
    match handle.0 {
        0 | 1 => {
            let stream = current.null_stream();
            stream.report_own_fault()?;
            Ok(stream)
        }
        2 => refuse!(NOT_SUPPORTED, "there are no per-thread default streams here"),
        _ => {
            let stream = known(handle)?;
            if stream.context.load(Ordering::Relaxed) != current.index {
                stream.context().usable()?;
            }
            stream.report_own_fault()?;
            Ok(stream)
        }
    }
}

/// As [`named`], for work that must be of the current context.
#[inline]
pub(crate) fn named_here(handle: CUstream) -> Outcome<&'static Stream> {
    let stream = named(handle)?;
    if context::current_handle() != stream.context().handle() {
        refuse!(INVALID_HANDLE, "the stream is of another context than the current one");
    }
    Ok(stream)
}

fn known(handle: CUstream) -> Outcome<&'static Stream> {
    match STREAMS.get(handle.0) {
        Some(stream) => Ok(stream),
        None => refuse!(INVALID_HANDLE, "the stream is {}", STREAMS.what_is(handle.0)),
    }
}

/// Destroys a stream; what it has still runs.
pub(crate) fn destroy(handle: CUstream) -> Outcome {
    let stream = named(handle)?;
    if handle.0 <= 2 {
        refuse!(INVALID_HANDLE, "the null stream is not destroyed");
    }
    stream.destroy();
    Ok(())
}

/// Every stream there ever was.
pub(crate) fn all() -> impl Iterator<Item = &'static Stream> {
    STREAMS.all()
}

impl Stream {
    fn new(context: &Context, flags: u32, priority: i32) -> &'static Stream {
        let (_, stream) = STREAMS.take(|index| Stream {
            index,
            context: AtomicU32::new(0),
            handle: AtomicU64::new(0),
            flags: AtomicU32::new(0),
            priority: AtomicI32::new(0),
            capture: AtomicU64::new(0),
            connection: AtomicUsize::new(0),
            faulted: AtomicBool::new(false),
            submitted: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            queue: Mutex::default(),
            done: Condvar::new(),
        });
        stream.context.store(context.index, Ordering::Relaxed);
        stream.connection.store(context.next_connection(), Ordering::Relaxed);
        stream.faulted.store(false, Ordering::Relaxed);
        stream.flags.store(flags, Ordering::Relaxed);
        stream.priority.store(priority, Ordering::Relaxed);
        context.add_stream(stream);
        stream
    }

    /// A context's null stream: one that no handle names.
    pub(crate) fn null(context: &Context) -> &'static Stream {
        Stream::new(context, 0, 0)
    }

    /// Its context.
    #[inline]
    pub(crate) fn context(&self) -> &'static Context {
        context::at(self.context.load(Ordering::Relaxed))
    }

    /// The hardware queue that it shares with other streams, if a plan sets their number.
    #[inline]
    fn connection(&self) -> Option<&'static Connection> {
        self.context().connection(self.connection.load(Ordering::Relaxed))
    }

    pub(crate) fn context_handle(&self) -> CUcontext {
        self.context().handle()
    }

    pub(crate) fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    pub(crate) fn priority(&self) -> i32 {
        self.priority.load(Ordering::Relaxed)
    }

    fn is_null(&self) -> bool {
        self.context().null_stream_if_used().is_some_and(|null| std::ptr::eq(null, self))
    }

    /// Whether it takes part in the order of the null stream.
    #[inline]
    fn is_blocking(&self) -> bool {
        self.flags() & NON_BLOCKING == 0
    }

    /// Whether a ticket is done.
    #[inline]
    pub(crate) fn reached(&self, ticket: u64) -> bool {
        self.completed.load(Ordering::Acquire) >= ticket
    }

    /// The newest ticket.
    #[inline]
    pub(crate) fn tail(&self) -> u64 {
        self.submitted.load(Ordering::Acquire)
    }

    /// Whether all is done.
    pub(crate) fn is_idle(&self) -> bool {
        self.reached(self.tail())
    }

    /// Whether it is part of a capture.
    #[inline]
    pub(crate) fn is_capturing(&self) -> bool {
        self.capture.load(Ordering::Relaxed) != 0
    }

    /// Puts an operation at the end; its ticket. If the stream is capturing the graph gets it, and there is none.
    #[inline]
    pub(crate) fn submit(&'static self, op: Op) -> Outcome<Option<u64>> {
        if self.is_capturing() {
            let node = Arc::new(Node::new(op, self.context(), self.priority()));
            capture::add(self, node)?;
            return Ok(None);
        }
        self.enqueue(Work::Op(op)).map(Some)
    }

    /// Puts work at the end of a stream that is not capturing, once there is room. Its ticket.
    #[inline]
    pub(crate) fn enqueue(&'static self, work: Work) -> Outcome<u64> {
        self.make_room()?;
        self.enqueue_at_once(work)
    }

    /// Waits on the host until one piece of work more fits on the stream, where a plan says how many do.
    #[inline]
    pub(crate) fn make_room(&self) -> Outcome {
        match plan::get().depth {
            Some(depth) => {
                let room = (self.tail() + 1).saturating_sub(depth);
                if !self.reached(room) {
                    WITHOUT_ROOM.fetch_add(1, Ordering::Relaxed);
                }
                self.wait(room)
            }
            None => Ok(()),
        }
    }

    /// As [`enqueue`](Self::enqueue), for whoever has made room.
    #[inline]
    pub(crate) fn enqueue_at_once(&'static self, work: Work) -> Outcome<u64> {
        self.context().report()?;
        if self.is_blocking() {
            self.join_null_stream()?;
        }
        Ok(self.push(work))
    }

    /// The moment after all that was enqueued, for an event.
    pub(crate) fn mark(&'static self) -> Outcome<u64> {
        self.context().report()?;
        if self.is_blocking() {
            self.join_null_stream()?;
        }
        Ok(self.tail())
    }

    fn push(&'static self, work: Work) -> u64 {
        let mut queue = self.queue.lock();
        let ticket = self.submitted.load(Ordering::Relaxed) + 1;
        self.submitted.store(ticket, Ordering::Release);
        queue.items.push_back(work);
        if let Some(connection) = self.connection() {
            connection.push(self);
        }
        let idle = !std::mem::replace(&mut queue.scheduled, true);
        drop(queue);
        if idle {
            worker::schedule(self);
        }
        ticket
    }

    /// The null stream waits for all blocking streams, and each of them for the null stream.
    fn join_null_stream(&'static self) -> Outcome {
        let context = self.context();
        let Some(null) = context.null_stream_if_used() else { return Ok(()) };
        if !std::ptr::eq(null, self) {
            if !null.is_idle() {
                self.push(Work::Wait { on: null, ticket: null.tail() });
            }
            return Ok(());
        }
        self.refuse_if_captures_are_behind()?;
        for stream in context.streams() {
            if stream.is_blocking() && !std::ptr::eq(stream, self) && !stream.is_idle() {
                self.push(Work::Wait { on: stream, ticket: stream.tail() });
            }
        }
        Ok(())
    }

    /// Refuses a call on the null stream while streams that it waits for are capturing, and breaks
    /// their captures.
    pub(crate) fn refuse_if_captures_are_behind(&self) -> Outcome {
        if !capture::any() || !self.is_null() {
            return Ok(());
        }
        let streams = self.context().streams().into_iter();
        let capturing = streams.filter(|stream| stream.is_blocking() && stream.is_capturing());
        if capturing.inspect(|stream| capture::invalidate(stream)).count() > 0 {
            refuse!(STREAM_CAPTURE_IMPLICIT, "the null stream would wait for a capturing stream");
        }
        Ok(())
    }

    /// Runs what can be run for a while. Called by the worker that has the stream.
    pub(crate) fn run(&'static self) {
        for _ in 0..TURN {
            let mut queue = self.queue.lock();
            if self.context().poisoned().is_some() {
                let abandoned = std::mem::take(&mut queue.items);
                drop(queue);
                drop(abandoned);
                return;
            }
            let queue_now = &mut *queue;
            let Some(front) = queue_now.items.front_mut() else {
                queue.scheduled = false;
                let retired = std::mem::take(&mut queue.destroyed);
                drop(queue);
                if retired {
                    self.retire();
                }
                return;
            };
            if !queue_now.left
                && let Some(connection) = self.connection()
                && !connection.is_turn_of(self)
            {
                return;
            }
            match front.ready(&mut queue_now.since) {
                Ready::Now => {}
                Ready::After(on, ticket) => {
                    drop(queue);
                    if on.schedule_at(ticket, self) {
                        return;
                    }
                    continue;
                }
                Ready::Underway(when) => {
                    let next = self.leave_connection(queue_now);
                    drop(queue);
                    next.into_iter().for_each(worker::schedule);
                    return timer::schedule_at(when, self);
                }
                Ready::At(when) => {
                    drop(queue);
                    return timer::schedule_at(when, self);
                }
                Ready::OnHostThread => {
                    drop(queue);
                    return worker::schedule_on_host_thread(self);
                }
            }
            self.run_front(queue);
        }
        worker::schedule(self);
    }

    /// Lets the front leave the connection, unless it has. Returns a parked stream for the caller
    /// to schedule.
    #[must_use]
    fn leave_connection(&self, queue: &mut Queue) -> Option<&'static Stream> {
        let connection = self.connection()?;
        if std::mem::replace(&mut queue.left, true) { None } else { connection.leave() }
    }

    /// When to look at the front again, if it only waits for time or a word. Called by the timer, which has the stream.
    pub(crate) fn pause(&self) -> Option<Instant> {
        let queue = &mut *self.queue.lock();
        // Of a context that is lost, even the word may be gone.
        if self.context().poisoned().is_some() {
            return None;
        }
        match queue.items.front_mut()?.ready(&mut queue.since) {
            Ready::At(when) | Ready::Underway(when) => Some(when),
            _ => None,
        }
    }

    /// Runs the host function at the front. Called by the thread for that, which has the stream.
    pub(crate) fn run_call(&'static self) {
        let queue = self.queue.lock();
        if self.context().poisoned().is_none() && queue.items.front().is_some_and(Work::is_call) {
            self.run_front(queue);
        }
        worker::schedule(self);
    }

    /// Runs the front, or the next node of a graph there.
    fn run_front(&'static self, mut queue: parking_lot::MutexGuard<'_, Queue>) {
        let node = match queue.items.front_mut() {
            Some(Work::Graph(run)) => run.begin(),
            _ => None,
        };
        match node {
            Some(node) => self.run_node(queue, &node),
            None => self.run_whole(queue),
        }
    }

    fn run_node(&'static self, mut queue: parking_lot::MutexGuard<'_, Queue>, node: &Node) {
        queue.running = node.op.host_ranges();
        drop(queue);
        if let Err(fault) = node.execute() {
            // The node's own context, and that of the stream that can never end its work.
            if !std::ptr::eq(node.context, self.context()) {
                node.context.poison(fault.code, &fault.why);
            }
            self.fault(fault.code, &fault.why);
        }
        let mut queue = self.queue.lock();
        queue.running.clear();
        if let Some(Work::Graph(run)) = queue.items.front_mut() {
            run.end();
        }
        if queue.watchers > 0 {
            self.done.notify_all();
        }
    }

    fn run_whole(&'static self, mut queue: parking_lot::MutexGuard<'_, Queue>) {
        let Some(work) = queue.items.pop_front() else { return };
        let next = self.leave_connection(&mut queue);
        queue.left = false;
        queue.running = work.host_ranges();
        queue.since = None;
        drop(queue);
        next.into_iter().for_each(worker::schedule);
        let context = self.context();
        if let Err(fault) = work.execute(context) {
            self.fault(fault.code, &fault.why);
        }
        let mut queue = self.queue.lock();
        queue.running.clear();
        if context.poisoned().is_none() {
            self.completed.fetch_add(1, Ordering::Release);
        }
        let reached = |(ticket, _): &mut (u64, &'static Stream)| self.reached(*ticket);
        let woken: Vec<_> = queue.waiters.extract_if(.., reached).collect();
        if queue.watchers > 0 {
            self.done.notify_all();
        }
        drop(queue);
        for (_, stream) in woken {
            worker::schedule(stream);
        }
    }

    /// Takes over `waiter`, to schedule it when `ticket` is reached. False, and nothing taken, if it is.
    fn schedule_at(&self, ticket: u64, waiter: &'static Stream) -> bool {
        let mut queue = self.queue.lock();
        let waits = !self.reached(ticket);
        if waits {
            queue.waiters.push((ticket, waiter));
        }
        waits
    }

    /// Waits on the host until a ticket is done or the context is lost.
    pub(crate) fn wait(&self, ticket: u64) -> Outcome {
        if !self.reached(ticket) {
            let mut queue = self.queue.lock();
            while !self.reached(ticket) {
                self.context().report()?;
                queue.watchers += 1;
                self.done.wait(&mut queue);
                queue.watchers -= 1;
            }
        }
        self.context().usable()
    }

    /// Waits on the host for all that was enqueued.
    pub(crate) fn wait_until_done(&self) -> Outcome {
        self.wait(self.tail())
    }

    /// Poisons the context because of this stream's work.
    pub(crate) fn fault(&self, code: Code, why: &str) {
        self.faulted.store(true, Ordering::Release);
        self.context().lose(code, why, !plan::get().fault_seen_by_stream);
    }

    /// Reports the context's fault if it is of this stream's work.
    #[inline]
    pub(crate) fn report_own_fault(&self) -> Outcome {
        if self.faulted.load(Ordering::Acquire) { self.context().report() } else { Ok(()) }
    }

    /// Wakes the hosts that wait, because the context was lost.
    pub(crate) fn wake_all(&self) {
        let _queue = self.queue.lock();
        self.done.notify_all();
    }

    /// Ends the handle; the slot is free once the work is done.
    pub(crate) fn destroy(&'static self) {
        if STREAMS.revoke(self.handle.load(Ordering::Relaxed)).is_none() {
            return;
        }
        capture::forget(self);
        let mut queue = self.queue.lock();
        let idle = !queue.scheduled;
        queue.destroyed = !idle;
        drop(queue);
        if idle {
            self.retire();
        }
    }

    fn retire(&'static self) {
        self.context().remove_stream(self);
        STREAMS.recycle(self.index);
    }

    /// Whether queued or running work touches host memory.
    pub(crate) fn touches(&self, range: HostRange) -> bool {
        let queue = self.queue.lock();
        let mut queued = queue.items.iter().flat_map(Work::host_ranges);
        queue.running.iter().any(|running| running.meets(range)) || queued.any(|queued| queued.meets(range))
    }

    /// Waits until no running work touches host memory. For a poisoned context, where nothing further starts.
    pub(crate) fn wait_until_untouched(&self, range: HostRange) {
        let mut queue = self.queue.lock();
        while queue.running.iter().any(|running| running.meets(range)) {
            queue.watchers += 1;
            self.done.wait(&mut queue);
            queue.watchers -= 1;
        }
    }

    /// Whether work of higher priority than usual is on it.
    pub(crate) fn is_urgent(&self) -> bool {
        self.priority() < 0
    }

    /// `SUCCESS` if all is done, `NOT_READY` otherwise.
    pub(crate) fn query(&self) -> Outcome {
        self.context().usable()?;
        if self.is_idle() { Ok(()) } else { Err(Code::NOT_READY.into()) }
    }

    /// Whether this is the null stream of its context, which cannot be captured.
    pub(crate) fn refuse_if_null(&self) -> Outcome {
        if self.is_null() {
            refuse!(STREAM_CAPTURE_UNSUPPORTED, "the null stream cannot be captured");
        }
        Ok(())
    }
}
