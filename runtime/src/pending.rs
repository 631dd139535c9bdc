//! Work in flight, as a future.

use crate::driver::Linger;
use crate::error::{Error, Result};
use crate::hope::Hope;
use crate::memory::Buffer;
use crate::stream::{Place, Stream, StreamCore};
use crate::timeline::{Registration, Ticket};
use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::task::coop;

/// The result of a call on a stream: work that is already enqueued, and its value once the device has done it.
///
/// Like a `JoinHandle`: the work is on its stream whether or not this is polled. Awaiting **observes**: the host has then
/// seen the op and everything ordered before it, and later ops on any stream count as after them.
///
/// # Cancel safety
/// Dropping it detaches the work. Nothing is cancelled and nothing blocks; what the device still uses (a pinned buffer in a
/// copy) stays with the runtime until the op is over. In `select!` or under a timeout a `&mut Pending` can be polled again
/// later.
///
/// # What a poll costs its executor
/// On the CPU device a poll of what is about to be done may wait for it, for microseconds where nobody else wants the processor: going
/// to sleep takes longer. On CUDA it does so only with [`WakeUp::LowLatency`](crate::driver::WakeUp::LowLatency). A task that always
/// finds its work done lets others run now and then, by tokio's [budget](tokio::task::coop). [`query`](Self::query) does neither.
///
/// # Errors
/// A refused call resolves to its error at once. If it is dropped without anybody having seen that error, the error is
/// logged, and the first such is returned by the stream's next `synchronize()`.
///
/// # Panics
/// If polled again after it has resolved.
pub struct Pending<T> {
    state: State<T>,
}

enum State<T> {
    Flight(Flight, Output<T>),
    /// Several streams at once: resolved when all are, to the first error if there is one.
    Many(Vec<Pending<()>>, Option<Error>, Output<T>),
    /// Of a capture: it has a value, and nothing to await.
    Captured(Step, Output<T>),
    Failed(Refusal),
    Taken,
}

/// What is waited for.
struct Flight {
    core: Arc<StreamCore>,
    place: Place,
    registration: Option<Registration>,
    /// Whether seeing it done counts as observing.
    observes: bool,
    /// Whether it was done and let other tasks run first.
    has_yielded: bool,
}

/// A step of a capture.
#[derive(Clone)]
struct Step {
    core: Arc<StreamCore>,
    /// Why nobody can await it.
    nothing: Error,
}

enum Output<T> {
    /// Known when the op was enqueued.
    Value(T),
    /// Known when the op was enqueued, but there is something to look at when it is done.
    Checked(T, Box<dyn FnOnce() -> Result<()> + Send>),
    /// Made when the op is done.
    Later(Box<dyn FnOnce() -> Result<T> + Send>),
}

// Nothing in it is pinned.
impl<T> Unpin for Pending<T> {}

/// Values that are meaningful before the device has produced their contents: device memory, what is made of it, and nothing
/// at all.
///
/// What implements it is a handle: cloning it copies no contents.
pub trait DeviceValue: Clone + 'static {
    /// The value where it says nothing about the work.
    #[doc(hidden)]
    fn at_once() -> Option<&'static Self> {
        None
    }
}

impl DeviceValue for () {
    fn at_once() -> Option<&'static ()> {
        Some(&())
    }
}
impl<T: crate::Element> DeviceValue for Buffer<T> {}
/// What one op made, both parts.
impl<A: DeviceValue, B: DeviceValue> DeviceValue for (A, B) {}

/// A refusal on its way from one `Pending` to that of an op which would have used its value.
///
/// The error follows the data: whoever passes it on has not looked at it, so it does not count as seen until the last
/// `Pending` is awaited, and one that is dropped says so on the stream that refused first.
#[derive(Debug)]
#[must_use = "an error that nobody passes on is lost"]
pub struct Refusal {
    error: Error,
    core: Option<Arc<StreamCore>>,
    /// Whether a capture sees to it that somebody is told.
    captured: bool,
}

impl Refusal {
    /// The refusal of a call that would have gone on `stream`.
    pub fn on(stream: &Stream, error: Error) -> Self {
        Refusal::of(stream.core(), error)
    }

    fn of(core: &Arc<StreamCore>, error: Error) -> Self {
        let captured = core.note_refusal(&error);
        Refusal { error, core: Some(core.clone()), captured }
    }

    /// The same refusal, which `stream` tells of if no other stream does.
    pub fn or_on(self, stream: &Stream) -> Self {
        if self.core.is_some() { self } else { Refusal::of(stream.core(), self.error) }
    }

