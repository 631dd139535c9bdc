//! Budgets that were granted, and waiting for one. The rules are in `memory/pool/budgets.rs`.
// Decision: docs/decisions/0068-budgets.md

use super::memory_waits::may_wait;
use super::out_of_memory::unserved;
use super::stream::watching;
use super::{Device, DeviceShared};
use crate::block_on::block_on;
use crate::memory::{Answer, BudgetId};
use crate::order::Site;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::oneshot;
use warpline_driver::{ByteSize, Error, ErrorKind, Result, process, reentry};

/// A share of a device's memory, from [`Device::budget`].
///
/// Memory that is allocated in its scope ([`enter`](Self::enter), [`scope`](Self::scope)) counts
/// against it. Holding it counts nothing. Dropping it returns the share once its scopes and the
/// memory that counts are gone, too. Tasks share one by an `Arc`.
///
/// # How memory counts
/// An allocation of more than 1 MiB counts as its length rounded up to 2 MiB. Shorter ones share
/// granules of 2 MiB, of which each counts as long as one of them lives. So give a budget some MiB
/// for short tensors, such as a loss or its gradients. In a capture, memory belongs to the graph
/// and does not count.
///
/// # What it promises
/// An allocation beyond the budget is refused with its figures, and nothing else notices. One
/// within it is not refused while all budgets and the memory outside of them fit into the device's
/// memory. It may have to wait for unfinished work of any budget, like
/// [`Stream::alloc`](crate::Stream::alloc), and is refused where that call may not wait: in
/// wakers, and behind host functions, foreign work and gates. So await work with host functions
/// before the memory that it uses is dropped.
///
/// Short allocations of changing lengths leave gaps in their granules. A loop that repeats its
/// lengths finds the same places again, mostly: twice the bytes that live at a time are enough for
/// usual programs.
#[must_use = "dropping a budget returns its share"]
pub struct Budget(pub(crate) Arc<Budgeted>);

/// A budget that was granted, until its owner and its scopes are gone.
pub(crate) struct Budgeted {
    pub(crate) device: Arc<DeviceShared>,
    pub(crate) id: BudgetId,
}

impl Drop for Budgeted {
    fn drop(&mut self) {
        if !process::is_forked() {
            self.device.memory.close_budget(self.id); // weaken: drop-then-close
        }
    }
}

impl fmt::Debug for Budgeted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Budgeted({}, {:?})", self.device.id, self.id)
    }
}

/// A request for a budget, until it is dropped or answered.
struct Asked<'a> {
    device: &'a Arc<DeviceShared>,
    site: Site,
    number: u64,
    answer: Option<oneshot::Receiver<Answer>>,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take()
            && !process::is_forked()
        {
            self.device.memory.leave_budgets(self.number, answer); // weaken: drop-then-leave
        }
    }
}

/// Waits until a budget of `len_bytes` is granted. `within`: the bytes of the budget in whose
/// scope the caller is.
///
/// # Errors
/// `OutOfMemory` if it does not fit beside the memory outside; `Reentrant` in a host function or
/// in the scope of a budget; `InvalidArgument` if the device's memory has no known length; the
/// error of the device.
pub(crate) async fn budget(
    device: &Arc<DeviceShared>,
    site: Site,
    len_bytes: usize,
    within: Option<usize>,
) -> Result<Budgeted> {
    answered(ask(device, site, len_bytes, within)?).await
}

/// Waits like [`budget`], on the calling thread.
///
/// # Errors
/// The errors of [`budget`]; `Reentrant` also in a waker, and in a task with
/// [`SyncMode::Error`](crate::SyncMode::Error).
pub(crate) fn budget_blocking(
    device: &Arc<DeviceShared>,
    site: Site,
    len_bytes: usize,
    within: Option<usize>,
) -> Result<Budgeted> {
    device.ensure_open()?;
    if !may_wait() {
        return Err(reentry::refused(&site));
    }
    device.runtime.sync.may_block(site, "await device.budget(bytes) instead")?;
    block_on(answered(ask(device, site, len_bytes, within)?))
}

fn ask(device: &Arc<DeviceShared>, site: Site, len_bytes: usize, within: Option<usize>) -> Result<Asked<'_>> {
    device.ensure_open()?;
    reentry::may_ask(&site)?;
    if let Some(within) = within {
        let text = format!(
            "{site}: {} asked by code that runs in the scope of a budget of {} already, and two that wait \
             for each other's second budget never end; ask for all of it before the scope begins",
            ByteSize(len_bytes),
            ByteSize(within)
        );
        return Err(Error::new(ErrorKind::Reentrant, text));
    }
    let asked = match device.memory.ask_for_budget(len_bytes, site) {
        Err(error) if device.observe_out_of_memory(&error) => device.memory.ask_for_budget(len_bytes, site),
        asked => asked,
    };
    let (number, answer) = asked.map_err(|error| unserved(&site, error))?;
    Ok(Asked { device, site, number, answer: Some(answer) })
}

async fn answered(mut asked: Asked<'_>) -> Result<Budgeted> {
    let (device, site) = (asked.device, asked.site);
    let stream = Device::of(device.clone()).default_stream()?;
    let answer = pin!(asked.answer.as_mut().expect("nobody has answered yet"));
    let answer = watching(stream.core(), answer).await?;
    asked.answer = None;
    let answer = answer.expect("the queue answers each request that has not left it");
    let id = answer.map_err(|error| unserved(&site, error))?;
    Ok(Budgeted { device: device.clone(), id })
}
