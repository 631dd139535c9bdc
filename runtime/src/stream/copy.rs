//! Copies between host and device and between buffers.
//!
//! The op owns the pinned buffer while the device uses it, and returns it in its result.
//!
//! # Rule
//! The driver gets only host memory that its device can copy asynchronously: an address for
//! [`host_copy`] is a [`HostEnd`]. Memory that is page-locked for another backend is refused, and
//! returned to the caller.
// Decision: docs/decisions/0023-unpinned-buffers-are-refused.md

use super::rows::{device_copy, host_copy};
use super::staged::{Slot, Staged, StagingMemory, can_hold_back, host_end};
use super::{At, error};
use crate::buffer::Buffer;
use crate::memory::{Claim, EndOfRead, HostEnd, Pinned, PinnedBytes, Purpose};
use crate::order::{AccessMode, OrderMode, Site};
use crate::pending::Pending;
use crate::shared::{DeviceShared, Place, Reach, Request, Stream};
use parking_lot::Mutex;
use std::sync::Arc;
use warpline_driver::internal::ErrorParts;
use warpline_driver::{Command, CopyKind, DeviceId, Element, Error, ErrorKind, Result};

impl Stream {
    /// Allocates device memory on this stream and copies `host` into it.
    ///
    /// The `Pending` owns the pinned buffer until the copy has finished, and then yields it.
    ///
    /// # Cancel safety
    /// If the `Pending` is dropped, the buffer returns to its pool when the copy has finished.
    ///
    /// # Errors
    /// The call itself returns the errors of [`alloc`](Self::alloc). It returns `DeviceMismatch` if
    /// the stream is on a CUDA device and the pinned buffer belongs to a CPU device: such a buffer
    /// is not page-locked. To copy it, use [`write`](Self::write). A refusal of the copy, such as
    /// `Full`, is in the `Pending`. [`Pinned::from_error`](crate::Pinned::from_error) takes the
    /// buffer back out of either error.
    #[track_caller]
    pub fn copy_to_device<T: Element>(&self, host: Pinned<T>) -> Result<(Buffer<T>, Pending<Pinned<T>>)> {
        self.at(Site::here(&"copy_to_device")).copy_to_device(host)
    }

    /// Copies `host` into `buffer`, which must have the same number of elements.
    ///
    /// # Cancel safety
    /// The cancel safety of [`copy_to_device`](Self::copy_to_device).
    ///
    /// # Errors
    /// In the `Pending`: `Shape` if the lengths differ; `DeviceMismatch` as in
    /// [`copy_to_device`](Self::copy_to_device); the errors of any op, as in
    /// [`launch`](Self::launch). [`Pinned::from_error`](crate::Pinned::from_error) takes the buffer
    /// back out of the error.
    #[track_caller]
    pub fn copy_into<T: Element>(&self, buffer: &Buffer<T>, host: Pinned<T>) -> Pending<Pinned<T>> {
        self.copy_in(Site::here(&"copy_into"), buffer, host)
    }

    fn copy_in<T: Element>(&self, site: Site, buffer: &Buffer<T>, host: Pinned<T>) -> Pending<Pinned<T>> {
        let end = host_end(self.core(), site, host.bytes());
        let same_len = self.same_len(site, host.len(), buffer.len());
        let slot = self.slot(Purpose::Buffer);
        slot.fill(host.into_bytes());
        let operands = [buffer.operand(AccessMode::Write)];
        let request = Request::new("copy", site, &operands).keeping(slot.clone());
        let place = self.enqueue_at(request, same_len.and(end), to_device(buffer));
        let place = place.map_err(|error| match Arc::strong_count(&slot) {
            1 => error.with(Box::new(slot.take().expect("it was put there"))),
            // With launch blocking, the fault of a copy that was accepted and may still be running
            // is an error of the call too.
            _ => error,
        });
        if let Ok(place) = &place {
            slot.enqueued(place.ticket);
        }
        let claim = Claim::to(slot);
        Pending::later(self.core(), place, move || Ok(take(&claim.redeem())))
    }