    /// Why.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// A `Pending` that fails with it.
    pub fn pass_on<T>(self) -> Pending<T> {
        Pending { state: State::Failed(self) }
    }
}

/// Of a call that was refused before it reached a stream.
impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Refusal { error, core: None, captured: false }
    }
}

impl<T> Pending<T> {
    /// Always inline, as is `flight`: passed through memory, a place costs as much again as an atomic operation.
    #[inline(always)]
    pub(crate) fn value(core: &Arc<StreamCore>, place: Result<Place>, value: T) -> Self {
        match place {
            Ok(place) => Self::flight(core, place, Output::Value(value)),
            Err(error) => Self::refused_on(core, error),
        }
    }

    pub(crate) fn later(
        core: &Arc<StreamCore>,
        place: Result<Place>,
        make: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Self {
        match place {
            Ok(place) => Self::flight(core, place, Output::Later(Box::new(make))),
            Err(error) => Self::refused_on(core, error),
        }
    }

    #[inline(always)]
    fn flight(core: &Arc<StreamCore>, place: Place, output: Output<T>) -> Self {
        if place.captured {
            return Self::captured(core, place.ticket, output);
        }
        if place.exact {
            core.hold(place.ticket);
        }
        // Made where it stays: it is large.
        Pending {
            state: State::Flight(
                Flight { core: core.clone(), place, registration: None, observes: true, has_yielded: false },
                output,
            ),
        }
    }

    #[cold]
    #[inline(never)]
    fn captured(core: &Arc<StreamCore>, number: Ticket, output: Output<T>) -> Self {
        let step = Step { core: core.clone(), nothing: core.nothing_to_await(number) };
        Pending { state: State::Captured(step, output) }
    }

    pub(crate) fn refused_on(core: &Arc<StreamCore>, error: Error) -> Self {
        Refusal::of(core, error).pass_on()
    }

    /// A call that was refused before it reached a stream, for functions that return a `Pending` of their own.
    pub fn refused(error: Error) -> Self {
        Refusal::from(error).pass_on()
    }

    /// What needed no work, for functions that return a `Pending` of their own.
    pub fn ready(value: T) -> Self {
        Self::many(Vec::new(), value)
    }

    pub(crate) fn many(parts: Vec<Pending<()>>, value: T) -> Self {
        Pending { state: State::Many(parts, None, Output::Value(value)) }
    }

    fn into_state(mut self) -> State<T> {
        std::mem::replace(&mut self.state, State::Taken)
    }

    /// The ticket it waits for; `None` if the call was refused or it has resolved.
    pub fn ticket(&self) -> Option<Ticket> {
        match &self.state {
            State::Flight(flight, _) => Some(flight.place.ticket),
            _ => None,
        }
    }

    /// Whether it would resolve now. A `true` counts as having observed the op.
    ///
    /// # Errors
    /// What awaiting would return, if the call was refused or the device has failed.
    pub fn query(&mut self) -> Result<bool> {
        match &mut self.state {
            State::Flight(flight, _) => flight.query(),
            State::Many(parts, ..) => {
                // All of them, since each asks for the marker it needs.
                let mut done = true;
                for part in parts {
                    done &= part.query()?;
                }
                Ok(done)
            }
            State::Captured(step, _) => Err(step.nothing.clone()),
            State::Failed(refusal) => {
                refusal.error.mark_seen();
                Err(refusal.error.clone())
            }
            State::Taken => Ok(true),
        }
    }

    /// The same, but that seeing it done does not count as observing: for code that recycles buffers behind a program's back. When
    /// it happens to look must not decide which of the program's ops pass the order check.
    pub fn unobserved(mut self) -> Self {
        match &mut self.state {
            State::Flight(flight, _) => flight.observes = false,
            State::Many(parts, ..) => {
                *parts = std::mem::take(parts).into_iter().map(Pending::unobserved).collect();
            }
            State::Captured(..) | State::Failed(_) | State::Taken => {}
        }
        self
    }

    /// Blocks the calling thread until it resolves.
    ///
    /// For programs without an executor. Inside one it would block the executor's thread: await it there.
    ///
    /// # Errors
    /// What awaiting returns.
    pub fn wait(self) -> Result<T> {
        crate::block_on::block_on(self)
    }
}

impl Pending<()> {
    /// The same work with `value` as what comes of it: for ops that return what they wrote.
    pub fn with<T>(self, value: T) -> Pending<T> {
        let state = match self.into_state() {
            State::Flight(flight, output) => State::Flight(flight, output.with(value)),
            State::Many(parts, first, output) => State::Many(parts, first, output.with(value)),
            State::Captured(step, output) => State::Captured(step, output.with(value)),
            State::Failed(refusal) => State::Failed(refusal),
            State::Taken => State::Taken,
        };
        Pending { state }
    }
}

impl<T: DeviceValue> Pending<T> {
    /// The value without waiting for its contents, to enqueue more work on.
    ///
    /// # Errors
    /// The refusal, if the call was refused. What the device does later shows up in what is awaited later.
    pub fn queued(self) -> Result<T> {
        match self.into_state() {
            State::Flight(_, output) | State::Many(_, _, output) | State::Captured(_, output) => {
                output.known().or_else(|make| make())
            }
            State::Failed(refusal) => {
                refusal.error.mark_seen();
                Err(refusal.error)
            }
            State::Taken => panic!("`Pending` used after it has resolved"),
        }
    }

