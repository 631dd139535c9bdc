//! A batcher as a `tower` service.

use crate::submit::Submit;
use crate::{Answer, Batcher, Rows, ServeError, WriterError};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::sync::{AcquireError, OwnedSemaphorePermit};
use tower_service::Service;

/// A batcher as a [`Service`], for the middleware of `tower`; from [`Batcher::service`].
///
/// A request is a writer, as for [`Batcher::submit`]. The service is ready if a row may be queued:
/// `poll_ready` waits for a row of `max_queued` and reserves it. So `load_shed` refuses calls
/// beyond `max_queued`, and `concurrency_limit` and `timeout` work as they do for any service.
///
/// A clone reserves a row of its own, and keeps it until it is called or dropped. So use a fresh
/// clone for each request. A batcher for rows of different lengths gets rows of the longest.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tower::{ServiceBuilder, ServiceExt};
/// use warpline::prelude::*;
/// use warpline::serve::Batcher;
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let device = Device::best()?;
/// let batcher = Batcher::<(f32,), (f32,)>::builder(&device, [[2].into()], [[2].into()])
///     .build(|_stream, (x,), _calls| async move { Ok(((&x * 2.0).queued()?,)) })
///     .await?;
/// let service = ServiceBuilder::new()
///     .load_shed()
///     .timeout(Duration::from_secs(1))
///     .map_request(|pixels: Vec<f32>| {
///         move |(row,): (&mut [f32],)| {
///             row.copy_from_slice(&pixels);
///             Ok(())
///         }
///     })
///     .service(batcher.service());
/// let answer = service.oneshot(vec![1.0, 2.0]).await?;
/// assert_eq!(answer.outputs().0, [2.0, 4.0]);
/// # Ok(())
/// # }
/// ```
pub struct BatcherService<I: Rows, O: Rows> {
    batcher: Batcher<I, O>,
    reserving: Option<Reserving>,
    reserved: Option<OwnedSemaphorePermit>,
}

/// A wait for a row. A service is shared between threads, so this is `Sync` too.
type Reserving = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send + Sync>>;

impl<I: Rows, O: Rows> Batcher<I, O> {
    /// Returns this batcher as a service for `tower`.
    pub fn service(&self) -> BatcherService<I, O> {
        BatcherService { batcher: self.clone(), reserving: None, reserved: None }
    }
}

impl<I: Rows, O: Rows> Clone for BatcherService<I, O> {
    fn clone(&self) -> Self {
        self.batcher.service()
    }
}

impl<I: Rows, O: Rows> fmt::Debug for BatcherService<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatcherService").field("batcher", &self.batcher).finish_non_exhaustive()
    }
}

impl<I, O, W> Service<W> for BatcherService<I, O>
where
    I: Rows,
    O: Rows,
    W: FnOnce(I::Slots<'_>) -> Result<(), WriterError>,
{
    type Response = Answer<O>;
    type Error = ServeError;
    type Future = Submit<I, O, W>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ServeError>> {
        if self.reserved.is_none() {
            let shared = self.batcher.shared();
            let reserving =
                self.reserving.get_or_insert_with(|| Box::pin(shared.permits.clone().acquire_owned()));
            let permit = ready!(reserving.as_mut().poll(cx));
            self.reserving = None;
            // Closed with the batcher.
            self.reserved = Some(permit.map_err(|_| self.batcher.shared().why_not_queued())?);
        }
        Poll::Ready(Ok(()))
    }

    /// Submits a row.
    ///
    /// # Panics
    /// If `poll_ready` has not returned that the service is ready.
    fn call(&mut self, writer: W) -> Submit<I, O, W> {
        let permit = self.reserved.take().expect("poll_ready is called before call");
        Submit::new(self.batcher.handle().clone(), writer).with(permit)
    }
}
