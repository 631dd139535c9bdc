//! Enqueuing of copies between host and device, now or once their page-locked memory exists.

use crate::background;
use crate::buffer::Buffer;
use crate::memory::{HostEnd, PinnedBytes, Promise};
use crate::order::Site;
use crate::shared::stream::backlog::{After, Staging};
use crate::shared::stream::hand_over;
use crate::shared::{Op, Place, Stream, StreamCore, unserved};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use warpline_driver::timeline::Keep;
use warpline_driver::{Command, Copy, CopyKind, Element, Error, ErrorKind, Result, StagedCopy, reentry};

/// The most page-locked memory that a copy in pieces takes. A piece of this size occupies the link
/// to a GPU for more than 100 µs, which is long compared with the cost of a host function.
const PIECE_BYTES: usize = 4 << 20;
/// The most pieces of a copy, if it is not strided. Larger copies have larger pieces: a driver's
/// queue takes about a thousand calls, and a piece is two.
const MOST_PIECES: usize = 128;

/// A pinned buffer in flight. The runtime holds one reference until the ticket is reached. If the
/// buffer is the result of the op, the `Pending` holds the other.
pub(super) type Slot = Arc<Mutex<Option<PinnedBytes>>>;

/// The host's end of a copy: available, or yet to be made.
pub(super) enum HostSide {
    There(HostEnd),
    Coming(Arc<Staging>),
}

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

    /// Enqueues a copy between the host and `buffer` through `memory`. `fill` gets that memory
    /// before the copy runs: in this call, or on the thread `warpline-pin` once the memory is made.
    pub(super) fn enqueue_staged<T: Element>(
        &self,
        op: &mut Op<'_>,
        memory: StagingMemory,
        kind: CopyKind,
        buffer: &Buffer<T>,
        fill: impl FnOnce(PinnedBytes) + Send + 'static,
    ) -> Result<Place> {
        let command = |end| Command::Copy(host_copy(kind, end, buffer));
        self.enqueue_through(op, memory, fill, command)
    }

    /// Enqueues `copy` between this stream's device and memory of a CPU device, which `host` holds,
    /// in pieces. `slot` keeps the page-locked memory.
    pub(super) fn enqueue_in_pieces(
        &self,
        op: &mut Op<'_>,
        copy: Copy,
        host: Keep,
        slot: Slot,
    ) -> Result<Place> {
        let bytes = copy.bytes() as usize;
        let staging_bytes = PIECE_BYTES.max(bytes.div_ceil(MOST_PIECES)).min(bytes);
        if staging_bytes == 0 {
            return self.core().enqueue(op, |_| Command::Elided);
        }
        match self.staging_memory(op.site, staging_bytes) {
            Ok(memory) => self.enqueue_through(
                op,
                memory,
                move |bytes| *slot.lock() = Some(bytes),
                |end| {
                    let staging = end.map_or(0, HostEnd::address);
                    Command::StagedCopy(Box::new(StagedCopy { copy, staging, staging_bytes, host }))
                },
            ),
            Err(error) => self.enqueue_refused(op, error),
        }
    }

    /// Enqueues the copy that `command` makes with the host's end, or without it if the end is set
    /// later.
    fn enqueue_through(
        &self,
        op: &mut Op<'_>,
        memory: StagingMemory,
        fill: impl FnOnce(PinnedBytes) + Send + 'static,
        command: impl FnOnce(Option<HostEnd>) -> Command,
    ) -> Result<Place> {
        let site = op.site;
        let promise = match memory {
            StagingMemory::There(bytes) => {
                let end = self.host_end(site, &bytes).map(HostSide::There);
                fill(bytes);
                return self.enqueue_with(op, end, command);
            }
            StagingMemory::Promised(promise) => promise,
        };
        let staging = Arc::<Staging>::default();
        let place = self.enqueue_with(op, Ok(HostSide::Coming(staging.clone())), command)?;
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

    /// Enqueues a copy between the host and `buffer`, or refuses it if `host` is an error.
    pub(super) fn enqueue_copy<T: Element>(
        &self,
        op: &mut Op<'_>,
        host: Result<HostSide>,
        kind: CopyKind,
        buffer: &Buffer<T>,
    ) -> Result<Place> {
        self.enqueue_with(op, host, |end| Command::Copy(host_copy(kind, end, buffer)))
    }

    fn enqueue_with(
        &self,
        op: &mut Op<'_>,
        host: Result<HostSide>,
        command: impl FnOnce(Option<HostEnd>) -> Command,
    ) -> Result<Place> {
        match host {
            Ok(HostSide::There(end)) => self.core().enqueue(op, |_| command(Some(end))),
            Ok(HostSide::Coming(staging)) => {
                op.after = Some(After::Memory(staging));
                self.core().enqueue(op, |_| command(None))
            }
            Err(error) => self.enqueue_refused(op, error),
        }
    }

    pub(super) fn enqueue_refused(&self, op: &mut Op<'_>, error: Error) -> Result<Place> {
        op.refused = Some(error);
        self.core().enqueue(op, |_| unreachable!("a refused op has no command"))
    }

    pub(super) fn host_end(&self, site: Site, host: &PinnedBytes) -> Result<HostEnd> {
        host_end(self.core(), site, host)
    }

    pub(super) fn same_len(&self, site: Site, host: usize, device: usize) -> Result<()> {
        if host == device {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Shape,
            format!(
                "{}: {host} elements on the host, {device} on the device; take a slice of the longer one",
                site.on(self.label())
            ),
        ))
    }
}

