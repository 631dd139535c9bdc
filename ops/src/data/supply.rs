//! The pinned memory of a loader.
//!
//! # Rules
//! 1. A loader has a **seat**: pinned memory for one batch, or room for it, as long as it lives.
//!    So each of several loaders gets on, whatever the others take.
//!    [`build`](super::Loader::build) takes the seat, unless copies in flight have to return the
//!    memory first. It refuses a loader for which there is no room beside what handles hold.
//! 2. The first poll takes the seat, or waits for one. It also takes the room that is free then,
//!    up to `prefetch` further batches. The epoch's reader asks for no more. If there is less, it
//!    reads less far ahead.
//! 3. The first memory that an epoch no longer needs becomes the seat again, also if its consumer
//!    was dropped. The rest returns to the pool. A reader may notice late that its consumer was
//!    dropped. So the next epoch waits for the seat, unless another epoch is being read.
// Decision: docs/decisions/0066-pinned-memory-waits.md

use super::sample::Sample;
use parking_lot::Mutex;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;
use warpline_runtime::{Device, PinnedRoom, Result, Site, is_forked};

/// The pinned memory of a loader.
pub(super) struct Memory<S: Sample> {
    device: Device,
    /// The line that built the loader, which errors name.
    site: Site,
    widths: S::Widths,
    batch_size: usize,
    seat: Mutex<Option<Seat<S>>>,
    /// The number of epochs that are being read.
    users: AtomicUsize,
    /// The number of batches' memory that readers have.
    lent: AtomicUsize,
    /// Notified when one of the above fell.
    returned: Notify,
}

/// Pinned memory for a batch, or room for it. Dropping it leaves it to its loader.
pub(super) enum Supply<S: Sample> {
    Room(Room<S>),
    Memory(Host<S>),
}

/// Room for a batch.
pub(super) struct Room<S: Sample> {
    /// `None` once it was used.
    room: Option<PinnedRoom>,
    memory: Arc<Memory<S>>,
}

impl<S: Sample> Room<S> {
    fn of(memory: &Arc<Memory<S>>, room: PinnedRoom) -> Supply<S> {
        memory.lent.fetch_add(1, Ordering::Relaxed);
        Supply::Room(Room { room: Some(room), memory: memory.clone() })
    }
}

impl<S: Sample> Drop for Room<S> {
    fn drop(&mut self) {
        if let Some(room) = self.room.take() {
            self.memory.is_back(Some(Seat::Room(room)));
        }
    }
}

/// An epoch that uses a loader's memory, until it is dropped.
pub(super) struct User<S: Sample>(Arc<Memory<S>>);

impl<S: Sample> User<S> {
    pub(super) fn of(memory: &Arc<Memory<S>>) -> Self {
        memory.users.fetch_add(1, Ordering::Relaxed);
        User(memory.clone())
    }
}

impl<S: Sample> Drop for User<S> {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::Relaxed);
        self.0.returned.notify_waiters();
    }
}

/// Memory that a loader keeps between epochs.
pub(super) enum Seat<S: Sample> {
    Room(PinnedRoom),
    Memory(S::Host),
    /// It returns when these copies have ended.
    InFlight(S::Copies),
}

impl<S: Sample> Memory<S> {
    /// Takes room for the seat, unless it has to wait.
    ///
    /// # Errors
    /// `OutOfMemory` if it does not fit beside what handles hold.
    pub(super) fn new(device: Device, site: Site, widths: S::Widths, batch_size: usize) -> Result<Self> {
        let room = device.try_pinned_room(site, &lens_bytes::<S>(widths, batch_size))?;
        Ok(Memory {
            device,
            site,
            widths,
            batch_size,
            seat: Mutex::new(room.map(Seat::Room)),
            users: AtomicUsize::new(0),
            lent: AtomicUsize::new(0),
            returned: Notify::new(),
        })
    }

    /// Takes the memory for an epoch: for one batch, and for up to `more` if there is room.
    pub(super) async fn supplies(self: Arc<Self>, more: usize) -> Result<Vec<Supply<S>>> {
        let lens_bytes = lens_bytes::<S>(self.widths, self.batch_size);
        let first = match self.take_seat(&lens_bytes).await {
            Some(Seat::Room(room)) => Room::of(&self, room),
            Some(Seat::Memory(fields)) => Supply::Memory(Host::new(&self, fields)),
            Some(Seat::InFlight(copies)) => {
                let mut left = Left { copies: Some(copies), memory: self.clone() };
                let copies = left.copies.as_mut().expect("they were put there");
                let fields = poll_fn(|cx| S::poll_copies(copies, cx)).await?;
                left.copies = None;
                Supply::Memory(Host::new(&self, fields))
            }
            None => Room::of(&self, self.device.pinned_room(self.site, &lens_bytes).await?),
        };
        let mut supplies = vec![first];
        while supplies.len() <= more
            && let Ok(Some(room)) = self.device.try_pinned_room(self.site, &lens_bytes)
        {
            supplies.push(Room::of(&self, room));
        }
        Ok(supplies)
    }

