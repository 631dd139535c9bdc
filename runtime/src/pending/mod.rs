//! The future that each call on a stream returns.

pub mod arithmetic;
mod awaited;
mod blocking;
mod many;
mod map;
mod output;
mod refusal;

pub use refusal::Refusal;

use crate::buffer::Buffer;
use crate::shared::panics::Concern;
use crate::shared::{Place, StreamCore};
use awaited::Awaited;
use many::Many;
use output::{Output, one_step};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use warpline_driver::internal::ErrorParts;
use warpline_driver::timeline::Ticket;
use warpline_driver::{Error, ErrorKind, Result, reentry};

/// The result of a call on a stream: work that is already enqueued, and its value once the device
/// has done it.
///
/// Like a `JoinHandle`, it need not be polled for the work to run. Awaiting **observes**: the host
/// has then seen the op and everything ordered before it, and later ops on any stream count as
/// after them. Observing does not spread refusals to other streams: a refused write affects its own
/// stream and the streams that wait for that stream.
///
/// # Cancel safety
/// Dropping it detaches the work. Nothing is cancelled and nothing blocks. Memory that the device
/// still uses, such as a pinned buffer in a copy, stays with the runtime until the op has finished.
/// In `select!` or under a timeout a `&mut Pending` can be polled again later.
///
/// # What a poll costs its executor
/// On the CPU device a poll may wait for work that is about to finish. It does so for microseconds,
/// because going to sleep takes longer, and only while no other thread needs the processor. On CUDA
/// a poll waits only with [`WakeUp::LowLatency`](warpline_driver::WakeUp::LowLatency). A task that
/// always finds its work done yields to other tasks now and then, by tokio's
/// [budget](tokio::task::coop). [`query`](Self::query) neither waits nor yields.
///
/// # Errors
/// A refused call resolves to its error immediately. If the `Pending` is dropped before the error
/// is seen, the error is reported, and a later `synchronize()` of the stream returns it, one error
/// per call. A stream keeps [the first 64](crate::Stream::synchronize) of these errors. The report
/// is a `tracing` event for the first of them. Without a subscriber it is a line on standard error,
/// once per source line.
///
/// Until the error is awaited or returned by a `synchronize()`, ops that read the memory which the
/// call would have written fail with an inherited error ([`Error::is_inherited`]). This holds on
/// its stream and on streams that waited for it. Errors of the arguments (shapes, types, devices)
/// and `Reentrant` errors have no such effect.
///
/// # Panics
/// If polled again after it has resolved.
#[must_use = "the work runs, but its value and its error are lost: await it, or call `queued()` or \
    `detach()`"]
pub struct Pending<T> {
    work: Work,
    /// The value that the work makes. `None` if the call was refused, and once the value is taken.
    output: Option<Output<T>>,
}

enum Work {
    Place(Awaited),
    Many(Many),
    /// A call in a capture: it has a value, and nothing to await.
    Captured(Step),
    /// The work is done, and its value is made in steps.
    Done,
    Failed(Refusal),
    Taken,
}

/// A step of a capture.
#[derive(Clone)]
struct Step {
    core: Arc<StreamCore>,
    /// The error that awaiting it returns.
    nothing: Error,
}

// Nothing in it is pinned.
impl<T> Unpin for Pending<T> {}

/// A value that is usable before the device has produced its contents: device memory, a value made
/// of it, or `()`.
///
/// Implementors are handles: cloning one copies no contents.
pub trait DeviceValue: Clone + 'static {
    /// Returns the value, if it does not depend on the work.
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
/// Both parts of the value of one op.
impl<A: DeviceValue, B: DeviceValue> DeviceValue for (A, B) {}

