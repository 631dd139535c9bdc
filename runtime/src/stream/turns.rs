//! Waiting for something that is no ticket, on a device that runs only when it is polled.
//!
//! A schedule without threads makes progress at polls of pending work. Who waits for a place in a pool polls no ticket, but what it
//! waits for is other people's work all the same. So it takes turns too, and while nothing can run it sleeps where such a
//! schedule wakes sleepers: in the waiting list of a stream, here the default one, for a ticket that never comes.

use crate::device::Device;
use crate::error::Result;
use crate::order::MAX_TICKET;
use crate::timeline::{Registration, Timeline};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

struct Sleeper {
    timeline: Arc<Timeline>,
    registration: Option<Registration>,
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.timeline.deregister(&mut self.registration);
    }
}

/// Awaits `future`, taking turns meanwhile if `device` runs in turns.
pub(super) async fn taking_turns<F: Future>(device: &Device, mut future: Pin<&mut F>) -> Result<F::Output> {
    let shared = device.shared();
    if !shared.runs_in_turns {
        return Ok(future.await);
    }
    let timeline = device.default_stream()?.core().timeline.clone();
    let mut sleeper = Sleeper { timeline, registration: None };
    let output = poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(output);
        }
        let Sleeper { timeline, registration } = &mut sleeper;
        let registered = timeline.register(MAX_TICKET, cx.waker(), registration);
        if registered.is_ready() || shared.driver.turn() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await;
    Ok(output)
}
