//! Copies. The operation owns the pinned buffer while the device uses it and gives it back in its result.
//!
//! # Rule
//! The driver gets host memory that its device may copy while the host continues, and no other: an
//! address for [`host_copy`] is a [`HostEnd`]. Memory that is page-locked for another backend is
//! refused, and handed back.

use super::core::StreamCore;
use super::enqueue::Op;
use super::handle::Stream;
use super::held::{self, After, Staging};
use crate::device::Device;
use crate::driver::{Command, Copy, CopyKind};
use crate::element::Element;
use crate::error::{Error, ErrorKind, Result};
use crate::kernel::AccessMode;
use crate::memory::{Buffer, HostEnd, Pinned, PinnedBytes, Promise};
use crate::order::Site;
use crate::pending::Pending;
use crate::{background, reentry};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

/// A pinned buffer in flight. The runtime holds one reference until the ticket is reached, the `Pending` the other.
type Slot = Arc<Mutex<Option<PinnedBytes>>>;

/// The host's end of a copy: there, or yet to be made.
enum HostSide {
    There(HostEnd),
    Coming(Arc<Staging>),
}

/// Pinned memory for a copy.
enum StagingMemory {
    There(PinnedBytes),
    Promised(Promise),
}

impl Stream {
    /// Allocates device memory on this stream and copies `host` there.
    ///
    /// The pinned buffer is inside the `Pending` until the copy is done, and comes back from it.
    ///
    /// # Cancel safety
    /// If the `Pending` is dropped, the buffer goes back to its pool when the copy is done.
    ///
    /// # Errors
    /// `OutOfMemory` and such at once, with the buffer inside: [`Error::into_buffer`].
    /// `DeviceMismatch` if the stream is on a CUDA device and the buffer a CPU device's, which is
    /// not page-locked: [`write`](Self::write) stages such memory.
    #[track_caller]
    pub fn copy_to_device<T: Element>(&self, host: Pinned<T>) -> Result<(Buffer<T>, Pending<Pinned<T>>)> {
        self.copy_to_device_at(Site::here(&"copy_to_device"), host)
    }

    /// Like [`copy_to_device`](Self::copy_to_device), under the name and line in `site`: for ops
    /// that copy what the host has.
    ///
    /// # Errors
    /// As [`copy_to_device`](Self::copy_to_device).
    pub fn copy_to_device_at<T: Element>(
        &self,
        site: Site,
        host: Pinned<T>,
    ) -> Result<(Buffer<T>, Pending<Pinned<T>>)> {
        if let Err(error) = self.host_end(site, host.bytes()) {
            return Err(host.into_error(error.at(site)));
        }
        let buffer = match self.alloc_at(Site::at(&"alloc", site.location), host.len()) {
            Ok(buffer) => buffer,
            Err(error) => return Err(host.into_error(error)),
        };
        let sent = self.copy_in(site, &buffer, host);
        Ok((buffer, sent))
    }

    /// Copies `host` into `buffer`, which has as many elements.
    ///
    /// # Cancel safety
    /// As [`copy_to_device`](Self::copy_to_device).
    ///
    /// # Errors
    /// In the `Pending`, with the buffer inside: [`Error::into_buffer`]. `DeviceMismatch` as
    /// [`copy_to_device`](Self::copy_to_device).
    #[track_caller]
    pub fn copy_into<T: Element>(&self, buffer: &Buffer<T>, host: Pinned<T>) -> Pending<Pinned<T>> {
        self.copy_in(Site::here(&"copy_into"), buffer, host)
    }

    fn copy_in<T: Element>(&self, site: Site, buffer: &Buffer<T>, host: Pinned<T>) -> Pending<Pinned<T>> {
        let end = self.host_end(site, host.bytes());
        let same_len = self.same_len(site, host.len(), buffer.len());
        let slot: Slot = Arc::new(Mutex::new(Some(host.into_bytes())));
        let operands = [buffer.operand(AccessMode::Write)];
        let mut op = Op::new("copy", site, &operands);
        op.keep = Some(slot.clone());
        let place = self.enqueue_copy(
            &mut op,
            same_len.and(end).map(HostSide::There),
            CopyKind::HostToDevice,
            buffer,
        );
        let place = place.map_err(|error| match slot.lock().take() {
            Some(bytes) => error.with_buffer(bytes),
            None => error,
        });
        Pending::later(self.core(), place, move || Ok(take(&slot)))
    }