    /// Copies a shared pinned buffer, for instance to several devices. A pinned buffer of a CUDA
    /// device can be copied to every CUDA and CPU device.
    ///
    /// # Errors
    /// In the `Pending`, as [`copy_into`](Self::copy_into). The caller still has the buffer.
    #[track_caller]
    pub fn copy_from_shared<T: Element>(&self, buffer: &Buffer<T>, host: &Arc<Pinned<T>>) -> Pending<()> {
        let site = Site::here(&"copy_from_shared");
        let same_len = self.same_len(site, host.len(), buffer.len());
        let end = same_len.and_then(|()| host_end(self.core(), site, host.bytes()));
        let operands = [buffer.operand(AccessMode::Write)];
        let request = Request::new("copy", site, &operands).keeping(host.clone());
        let place = self.enqueue_at(request, end, to_device(buffer));
        Pending::value(self.core(), place, ())
    }

    /// Copies `buffer` into pinned memory, which the `Pending` yields once it is filled.
    ///
    /// If the pool has no such memory, the call does not wait for it: a thread of the runtime
    /// allocates it, and then submits this copy and later work on the stream to the driver. At the
    /// pool's cap the copy waits like a request of [`Device::pinned`](crate::Device::pinned). On a
    /// [borrowed](crate::StreamBuilder::borrow_raw) stream and in a capture the call itself waits
    /// and allocates.
    ///
    /// # Errors
    /// In the `Pending`: `OutOfMemory` if the memory does not fit beside the pinned memory that is
    /// held, or the driver has none; the errors of any op, as in [`launch`](Self::launch).
    #[track_caller]
    pub fn copy_to_host<T: Element>(&self, buffer: &Buffer<T>) -> Pending<Pinned<T>> {
        self.at(Site::here(&"copy_to_host")).copy_to_host(buffer)
    }

    /// Reads `buffer` into a vector, through pinned memory as in
    /// [`copy_to_host`](Self::copy_to_host).
    ///
    /// The task that awaits it copies to the vector, at most 1 MiB in a poll of this `Pending`, so
    /// other tasks of the executor run meanwhile. A task that polls many reads together, as
    /// `futures::future::join_all` does, copies as much for each of them.
    ///
    /// # Errors
    /// The errors of [`copy_to_host`](Self::copy_to_host).
    #[track_caller]
    pub fn read<T: Element>(&self, buffer: &Buffer<T>) -> Pending<Vec<T>> {
        self.at(Site::here(&"read")).read(buffer)
    }

    /// Reads the single element of `buffer`.
    ///
    /// # Errors
    /// The errors of [`copy_to_host`](Self::copy_to_host); `Shape` if the buffer has not exactly
    /// one element.
    #[track_caller]
    pub fn read_one<T: Element>(&self, buffer: &Buffer<T>) -> Pending<T> {
        self.at(Site::here(&"read_one")).read_one(buffer)
    }

    /// Copies `buffer` into pinned memory, which is in `slot` when the copy has finished.
    fn copy_out<T: Element>(&self, site: Site, buffer: &Buffer<T>, slot: &Slot) -> Result<Place> {
        let len_bytes = buffer.len_bytes();
        let from = self.staging_memory(site, len_bytes, slot, false)?;
        let operands = [buffer.operand(AccessMode::Read)];
        let request = Request::new("copy", site, &operands);
        let request = if slot.is_passage() {
            from.pool.note_read(slot);
            request.keeping(Arc::new(EndOfRead(slot.clone())))
        } else {
            request.keeping(slot.clone())
        };
        let len = buffer.len();
        let fill = move |slot: &Slot, bytes| slot.fill(Pinned::<T>::new(bytes, len).into_bytes());
        let staged = Staged { slot: slot.clone(), len_bytes, fill };
        self.enqueue_staged(request, from, staged, |host| {
            Command::Copy(host_copy(CopyKind::DeviceToHost, host, buffer))
        })
    }

    /// Copies a pageable slice into `buffer`. The call copies the slice to other host memory before
    /// it returns. This is pinned memory, if the pool has some. Otherwise it is pageable memory,
    /// until a thread of the runtime has allocated pinned memory, as in
    /// [`copy_to_host`](Self::copy_to_host).
    ///
    /// A large slice takes long to copy: [`write_vec`](Self::write_vec) copies nothing in the call.
    ///
    /// # Errors
    /// The errors of [`copy_to_host`](Self::copy_to_host); `Shape` if the lengths differ.
    #[track_caller]
    pub fn write<T: Element>(&self, buffer: &Buffer<T>, host: &[T]) -> Pending<()> {
        self.at(Site::here(&"write")).write(buffer, host)
    }

