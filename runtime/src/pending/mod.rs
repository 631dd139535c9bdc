//! Work in awaited, as a future.

mod awaited;
mod many;
mod output;
mod refusal;

pub use refusal::Refusal;

use crate::buffer::Buffer;
use crate::shared::panics::Concern;
use crate::shared::{Place, StreamCore};
use awaited::Awaited;
use many::Many;
use output::Output;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use warpline_driver::internal::ErrorParts;
use warpline_driver::timeline::Ticket;
use warpline_driver::{Error, Result, reentry};

/// The result of a call on a stream: work that is already enqueued, and its value once the device has done it.
///
/// Like a `JoinHandle`: the work is on its stream whether or not this is polled. Awaiting
/// **observes**: the host has then seen the op and everything ordered before it, and later ops on
/// any stream count as after them. Observing hands no refusals on: what a stream was refused to
/// write concerns that stream and those that wait for it.
///
/// # Cancel safety
/// Dropping it detaches the work. Nothing is cancelled and nothing blocks; what the device still uses (a pinned buffer in a
/// copy) stays with the runtime until the op is over. In `select!` or under a timeout a `&mut Pending` can be polled again
/// later.
///
/// # What a poll costs its executor
/// On the CPU device a poll of what is about to be done may wait for it, for microseconds where nobody else wants the processor: going
/// to sleep takes longer. On CUDA it does so only with [`WakeUp::LowLatency`](warpline_driver::WakeUp::LowLatency). A task that always
/// finds its work done lets others run now and then, by tokio's [budget](tokio::task::coop). [`query`](Self::query) does neither.
///
/// # Errors
/// A refused call resolves to its error at once. If it is dropped without anybody having seen that
/// error, the error is reported, and returned by a `synchronize()` of the stream, one at a time.
/// The report is a `tracing` event; where no subscriber is set it is a line on standard error, once
/// for each line of the program. Until one of these, ops that read what the call would have written
/// fail with an inherited error ([`Error::is_inherited`]) on its stream and on streams that waited
/// for it. Errors of the arguments (shapes, types, devices), and of calls from where none are taken
/// (`Reentrant`), leave memory as it was for everybody.
///
/// # Panics
/// If polled again after it has resolved.
#[must_use = "the work runs, but its value and its error are lost: await it, take `queued()`, or call `detach()`"]
pub struct Pending<T> {
    state: State<T>,
}

enum State<T> {
    Place(Awaited, Output<T>),
    Many(Many, Output<T>),
    /// Of a capture: it has a value, and nothing to await.
    Captured(Step, Output<T>),
    Failed(Refusal),
    Taken,
}

/// A step of a capture.
#[derive(Clone)]
struct Step {
    core: Arc<StreamCore>,
    /// Why nobody can await it.
    nothing: Error,
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

impl<T> Pending<T> {
    /// Always inline, as is `awaited`: passed through memory, a place costs as much again as an
    /// atomic operation.
    #[inline(always)]
    pub(crate) fn value(core: &Arc<StreamCore>, place: Result<Place>, value: T) -> Self {
        match place {
            Ok(place) => Self::awaited(core, place, Output::Value(value)),
            Err(error) => Self::refused_on(core, error),
        }
    }