    /// Copies a pinned buffer that others read too, for instance to several devices. One that a
    /// CUDA device page-locked serves all CUDA and CPU devices.
    ///
    /// # Errors
    /// In the `Pending`; `DeviceMismatch` as [`copy_to_device`](Self::copy_to_device).
    #[track_caller]
    pub fn copy_from_shared<T: Element>(&self, buffer: &Buffer<T>, host: &Arc<Pinned<T>>) -> Pending<()> {
        let site = Site::here(&"copy_from_shared");
        let same_len = self.same_len(site, host.len(), buffer.len());
        let end = same_len.and_then(|()| self.host_end(site, host.bytes()));
        let operands = [buffer.operand(AccessMode::Write)];
        let mut op = Op::new("copy", site, &operands);
        op.keep = Some(host.clone());
        let place = self.enqueue_copy(&mut op, end.map(HostSide::There), CopyKind::HostToDevice, buffer);
        Pending::value(self.core(), place, ())
    }

    /// Copies `buffer` into pinned memory, which the `Pending` yields when it is filled.
    ///
    /// Where the pool has no such memory, the call does not wait for it: a thread of the runtime
    /// has the driver make it, and this copy and what is behind it on the stream are handed to the
    /// driver after that. On a [borrowed](crate::StreamBuilder::borrow_raw) stream the call waits.
    ///
    /// # Errors
    /// In the `Pending`; `OutOfMemory` if the pinned pool is at its cap, or the driver has no
    /// memory.
    #[track_caller]
    pub fn copy_to_host<T: Element>(&self, buffer: &Buffer<T>) -> Pending<Pinned<T>> {
        self.copy_to_host_at(Site::here(&"copy_to_host"), buffer)
    }

    /// Like [`copy_to_host`](Self::copy_to_host), under the name and line in `site`: for ops that
    /// read.
    ///
    /// # Errors
    /// As [`copy_to_host`](Self::copy_to_host).
    pub fn copy_to_host_at<T: Element>(&self, site: Site, buffer: &Buffer<T>) -> Pending<Pinned<T>> {
        match self.copy_out(site, buffer) {
            Ok((place, slot)) => Pending::later(self.core(), place, move || Ok(take(&slot))),
            Err(error) => Pending::refused_on(self.core(), error),
        }
    }

    /// Reads `buffer` into a vector, through pinned memory as [`copy_to_host`](Self::copy_to_host).
    ///
    /// # Errors
    /// As [`copy_to_host`](Self::copy_to_host).
    #[track_caller]
    pub fn read<T: Element>(&self, buffer: &Buffer<T>) -> Pending<Vec<T>> {
        self.read_at(Site::here(&"read"), buffer)
    }

    /// As [`read`](Self::read), under the name and line in `site`: for ops that read.
    ///
    /// # Errors
    /// As [`copy_to_host`](Self::copy_to_host).
    pub fn read_at<T: Element>(&self, site: Site, buffer: &Buffer<T>) -> Pending<Vec<T>> {
        match self.copy_out(site, buffer) {
            Ok((place, slot)) => Pending::later(self.core(), place, move || Ok(take::<T>(&slot).to_vec())),
            Err(error) => Pending::refused_on(self.core(), error),
        }
    }

    /// Reads the one element of `buffer`.
    ///
    /// # Errors
    /// As [`copy_to_host`](Self::copy_to_host); `Shape` if the buffer has not exactly one element.
    #[track_caller]
    pub fn read_one<T: Element>(&self, buffer: &Buffer<T>) -> Pending<T> {
        self.read_one_at(Site::here(&"read_one"), buffer)
    }

    /// As [`read_one`](Self::read_one), under the name and line in `site`: for ops that read.
    ///
    /// # Errors
    /// As [`read_one`](Self::read_one).
    pub fn read_one_at<T: Element>(&self, site: Site, buffer: &Buffer<T>) -> Pending<T> {
        match self.same_len(site, 1, buffer.len()).and_then(|()| self.copy_out(site, buffer)) {
            Ok((place, slot)) => Pending::later(self.core(), place, move || Ok(take::<T>(&slot)[0])),
            Err(error) => Pending::refused_on(self.core(), error),
        }
    }

    fn copy_out<T: Element>(&self, site: Site, buffer: &Buffer<T>) -> Result<(Result<super::Place>, Slot)> {
        let memory = self.staging_memory(site, buffer.len_bytes())?;
        let (len, slot) = (buffer.len(), Slot::default());
        let operands = [buffer.operand(AccessMode::Read)];
        let mut op = Op::new("copy", site, &operands);
        op.keep = Some(slot.clone());
        let mine = slot.clone();
        let fill = move |bytes| *mine.lock() = Some(Pinned::<T>::new(bytes, len).into_bytes());
        let place = self.enqueue_staged(&mut op, memory, CopyKind::DeviceToHost, buffer, fill);
        Ok((place, slot))
    }

