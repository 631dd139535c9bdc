//! Enqueuing of copies between host and device, now or once their page-locked memory exists.

use super::error;
use crate::memory::{HostEnd, HostGrant, InFlight, PinnedBytes, PinnedPool, Promise, Purpose};
use crate::order::Site;
use crate::shared::stream::{HostMemory, Staging, Wanted, hand_over};
use crate::shared::{
    Place, Request, SHORT_COPY_BYTES, Stream, StreamCore, make_way, pinned_bytes_blocking, unserved,
};
use std::sync::Arc;
use warpline_driver::timeline::Keep;
use warpline_driver::{Command, Copy, ErrorKind, Result, StagedCopy, reentry};

/// The most page-locked memory that a copy in pieces takes. A piece of this size occupies the link
/// to a GPU for more than 100 µs, which is long compared with the cost of a host function.
const PIECE_BYTES: usize = 4 << 20;
/// The most pieces of a copy, if it is not strided. Larger copies have larger pieces: a driver's
/// queue takes about a thousand calls, and a piece is two.
const MOST_PIECES: usize = 128;

/// The pinned memory of a copy. The runtime holds one reference until the ticket is reached. If
/// the memory is the result of the op, the `Pending` holds the other.
pub(super) type Slot = Arc<InFlight>;

/// Pinned memory for a copy.
pub(super) enum StagingMemory {
    There(PinnedBytes),
    Promised(Promise),
    /// There is none now.
    Wanted,
}

/// Pinned memory for a copy, and the pool that it comes from.
pub(super) struct FromPool<'a> {
    pub(super) pool: &'a Arc<PinnedPool>,
    pub(super) memory: StagingMemory,
}

/// The end of a copy that is in pinned memory.
pub(super) struct Staged<F> {
    pub(super) slot: Slot,
    pub(super) len_bytes: usize,
    /// Prepares memory and puts it into the slot: in the call, or on a thread of the runtime.
    pub(super) fill: F,
}

