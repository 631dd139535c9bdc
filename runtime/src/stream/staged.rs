//! Enqueuing of copies between host and device, now or once their page-locked memory exists.

use super::error;
use crate::background;
use crate::memory::{HostEnd, PinnedBytes, Promise};
use crate::order::Site;
use crate::shared::stream::{Staging, hand_over};
use crate::shared::{Place, Request, Stream, StreamCore, unserved};
use parking_lot::Mutex;
use std::sync::Arc;
use warpline_driver::timeline::Keep;
use warpline_driver::{Command, Copy, ErrorKind, Result, StagedCopy, reentry};

/// The most page-locked memory that a copy in pieces takes. A piece of this size occupies the link
/// to a GPU for more than 100 µs, which is long compared with the cost of a host function.
const PIECE_BYTES: usize = 4 << 20;
/// The most pieces of a copy, if it is not strided. Larger copies have larger pieces: a driver's
/// queue takes about a thousand calls, and a piece is two.
const MOST_PIECES: usize = 128;

/// A pinned buffer in flight. The runtime holds one reference until the ticket is reached. If the
/// buffer is the result of the op, the `Pending` holds the other.
pub(super) type Slot = Arc<Mutex<Option<PinnedBytes>>>;

/// Pinned memory for a copy.
pub(super) enum StagingMemory {
    There(PinnedBytes),
    Promised(Promise),
}

impl Stream {
    /// Returns pinned memory for a copy by this stream: a block if one is cached, or if the stream
    /// cannot wait for one in the background; otherwise the promise of one.
    pub(super) fn staging_memory(&self, site: Site, len_bytes: usize) -> Result<StagingMemory> {
        let (core, device) = (self.core(), &self.core().device);
        let memory = device.with_pinned(|pool| match pool.try_take(len_bytes) {
            Some(bytes) => Ok(StagingMemory::There(bytes)),
            None if can_hold_back(core) => {
                reentry::may_ask(&"pinned")?;
                pool.promise(len_bytes).map(StagingMemory::Promised)
            }
            None => pool.take(len_bytes).map(StagingMemory::There),
        });
        memory.map_err(|error| unserved(&site.on(&core.label), error))
    }

    /// Enqueues `copy` between this stream's device and memory of a CPU device, which `host` holds,
    /// in pieces. `slot` keeps the page-locked memory.
    pub(super) fn enqueue_in_pieces(
        &self,
        mut request: Request<'_>,
        copy: Copy,
        host: Keep,
        slot: Slot,
    ) -> Result<Place> {
        let bytes = copy.bytes() as usize;
        let staging_bytes = PIECE_BYTES.max(bytes.div_ceil(MOST_PIECES)).min(bytes);
        if staging_bytes == 0 {
            return self.core().enqueue(&mut request, |_| Command::Elided);
        }
        let memory = self.staging_memory(request.site, staging_bytes);
        let memory = memory.map_err(|error| self.core().refuse(&request, error))?;
        let fill = move |bytes| *slot.lock() = Some(bytes);
        self.enqueue_staged(request, memory, fill, |staging| {
            Command::StagedCopy(Box::new(StagedCopy { copy, staging, staging_bytes, host }))
        })
    }

    /// Enqueues a copy through `memory`. `command` makes it from the memory's address, which is 0
    /// as long as there is none. `fill` gets the memory before the copy runs: in this call, or on
    /// the thread `warpline-pin` once the memory is made.
    pub(super) fn enqueue_staged(
        &self,
        request: Request<'_>,
        memory: StagingMemory,
        fill: impl FnOnce(PinnedBytes) + Send + 'static,
        command: impl FnOnce(u64) -> Command,
    ) -> Result<Place> {
        let site = request.site;
        let promise = match memory {
            StagingMemory::There(bytes) => {
                let end = host_end(self.core(), site, &bytes);
                fill(bytes);
                return self.enqueue_at(request, end, command);
            }
            StagingMemory::Promised(promise) => promise,
        };
        let staging = Arc::<Staging>::default();
        let mut request = request.waiting_for(staging.clone());
        let place = self.core().enqueue(&mut request, |_| command(0))?;
        let stream = self.core().clone();
        background::pin(stream.device.id, move || {
            let bytes = stream.device.with_pinned(|_| promise.keep());
            let end = bytes.map_err(|error| unserved(&site.on(&stream.label), error)).and_then(|bytes| {
                let end = host_end(&stream, site, &bytes)?;
                fill(bytes);
                Ok(end)
            });
            staging.set(end);
            hand_over(stream);
        });
        Ok(place)
    }

    /// Enqueues a copy from or to host memory, or refuses it if `host` is an error.
    pub(super) fn enqueue_at(
        &self,
        mut request: Request<'_>,
        host: Result<HostEnd>,
        command: impl FnOnce(u64) -> Command,
    ) -> Result<Place> {
        let end = host.map_err(|error| self.core().refuse(&request, error))?;
        self.core().enqueue(&mut request, |_| command(end.address()))
    }

    pub(super) fn same_len(&self, site: Site, host: usize, device: usize) -> Result<()> {
        if host == device {
            return Ok(());
        }
        let why = format_args!(
            "{host} elements on the host, {device} on the device; take a slice of the longer one"
        );
        Err(error(self.core(), site, ErrorKind::Shape, why))
    }
}

/// Returns true if a copy may be held back until there is memory for it. On a borrowed stream,
/// the copy has to be on the driver's stream when the call returns, since the stream's owner
/// may use that next. A captured copy is not work yet.
pub(super) fn can_hold_back(core: &StreamCore) -> bool {
    core.device.signalled
        && core.device.driver.host_memory_is_slow()
        && !core.admission.is_borrowed()
        && !core.is_captured()
}

/// Returns the host's end of a copy by this stream's device.
pub(super) fn host_end(core: &StreamCore, site: Site, host: &PinnedBytes) -> Result<HostEnd> {
    let (here, there) = (core.device.id, host.locked_by());
    host.end_for(here).ok_or_else(|| {
        let why = format_args!(
            "the pinned buffer belongs to {there} and is not page-locked, and {here} copies only from and to \
             page-locked memory; get it from pinned() of a CUDA device, or stage it with write()"
        );
        error(core, site, ErrorKind::DeviceMismatch, why)
    })
}
