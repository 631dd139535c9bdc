//! Stands in for the runtime's way to block on a future.

use crate::sync::{Arc, Parker, Unparker};
use std::future::Future;
use std::mem::ManuallyDrop;
use std::task::{Context, Poll, Wake, Waker};

struct Unpark(Unparker);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Leaks the future if the model fails, because its destructor might take a lock of loom's.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let (mut future, parker) = (ManuallyDrop::new(Box::pin(future)), Parker::here());
    let waker = Waker::from(Arc::new(Unpark(parker.unparker().clone())));
    let mut cx = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => {
                drop(ManuallyDrop::into_inner(future));
                return output;
            }
            Poll::Pending => parker.park(),
        }
    }
}