    /// The value as an operand of another op, which uses this `Pending` up; a refusal goes on to that op's.
    ///
    /// # Errors
    /// The refusal, if the call was refused.
    ///
    /// # Panics
    /// If it was polled before and has resolved.
    pub fn into_operand(self) -> Result<T, Refusal> {
        match self.into_state() {
            State::Failed(refusal) => Err(refusal),
            state => Pending { state }.queued().map_err(Refusal::from),
        }
    }

    /// The value as an operand of another op, while this `Pending` is kept; a refusal fails both.
    ///
    /// # Errors
    /// As [`into_operand`](Self::into_operand).
    ///
    /// # Panics
    /// As [`into_operand`](Self::into_operand).
    pub fn as_operand(&self) -> Result<&T, Refusal> {
        match &self.state {
            State::Flight(_, output) | State::Many(_, _, output) | State::Captured(_, output) => {
                Ok(output.look())
            }
            State::Failed(refusal) => Err(refusal.again()),
            State::Taken => panic!("`Pending` used after it has resolved"),
        }
    }

    /// The same work with what `view` makes of its value: another way to look at the same memory.
    ///
    /// # Errors
    /// In the `Pending`: the refusal of the call, or what `view` returns, which the stream of the work then tells of.
    ///
    /// # Panics
    /// As [`into_operand`](Self::into_operand).
    pub fn view<U: DeviceValue>(self, view: impl FnOnce(&T) -> Result<U, Refusal>) -> Pending<U> {
        match self.looked_at_by(view) {
            Ok(value) => match self.into_state() {
                State::Flight(flight, output) => {
                    Pending { state: State::Flight(flight, output.replaced(value)) }
                }
                State::Many(parts, first, output) => {
                    Pending { state: State::Many(parts, first, output.replaced(value)) }
                }
                State::Captured(step, output) => {
                    Pending { state: State::Captured(step, output.replaced(value)) }
                }
                _ => unreachable!("it has a value"),
            },
            Err(refusal) => {
                // It has been handed over.
                drop(self.into_state());
                refusal.pass_on()
            }
        }
    }

    /// As [`view`](Self::view), while this `Pending` is kept.
    ///
    /// # Errors
    /// As [`view`](Self::view).
    ///
    /// # Panics
    /// As [`into_operand`](Self::into_operand).
    pub fn view_of<U: DeviceValue>(&self, view: impl FnOnce(&T) -> Result<U, Refusal>) -> Pending<U> {
        match self.looked_at_by(view) {
            Ok(value) => match &self.state {
                State::Flight(flight, _) => {
                    Pending { state: State::Flight(flight.looked_at(), Output::Value(value)) }
                }
                State::Captured(step, _) => {
                    Pending { state: State::Captured(step.clone(), Output::Value(value)) }
                }
                // Of several streams: device values come of one.
                _ => Pending::ready(value),
            },
            Err(refusal) => refusal.pass_on(),
        }
    }

    fn looked_at_by<U>(&self, view: impl FnOnce(&T) -> Result<U, Refusal>) -> Result<U, Refusal> {
        view(self.as_operand()?).map_err(|refusal| match &self.state {
            State::Flight(flight, _) => Refusal { core: Some(flight.core.clone()), ..refusal },
            State::Captured(step, _) if !refusal.captured => Refusal::of(&step.core, refusal.error),
            _ => refusal,
        })
    }
}

impl Refusal {
    /// The same refusal, which both would report.
    fn again(&self) -> Self {
        Refusal { error: self.error.clone(), core: self.core.clone(), captured: self.captured }
    }
}

/// What an output that is not known yet is made by.
type Make<T> = Box<dyn FnOnce() -> Result<T> + Send>;

impl<T> Output<T> {
    /// Once the work is done.
    fn take(self) -> Result<T> {
        match self {
            Output::Value(value) => Ok(value),
            Output::Checked(value, check) => check().map(|()| value),
            Output::Later(make) => make(),
        }
    }