impl<T> Pending<T> {
    /// Always inline, as is `awaited`: passing a place through memory costs as much as an atomic
    /// operation.
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
        let made = |place| Self::awaited(core, place, Output::Later(one_step(make)));
        place.map_or_else(|error| Self::refused_on(core, error), made)
    }

    /// Returns a `Pending` of a value that is read from what the op wrote. Each step returns `None`
    /// if there are more.
    pub(crate) fn in_steps(
        core: &Arc<StreamCore>,
        place: Result<Place>,
        step: impl FnMut() -> Option<Result<T>> + Send + 'static,
    ) -> Self {
        let read = |place| Self::awaited(core, place, Output::Read(Box::new(step)));
        place.map_or_else(|error| Self::refused_on(core, error), read)
    }

    /// Returns the `Pending` of a host function. `make` returns the function's own panic.
    pub(crate) fn of_call(
        core: &Arc<StreamCore>,
        place: Result<Place>,
        make: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Self {
        Self::later(core, place, make).with_panics(Concern::Earlier)
    }

    /// Returns the `Pending` of a `synchronize`. `make` returns the panics that concern it.
    pub(crate) fn of_synchronize(
        core: &Arc<StreamCore>,
        place: Place,
        make: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Self {
        Self::later(core, Ok(place), make).with_panics(Concern::OfOthers)
    }

    fn with_panics(mut self, panics: Concern) -> Self {
        if let Work::Place(awaited) = &mut self.work {
            awaited.panics = panics;
        }
        self
    }

    #[inline(always)]
    fn awaited(core: &Arc<StreamCore>, place: Place, output: Output<T>) -> Self {
        if place.captured {
            return Self::captured(core, place.ticket, output);
        }
        // Built in place: it is large.
        Pending {
            work: Work::Place(Awaited {
                core: core.clone(),
                is_of_call: place.keeps_marker_due,
                place,
                registration: None,
                observes: true,
                panics: Concern::All,
                epoch: core.device.runtime.panics.epoch(),
                has_yielded: false,
            }),
            output: Some(output),
        }
    }

    #[cold]
    #[inline(never)]
    fn captured(core: &Arc<StreamCore>, number: Ticket, output: Output<T>) -> Self {
        let step = Step { core: core.clone(), nothing: core.nothing_to_await(number) };
        Pending { work: Work::Captured(step), output: Some(output) }
    }

    pub(crate) fn refused_on(core: &Arc<StreamCore>, error: Error) -> Self {
        Refusal::of(core, error).pass_on()
    }

    /// Returns a `Pending` of a call that was refused before it reached a stream, for functions
    /// that return a `Pending` of their own.
    pub fn refused(error: Error) -> Self {
        Refusal::from(error).pass_on()
    }

    /// Returns a `Pending` that is ready without any work, for functions that return a `Pending` of
    /// their own.
    pub fn ready(value: T) -> Self {
        Self::many(Vec::new(), value)
    }

    pub(crate) fn many(parts: Vec<Pending<()>>, value: T) -> Self {
        Pending { work: Work::Many(Many::new(parts)), output: Some(Output::Value(value)) }
    }

    /// Returns a `Pending` of all `parts`, with a check to run once they are done.
    pub(crate) fn many_checked(
        parts: Vec<Pending<()>>,
        value: T,
        check: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Self {
        let output = Output::Checked(value, one_step(check));
        Pending { work: Work::Many(Many::new(parts)), output: Some(output) }
    }

    /// Arranges for completion to be reported, for a later poll.
    fn ask(&mut self) {
        if let Work::Place(awaited) = &mut self.work {
            awaited.ask();
        }
    }

    fn into_parts(mut self) -> (Work, Option<Output<T>>) {
        (std::mem::replace(&mut self.work, Work::Taken), self.output.take())
    }

    /// Returns the ticket it waits for. Returns `None` if the call was refused or captured, if the
    /// `Pending` has resolved, or if it does not wait for exactly one stream.
    pub fn ticket(&self) -> Option<Ticket> {
        match &self.work {
            Work::Place(awaited) => Some(awaited.place.ticket),
            _ => None,
        }
    }

    /// Returns true if the work is done, so that awaiting would return immediately, or after a poll
    /// for each MiB that a read has to copy. A `true` counts as having observed the op.
    ///
    /// # Errors
    /// The error that awaiting would return, if the call was refused or captured or the device has
    /// failed; `Reentrant` in a host function.
    pub fn query(&mut self) -> Result<bool> {
        if reentry::holds_a_device() && self.is_waiting() {
            return Err(reentry::refused(&"query"));
        }
        let queried = match &mut self.work {
            Work::Place(awaited) => awaited.query(),
            Work::Many(many) => many.query(),
            Work::Captured(step) => Err(step.nothing.clone()),
            Work::Failed(refusal) => Err(refusal.error.clone()),
            Work::Done | Work::Taken => Ok(true),
        };
        if let Err(error) = &queried {
            error.set_seen();
        }
        queried
    }

    /// Returns the same `Pending`, except that awaiting or querying it does not count as observing.
    ///
    /// This is for code that recycles buffers in the background. The times at which it polls must
    /// not decide which of the program's ops pass the order check.
    pub fn unobserved(mut self) -> Self {
        match &mut self.work {
            Work::Place(awaited) => awaited.observes = false,
            Work::Many(many) => many.unobserve(),
            _ => {}
        }
        self
    }

    /// Returns true if it waits for streams.
    fn is_waiting(&self) -> bool {
        matches!(self.work, Work::Place(_) | Work::Many(_))
    }

    /// Detaches the work and drops its result, for work whose outcome a later await shows.
    ///
    /// If the call was refused, its error is reported, as when the `Pending` is dropped.
    ///
    /// # Examples
    /// The compiler warns about a `Pending` that is not used. `detach` states that the outcome is
    /// not needed here.
    /// ```
    /// #![deny(unused_must_use)]
    /// # use warpline::{Buffer, Stream};
    /// fn clear(stream: &Stream, x: &Buffer<f32>) {
    ///     stream.fill(x, 0.0).detach();
    /// }
    /// ```
    /// ```compile_fail
    /// #![deny(unused_must_use)]
    /// # use warpline::{Buffer, Stream};
    /// fn clear(stream: &Stream, x: &Buffer<f32>) {
    ///     stream.fill(x, 0.0);
    /// }
    /// ```
    pub fn detach(self) {
        drop(self);
    }
}

impl<T: DeviceValue> Pending<T> {
    /// Returns the value without waiting for its contents, for use in further calls.
    ///
    /// # Errors
    /// The refusal, if the call was refused. Later failures on the device are returned by later
    /// awaits. `InvalidArgument` if the value is made when the work has finished, as by
    /// [`map`](Self::map).
    pub fn queued(self) -> Result<T> {
        match self.into_parts() {
            (Work::Failed(refusal), _) => {
                refusal.error.set_seen();
                Err(refusal.error)
            }
            (_, Some(output)) => output.known().ok_or_else(not_known_yet),
            (_, None) => panic!("`Pending` used after it has resolved"),
        }
    }

    /// Returns the value as an operand of another op and consumes this `Pending`. A refusal passes
    /// to that op's `Pending`. For authors of ops; unstable, like `warpline::backend`.
    ///
    /// # Errors
    /// The refusal, if the call was refused.
    ///
    /// # Panics
    /// If it was polled before and has resolved.
    pub fn into_operand(self) -> Result<T, Refusal> {
        match self.into_parts() {
            (Work::Failed(refusal), _) => Err(refusal),
            (work, output) => Pending { work, output }.queued().map_err(Refusal::from),
        }
    }

    /// Returns the value as an operand of another op and keeps this `Pending`. If the call was
    /// refused, this `Pending` and the other op's both return its error.
    /// For authors of ops; unstable, like `warpline::backend`.
    ///
    /// # Errors
    /// The errors of [`into_operand`](Self::into_operand).
    ///
    /// # Panics
    /// The panics of [`into_operand`](Self::into_operand).
    pub fn as_operand(&self) -> Result<&T, Refusal> {
        match (&self.work, &self.output) {
            (Work::Failed(refusal), _) => Err(refusal.again()),
            (_, Some(output)) => output.look().ok_or_else(|| not_known_yet().into()),
            (_, None) => panic!("`Pending` used after it has resolved"),
        }
    }

    /// Returns a `Pending` of the same work that yields `view` of its value: another view of the
    /// same memory. For authors of ops; unstable, like `warpline::backend`.
    ///
    /// # Errors
    /// In the `Pending`: the refusal of the call, or the error of `view`. If that error is dropped
    /// unseen, the stream of the work reports it.
    ///
    /// # Panics
    /// The panics of [`into_operand`](Self::into_operand).
    pub fn view<U: DeviceValue>(self, view: impl FnOnce(&T) -> Result<U, Refusal>) -> Pending<U> {
        match self.looked_at_by(view) {
            Ok(value) => match self.into_parts() {
                (Work::Done, _) => Pending::ready(value),
                (work, output) => Pending { work, output: output.map(|output| output.replaced(value)) },
            },
            Err(refusal) => {
                // `refusal` now carries its error.
                drop(self.into_parts());
                refusal.pass_on()
            }
        }
    }

    /// Like [`view`](Self::view), but keeps this `Pending`.
    /// For authors of ops; unstable, like `warpline::backend`.
    ///
    /// # Errors
    /// The errors of [`view`](Self::view).
    ///
    /// # Panics
    /// The panics of [`into_operand`](Self::into_operand).
    pub fn view_of<U: DeviceValue>(&self, view: impl FnOnce(&T) -> Result<U, Refusal>) -> Pending<U> {
        match self.looked_at_by(view) {
            Ok(value) => {
                let work = match &self.work {
                    Work::Place(awaited) => Work::Place(awaited.looked_at()),
                    Work::Many(many) => Work::Many(many.looked_at()),
                    Work::Captured(step) => Work::Captured(step.clone()),
                    Work::Done => return Pending::ready(value),
                    Work::Failed(_) | Work::Taken => unreachable!("it has a value"),
                };
                Pending { work, output: Some(Output::Value(value)) }
            }
            Err(refusal) => refusal.pass_on(),
        }
    }

    fn looked_at_by<U>(&self, view: impl FnOnce(&T) -> Result<U, Refusal>) -> Result<U, Refusal> {
        view(self.as_operand()?).map_err(|refusal| match &self.work {
            Work::Place(awaited) => Refusal { core: Some(awaited.core.clone()), ..refusal },
            Work::Captured(step) if !refusal.captured => Refusal::of(&step.core, refusal.error),
            _ => refusal,
        })
    }
}

/// Returns the error for the use of a value before the work that makes it has finished.
#[cold]
fn not_known_yet() -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        "the value is made when the work has finished, by map or by a host function, so it is not \
         known yet; await the Pending, and use its value",
    )
}

