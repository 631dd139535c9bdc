//! Work in flight, as a future.

use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::stream::{Place, StreamCore};
use crate::timeline::{Registration, Ticket};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

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
    Flight(Flight<T>),
    /// Several streams at once: resolved when all are.
    Many(Vec<Pending<()>>, Option<Error>, Option<T>),
    Failed(Error, Option<Arc<StreamCore>>),
    Taken,
}

struct Flight<T> {
    core: Arc<StreamCore>,
    place: Place,
    registration: Option<Registration>,
    output: Output<T>,
}

enum Output<T> {
    /// Known when the op was enqueued.
    Value(T),
    /// Made when the op is done.
    Later(Box<dyn FnOnce() -> Result<T> + Send>),
    Taken,
}

// Nothing in it is pinned.
impl<T> Unpin for Pending<T> {}

/// Values that are meaningful before the device has produced their contents: device memory, and nothing at all.
pub trait DeviceValue: sealed::Sealed {}

mod sealed {
    pub trait Sealed: Sized {
        /// The value where it says nothing about the work.
        fn at_once() -> Option<Self> {
            None
        }
    }
}

impl sealed::Sealed for () {
    fn at_once() -> Option<()> {
        Some(())
    }
}
impl DeviceValue for () {}
impl<T: crate::Element> sealed::Sealed for Buffer<T> {}
impl<T: crate::Element> DeviceValue for Buffer<T> {}

impl<T> Pending<T> {
    #[inline]
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

    #[inline]
    fn flight(core: &Arc<StreamCore>, place: Place, output: Output<T>) -> Self {
        if place.exact {
            core.hold(place.ticket);
        }
        Pending { state: State::Flight(Flight { core: core.clone(), place, registration: None, output }) }
    }

    pub(crate) fn refused_on(core: &Arc<StreamCore>, error: Error) -> Self {
        Pending { state: State::Failed(error, Some(core.clone())) }
    }

    /// A call that was refused before it reached a stream, for functions that return a `Pending` of their own.
    pub fn refused(error: Error) -> Self {
        Pending { state: State::Failed(error, None) }
    }

    pub(crate) fn many(parts: Vec<Pending<()>>, value: T) -> Self {
        Pending { state: State::Many(parts, None, Some(value)) }
    }

    /// The ticket it waits for; `None` if the call was refused or it has resolved.
    pub fn ticket(&self) -> Option<Ticket> {
        match &self.state {
            State::Flight(flight) => Some(flight.place.ticket),
            _ => None,
        }
    }

    /// Whether it would resolve now. A `true` counts as having observed the op.
    ///
    /// # Errors
    /// What awaiting would return, if the call was refused or the device has failed.
    pub fn query(&mut self) -> Result<bool> {
        match &mut self.state {
            State::Flight(flight) => flight.query(),
            State::Many(parts, ..) => {
                // All of them, since each asks for the marker it needs.
                let mut done = true;
                for part in parts {
                    done &= part.query()?;
                }
                Ok(done)
            }
            State::Failed(error, _) => {
                error.mark_seen();
                Err(error.clone())
            }
            State::Taken => Ok(true),
        }
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

impl<T: DeviceValue> Pending<T> {
    /// The value without waiting for its contents, to enqueue more work on.
    ///
    /// # Errors
    /// The refusal, if the call was refused. What the device does later shows up in what is awaited later.
    pub fn queued(mut self) -> Result<T> {
        match &mut self.state {
            State::Flight(flight) => match std::mem::replace(&mut flight.output, Output::Taken) {
                Output::Value(value) => Ok(value),
                // What `make` looks at is there when the work is done, not now.
                Output::Later(make) => T::at_once().map_or_else(make, Ok),
                Output::Taken => unreachable!("the output is taken once, by value"),
            },
            State::Many(_, _, value) => Ok(value.take().expect("the value is taken once, by value")),
            State::Failed(error, _) => {
                error.mark_seen();
                Err(error.clone())
            }
            State::Taken => panic!("`Pending` used after it has resolved"),
        }
    }
}

impl<T> Flight<T> {
    /// Done, failed, or `false`.
    #[inline]
    fn look(&self) -> Result<bool> {
        if self.core.timeline.reached(self.place.ticket) {
            self.core.observe(&self.place);
            return Ok(true);
        }
        match self.core.device.health.fault() {
            Some(fault) => self.look_at_fault(fault),
            None => Ok(false),
        }
    }

    #[cold]
    fn look_at_fault(&self, fault: &Error) -> Result<bool> {
        // It may have been reached just before the device failed.
        if self.core.timeline.reached(self.place.ticket) {
            self.core.observe(&self.place);
            return Ok(true);
        }
        Err(fault.clone())
    }

    fn query(&mut self) -> Result<bool> {
        if self.look()? {
            return Ok(true);
        }
        self.core.want_marker(self.place.ticket);
        if self.core.device.runs_in_turns {
            self.core.device.driver.turn();
            return self.look();
        }
        Ok(false)
    }

    fn take(&mut self) -> Result<T> {
        match std::mem::replace(&mut self.output, Output::Taken) {
            Output::Value(value) => Ok(value),
            Output::Later(make) => make(),
            Output::Taken => panic!("`Pending` polled after it has resolved"),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<T>> {
        if self.look()? {
            return Poll::Ready(self.take());
        }
        self.core.want_marker(self.place.ticket);
        let registered = self.core.timeline.register(self.place.ticket, cx.waker(), &mut self.registration);
        // A turn comes after registering: who finds nothing to run is woken when there is something.
        let ran = self.core.device.runs_in_turns && registered.is_pending() && self.core.device.driver.turn();
        // Done, or the device failed while we registered: either way, look again.
        if self.look()? {
            return Poll::Ready(self.take());
        }
        if ran {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let result = match &mut self.state {
            State::Flight(flight) => match flight.poll(cx) {
                Poll::Ready(result) => result,
                Poll::Pending => return Poll::Pending,
            },
            State::Many(parts, first, value) => {
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
                match first.take() {
                    Some(error) => Err(error),
                    None => Ok(value.take().expect("`Pending` polled after it has resolved")),
                }
            }
            State::Failed(error, _) => Err(error.clone()),
            State::Taken => panic!("`Pending` polled after it has resolved"),
        };
        if let Err(error) = &result {
            error.mark_seen();
        }
        drop(std::mem::replace(&mut self.state, State::Taken));
        Poll::Ready(result)
    }
}

impl<T> Drop for Flight<T> {
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
        if let State::Failed(error, Some(core)) = &self.state
            && !error.is_seen()
        {
            core.note_unseen(error);
        }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            State::Flight(flight) => {
                write!(f, "Pending(ticket {} of {:?})", flight.place.ticket, flight.core)
            }
            State::Many(parts, ..) => write!(f, "Pending({} streams)", parts.len()),
            State::Failed(error, _) => write!(f, "Pending(refused: {error})"),
            State::Taken => f.write_str("Pending(resolved)"),
        }
    }
}
