//! Streams: queues whose work runs in order, one piece after the other.
//!
//! Every piece of work has a ticket. Tickets are counted per slot and never reset, so that a stream
//! and a ticket always name the same moment. An event keeps such a pair.
//!
//! # Rules
//! 1. A stream with work is *scheduled*: exactly one of a run queue, a worker, the timer, the
//!    host-function thread, its connection or another stream's list of waiters has it. Only the
//!    holder looks at the front of the queue.
//! 2. `completed` grows under the queue's lock. A thread that finds a ticket not reached under that
//!    lock may leave a request in the queue, which will be served.
//! 3. No thread locks two queues together, and nothing is executed or dropped under a lock.
//! 4. In a poisoned context nothing starts and nothing completes. Waiting host threads are woken,
//!    waiting streams are not. A stream of a healthy context that waits for a stream of a poisoned
//!    one waits for ever, since the ticket is never reached.
//! 5. A destroyed stream runs its remaining work. Its slot is free once its queue is empty.

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

/// The number of pieces of work that a stream runs before other streams get the worker.
const TURN: usize = 64;

/// A stream, aligned so that the submitters of two streams do not share a cache line.
#[repr(align(128))]
pub(crate) struct Stream {
    /// The index of its slot.
    pub(crate) index: u32,
    context: AtomicU32,
    handle: AtomicU64,
    flags: AtomicU32,
    priority: AtomicI32,
    /// The capture that it is part of; 0 if none.
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
    /// The page-locked memory that the running work touches.
    running: Vec<HostRange>,
    /// True if the front has left the connection.
    left: bool,
    /// The time when the front was first asked if it can start, if it had to wait.
    since: Option<Instant>,
    /// The streams to schedule when a ticket is reached.
    waiters: Vec<(u64, &'static Stream)>,
    /// The number of host threads that wait.
    watchers: u32,
    /// True if the slot is freed after the last work.
    destroyed: bool,
}

static STREAMS: Slab<Stream> = Slab::new(2);
/// The number of calls that have found a stream full.
static WITHOUT_ROOM: AtomicU64 = AtomicU64::new(0);

pub(crate) fn waits_for_room() -> u64 {
    WITHOUT_ROOM.load(Ordering::Relaxed)
}

/// Creates a stream in the current context.
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

/// Returns the stream that a call names, if its context and the current one are usable. Null names
/// the null stream of the current context.
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

/// Returns the stream that a call names, like [`named`], if it belongs to the current context.
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

/// Destroys a stream. Its remaining work still runs.
pub(crate) fn destroy(handle: CUstream) -> Outcome {
    let stream = named(handle)?;
    if handle.0 <= 2 {
        refuse!(INVALID_HANDLE, "the null stream is not destroyed");
    }
    stream.destroy();
    Ok(())
}

/// Returns the streams of all slots, including destroyed ones.
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