    /// Copies a pageable slice into `buffer`. The slice is copied before this returns: into pinned
    /// memory, or where the pool has none into memory that is not, until the runtime has some, as
    /// [`copy_to_host`](Self::copy_to_host) says.
    ///
    /// # Errors
    /// As [`copy_to_host`](Self::copy_to_host).
    #[track_caller]
    pub fn write<T: Element>(&self, buffer: &Buffer<T>, host: &[T]) -> Pending<()> {
        self.write_at(Site::here(&"write"), buffer, host)
    }

    /// As [`write`](Self::write), under the name and line in `site`: for ops that write what the host has.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_at<T: Element>(&self, site: Site, buffer: &Buffer<T>, host: &[T]) -> Pending<()> {
        let operands = [buffer.operand(AccessMode::Write)];
        let mut op = Op::new("copy", site, &operands);
        let memory = self.same_len(site, host.len(), buffer.len());
        let place = match memory.and_then(|()| self.staging_memory(site, size_of_val(host))) {
            Err(error) => self.enqueue_copy(&mut op, Err(error), CopyKind::HostToDevice, buffer),
            Ok(memory) => {
                let slot = Slot::default();
                op.keep = Some(slot.clone());
                let filled = move |bytes, host: &[T]| {
                    let mut staged = Pinned::<T>::new(bytes, host.len());
                    staged.copy_from_slice(host);
                    *slot.lock() = Some(staged.into_bytes());
                };
                match memory {
                    StagingMemory::There(bytes) => {
                        let end = self.host_end(site, &bytes).map(HostSide::There);
                        filled(bytes, host);
                        self.enqueue_copy(&mut op, end, CopyKind::HostToDevice, buffer)
                    }
                    // The borrow ends with this call.
                    StagingMemory::Promised(_) => {
                        let host = host.to_vec();
                        let fill = move |bytes| filled(bytes, &host);
                        self.enqueue_staged(&mut op, memory, CopyKind::HostToDevice, buffer, fill)
                    }
                }
            }
        };
        Pending::value(self.core(), place, ())
    }

    /// Copies `source` to `destination`, both on this stream's device and with as many elements.
    ///
    /// # Errors
    /// In the `Pending`.
    #[track_caller]
    pub fn copy<T: Element>(&self, source: &Buffer<T>, destination: &Buffer<T>) -> Pending<()> {
        self.copy_at(Site::here(&"copy"), source, destination)
    }

    /// As [`copy`](Self::copy), under the name and line in `site`: for ops that copy.
    ///
    /// # Errors
    /// In the `Pending`.
    pub fn copy_at<T: Element>(
        &self,
        site: Site,
        source: &Buffer<T>,
        destination: &Buffer<T>,
    ) -> Pending<()> {
        self.copy_between(site, source, destination, false)
    }

    /// Copies `source` to `destination`, each of which may be on any device of the stream's runtime
    /// and backend.
    ///
    /// The copy runs in the order of this stream, which may be on the source's device (a push), on
    /// the destination's (a pull) or on a third one. Both devices stay open until it has finished.
    ///
    /// # Ordering
    /// Stated as for any other op: the stream has to be ordered after the last write of `source`
    /// and the last use of `destination`, and their next users after it.
    ///
    /// # Errors
    /// In the `Pending`.
    #[track_caller]
    pub fn copy_peer<T: Element>(&self, source: &Buffer<T>, destination: &Buffer<T>) -> Pending<()> {
        self.copy_between(Site::here(&"copy_peer"), source, destination, true)
    }

    fn copy_between<T: Element>(
        &self,
        site: Site,
        source: &Buffer<T>,
        destination: &Buffer<T>,
        peers: bool,
    ) -> Pending<()> {
        let here = &self.core().device;
        let ends = [source.allocation(), destination.allocation()].map(|end| &end.device);
        let leaves = ends.iter().any(|end| !Arc::ptr_eq(end, here));
        let kind = if leaves {
            CopyKind::Peer { source: ends[0].id, destination: ends[1].id }
        } else {
            CopyKind::DeviceToDevice
        };
        let operands = [source.operand(AccessMode::Read), destination.operand(AccessMode::Write)];
        let mut op = Op::new("copy", site, &operands);
        op.peers = peers;
        if leaves {
            // A stream keeps its own device for what is in flight, and only that one.
            op.keep = Some(Arc::new(ends.map(Arc::clone)));
        }
        let copy = device_copy(&site.on(self.label()), kind, source, destination);
        let place = match copy {
            Ok(copy) => {
                op.moved = (copy.width_bytes * copy.height) as u64;
                self.core().enqueue(&mut op, |_| Command::Copy(copy))
            }
            Err(error) => {
                op.refused = Some(error);
                self.core().enqueue(&mut op, |_| unreachable!("a refused op has no command"))
            }
        };
        Pending::value(self.core(), place, ())
    }
}

