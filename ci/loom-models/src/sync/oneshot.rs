//! Tokio's channel for one value, made of one lock.

use super::{Arc, Mutex};
use crate::process;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

#[derive(Debug)]
struct Channel<T> {
    value: Option<T>,
    /// True if the receiver takes no value that is sent from now on.
    is_closed: bool,
    /// True if no value comes any more.
    is_over: bool,
    waker: Option<Waker>,
}

#[derive(Debug)]
pub(crate) struct Sender<T>(Arc<Mutex<Channel<T>>>);

#[derive(Debug)]
pub(crate) struct Receiver<T>(Arc<Mutex<Channel<T>>>);

/// The error of a receiver that gets no value.
#[derive(Debug)]
pub(crate) struct NoValue;

pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let channel = Channel { value: None, is_closed: false, is_over: false, waker: None };
    let channel = Arc::new(Mutex::new(channel));
    (Sender(channel.clone()), Receiver(channel))
}

impl<T> Sender<T> {
    /// Sends the value. Returns it if the receiver is gone or closed.
    pub(crate) fn send(self, value: T) -> Result<(), T> {
        let mut channel = self.0.lock();
        if channel.is_closed {
            return Err(value);
        }
        channel.value = Some(value);
        // Dropping the sender wakes the receiver.
        Ok(())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        let mut channel = self.0.lock();
        channel.is_over = true;
        let waker = channel.waker.take();
        drop(channel);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl<T> Receiver<T> {
    pub(crate) fn close(&mut self) {
        self.0.lock().is_closed = true;
    }

    pub(crate) fn try_recv(&mut self) -> Result<T, NoValue> {
        self.0.lock().value.take().ok_or(NoValue)
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, NoValue>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut channel = self.0.lock();
        if let Some(value) = channel.value.take() {
            return Poll::Ready(Ok(value));
        }
        if channel.is_closed || channel.is_over {
            return Poll::Ready(Err(NoValue));
        }
        channel.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        let mut channel = self.0.lock();
        channel.is_closed = true;
        let unread = (channel.value.take(), channel.waker.take());
        drop(channel);
        drop(unread);
    }
}
