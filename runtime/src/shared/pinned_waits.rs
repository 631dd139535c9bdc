//! Waiting for page-locked memory on the host. The rules are in `memory/pinned/waits.rs`.
// Decision: docs/decisions/0066-pinned-memory-waits.md

use super::stream::{StreamCore, watching};
use super::{Device, DeviceShared};
use crate::background::{self, Duty};
use crate::block_on::block_on;
use crate::memory::{Asker, PinnedBytes, PinnedPool, Preparing, Promise, Promises, Want};
use crate::order::Site;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use warpline_driver::{Result, process, reentry};

/// A request's place in a pool's queue, until it is dropped.
struct Queued<'a> {
    pool: &'a Arc<PinnedPool>,
    number: u64,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        if !process::is_forked() {
            self.pool.leave(self.number);
        }
    }
}

/// Returns page-locked memory of a device. Waits for what copies return by themselves.
///
/// # Errors
/// `OutOfMemory` if it does not fit beside what is held, or the driver has none; `Driver`;
/// `Reentrant` in a host function; the error of the device.
pub(crate) async fn pinned_bytes(
    device: &Arc<DeviceShared>,
    site: Site,
    len_bytes: usize,
) -> Result<PinnedBytes> {
    device.ensure_open()?;
    let pool = &device.pinned;
    if let Some(bytes) = pool.try_take(len_bytes, None) {
        return Ok(bytes);
    }
    reentry::may_ask(&site)?;
    let mut promise = match pool.try_promise(len_bytes, None) {
        Some(promise) => promise,
        None => only(waited_for(device, site, &[len_bytes]).await?),
    };
    if device.runs_in_turns {
        return device.with_pinned(|| promise.keep());
    }
    let (preparing, owner) = (Preparing::new(pool), device.clone());
    promise.will_return(preparing.returns());
    let kept = background::run_pinning(device.id, move || owner.with_pinned(|| promise.keep()));
    kept.await.map(|bytes| preparing.over(bytes))
}

/// Returns room for several blocks of page-locked memory. Waits like [`pinned_bytes`].
///
/// # Errors
/// The errors of [`pinned_bytes`].
pub(crate) async fn pinned_room(
    device: &Arc<DeviceShared>,
    site: Site,
    lens_bytes: &[usize],
) -> Result<Promises> {
    device.ensure_open()?;
    reentry::may_ask(&site)?;
    match device.pinned.try_promises(lens_bytes, None) {
        Some(promises) => Ok(promises),
        None => waited_for(device, site, lens_bytes).await,
    }
}

/// Returns such room, or `None` if it would have to wait.
///
/// # Errors
/// The errors of [`pinned_bytes`].
pub(crate) fn pinned_room_now(
    device: &Arc<DeviceShared>,
    site: Site,
    lens_bytes: &[usize],
) -> Result<Option<Promises>> {
    device.ensure_open()?;
    reentry::may_ask(&site)?;
    let pool = &device.pinned;
    if let Some(promises) = pool.try_promises(lens_bytes, None) {
        return Ok(Some(promises));
    }
    let runtime = &device.runtime;
    pool.judge(lens_bytes, &|copy| runtime.host_code_before_copy(copy))?;
    Ok(None)
}

async fn waited_for(device: &Arc<DeviceShared>, site: Site, lens_bytes: &[usize]) -> Result<Promises> {
    let stream = Device::of(device.clone()).default_stream()?;
    granted(stream.core(), join(device, &device.pinned, site, lens_bytes)?).await
}

/// Returns the promise of a request for one block.
fn only(mut promises: Promises) -> Promise {
    promises.pop().expect("a request for a block is granted one")
}