impl Stream {
    /// Returns pinned memory for the copy of `slot` by this stream: a block if one is cached, or
    /// if the stream cannot wait for one in the background; otherwise room for one, if there is
    /// some. `is_filled_later`: true if a thread of the runtime fills it in any case.
    pub(super) fn staging_memory(
        &self,
        site: Site,
        len_bytes: usize,
        slot: &Slot,
        is_filled_later: bool,
    ) -> Result<FromPool<'_>> {
        let (core, device, returns) = (self.core(), &self.core().device, slot.returns());
        let is_short = len_bytes <= SHORT_COPY_BYTES && slot.is_passage();
        let pools = [Some(&device.pinned), is_short.then_some(&device.pinned_reserve)];
        let found = device.with_pinned(|| {
            for pool in pools.into_iter().flatten() {
                if !is_filled_later && let Some(bytes) = pool.try_take(len_bytes, returns) {
                    return Ok(FromPool { pool, memory: StagingMemory::There(bytes) });
                }
                reentry::may_ask(&"pinned")?;
                if let Some(promise) = pool.try_promise(len_bytes, returns) {
                    let is_made_later = can_hold_back(core) && device.driver.host_memory_is_slow();
                    let memory = match is_filled_later || is_made_later {
                        true => StagingMemory::Promised(promise),
                        false => StagingMemory::There(promise.keep()?),
                    };
                    return Ok(FromPool { pool, memory });
                }
            }
            let wanted = self.wanted(len_bytes, slot);
            wanted.pool.meets_cap(len_bytes);
            if can_hold_back(core) {
                return Ok(wanted);
            }
            let mut bytes = pinned_bytes_blocking(device, wanted.pool, Some(core), site, len_bytes)?;
            if let Some(returns) = returns {
                bytes.will_return(returns.clone());
            }
            Ok(FromPool { pool: wanted.pool, memory: StagingMemory::There(bytes) })
        });
        found.map_err(|error| unserved(&site.on(&core.label), error))
    }

    /// Returns the pool that a copy waits for.
    pub(super) fn wanted(&self, len_bytes: usize, slot: &Slot) -> FromPool<'_> {
        let device = &self.core().device;
        let reserve = &device.pinned_reserve;
        let held_up_by = |copy| device.runtime.host_code_before_copy(copy);
        let is_short = len_bytes <= SHORT_COPY_BYTES && slot.is_passage();
        let from_reserve = is_short && reserve.judge(&[len_bytes], &held_up_by).is_ok();
        let pool = if from_reserve { reserve } else { &device.pinned };
        FromPool { pool, memory: StagingMemory::Wanted }
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
        let memory = self.staging_memory(request.site, staging_bytes, &slot, false);
        let memory = memory.map_err(|error| self.core().refuse(&request, error))?;
        let fill = |slot: &Slot, bytes| slot.fill(bytes);
        let staged = Staged { slot, len_bytes: staging_bytes, fill };
        self.enqueue_staged(request, memory, staged, |staging| {
            Command::StagedCopy(Box::new(StagedCopy { copy, staging, staging_bytes, host }))
        })
    }

    /// Enqueues a copy through pinned memory. `command` makes it from the memory's address, which
    /// is 0 as long as there is none.
    pub(super) fn enqueue_staged<'a, F: FnMut(&Slot, PinnedBytes) + Send + 'static>(
        &'a self,
        mut request: Request<'a>,
        from: FromPool<'a>,
        mut staged: Staged<F>,
        command: impl FnOnce(u64) -> Command,
    ) -> Result<Place> {
        let FromPool { pool, memory } = from;
        let mut command = Some(command);
        let from = match memory {
            StagingMemory::There(bytes) => {
                let end = host_end(self.core(), request.site, &bytes);
                (staged.fill)(&staged.slot, bytes);
                let place = self.enqueue_in_hand(&mut request, pool, &staged.slot, end, &mut command)?;
                if let Some(place) = place {
                    return Ok(place);
                }
                drop(staged.slot.take());
                self.wanted(staged.len_bytes, &staged.slot)
            }
            memory => FromPool { pool, memory },
        };
        self.enqueue_held_back(request, from, staged, &mut command)
    }

    /// Enqueues a copy whose pinned memory is there, in `slot`. Returns `None` if requests that
    /// wait for such memory overtook it.
    pub(super) fn enqueue_in_hand<'a>(
        &self,
        request: &mut Request<'a>,
        pool: &'a PinnedPool,
        slot: &Slot,
        end: Result<HostEnd>,
        command: &mut Option<impl FnOnce(u64) -> Command>,
    ) -> Result<Option<Place>> {
        let end = end.map_err(|error| self.core().refuse(request, error))?;
        if slot.has_block() {
            request.host = HostMemory::InHand(pool);
        }
        let place = self.core().enqueue(request, |_| once(command)(end.address()));
        match place {
            Ok(place) => {
                slot.enqueued(place.ticket);
                Ok(Some(place))
            }
            Err(_) if matches!(request.host, HostMemory::Overtaken) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Enqueues a copy that is held back until its pinned memory is there.
    #[cold]
    pub(super) fn enqueue_held_back<'a, F: FnMut(&Slot, PinnedBytes) + Send + 'static>(
        &'a self,
        mut request: Request<'a>,
        from: FromPool<'a>,
        staged: Staged<F>,
        command: &mut Option<impl FnOnce(u64) -> Command>,
    ) -> Result<Place> {
        let FromPool { mut pool, memory } = from;
        let Staged { slot, len_bytes, mut fill } = staged;
        let staging = Arc::<Staging>::default();
        request.wait_for(staging.clone());
        let (core, site, copy) = (self.core().clone(), request.site, slot.clone());
        let grant: HostGrant = Box::new(move |promise| {
            let stream = core.clone();
            core.device.runtime.when_it_may_submit(&core.device, move || {
                let bytes = stream.device.with_pinned(|| promise.keep());
                let bytes = bytes.map_err(|error| unserved(&site.on(&stream.label), error));
                let end = bytes.and_then(|bytes| {
                    let end = host_end(&stream, site, &bytes)?;
                    fill(&copy, bytes);
                    Ok(end)
                });
                // The copy may end before `hand_over` returns, and its memory is then back.
                drop(copy);
                staging.set(end);
                hand_over(stream);
            });
        });
        let mut grant = Some(grant);
        if let StagingMemory::Promised(promise) = memory {
            request.host = HostMemory::InHand(pool);
            let place = self.core().enqueue(&mut request, |_| once(command)(0));
            if !matches!(request.host, HostMemory::Overtaken) {
                let place = place?;
                slot.enqueued(place.ticket);
                once(&mut grant)(promise);
                return Ok(place);
            }
            drop(promise);
            pool = self.wanted(len_bytes, &slot).pool;
        }
        let wanted = Wanted { pool: pool.clone(), len_bytes, copy: slot.clone() };
        request.host = HostMemory::Wanted(Box::new((wanted, once(&mut grant))));
        let place = self.core().enqueue(&mut request, |_| once(command)(0));
        let number = if let HostMemory::Waiting(number) = request.host { Some(number) } else { None };
        match (place, number) {
            (Ok(place), _) => {
                slot.enqueued(place.ticket);
                pool.serve_now();
                make_way(&self.core().device, pool);
                Ok(place)
            }
            (Err(error), number) => {
                number.into_iter().for_each(|number| pool.leave(number));
                Err(error)
            }
        }
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

impl Stream {
    /// Returns the place of the memory of a copy by this stream.
    pub(super) fn slot(&self, purpose: Purpose) -> Slot {
        let purpose = if self.core().is_captured() { Purpose::Graph } else { purpose };
        InFlight::new(self.core().id, purpose)
    }
}

/// Takes what is used once.
fn once<T>(value: &mut Option<T>) -> T {
    value.take().expect("it is used once")
}

/// Returns true if a copy may be held back until there is memory for it. On a borrowed stream,
/// the copy has to be on the driver's stream when the call returns, since the stream's owner
/// may use that next. A captured copy is not work yet.
pub(super) fn can_hold_back(core: &StreamCore) -> bool {
    !core.admission.is_borrowed() && !core.is_captured()
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