impl Device {
    /// Page-locked host memory for `len` elements, from the device's pool. Contents are
    /// unspecified, or all zero with [`zero_on_free`](crate::RuntimeBuilder::zero_on_free).
    ///
    /// Growing the pool can take milliseconds, which then pass on a thread of the runtime, not on the executor's.
    ///
    /// # Errors
    /// `OutOfMemory` if the pool is at its cap.
    pub async fn pinned<T: Element>(&self, len: usize) -> Result<Pinned<T>> {
        let device = self.shared();
        let len_bytes = host_bytes::<T>(len)?;
        if crate::process::is_forked() {
            return Err(crate::process::forked());
        }
        let bytes = match device.pinned.try_take(len_bytes) {
            Some(bytes) => bytes,
            None if reentry::holds_a_device() => return Err(reentry::refused(&"pinned")),
            None if !device.runs_in_turns => {
                let device = device.clone();
                background::run_pinning(device.id, move || device.pinned_bytes(len_bytes)).await?
            }
            None => device.pinned_bytes(len_bytes)?,
        };
        let pinned = Pinned::new(bytes, len);
        if !device.zero_on_free {
            Ok(pinned)
        } else if len_bytes > ZEROED_AT_ONCE_BYTES && !device.runs_in_turns {
            Ok(background::run(move || zeroed(pinned)).await)
        } else {
            Ok(zeroed(pinned))
        }
    }

    /// Page-locks memory that is there already, so that copies from it overlap with work as from [`pinned`](Self::pinned).
    ///
    /// For data that is used again and again: page-locking takes milliseconds, on the calling thread, and so does the end of it
    /// when the buffer is dropped. The memory does not go to the pool, nor count in its figures. Drivers lock whole pages: for
    /// less than some tens of KiB, a buffer from the pool is the better one.
    ///
    /// # Cancel safety
    /// It stays locked, and the vector alive, until nobody holds the buffer and the last copy is over, whoever waits for it.
    ///
    /// # On the CPU device
    /// There is nothing to lock.
    ///
    /// # Errors
    /// `Driver` if the driver does not take it: parts of it are page-locked already, or the system allows no more. The vector is
    /// inside: [`Error::into_vec`].
    ///
    /// # Examples
    /// ```
    /// # fn main() -> warpline_runtime::Result<()> {
    /// # let runtime = warpline_runtime::Runtime::builder().build()?;
    /// # let device = runtime.device("cpu".parse()?)?;
    /// # let stream = device.new_stream()?;
    /// let table = device.pin(vec![0.5f32; 1 << 20])?;
    /// let x = stream.alloc::<f32>(table.len())?;
    /// let table = stream.copy_into(&x, table).wait()?; // as from any pinned buffer
    /// # Ok(())
    /// # }
    /// ```
    pub fn pin<T: Element>(&self, mut elements: Vec<T>) -> Result<Pinned<T>> {
        let pinned = self.shared().with_pinned(|pool| pool.register(&mut elements));
        pinned.map_err(|error| error.with_vec(elements))
    }

    /// Like [`pinned`](Self::pinned), on the calling thread.
    ///
    /// # Errors
    /// As `pinned`.
    pub fn pinned_blocking<T: Element>(&self, len: usize) -> Result<Pinned<T>> {
        let device = self.shared();
        let pinned = Pinned::new(device.pinned_bytes(host_bytes::<T>(len)?)?, len);
        Ok(if device.zero_on_free { zeroed(pinned) } else { pinned })
    }
}

/// The most bytes that are zeroed on an executor's thread, which takes some tens of microseconds.
const ZEROED_AT_ONCE_BYTES: usize = 1 << 20;

fn zeroed<T: Element>(mut pinned: Pinned<T>) -> Pinned<T> {
    pinned.fill(T::zeroed());
    pinned
}

fn host_bytes<T: Element>(len: usize) -> Result<usize> {
    len.checked_mul(size_of::<T>()).ok_or_else(|| {
        Error::new(
            ErrorKind::OutOfMemory,
            format!("pinned: {len} elements of {} bytes are more than can be addressed", size_of::<T>()),
        )
    })
}

fn take<T: Element>(slot: &Slot) -> Pinned<T> {
    let bytes = slot.lock().take().expect("only the `Pending` takes the buffer, once");
    Pinned::from_bytes(bytes).unwrap_or_else(|_| unreachable!("the buffer was made with this element type"))
}