    /// Copies a vector into `buffer` like [`write`](Self::write), and gives it back. The call
    /// copies nothing.
    ///
    /// A CPU device copies from the vector itself. For a GPU, a thread of the runtime first copies
    /// the elements to pinned memory of the pool, which it allocates if none is cached. Where that
    /// may not happen later, the call copies as `write` does: on a borrowed stream, in a capture,
    /// and where each launch is waited for.
    ///
    /// # Cancel safety
    /// If the `Pending` is dropped, the vector is dropped once the copy has finished.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write). If the call itself is refused,
    /// [`Error::into_vec`] takes the vector back out of the error.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> warpline::Result<()> {
    /// # let runtime = warpline::Runtime::builder().build()?;
    /// # let stream = runtime.device("cpu".parse()?)?.new_stream()?;
    /// let batch = vec![0.5f32; 1 << 20];
    /// let x = stream.alloc(batch.len())?;
    /// let batch = stream.write_vec(&x, batch).await?;
    /// assert_eq!(stream.read(&x).await?, batch);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn write_vec<T: Element>(&self, buffer: &Buffer<T>, host: Vec<T>) -> Pending<Vec<T>> {
        let core = self.core();
        let mut kept = Arc::new(Mutex::new(Some(host)));
        let place = self.write_kept(Site::here(&"write_vec"), buffer, &kept);
        let place = place.map_err(|error| with_contents(error, &mut kept));
        Pending::later(core, place, move || Ok(kept.lock().take().expect("it is taken once")))
    }

    fn write_kept<T: Element>(
        &self,
        site: Site,
        buffer: &Buffer<T>,
        kept: &Arc<Mutex<Option<Vec<T>>>>,
    ) -> Result<Place> {
        const KEPT: &str = "it is taken when the copy has finished";
        let core = self.core();
        let guard = kept.lock();
        let host = guard.as_ref().expect(KEPT);
        let is_cpu = matches!(core.device.id, DeviceId::Cpu(_));
        let is_filled_later = can_hold_back(core) && core.device.driver.host_memory_is_slow();
        if core.is_captured() || !is_cpu && !is_filled_later {
            return self.write_slice(site, buffer, host);
        }
        let (end, len, len_bytes) = (HostEnd::for_cpu(host), host.len(), size_of_val(&**host));
        // Another thread may take the lock from here on, to copy.
        drop(guard);
        let operands = [buffer.operand(AccessMode::Write)];
        let request = Request::new("copy", site, &operands);
        let same_len = self.same_len(site, len, buffer.len());
        if is_cpu {
            return self.enqueue_at(request.keeping(kept.clone()), same_len.map(|()| end), to_device(buffer));
        }
        let (slot, kept) = (self.slot(Purpose::Passage), kept.clone());
        let memory = same_len.and_then(|()| self.staging_memory(site, len_bytes, &slot, true));
        let memory = memory.map_err(|error| core.refuse(&request, error))?;
        let request = request.keeping(slot.clone());
        let fill = move |slot: &Slot, bytes| stage(slot, bytes, kept.lock().as_ref().expect(KEPT));
        let staged = Staged { slot, len_bytes, fill };
        self.enqueue_held_back(request, memory, staged, &mut Some(to_device(buffer)))
    }

    fn write_slice<T: Element>(&self, site: Site, buffer: &Buffer<T>, host: &[T]) -> Result<Place> {
        let operands = [buffer.operand(AccessMode::Write)];
        let request = Request::new("copy", site, &operands);
        let (slot, len_bytes) = (self.slot(Purpose::Passage), size_of_val(host));
        let memory = self.same_len(site, host.len(), buffer.len());
        let memory = memory.and_then(|()| self.staging_memory(site, len_bytes, &slot, false));
        let mut from = memory.map_err(|error| self.core().refuse(&request, error))?;
        let mut request = request.keeping(slot.clone());
        let mut command = Some(to_device(buffer));
        if let StagingMemory::There(bytes) = from.memory {
            let end = host_end(self.core(), site, &bytes);
            stage(&slot, bytes, host);
            let place = self.enqueue_in_hand(&mut request, from.pool, &slot, end, &mut command)?;
            if let Some(place) = place {
                return Ok(place);
            }
            drop(slot.take());
            from = self.wanted(len_bytes, &slot);
        }
        // The slice is borrowed for this call only.
        let host = host.to_vec();
        let fill = move |slot: &Slot, bytes| stage(slot, bytes, &host);
        let staged = Staged { slot, len_bytes, fill };
        self.enqueue_held_back(request, from, staged, &mut command)
    }

    /// Copies the elements of `source` to `destination`. Both are on this stream's device and have
    /// the same number of elements. The destination comes first, as in `memcpy`.
    ///
    /// # Errors
    /// In the `Pending`: `Shape` if the lengths differ, or if both buffers are strided and have
    /// different numbers of rows; the errors of any op, as in [`launch`](Self::launch).
    #[track_caller]
    pub fn copy_buffer<T: Element>(&self, destination: &Buffer<T>, source: &Buffer<T>) -> Pending<()> {
        self.copy_between(Site::here(&"copy_buffer"), destination, source, false)
    }

    /// Copies the elements of `source` to `destination`, which may be on different devices. The
    /// destination comes first.
    ///
    /// The copy runs in the order of this stream, which may be on the source's device (a push), on
    /// the destination's (a pull) or on a third one of the same backend. Both devices stay open
    /// until the copy has finished.
    ///
    /// # Between a CPU device and another backend
    /// The stream is on the device that is not a CPU device. A buffer that the stream's backend
    /// page-locked ([`buffer_from_pinned`](Self::buffer_from_pinned)) is copied directly. Other
    /// memory of CPU devices is not page-locked, so the bytes go through [pinned](crate::Pinned)
    /// memory in pieces: host functions of this stream move each piece between the two. A piece is
    /// 4 MiB, or more if there would be more than 128. The host does not wait in either case.
    ///
    /// Such a copy needs [`OrderMode::Deny`](crate::OrderMode::Deny) or
    /// [`Wait`](crate::OrderMode::Wait). In the other modes nothing would keep a kernel of the CPU
    /// device from using the memory at the same time.
    ///
    /// # Ordering
    /// The caller provides the edges, as for any other op. The stream has to be ordered after the
    /// last write of `source` and the last use of `destination`, and their next users after the
    /// copy.
    ///
    /// # Errors
    /// In the `Pending`, as [`copy_buffer`](Self::copy_buffer); `DeviceMismatch` if a buffer is of
    /// another runtime, or if this stream's device cannot reach it: neither buffer is on a CPU
    /// device and their backends differ, or the stream is not on the device that it has to be on.
    /// Between backends also the errors of [`copy_to_host`](Self::copy_to_host), `Captured` in a
    /// capture, and `Unsupported` in the modes `Warn` and `Off`.
    #[track_caller]
    pub fn copy_buffer_peer<T: Element>(&self, destination: &Buffer<T>, source: &Buffer<T>) -> Pending<()> {
        self.copy_between(Site::here(&"copy_buffer_peer"), destination, source, true)
    }

    fn copy_between<T: Element>(
        &self,
        site: Site,
        destination: &Buffer<T>,
        source: &Buffer<T>,
        peers: bool,
    ) -> Pending<()> {
        let here = &self.core().device;
        let ends = [source.allocation(), destination.allocation()].map(|end| &end.device);
        let leaves = ends.iter().any(|end| !Arc::ptr_eq(end, here));
        let is_cpu = |device: &Arc<DeviceShared>| matches!(device.id, DeviceId::Cpu(_));
        // The memory of a CPU device, if it is one end of a copy by another device.
        let host = match ends.map(is_cpu) {
            [true, false] if peers && !is_cpu(here) => Some(source.allocation()),
            [false, true] if peers && !is_cpu(here) => Some(destination.allocation()),
            _ => None,
        };
        let kind = match host {
            Some(_) if is_cpu(ends[0]) => CopyKind::HostToDevice,
            Some(_) => CopyKind::DeviceToHost,
            None if leaves => CopyKind::Peer { source: ends[0].id, destination: ends[1].id },
            None => CopyKind::DeviceToDevice,
        };
        let operands = [source.operand(AccessMode::Read), destination.operand(AccessMode::Write)];
        let mut request = Request::new("copy", site, &operands).with_reach(match (peers, host) {
            (false, _) => Reach::Own,
            (true, None) => Reach::Backend,
            (true, Some(_)) => Reach::Cpu,
        });
        let slot = host.map(|_| self.slot(Purpose::Passage));
        if leaves {
            // A stream keeps only its own device open for work in flight.
            request = request.keeping(Arc::new((ends.map(Arc::clone), host.cloned(), slot.clone())));
        }
        let copy = device_copy(&site.on(self.label()), kind, source, destination);
        let copy = match host {
            Some(_) => copy.and_then(|copy| self.can_cross_backends(site, ends).map(|()| copy)),
            None => copy,
        };
        let place = match (copy, host.zip(slot)) {
            // Unless the memory is page-locked. A capture is left to refuse the copy.
            (Ok(copy), Some((host, slot)))
                if !host.is_page_locked_for(here.id) || copy.bytes() == 0 || self.core().is_captured() =>
            {
                request.payload.bytes = copy.bytes();
                self.enqueue_in_pieces(request, copy, host.clone(), slot)
            }
            (Ok(copy), _) => {
                request.payload.bytes = copy.bytes();
                self.core().enqueue(&mut request, |_| Command::Copy(copy))
            }
            (Err(error), _) => Err(self.core().refuse(&request, error)),
        };
        Pending::value(self.core(), place, ())
    }

    /// Refuses copies between backends in the modes that let conflicting ops run.
    fn can_cross_backends(&self, site: Site, ends: [&Arc<DeviceShared>; 2]) -> Result<()> {
        let mode = self.core().device.runtime.mode;
        if !matches!(mode, OrderMode::Warn | OrderMode::Off) {
            return Ok(());
        }
        let [source, destination] = ends.map(|end| end.id);
        let why = format_args!(
            "a copy between {source} and {destination} needs the order mode deny or wait, and this runtime \
             has {mode:?}; nothing else keeps kernels of the CPU device off the memory meanwhile"
        );
        Err(error(self.core(), site, ErrorKind::Unsupported, why))
    }
}