    /// Takes the seat, or room for a batch if there is some. Otherwise, if this is the only epoch
    /// that is being read, waits for what the readers of earlier ones still have.
    async fn take_seat(&self, lens_bytes: &[usize]) -> Option<Seat<S>> {
        loop {
            let mut returned = pin!(self.returned.notified());
            returned.as_mut().enable();
            let seat = self.seat.lock().take();
            let room = || self.device.try_pinned_room(self.site, lens_bytes).ok().flatten().map(Seat::Room);
            let seat = seat.or_else(room);
            let is_alone = self.users.load(Ordering::Relaxed) <= 1;
            if seat.is_some() || !is_alone || self.lent.load(Ordering::Acquire) == 0 {
                return seat;
            }
            returned.await;
        }
    }

    /// Notes that a reader no longer has the memory of a batch, which may become the seat.
    fn is_back(&self, memory: Option<Seat<S>>) {
        if let Some(memory) = memory {
            self.keep(memory);
        }
        self.lent.fetch_sub(1, Ordering::Release);
        self.returned.notify_waiters();
    }

    /// Keeps memory that an epoch no longer needs, unless the seat is taken.
    pub(super) fn keep(&self, memory: Seat<S>) {
        let mut seat = self.seat.lock();
        let kept = if seat.is_none() { seat.replace(memory) } else { Some(memory) };
        drop(seat);
        drop(kept);
    }

    /// Returns memory for a full batch.
    pub(super) fn full_host(self: &Arc<Self>, supply: Supply<S>) -> Result<Host<S>> {
        match supply {
            Supply::Memory(mut host) => {
                host.restore();
                Ok(host)
            }
            Supply::Room(mut room) => {
                let mut used = room.room.take().expect("it is used once");
                let fields = S::host(&mut used, self.widths, self.batch_size);
                let host = fields.map(|fields| Host::new(self, fields));
                self.is_back(None);
                host
            }
        }
    }
}

/// Pinned memory for one batch. Dropping it leaves it to its loader.
pub(super) struct Host<S: Sample> {
    /// `None` once the fields were taken.
    fields: Option<S::Host>,
    memory: Arc<Memory<S>>,
}

const FIELDS: &str = "the fields are taken when the batch is sent";

impl<S: Sample> Host<S> {
    pub(super) fn new(memory: &Arc<Memory<S>>, fields: S::Host) -> Self {
        memory.lent.fetch_add(1, Ordering::Relaxed);
        Host { fields: Some(fields), memory: memory.clone() }
    }

    /// Takes the fields with their first `rows` rows.
    pub(super) fn take(mut self, rows: usize) -> S::Host {
        let mut fields = self.fields.take().expect(FIELDS);
        self.memory.is_back(None);
        S::truncate(&mut fields, self.memory.widths, rows);
        fields
    }

    /// Gives fields that were truncated for a shorter batch all their rows back.
    pub(super) fn restore(&mut self) {
        S::restore(self.fields.as_mut().expect(FIELDS));
    }

    #[inline]
    pub(super) fn slots(&mut self, rows: Range<usize>) -> S::Slots<'_> {
        S::host_slots(self.fields.as_mut().expect(FIELDS), self.memory.widths, rows)
    }
}

impl<S: Sample> Drop for Host<S> {
    fn drop(&mut self) {
        if let Some(fields) = self.fields.take() {
            if is_forked() {
                std::mem::forget(fields);
                return;
            }
            self.memory.is_back(Some(Seat::Memory(fields)));
        }
    }
}

/// Copies that the next epoch waits for. If it is dropped meanwhile, they stay the seat.
struct Left<S: Sample> {
    copies: Option<S::Copies>,
    memory: Arc<Memory<S>>,
}

impl<S: Sample> Drop for Left<S> {
    fn drop(&mut self) {
        if let Some(copies) = self.copies.take() {
            self.memory.keep(Seat::InFlight(copies));
        }
    }
}

/// Returns the length in bytes of each field of a batch.
pub(super) fn lens_bytes<S: Sample>(widths: S::Widths, rows: usize) -> Vec<usize> {
    let fields = widths.as_ref().iter().zip(S::ELEMENTS);
    fields.map(|(width, (_, bytes))| rows * width * bytes).collect()
}