    /// The same with another value.
    fn replaced<U>(self, value: U) -> Output<U> {
        match self {
            Output::Checked(_, check) => Output::Checked(value, check),
            Output::Value(_) | Output::Later(_) => Output::Value(value),
        }
    }
}

impl<T: DeviceValue> Output<T> {
    /// Before the work is done. Where it is `()`, what `make` looks at is there when the work is done, not now.
    fn known(self) -> Result<T, Make<T>> {
        match self {
            Output::Value(value) | Output::Checked(value, _) => Ok(value),
            Output::Later(make) => T::at_once().cloned().ok_or(make),
        }
    }

    fn look(&self) -> &T {
        match self {
            Output::Value(value) | Output::Checked(value, _) => value,
            Output::Later(_) => T::at_once().expect("a value that is made later says nothing about the work"),
        }
    }
}

impl Output<()> {
    fn with<T>(self, value: T) -> Output<T> {
        match self {
            Output::Value(()) => Output::Value(value),
            Output::Checked((), check) | Output::Later(check) => Output::Checked(value, check),
        }
    }
}

impl Flight {
    /// Done, failed, or `false`.
    #[inline]
    fn look(&self) -> Result<bool> {
        if self.core.timeline.settle(self.place.ticket) {
            self.observe();
            return Ok(true);
        }
        if crate::process::is_forked() {
            return Err(crate::process::forked());
        }
        match self.core.device.health.fault().or_else(|| self.core.timeline.fault()) {
            Some(fault) => self.look_at_fault(fault),
            None => Ok(false),
        }
    }

    #[cold]
    fn look_at_fault(&self, fault: &Error) -> Result<bool> {
        // It may have been reached just before the device failed.
        if self.core.timeline.settle(self.place.ticket) {
            self.observe();
            return Ok(true);
        }
        Err(fault.clone())
    }

    #[inline]
    fn observe(&self) {
        if self.observes {
            self.core.observe(&self.place);
        }
    }

    /// The same place for a view. It is held by the `Pending` that is looked at: what becomes of the view must not take its
    /// marker, or that of a newer one, away.
    fn looked_at(&self) -> Self {
        let place = Place { exact: false, ..self.place.clone() };
        let core = self.core.clone();
        Flight { core, place, registration: None, observes: self.observes, has_yielded: false }
    }

    /// Whether nothing is ahead of it, so that it runs now or soon.
    #[inline]
    fn is_next(&self) -> bool {
        self.core.timeline.newest() + 1 >= self.place.ticket
    }

    /// Looks again, since the device may have been through before the marker was asked for, and for as long as the driver says that it is
    /// worth: always where the runtime was told so, else for what comes next, as long as that mostly succeeds.
    fn look_a_while(&self) -> Result<bool> {
        let device = &*self.core.device;
        if device.signalled {
            return Ok(match device.driver.lingers() {
                _ if self.look()? => true,
                Linger::Spin(limit) => self.linger(limit, std::hint::spin_loop)?.0,
                Linger::No | Linger::LetRun(_) => false,
            });
        }
        if !self.is_next() {
            return Ok(false);
        }
        match device.driver.lingers() {
            Linger::No => Ok(false),
            Linger::Spin(limit) => self.linger_in(&self.core.spins, limit, std::hint::spin_loop),
            Linger::LetRun(limit) => self.linger_in(&device.lets_run, limit, std::thread::yield_now),
        }
    }

    fn linger_in<const ATTEMPTS: i16, const PAUSE: i16>(
        &self,
        hope: &Hope<ATTEMPTS, PAUSE>,
        limit: Duration,
        pause: fn(),
    ) -> Result<bool> {
        if !hope.tries() {
            return Ok(false);
        }
        self.core.timeline.await_awake(self.place.ticket);
        let (done, took) = self.linger(limit, pause)?;
        hope.learn(match done {
            // Somebody else had the processor.
            _ if took > limit * 4 => -3,
            true => 1,
            false => -1,
        });
        Ok(done)
    }