impl At<'_> {
    /// Does the same as [`Stream::copy_to_device`].
    ///
    /// # Errors
    /// The errors of [`Stream::copy_to_device`].
    pub fn copy_to_device<T: Element>(self, host: Pinned<T>) -> Result<(Buffer<T>, Pending<Pinned<T>>)> {
        let At { stream, site } = self;
        if let Err(error) = host_end(stream.core(), site, host.bytes()) {
            return Err(host.into_error(error.at(site)));
        }
        let buffer = match stream.at(Site::at(&"alloc", site.location)).alloc(host.len()) {
            Ok(buffer) => buffer,
            Err(error) => return Err(host.into_error(error)),
        };
        let sent = stream.copy_in(site, &buffer, host);
        Ok((buffer, sent))
    }

    /// Does the same as [`Stream::copy_to_host`].
    pub fn copy_to_host<T: Element>(self, buffer: &Buffer<T>) -> Pending<Pinned<T>> {
        let core = self.stream.core();
        let slot = self.stream.slot(Purpose::NewBuffer);
        match self.stream.copy_out(self.site, buffer, &slot) {
            Ok(place) => {
                let claim = Claim::to(slot);
                Pending::later(core, Ok(place), move || Ok(take(&claim.redeem())))
            }
            Err(error) => Pending::refused_on(core, error),
        }
    }

    /// Does the same as [`Stream::read`].
    pub fn read<T: Element>(self, buffer: &Buffer<T>) -> Pending<Vec<T>> {
        self.read_as(buffer, Vec::extend_from_slice)
    }

    /// Does the same as [`Stream::read`], for a vector of other elements. `append` adds one of
    /// them for each element that it gets.
    pub fn read_as<T: Element, U: Send + 'static>(
        self,
        buffer: &Buffer<T>,
        append: fn(&mut Vec<U>, &[T]),
    ) -> Pending<Vec<U>> {
        let core = self.stream.core();
        let slot = self.stream.slot(Purpose::Passage);
        match self.stream.copy_out(self.site, buffer, &slot) {
            Ok(place) => Pending::in_steps(core, Ok(place), copied_in_steps(slot, append)),
            Err(error) => Pending::refused_on(core, error),
        }
    }

    /// Does the same as [`Stream::read_one`].
    pub fn read_one<T: Element>(self, buffer: &Buffer<T>) -> Pending<T> {
        let At { stream, site } = self;
        let (core, slot) = (stream.core(), stream.slot(Purpose::Passage));
        match stream.same_len(site, 1, buffer.len()).and_then(|()| stream.copy_out(site, buffer, &slot)) {
            Ok(place) => Pending::later(core, Ok(place), move || Ok(take::<T>(&slot)[0])),
            Err(error) => Pending::refused_on(stream.core(), error),
        }
    }

    /// Does the same as [`Stream::write`].
    pub fn write<T: Element>(self, buffer: &Buffer<T>, host: &[T]) -> Pending<()> {
        Pending::value(self.stream.core(), self.stream.write_slice(self.site, buffer, host), ())
    }

    /// Does the same as [`Stream::copy_buffer`].
    pub fn copy_buffer<T: Element>(self, destination: &Buffer<T>, source: &Buffer<T>) -> Pending<()> {
        self.stream.copy_between(self.site, destination, source, false)
    }

    /// Does the same as [`Stream::copy_buffer_peer`].
    pub fn copy_buffer_peer<T: Element>(self, destination: &Buffer<T>, source: &Buffer<T>) -> Pending<()> {
        self.stream.copy_between(self.site, destination, source, true)
    }
}