    /// Creates a context's null stream, which has no handle of its own.
    pub(crate) fn null(context: &Context) -> &'static Stream {
        Stream::new(context, 0, 0)
    }

    /// Returns its context.
    #[inline]
    pub(crate) fn context(&self) -> &'static Context {
        context::at(self.context.load(Ordering::Relaxed))
    }

    /// Returns the hardware queue that it shares with other streams. None if each stream has its
    /// own.
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

    /// Returns true if the stream synchronizes with the null stream.
    #[inline]
    fn is_blocking(&self) -> bool {
        self.flags() & NON_BLOCKING == 0
    }

    /// Returns true if a ticket has been reached.
    #[inline]
    pub(crate) fn reached(&self, ticket: u64) -> bool {
        self.completed.load(Ordering::Acquire) >= ticket
    }

    /// Returns the newest ticket.
    #[inline]
    pub(crate) fn tail(&self) -> u64 {
        self.submitted.load(Ordering::Acquire)
    }

    /// Returns true if all enqueued work has completed.
    pub(crate) fn is_idle(&self) -> bool {
        self.reached(self.tail())
    }

    /// Returns true if the stream is part of a capture.
    #[inline]
    pub(crate) fn is_capturing(&self) -> bool {
        self.capture.load(Ordering::Relaxed) != 0
    }

    /// Enqueues an operation and returns its ticket. If the stream is capturing, the operation goes
    /// into the graph instead, and there is no ticket.
    #[inline]
    pub(crate) fn submit(&'static self, op: Op) -> Outcome<Option<u64>> {
        if self.is_capturing() {
            let node = Arc::new(Node::new(op, self.context(), self.priority()));
            capture::add(self, node)?;
            return Ok(None);
        }
        self.enqueue(Work::Op(op)).map(Some)
    }

    /// Enqueues work on a stream that is not capturing, once there is room, and returns its ticket.
    #[inline]
    pub(crate) fn enqueue(&'static self, work: Work) -> Outcome<u64> {
        self.make_room()?;
        self.enqueue_at_once(work)
    }

    /// Blocks the calling thread until one more piece of work fits on the stream, if
    /// `SOFTCUDA_DEPTH` is set.
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

    /// Enqueues work like [`enqueue`](Self::enqueue), after the caller has made room.
    #[inline]
    pub(crate) fn enqueue_at_once(&'static self, work: Work) -> Outcome<u64> {
        self.context().report()?;
        if self.is_blocking() {
            self.join_null_stream()?;
        }
        Ok(self.push(work))
    }

    /// Returns the ticket that is reached after all work enqueued so far, for an event.
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

    /// Orders the stream against the null stream: the null stream waits for all blocking streams,
    /// and each of them waits for the null stream.
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

    /// Refuses a call on the null stream while streams that it waits for are capturing, and
    /// invalidates their captures.
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

    /// Runs work that can start, up to `TURN` pieces. Called by the worker that has the stream.
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

    /// Lets the front leave the connection, if it has not left yet. Returns a parked stream for the
    /// caller to schedule.
    #[must_use]
    fn leave_connection(&self, queue: &mut Queue) -> Option<&'static Stream> {
        let connection = self.connection()?;
        if std::mem::replace(&mut queue.left, true) { None } else { connection.leave() }
    }

    /// Returns the time to ask the front again, if it waits only for time or a word. Called by the
    /// timer, which has the stream.
    pub(crate) fn pause(&self) -> Option<Instant> {
        let queue = &mut *self.queue.lock();
        // In a lost context even the memory of the word may be gone.
        if self.context().poisoned().is_some() {
            return None;
        }
        match queue.items.front_mut()?.ready(&mut queue.since) {
            Ready::At(when) | Ready::Underway(when) => Some(when),
            _ => None,
        }
    }

    /// Runs the host function at the front. Called by the host-function thread, which has the
    /// stream.
    pub(crate) fn run_call(&'static self) {
        let queue = self.queue.lock();
        if self.context().poisoned().is_none() && queue.items.front().is_some_and(Work::is_call) {
            self.run_front(queue);
        }
        worker::schedule(self);
    }

    /// Runs the front of the queue. If that is a graph, runs its next node.
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
            // Poisons the node's own context, and that of the stream, which can never finish the
            // graph.
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

    /// Takes over `waiter`, to schedule it when `ticket` is reached. Returns false and takes
    /// nothing if the ticket has been reached.
    fn schedule_at(&self, ticket: u64, waiter: &'static Stream) -> bool {
        let mut queue = self.queue.lock();
        let waits = !self.reached(ticket);
        if waits {
            queue.waiters.push((ticket, waiter));
        }
        waits
    }

    /// Blocks the calling thread until a ticket is reached or the context is lost.
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

    /// Blocks the calling thread until all enqueued work has finished.
    pub(crate) fn wait_until_done(&self) -> Outcome {
        self.wait(self.tail())
    }

    /// Poisons the context because of a fault in this stream's work.
    pub(crate) fn fault(&self, code: Code, why: &str) {
        self.faulted.store(true, Ordering::Release);
        self.context().lose(code, why, !plan::get().fault_seen_by_stream);
    }

    /// Reports the context's fault if this stream's work caused it.
    #[inline]
    pub(crate) fn report_own_fault(&self) -> Outcome {
        if self.faulted.load(Ordering::Acquire) { self.context().report() } else { Ok(()) }
    }

    /// Wakes the host threads that wait, after the context was lost.
    pub(crate) fn wake_all(&self) {
        let _queue = self.queue.lock();
        self.done.notify_all();
    }

    /// Revokes the handle. The slot is freed once the work has finished.
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

    /// Returns true if queued or running work touches a range of host memory.
    pub(crate) fn touches(&self, range: HostRange) -> bool {
        let queue = self.queue.lock();
        let mut queued = queue.items.iter().flat_map(Work::host_ranges);
        queue.running.iter().any(|running| running.meets(range)) || queued.any(|queued| queued.meets(range))
    }

    /// Blocks the calling thread until no running work touches a range of host memory. For a
    /// poisoned context, where no further work starts.
    pub(crate) fn wait_until_untouched(&self, range: HostRange) {
        let mut queue = self.queue.lock();
        while queue.running.iter().any(|running| running.meets(range)) {
            queue.watchers += 1;
            self.done.wait(&mut queue);
            queue.watchers -= 1;
        }
    }

    /// Returns true if the stream has a higher priority than the default.
    pub(crate) fn is_urgent(&self) -> bool {
        self.priority() < 0
    }

    /// Checks that all enqueued work has completed. Fails with `NOT_READY` if it has not.
    pub(crate) fn query(&self) -> Outcome {
        self.context().usable()?;
        if self.is_idle() { Ok(()) } else { Err(Code::NOT_READY.into()) }
    }

    /// Refuses a context's null stream, which cannot be captured.
    pub(crate) fn refuse_if_null(&self) -> Outcome {
        if self.is_null() {
            refuse!(STREAM_CAPTURE_UNSUPPORTED, "the null stream cannot be captured");
        }
        Ok(())
    }
}
