//! The current device and stream.
//!
//! A scope is a list on the thread, pushed for the time of one poll or one closure and popped by a guard, also when that
//! panics. Between polls nothing of it is left on the thread, so a task may be polled anywhere.

use crate::shared::{Device, Stream};
use pin_project::pin_project;
use smallvec::{SmallVec, smallvec};
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// What is current.
#[derive(Clone)]
enum Current {
    Stream(Stream),
    Device(Device),
}

thread_local! {
    static ENTRIES: RefCell<Vec<Current>> = const { RefCell::new(Vec::new()) };
}

struct Installed;

impl Installed {
    fn new(entry: Current) -> Self {
        ENTRIES.with_borrow_mut(|entries| entries.push(entry));
        Installed
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let entry = ENTRIES.with_borrow_mut(Vec::pop);
        // Outside the borrow: the last handle of a stream closes it.
        drop(entry);
    }
}

/// The stream of the innermost scope on `device`, if there is one.
pub(crate) fn stream_on(device: &Device) -> Option<Stream> {
    ENTRIES.with_borrow(|entries| {
        entries.iter().rev().find_map(|entry| match entry {
            Current::Stream(stream)
                if stream.core().device.id == device.id() && stream.device() == *device =>
            {
                Some(stream.clone())
            }
            _ => None,
        })
    })
}

/// The device of the innermost scope.
pub(crate) fn device() -> Option<Device> {
    ENTRIES.with_borrow(|entries| {
        entries.last().map(|entry| match entry {
            Current::Stream(stream) => stream.device(),
            Current::Device(device) => device.clone(),
        })
    })
}

impl Stream {
    /// The current stream of `device`: that of the innermost scope on it, else its default stream.
    ///
    /// # Errors
    /// `Fault` or `ShutDown` when the device takes no more work.
    pub fn current(device: &Device) -> crate::Result<Stream> {
        match stream_on(device) {
            Some(stream) => Ok(stream),
            None => device.default_stream(),
        }
    }

    /// Calls `f` with this stream, and its device, current.
    ///
    /// `f` cannot be `|| async { … }`: that future would run after the call, on whatever stream is
    /// current then. Use [`scope`](Self::scope) for it. A boxed future compiles all the same, since
    /// the type of a box does not say whether it is polled here.
    ///
    /// ```compile_fail,E0277
    /// # async fn f(stream: warpline_runtime::Stream) {
    /// stream.enter(|| async { 1 }).await; // `stream.scope(|| async { 1 }).await` is what this wants
    /// # }
    /// ```
    pub fn enter<R: MadeInScope>(&self, f: impl FnOnce() -> R) -> R {
        let _installed = Installed::new(Current::Stream(self.clone()));
        f()
    }

    /// A future that has this stream, and its device, current at each poll. `f` is called at the first poll, inside.
    ///
    /// # Cancel safety
    /// That of the future `f` returns.
    pub fn scope<F, Fut>(&self, f: F) -> Scope<F, Fut>
    where
        F: FnOnce() -> Fut,
        Fut: Future,
    {
        Scope { current: smallvec![Current::Stream(self.clone())], make: Some(f), future: None }
    }
}

impl Device {
    /// The device of the innermost scope, else the default runtime's best.
    ///
    /// # Errors
    /// As [`Device::best`].
    pub fn current() -> crate::Result<Device> {
        match device() {
            Some(device) => Ok(device),
            None => Device::best(),
        }
    }

    /// Calls `f` with this device current. Within it, the current stream of each device stays what it was.
    ///
    /// As with [`Stream::enter`], `f` cannot be `|| async { … }`.
    pub fn enter<R: MadeInScope>(&self, f: impl FnOnce() -> R) -> R {
        let _installed = Installed::new(Current::Device(self.clone()));
        f()
    }

    /// A future that has this device current at each poll. `f` is called at the first poll, inside.
    ///
    /// # Cancel safety
    /// That of the future `f` returns.
    pub fn scope<F, Fut>(&self, f: F) -> Scope<F, Fut>
    where
        F: FnOnce() -> Fut,
        Fut: Future,
    {
        Scope { current: smallvec![Current::Device(self.clone())], make: Some(f), future: None }
    }
}

/// A value that a closure can return from `enter`: everything but a future of an `async` block or
/// `async fn`, which would run after the scope has ended.
#[diagnostic::on_unimplemented(
    message = "`enter` calls a closure, and `{Self}` would run after it has returned, on another stream",
    label = "a future that runs outside of the scope",
    note = "use `scope(|| async {{ … }}).await`, which makes the stream current at each poll"
)]
pub trait MadeInScope {}

#[diagnostic::do_not_recommend]
impl<R: Unpin> MadeInScope for R {}

/// Everything that is current on this thread, outermost first.
fn everything() -> Vec<Current> {
    ENTRIES.with_borrow(Clone::clone)
}

/// A future inside a scope, see [`Stream::scope`].
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct Scope<F, Fut> {
    current: SmallVec<[Current; 1]>,
    make: Option<F>,
    #[pin]
    future: Option<Fut>,
}

impl<F, Fut> Future for Scope<F, Fut>
where
    F: FnOnce() -> Fut,
    Fut: Future,
{
    type Output = Fut::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Fut::Output> {
        let mut this = self.project();
        // Popped in reverse, also if the poll panics.
        let _installed: SmallVec<[Installed; 1]> = this.current.iter().cloned().map(Installed::new).collect();
        if let Some(make) = this.make.take() {
            this.future.set(Some(make()));
        }
        match this.future.as_pin_mut() {
            Some(future) => future.poll(cx),
            None => panic!("a scope whose closure panicked was polled again"),
        }
    }
}

/// Carries the current scope into another task.
pub trait InCurrentStream: Future + Sized {
    /// Returns the future with the stream and device that are current now, for each of its polls.
    ///
    /// A task that `tokio::spawn` starts has no current stream; this gives it the spawner's. Inside
    /// [`Stream::enter`], spawn the result or box it: `enter` returns no bare future.
    fn in_current_stream(self) -> Scope<fn() -> Self, Self> {
        Scope { current: everything().into(), make: None, future: Some(self) }
    }
}

impl<F: Future> InCurrentStream for F {}