/// Does the same on the calling thread. `core`: the stream of a copy that needs it.
///
/// # Errors
/// The errors of [`pinned_bytes`]; also `OutOfMemory` if this thread must not wait.
pub(crate) fn pinned_bytes_blocking(
    device: &Arc<DeviceShared>,
    pool: &Arc<PinnedPool>,
    core: Option<&Arc<StreamCore>>,
    site: Site,
    len_bytes: usize,
) -> Result<PinnedBytes> {
    device.ensure_open()?;
    if let Some(bytes) = pool.try_take(len_bytes, None) {
        return Ok(bytes);
    }
    reentry::may_ask(&site)?;
    let promise = match pool.try_promise(len_bytes, None) {
        Some(promise) => promise,
        None if !may_wait() => return Err(pool.refusal(len_bytes, "this thread must not wait for the rest")),
        None => {
            let queued = join(device, pool, site, &[len_bytes])?;
            only(match core {
                Some(core) => block_on(granted(core, queued))?,
                None => block_on(granted(Device::of(device.clone()).default_stream()?.core(), queued))?,
            })
        }
    };
    device.with_pinned(|| promise.keep())
}

/// Returns page-locked memory that is there now.
///
/// # Errors
/// The errors of [`pinned_bytes`]; also `OutOfMemory` if it would have to wait.
pub(crate) fn pinned_bytes_now(
    device: &Arc<DeviceShared>,
    site: Site,
    len_bytes: usize,
) -> Result<PinnedBytes> {
    device.ensure_open()?;
    let pool = &device.pinned;
    if let Some(bytes) = pool.try_take(len_bytes, None) {
        return Ok(bytes);
    }
    reentry::may_ask(&site)?;
    let Some(promise) = pool.try_promise(len_bytes, None) else {
        let runtime = &device.runtime;
        pool.judge(&[len_bytes], &|copy| runtime.host_code_before_copy(copy))?;
        return Err(pool.refusal(len_bytes, "copies in flight return the rest"));
    };
    device.with_pinned(|| promise.keep())
}

/// Returns true if this thread may wait for other work.
fn may_wait() -> bool {
    reentry::may_block() && background::duty() == Duty::None && !process::is_ending() && !process::is_forked()
}

fn join<'a>(
    device: &DeviceShared,
    pool: &'a Arc<PinnedPool>,
    site: Site,
    lens_bytes: &[usize],
) -> Result<Queued<'a>> {
    let runtime = &device.runtime;
    pool.meets_cap(lens_bytes.iter().fold(0, |sum, &bytes| sum.saturating_add(bytes)));
    let want = Want { lens_bytes, site, asker: Asker::Task };
    let number = pool.join(want, &|copy| runtime.host_code_before_copy(copy))?;
    let queued = Queued { pool, number };
    pool.serve_now(); // weaken: join-then-serve
    make_way(device, pool);
    Ok(queued)
}

/// Makes reads that nobody has polled return their memory, on a thread where that may take time.
pub(crate) fn make_way(device: &DeviceShared, pool: &Arc<PinnedPool>) {
    if device.runs_in_turns {
        return pool.make_way();
    }
    if pool.is_awaited() {
        let pool = pool.clone();
        background::pin(device.id, move || pool.make_way());
    }
}

/// Waits until a request that has joined the queue is granted memory.
async fn granted(core: &Arc<StreamCore>, queued: Queued<'_>) -> Result<Promises> {
    let Queued { pool, number } = &queued;
    let runtime = &core.device.runtime;
    loop {
        // Registered before the queue is looked at, so that no change is missed.
        let mut granted = pin!(pool.granted());
        let mut added = pin!(runtime.host_code.next_added());
        granted.as_mut().enable();
        added.as_mut().enable();
        let taken = pool.take_granted(*number); // weaken: granted-then-look
        if let Some(promises) = taken {
            return Ok(promises);
        }
        pool.judge_again(*number, &|copy| runtime.host_code_before_copy(copy))?;
        let next = poll_fn(|cx| {
            let is_ready = granted.as_mut().poll(cx).is_ready() || added.as_mut().poll(cx).is_ready();
            if is_ready { Poll::Ready(()) } else { Poll::Pending }
        });
        watching(core, pin!(next)).await?;
    }
}
