//! Stands in for a device with a stream, on which the production files of the owners wait.

#[path = "../../../runtime/src/shared/budget_waits.rs"]
pub(crate) mod budget_waits;
#[path = "../../../runtime/src/shared/memory_waits.rs"]
pub(crate) mod memory_waits;
#[path = "../../../runtime/src/shared/pinned_waits.rs"]
pub(crate) mod pinned_waits;

use crate::clock::{StreamId, Use};
use crate::driver::{DeviceId, NoDriver, Result};
use crate::memory::pool::Pool;
use crate::memory::{DeviceMemory, PinnedPool, ReuseOrder};
use crate::site::Site;
use crate::sync::Arc;
use crate::timeline::{Ticket, Timeline};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use stream::StreamCore;

pub(crate) struct DeviceShared {
    pub(crate) id: DeviceId,
    pub(crate) runs_in_turns: bool,
    pub(crate) memory: DeviceMemory,
    pub(crate) pinned: Arc<PinnedPool>,
    pub(crate) runtime: Runtime,
}

impl DeviceShared {
    pub(crate) fn ensure_open(&self) -> Result<()> {
        Ok(())
    }

    pub(crate) fn observe_out_of_memory(&self, _error: &crate::Error) -> bool {
        false
    }

    pub(crate) fn with_pinned<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        f()
    }
}

/// Stands in for the program's function that is called without memory.
mod out_of_memory {
    use crate::{Error, site::Site};

    pub(crate) fn unserved(_site: &Site, error: Error) -> Error {
        error
    }
}

/// A runtime without host code.
pub(crate) struct Runtime {
    pub(crate) host_code: HostCode,
    pub(crate) sync: SyncMode,
    pub(crate) streams: Arc<Streams>,
}

impl Runtime {
    pub(crate) fn timeline(&self, stream: StreamId) -> Option<Arc<Timeline>> {
        Some(self.streams.0[stream.0 as usize].clone())
    }

    pub(crate) fn stream(&self, _stream: StreamId) -> Option<Stream> {
        Some(Stream)
    }

    pub(crate) fn host_code_before_copy(&self, _copy: Use) -> Option<String> {
        None
    }
}

/// The timelines of the streams, which report each ticket.
pub(crate) struct Streams(Vec<Arc<Timeline>>);

impl Streams {
    /// Ends the only op of a stream.
    pub(crate) fn end(&self, stream: u32) {
        self.0[stream as usize].complete(1);
    }
}

impl ReuseOrder for Streams {
    fn is_over(&self, used: Use) -> bool {
        self.0[used.stream.0 as usize].reached(used.ticket)
    }
}

pub(crate) struct Stream;

impl Stream {
    pub(crate) fn fault(&self) -> Option<()> {
        None
    }

    pub(crate) fn want_marker(&self, _ticket: Ticket) {}
}

pub(crate) struct HostCode;

impl HostCode {
    pub(crate) fn next_added(&self) -> NeverAdded {
        NeverAdded
    }
}

pub(crate) struct NeverAdded;

impl NeverAdded {
    pub(crate) fn enable(self: Pin<&mut Self>) -> bool {
        false
    }
}

impl Future for NeverAdded {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

pub(crate) struct SyncMode;

impl SyncMode {
    pub(crate) fn may_block(&self, _site: Site, _instead: &str) -> Result<()> {
        Ok(())
    }
}

/// The handle of a device.
pub(crate) struct Device(Arc<DeviceShared>);

impl Device {
    pub(crate) fn of(device: Arc<DeviceShared>) -> Self {
        Device(device)
    }

    pub(crate) fn default_stream(&self) -> Result<DefaultStream> {
        Ok(DefaultStream(Arc::new(StreamCore { device: self.0.clone() })))
    }
}

pub(crate) struct DefaultStream(Arc<StreamCore>);

impl DefaultStream {
    pub(crate) fn core(&self) -> &Arc<StreamCore> {
        &self.0
    }
}

pub(crate) mod stream {
    use super::*;

    pub(crate) struct StreamCore {
        pub(crate) device: Arc<DeviceShared>,
    }

    impl StreamCore {
        /// Creates a stream of a device. The device has one unit of memory behind the op of each
        /// of these other streams, and this cap of page-locked memory.
        pub(crate) fn new(streams: u32, pinned_cap_bytes: usize) -> Arc<Self> {
            let timelines = (0..streams).map(|_| Arc::new(Timeline::new())).collect();
            let behind = (0..streams).map(|stream| Use { stream: StreamId(stream), ticket: 1 }).collect();
            let device = DeviceShared {
                id: "cuda:0",
                runs_in_turns: false,
                memory: DeviceMemory::new(Pool { behind, ..Pool::default() }),
                pinned: PinnedPool::new(Arc::new(NoDriver), pinned_cap_bytes),
                runtime: Runtime {
                    host_code: HostCode,
                    sync: SyncMode,
                    streams: Arc::new(Streams(timelines)),
                },
            };
            Arc::new(StreamCore { device: Arc::new(device) })
        }
    }

    /// Awaits `future`. No device fails or runs in turns.
    pub(crate) async fn watching<F: Future>(
        _core: &Arc<StreamCore>,
        future: Pin<&mut F>,
    ) -> Result<F::Output> {
        Ok(future.await)
    }
}