/// Returns true if a copy may be held back until there is memory for it. On a borrowed stream,
/// the copy has to be on the driver's stream when the call returns, since the stream's owner
/// may use that next. A captured copy is not work yet.
pub(super) fn can_hold_back(core: &StreamCore) -> bool {
    core.device.signalled && core.device.driver.host_memory_is_slow() && !core.borrowed && !core.is_captured()
}

/// Returns the host's end of a copy by this stream's device.
fn host_end(core: &StreamCore, site: Site, host: &PinnedBytes) -> Result<HostEnd> {
    let here = core.device.id;
    host.end_for(here).ok_or_else(|| {
        Error::new(
            ErrorKind::DeviceMismatch,
            format!(
                "{}: the pinned buffer belongs to {} and is not page-locked, and {here} copies \
                 only from and to page-locked memory; get it from pinned() of a CUDA device, \
                 or stage it with write()",
                site.on(&core.label),
                host.locked_by(),
            ),
        )
    })
}

/// Returns a copy between contiguous host memory and a buffer. Without a host end, which is then
/// set later, the host address is 0.
pub(super) fn host_copy<T: Element>(kind: CopyKind, host: Option<HostEnd>, buffer: &Buffer<T>) -> Copy {
    let host = host.map_or(0, HostEnd::address);
    let (height, width_bytes, pitch) = buffer.runs();
    let device = buffer.address();
    match kind {
        CopyKind::DeviceToHost => Copy {
            kind,
            src: device,
            src_pitch: pitch,
            dst: host,
            dst_pitch: width_bytes,
            width_bytes,
            height,
        },
        _ => Copy {
            kind,
            src: host,
            src_pitch: width_bytes,
            dst: device,
            dst_pitch: pitch,
            width_bytes,
            height,
        },
    }
}

/// Returns a copy between two buffers. One of them must be contiguous, or both must have the same
/// rows.
pub(super) fn device_copy<T: Element>(
    site: &dyn fmt::Display,
    kind: CopyKind,
    source: &Buffer<T>,
    destination: &Buffer<T>,
) -> Result<Copy> {
    if source.len() != destination.len() {
        return Err(Error::new(
            ErrorKind::Shape,
            format!(
                "{site}: the source has {} elements and the destination {}; take a slice of the longer one",
                source.len(),
                destination.len()
            ),
        ));
    }
    let (src_rows, src_width, src_pitch) = source.runs();
    let (dst_rows, dst_width, dst_pitch) = destination.runs();
    let (height, width_bytes, src_pitch, dst_pitch) = match (src_rows, dst_rows) {
        (1, _) => (dst_rows, dst_width, dst_width, dst_pitch),
        (_, 1) => (src_rows, src_width, src_pitch, src_width),
        _ if src_rows == dst_rows => (src_rows, src_width, src_pitch, dst_pitch),
        _ => {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "{site}: the source is a strided view of {src_rows} rows and the destination one of {dst_rows}; copy \
                     through contiguous memory"
                ),
            ));
        }
    };
    Ok(Copy {
        kind,
        src: source.address(),
        src_pitch,
        dst: destination.address(),
        dst_pitch,
        width_bytes,
        height,
    })
}
