//! The current device, stream and budget.
//!
//! A scope is an entry in a thread-local list. It is pushed for the duration of one poll, one
//! closure or the drop of a future, and a guard pops it, also on panic. Between polls no entry is
//! left on the thread, so a task may be polled on any thread.

use crate::shared::{Budget, Budgeted, Device, DeviceShared, RuntimeShared, Stream};
use crate::sync_mode;
use pin_project::{pin_project, pinned_drop};
use smallvec::{SmallVec, smallvec};
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use warpline_driver::DeviceId;

/// An entry of the list.
#[derive(Clone)]
enum Current {
    Stream(Stream),
    Device(Device),
    Budget(Arc<Budgeted>),
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

    /// Returns `None` on a thread that has dropped its list: it is about to end.
    fn if_possible(entry: Current) -> Option<Self> {
        let is_there = ENTRIES.try_with(|_| ()).is_ok();
        is_there.then(|| Self::new(entry))
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let entry = ENTRIES.with_borrow_mut(Vec::pop);
        // Outside the borrow: dropping the last handle of a stream closes it.
        drop(entry);
    }
}

/// Returns the stream of the innermost scope on `device`, if there is one.
pub(crate) fn stream_on(device: &Device) -> Option<Stream> {
    let is_on = |stream: &Stream| stream.core().device.id == device.id() && stream.device() == *device;
    ENTRIES.with_borrow(|entries| {
        entries.iter().rev().find_map(|entry| match entry {
            Current::Stream(stream) if is_on(stream) => Some(stream.clone()),
            _ => None,
        })
    })
}

/// Returns the budget of the innermost scope on `device`, if there is one.
pub(crate) fn budget_on(device: &Arc<DeviceShared>) -> Option<Arc<Budgeted>> {
    innermost_budget(|budget| Arc::ptr_eq(&budget.device, device))
}

/// Returns the budget of the innermost scope, on any device.
pub(crate) fn budget() -> Option<Arc<Budgeted>> {
    innermost_budget(|_| true)
}

fn innermost_budget(is_meant: impl Fn(&Budgeted) -> bool) -> Option<Arc<Budgeted>> {
    let find = |entries: &RefCell<Vec<Current>>| {
        entries.borrow().iter().rev().find_map(|entry| match entry {
            Current::Budget(budget) if is_meant(budget) => Some(budget.clone()),
            _ => None,
        })
    };
    // A thread that has dropped its list may still allocate.
    ENTRIES.try_with(find).ok().flatten()
}

/// Returns the device of the innermost scope.
pub(crate) fn device() -> Option<Device> {
    innermost_device(|_| true)
}

/// Returns the device of the innermost scope on a CUDA device of `runtime`.
pub(crate) fn cuda_device(runtime: &Arc<RuntimeShared>) -> Option<Device> {
    innermost_device(|device| {
        matches!(device.id(), DeviceId::Cuda(_)) && Arc::ptr_eq(&device.shared().runtime, runtime)
    })
}

fn innermost_device(is_meant: impl Fn(&Device) -> bool) -> Option<Device> {
    ENTRIES.with_borrow(|entries| {
        let mut devices = entries.iter().rev().filter_map(|entry| match entry {
            Current::Stream(stream) => Some(stream.device()),
            Current::Device(device) => Some(device.clone()),
            Current::Budget(_) => None,
        });
        devices.find(is_meant)
    })
}

impl Stream {
    /// Returns the current stream of `device`: the stream of the innermost [`enter`](Self::enter)
    /// or [`scope`](Self::scope) on that device, otherwise its default stream.
    ///
    /// # Errors
    /// `Fault` or `ShutDown` when the device accepts no more work.
    pub fn current(device: &Device) -> crate::Result<Stream> {
        stream_on(device).map_or_else(|| device.default_stream(), Ok)
    }

    /// Calls `f` with this stream and its device as the current ones.
    ///
    /// `f` cannot be `|| async { … }`: that future would run after the call, on whichever stream is
    /// current then. Use [`scope`](Self::scope) for it. A boxed future does compile, since the type
    /// of a box does not show where it is polled.
    ///
    /// ```compile_fail,E0277
    /// # async fn f(stream: warpline::Stream) {
    /// // This wants `stream.scope(|| async { 1 }).await`.
    /// stream.enter(|| async { 1 }).await;
    /// # }
    /// ```
    pub fn enter<R: MadeInScope>(&self, f: impl FnOnce() -> R) -> R {
        let _installed = Installed::new(Current::Stream(self.clone()));
        f()
    }

    /// Returns a future that is polled with this stream and its device as the current ones. `f` is
    /// called in the first poll, so it too runs on this stream.
    ///
    /// # Cancel safety
    /// The cancel safety of the future that `f` returns, which is also dropped in the scope.
    pub fn scope<F, Fut>(&self, f: F) -> Scope<F, Fut>
    where
        F: FnOnce() -> Fut,
        Fut: Future,
    {
        Scope { current: smallvec![Current::Stream(self.clone())], make: Some(f), future: None }
    }
}