    /// Pauses until it is done or `limit` is over; how long that took.
    fn linger(&self, limit: Duration, pause: fn()) -> Result<(bool, Duration)> {
        let since = Instant::now();
        loop {
            pause();
            let took = since.elapsed();
            let done = self.look()?;
            if done || took >= limit {
                return Ok((done, took));
            }
        }
    }

    fn query(&mut self) -> Result<bool> {
        if self.look()? {
            return Ok(true);
        }
        self.core.want_marker(self.place.ticket);
        if self.core.device.signalled {
            // Nobody may be waiting, so that nobody else looks.
            self.core.timeline.ask();
            return self.look();
        }
        if self.core.device.runs_in_turns {
            self.core.device.driver.turn();
            return self.look();
        }
        Ok(false)
    }

    #[inline]
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if self.look()? {
            return self.done(cx);
        }
        self.core.want_marker(self.place.ticket);
        if self.look_a_while()? {
            return self.done(cx);
        }
        let registered = self.core.timeline.register(self.place.ticket, cx.waker(), &mut self.registration);
        // A turn comes after registering: who finds nothing to run is woken when there is something.
        let ran = self.core.device.runs_in_turns && registered.is_pending() && self.core.device.driver.turn();
        // Done, or the device failed while we registered: either way, look again.
        if self.look()? {
            return self.done(cx);
        }
        if ran {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Ready, but that other tasks run first where tokio's budget says so. Taking of that costs as much as all else of a poll, so it
    /// is done for one in a few.
    #[inline]
    fn done(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        const FEW: u8 = 8;
        thread_local!(static DONE: Cell<u8> = const { Cell::new(0) });
        let done = DONE.replace(DONE.get().wrapping_add(1));
        if done.is_multiple_of(FEW) && self.yields(cx) {
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    /// Whether other tasks shall run first. Once only, and by a wake-up that comes at once: who blocks inside a task polls again
    /// without a new budget.
    #[cold]
    fn yields(&mut self, cx: &mut Context<'_>) -> bool {
        if coop::has_budget_remaining() {
            let _ = pin!(coop::consume_budget()).poll(cx);
            return false;
        }
        if !self.has_yielded {
            cx.waker().wake_by_ref();
        }
        !std::mem::replace(&mut self.has_yielded, true)
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let done = match &mut self.state {
            State::Flight(flight, _) => match flight.poll(cx) {
                Poll::Ready(done) => done,
                Poll::Pending => return Poll::Pending,
            },
            State::Many(parts, first, _) => {
                parts.retain_mut(|part| match Pin::new(part).poll(cx) {
                    Poll::Pending => true,
                    Poll::Ready(Ok(())) => false,
                    Poll::Ready(Err(error)) => {
                        first.get_or_insert(error);
                        false
                    }
                });
                if !parts.is_empty() {
                    return Poll::Pending;
                }
                first.take().map_or(Ok(()), Err)
            }
            State::Captured(step, _) => Err(step.nothing.clone()),
            State::Failed(refusal) => Err(refusal.error.clone()),
            State::Taken => panic!("`Pending` polled after it has resolved"),
        };
        let result = match std::mem::replace(&mut self.state, State::Taken) {
            State::Flight(_, output) | State::Many(_, _, output) | State::Captured(_, output) => {
                done.and_then(|()| output.take())
            }
            State::Failed(refusal) => Err(refusal.error),
            State::Taken => unreachable!("looked at above"),
        };
        if let Err(error) = &result {
            error.mark_seen();
        }
        Poll::Ready(result)
    }
}

impl Drop for Flight {
    #[inline]
    fn drop(&mut self) {
        if self.registration.is_some() {
            self.core.timeline.deregister(&mut self.registration);
        }
        if self.place.exact {
            self.core.let_go(self.place.ticket);
        }
    }
}

impl<T> Drop for Pending<T> {
    #[inline]
    fn drop(&mut self) {
        if let State::Failed(Refusal { error, core: Some(core), captured: false }) = &self.state
            && !error.is_seen()
        {
            core.note_unseen(error);
        }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            State::Flight(flight, _) => {
                write!(f, "Pending(ticket {} of {:?})", flight.place.ticket, flight.core)
            }
            State::Captured(step, _) => write!(f, "Pending({})", step.nothing),
            State::Many(parts, ..) => write!(f, "Pending({} streams)", parts.len()),
            State::Failed(refusal) => write!(f, "Pending(refused: {})", refusal.error),
            State::Taken => f.write_str("Pending(resolved)"),
        }
    }
}