impl Stream {
    /// Gets pinned memory for a copy by this stream: a block where one is cached, or where the
    /// stream cannot wait for one on the host; else the promise of one.
    fn staging_memory(&self, site: Site, len_bytes: usize) -> Result<StagingMemory> {
        let (core, device) = (self.core(), &self.core().device);
        let memory = device.with_pinned(|pool| match pool.try_take(len_bytes) {
            Some(bytes) => Ok(StagingMemory::There(bytes)),
            None if core.can_hold_back() => {
                reentry::may_ask(&"pinned")?;
                pool.promise(len_bytes).map(StagingMemory::Promised)
            }
            None => pool.take(len_bytes).map(StagingMemory::There),
        });
        memory.map_err(|error| core.unserved(site, error))
    }

    /// Enqueues a copy through that memory, which `fill` gets before the copy runs: now, or on
    /// `warpline-pin` when it was made.
    fn enqueue_staged<T: Element>(
        &self,
        op: &mut Op<'_>,
        memory: StagingMemory,
        kind: CopyKind,
        buffer: &Buffer<T>,
        fill: impl FnOnce(PinnedBytes) + Send + 'static,
    ) -> Result<super::Place> {
        let site = op.site;
        let promise = match memory {
            StagingMemory::There(bytes) => {
                let end = self.host_end(site, &bytes).map(HostSide::There);
                fill(bytes);
                return self.enqueue_copy(op, end, kind, buffer);
            }
            StagingMemory::Promised(promise) => promise,
        };
        let staging = Arc::<Staging>::default();
        let place = self.enqueue_copy(op, Ok(HostSide::Coming(staging.clone())), kind, buffer)?;
        let stream = self.core().clone();
        background::pin(stream.device.id, move || {
            let bytes = stream.device.with_pinned(|_| promise.keep());
            let end = bytes.map_err(|error| stream.unserved(site, error)).and_then(|bytes| {
                let end = stream.host_end(site, &bytes)?;
                fill(bytes);
                Ok(end)
            });
            staging.set(end);
            held::hand_over(stream);
        });
        Ok(place)
    }

    /// Enqueues a copy between the host and `buffer`, or refuses it where there is no end at the
    /// host.
    fn enqueue_copy<T: Element>(
        &self,
        op: &mut Op<'_>,
        host: Result<HostSide>,
        kind: CopyKind,
        buffer: &Buffer<T>,
    ) -> Result<super::Place> {
        match host {
            Ok(HostSide::There(end)) => {
                self.core().enqueue(op, |_| Command::Copy(host_copy(kind, Some(end), buffer)))
            }
            Ok(HostSide::Coming(staging)) => {
                op.after = Some(After::Memory(staging));
                self.core().enqueue(op, |_| Command::Copy(host_copy(kind, None, buffer)))
            }
            Err(error) => {
                op.refused = Some(error);
                self.core().enqueue(op, |_| unreachable!("a refused op has no command"))
            }
        }
    }

    fn host_end(&self, site: Site, host: &PinnedBytes) -> Result<HostEnd> {
        self.core().host_end(site, host)
    }

    fn same_len(&self, site: Site, host: usize, device: usize) -> Result<()> {
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

impl StreamCore {
    /// Returns whether a copy may be held back until there is memory for it. What is called on a
    /// borrowed stream is on the driver's stream when the call returns, since its owner may use
    /// that next. What is captured is no work yet.
    fn can_hold_back(&self) -> bool {
        self.device.signalled
            && self.device.driver.host_memory_is_slow()
            && !self.borrowed
            && !self.is_captured()
    }

    /// The host's end of a copy by this stream's device.
    fn host_end(&self, site: Site, host: &PinnedBytes) -> Result<HostEnd> {
        let here = self.device.id;
        host.end_for(here).ok_or_else(|| {
            Error::new(
                ErrorKind::DeviceMismatch,
                format!(
                    "{}: the pinned buffer is {}'s and not page-locked, and {here} copies from and to page-locked memory; \
                     get it from pinned() of a CUDA device, or stage it with write()",
                    site.on(&self.label),
                    host.locked_by(),
                ),
            )
        })
    }
}

/// Between contiguous host memory and a buffer. Without the host's end, which is set later, it is
/// at 0.
fn host_copy<T: Element>(kind: CopyKind, host: Option<HostEnd>, buffer: &Buffer<T>) -> Copy {
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

/// Between two buffers: one of them contiguous, or both with the same rows.
fn device_copy<T: Element>(
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