    pub(crate) fn later(
        core: &Arc<StreamCore>,
        place: Result<Place>,
        make: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Self {
        match place {
            Ok(place) => Self::awaited(core, place, Output::Later(Box::new(make))),
            Err(error) => Self::refused_on(core, error),
        }
    }

    /// The result of a host function, whose own panic `make` returns.
    pub(crate) fn of_call(
        core: &Arc<StreamCore>,
        place: Result<Place>,
        make: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Self {
        Self::later(core, place, make).with_panics(Concern::Earlier)
    }

    /// Of a place whose `make` says which panics there were.
    pub(crate) fn of_synchronize(
        core: &Arc<StreamCore>,
        place: Place,
        make: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Self {
        Self::later(core, Ok(place), make).with_panics(Concern::OfOthers)
    }

    fn with_panics(mut self, panics: Concern) -> Self {
        if let State::Place(awaited, _) = &mut self.state {
            awaited.panics = panics;
        }
        self
    }

    #[inline(always)]
    fn awaited(core: &Arc<StreamCore>, place: Place, output: Output<T>) -> Self {
        if place.captured {
            return Self::captured(core, place.ticket, output);
        }
        if place.holds {
            core.hold(place.ticket);
        }
        // Made where it stays: it is large.
        Pending {
            state: State::Place(
                Awaited {
                    core: core.clone(),
                    is_of_call: place.holds,
                    place,
                    registration: None,
                    observes: true,
                    panics: Concern::All,
                    epoch: core.device.runtime.panics.epoch(),
                    has_yielded: false,
                },
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
        Pending { state: State::Many(Many::new(parts), Output::Value(value)) }
    }

    /// Has it seen to that its end will be known, for who will poll it later.
    fn ask(&mut self) {
        if let State::Place(awaited, _) = &mut self.state {
            awaited.ask();
        }
    }

    fn into_state(mut self) -> State<T> {
        std::mem::replace(&mut self.state, State::Taken)
    }

    /// The ticket it waits for; `None` if the call was refused or it has resolved.
    pub fn ticket(&self) -> Option<Ticket> {
        match &self.state {
            State::Place(awaited, _) => Some(awaited.place.ticket),
            _ => None,
        }
    }

    /// Whether it would resolve now. A `true` counts as having observed the op.
    ///
    /// # Errors
    /// The error that awaiting would return, if the call was refused or the device has failed;
    /// `Reentrant` in a host function.
    pub fn query(&mut self) -> Result<bool> {
        if reentry::holds_a_device() && matches!(self.state, State::Place(..) | State::Many(..)) {
            return Err(reentry::refused(&"query"));
        }
        match &mut self.state {
            State::Place(awaited, _) => awaited.query(),
            State::Many(many, _) => many.query(),
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
            State::Place(awaited, _) => awaited.observes = false,
            State::Many(many, _) => many.unobserve(),
            State::Captured(..) | State::Failed(_) | State::Taken => {}
        }
        self
    }

    /// Blocks the calling thread until it resolves.
    ///
    /// For programs without an executor. Inside one it would block the executor's thread: await it there.
    ///
    /// # Errors
    /// The error that awaiting returns; `Reentrant` in a host function or a waker, which the work
    /// may be waiting for.
    pub fn blocking_wait(self) -> Result<T> {
        if !reentry::may_block() && matches!(self.state, State::Place(..) | State::Many(..)) {
            return Err(reentry::refused(&"blocking_wait"));
        }
        crate::block_on::block_on(self)
    }
}

impl<T> Pending<T> {
    /// Lets the work run without a result: for work whose outcome a later await shows.
    ///
    /// An error that the call was refused with is reported, as when the `Pending` is dropped.
    pub fn detach(self) {
        drop(self);
    }
}

impl Pending<()> {
    /// The same work with `value` as what comes of it: for ops that return what they wrote.
    pub fn with<T>(self, value: T) -> Pending<T> {
        let state = match self.into_state() {
            State::Place(awaited, output) => State::Place(awaited, output.with(value)),
            State::Many(many, output) => State::Many(many, output.with(value)),
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
            State::Place(_, output) | State::Many(_, output) | State::Captured(_, output) => {
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
            State::Place(_, output) | State::Many(_, output) | State::Captured(_, output) => {
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
                State::Place(awaited, output) => {
                    Pending { state: State::Place(awaited, output.replaced(value)) }
                }
                State::Many(many, output) => Pending { state: State::Many(many, output.replaced(value)) },
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
                State::Place(awaited, _) => {
                    Pending { state: State::Place(awaited.looked_at(), Output::Value(value)) }
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
            State::Place(awaited, _) => Refusal { core: Some(awaited.core.clone()), ..refusal },
            State::Captured(step, _) if !refusal.captured => Refusal::of(&step.core, refusal.error),
            _ => refusal,
        })
    }
}

impl<T> Pending<T> {
    /// Whether the work is over, without what comes of it.
    #[inline]
    fn poll_work(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut self.state {
            State::Place(awaited, _) => awaited.poll(cx),
            State::Many(many, _) => many.poll(cx),
            State::Captured(step, _) => Poll::Ready(Err(step.nothing.clone())),
            State::Failed(refusal) => Poll::Ready(Err(refusal.error.clone())),
            State::Taken => panic!("`Pending` polled after it has resolved"),
        }
    }

    /// What comes of it, once the work is done.
    #[inline]
    fn take(&mut self) -> Result<T> {
        match std::mem::replace(&mut self.state, State::Taken) {
            State::Place(_, output) | State::Many(_, output) | State::Captured(_, output) => output.take(),
            State::Failed(refusal) => Err(refusal.error),
            State::Taken => unreachable!("it was polled before"),
        }
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let Poll::Ready(done) = self.poll_work(cx) else { return Poll::Pending };
        let result = match done {
            Ok(()) => self.take(),
            Err(error) => {
                self.state = State::Taken;
                Err(error)
            }
        };
        if let Err(error) = &result {
            error.mark_seen();
        }
        Poll::Ready(result)
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
            State::Place(awaited, _) => {
                write!(f, "Pending(ticket {} of {:?})", awaited.place.ticket, awaited.core)
            }
            State::Captured(step, _) => write!(f, "Pending({})", step.nothing),
            State::Many(many, _) => write!(f, "Pending({} streams)", many.len()),
            State::Failed(refusal) => write!(f, "Pending(refused: {})", refusal.error),
            State::Taken => f.write_str("Pending(resolved)"),
        }
    }
}