impl<T> Pending<T> {
    /// Polls the work alone, without taking its value.
    #[inline]
    fn poll_work(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut self.work {
            Work::Place(awaited) => awaited.poll(cx),
            Work::Many(many) => many.poll(cx),
            Work::Captured(step) => Poll::Ready(Err(step.nothing.clone())),
            Work::Done => Poll::Ready(Ok(())),
            Work::Failed(refusal) => Poll::Ready(Err(refusal.error.clone())),
            Work::Taken => panic!("`Pending` polled after it has resolved"),
        }
    }

    /// Returns true if the value is read from what the work wrote.
    fn is_read(&self) -> bool {
        self.output.as_ref().is_some_and(Output::is_read)
    }

    /// Takes the value once the work is done, or makes a part of it and returns `None`.
    #[inline]
    fn make(&mut self) -> Option<Result<T>> {
        // Dropped once the step has returned.
        let _work = std::mem::replace(&mut self.work, Work::Taken);
        match self.output.take().expect("it was polled before").step() {
            Ok(made) => Some(made),
            Err(more) => {
                (self.work, self.output) = (Work::Done, Some(more));
                None
            }
        }
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let Poll::Ready(done) = self.poll_work(cx) else { return Poll::Pending };
        let result = match done {
            Ok(()) => match self.make() {
                Some(made) => made,
                None => {
                    // Other tasks run between the steps.
                    reentry::wake(cx.waker());
                    return Poll::Pending;
                }
            },
            Err(error) => Err(error),
        };
        if let Err(error) = &result {
            // Set before the state is dropped, which reports every error that is not.
            error.set_seen();
            (self.work, self.output) = (Work::Taken, None);
        }
        Poll::Ready(result)
    }
}

impl<T> Drop for Pending<T> {
    #[inline]
    fn drop(&mut self) {
        if let Work::Failed(Refusal { error, core: Some(core), captured: false }) = &self.work
            && !error.is_seen()
            && !warpline_driver::process::is_forked()
        {
            core.note_unseen(error);
        }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.work {
            Work::Place(awaited) => {
                write!(f, "Pending(ticket {} of {:?})", awaited.place.ticket, awaited.core)
            }
            Work::Captured(step) => write!(f, "Pending({})", step.nothing),
            Work::Many(many) => write!(f, "Pending({} streams)", many.len()),
            Work::Done => f.write_str("Pending(done, its value is being made)"),
            Work::Failed(refusal) => write!(f, "Pending(refused: {})", refusal.error),
            Work::Taken => f.write_str("Pending(resolved)"),
        }
    }
}