/// Returns the function that makes a copy into `buffer` from the address of the host memory.
fn to_device<T: Element>(buffer: &Buffer<T>) -> impl FnOnce(u64) -> Command {
    |host| Command::Copy(host_copy(CopyKind::HostToDevice, host, buffer))
}

/// The most bytes that one poll copies: some tenths of a millisecond, with the page faults of new
/// memory.
const STEP_BYTES: usize = 1 << 20;

/// Returns a function that copies the buffer in `slot` to a vector, a piece at each call.
fn copied_in_steps<T: Element, U: Send + 'static>(
    slot: Slot,
    append: fn(&mut Vec<U>, &[T]),
) -> impl FnMut() -> Option<Result<Vec<U>>> + Send {
    let mut to = Vec::new();
    let most = STEP_BYTES / size_of::<T>().clamp(1, STEP_BYTES);
    move || {
        let mut is_over = false;
        // The memory stays in the slot meanwhile, so that it makes way even if no poll follows.
        slot.read(|bytes| {
            let host = bytes.elements::<T>();
            to.reserve_exact(host.len() - to.len());
            let rest = &host[to.len()..];
            append(&mut to, &rest[..rest.len().min(most)]);
            is_over = to.len() == host.len();
            !is_over
        });
        is_over.then(|| Ok(std::mem::take(&mut to)))
    }
}

/// Copies `host` to `bytes`, which go into the slot.
fn stage<T: Element>(slot: &Slot, bytes: PinnedBytes, host: &[T]) {
    let mut staged = Pinned::<T>::new(bytes, host.len());
    staged.copy_from_slice(host);
    slot.fill(staged.into_bytes());
}

/// Returns `error` with what `slot` contains, but only if nothing else holds it: with launch
/// blocking, the fault of a copy that was accepted and may still be running is an error of the
/// call too.
fn with_contents<T: Send + 'static>(error: Error, slot: &mut Arc<Mutex<Option<T>>>) -> Error {
    match Arc::get_mut(slot).and_then(|slot| slot.get_mut().take()) {
        Some(contents) => error.with(Box::new(contents)),
        None => error,
    }
}

fn take<T: Element>(slot: &Slot) -> Pinned<T> {
    let bytes = slot.take().expect("only the `Pending` takes the buffer, once");
    Pinned::from_bytes(bytes).unwrap_or_else(|_| unreachable!("the buffer was made with this element type"))
}