impl Device {
    /// Returns the device of the innermost `enter` or `scope`, otherwise [`Device::best`].
    ///
    /// # Errors
    /// The errors of [`Device::best`].
    pub fn current() -> crate::Result<Device> {
        device().map_or_else(Device::best, Ok)
    }

    /// Calls `f` with this device as the current one. The current stream of each device stays the
    /// same.
    ///
    /// As with [`Stream::enter`], `f` cannot be `|| async { … }`.
    pub fn enter<R: MadeInScope>(&self, f: impl FnOnce() -> R) -> R {
        let _installed = Installed::new(Current::Device(self.clone()));
        f()
    }

    /// Returns a future that is polled with this device as the current one. `f` is called in the
    /// first poll, so it too runs with this device.
    ///
    /// # Cancel safety
    /// The cancel safety of the future that `f` returns.
    pub fn scope<F, Fut>(&self, f: F) -> Scope<F, Fut>
    where
        F: FnOnce() -> Fut,
        Fut: Future,
    {
        Scope { current: smallvec![Current::Device(self.clone())], make: Some(f), future: None }
    }
}

impl Budget {
    /// Calls `f` such that what it allocates on the device counts against this budget.
    ///
    /// `f` cannot be `|| async { … }`: that future would run after the call, and its allocations
    /// would not count. A boxed future does compile. Use [`scope`](Self::scope) for both.
    pub fn enter<R: MadeInScope>(&self, f: impl FnOnce() -> R) -> R {
        let _installed = Installed::new(Current::Budget(self.0.clone()));
        f()
    }

    /// Returns a future whose allocations on the device count against this budget. `f` is called
    /// in the first poll, so its allocations count too. Tasks that it spawns do so only with
    /// [`in_current_stream`](InCurrentStream::in_current_stream).
    ///
    /// # Cancel safety
    /// The cancel safety of the future that `f` returns. The future keeps the budget.
    pub fn scope<F, Fut>(&self, f: F) -> Scope<F, Fut>
    where
        F: FnOnce() -> Fut,
        Fut: Future,
    {
        Scope { current: smallvec![Current::Budget(self.0.clone())], make: Some(f), future: None }
    }
}

/// A value that the closure of `enter` can return: any value except the future of an `async` block
/// or `async fn`, which would run after `enter` has returned.
#[diagnostic::on_unimplemented(
    message = "`enter` calls a closure, and `{Self}` would run after it has returned, outside of the scope",
    label = "a future that runs outside of the scope",
    note = "use `scope(|| async {{ … }}).await`, which makes the scope current at each poll"
)]
pub trait MadeInScope {}

#[diagnostic::do_not_recommend]
impl<R: Unpin> MadeInScope for R {}

/// A future that is polled with a stream, device or budget as the current one, from
/// [`Stream::scope`], [`Device::scope`] or [`Budget::scope`](crate::Budget::scope).
///
/// Dropping it before it resolves drops the future with them current too, so an op of a guard in
/// the future runs on the stream of the scope.
#[pin_project(PinnedDrop)]
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
        let _polling = sync_mode::polling();
        // Popped in reverse order, also if the poll panics.
        let _installed: SmallVec<[Installed; 1]> = this.current.iter().cloned().map(Installed::new).collect();
        if let Some(make) = this.make.take() {
            this.future.set(Some(make()));
        }
        match this.future.as_mut().as_pin_mut() {
            Some(future) => {
                let output = ready!(future.poll(cx));
                // A scope that has ended keeps no budget.
                this.future.set(None);
                this.current.clear();
                Poll::Ready(output)
            }
            None => panic!("a scope that has ended was polled again"),
        }
    }
}

#[pinned_drop]
impl<F, Fut> PinnedDrop for Scope<F, Fut> {
    fn drop(self: Pin<&mut Self>) {
        let mut this = self.project();
        // Popped in reverse order, also if a drop panics.
        let _installed: SmallVec<[Option<Installed>; 1]> =
            this.current.iter().cloned().map(Installed::if_possible).collect();
        drop(this.make.take());
        this.future.set(None);
    }
}

/// An extension trait for futures that carries the current scope into another task.
pub trait InCurrentStream: Future + Sized {
    /// Returns a future that is always polled with the stream, device and budget that are current
    /// now.
    ///
    /// A task that `tokio::spawn` starts does not inherit the current stream; this passes on the
    /// spawner's. Inside [`Stream::enter`], spawn the returned future or box it, since `enter`
    /// cannot return a bare future.
    fn in_current_stream(self) -> Scope<fn() -> Self, Self> {
        let current = ENTRIES.with_borrow(|outermost_first| outermost_first.as_slice().into());
        Scope { current, make: None, future: Some(self) }
    }
}

impl<F: Future> InCurrentStream for F {}
