//! Copies with an end on another device: peers, and CPU devices.

use super::CudaStream;
use super::refused::Refused;
use super::wait::alive;
use crate::context::Context;
use crate::work::copy;
use warpline_driver::timeline::Ticket;
use warpline_driver::{
    Copy, DeviceId, DriverError, HostFn, Site, StagedCopy, StagedStep, background, copy_rows,
};

impl CudaStream {
    /// Enqueues a copy with one or both ends on other devices.
    ///
    /// An error of the call may belong to any of the devices, so each is asked.
    #[cold]
    pub(super) fn copy_peer(
        &self,
        copy: &Copy,
        source: DeviceId,
        destination: DeviceId,
    ) -> Result<(), Refused> {
        let [source, destination] =
            [source, destination].map(|id| Context::of(id.ordinal()).map_err(DriverError::Refused));
        let (source, destination) = (source?, destination?);
        let others = || [source, destination].into_iter().filter(|end| !self.is_on(end));
        others().try_for_each(alive)?;
        copy::copy_peer(copy, self.context(), source, destination, self.raw.stream).inspect_err(|_| {
            for end in others() {
                let _ = end.look_after();
            }
        })?;
        Ok(())
    }

    /// Enqueues a copy from or to pageable host memory, in pieces.
    #[cold]
    pub(super) fn copy_staged(&self, staged: StagedCopy, ticket: Ticket, site: Site) -> Result<(), Refused> {
        let steps: Vec<_> = staged.steps().collect();
        // This thread holds the stream's lock, so it must not drop the memory. The last host
        // function does.
        let last = steps.iter().rposition(|step| matches!(step, StagedStep::OnHost(_)));
        let mut host = Some(staged.host);
        for (enqueued, step) in steps.into_iter().enumerate() {
            let answer = match step {
                StagedStep::OnDevice(rows) => copy::copy(&rows, self.raw.stream),
                StagedStep::OnHost(rows) => {
                    let host = if Some(enqueued) == last { host.take() } else { host.clone() };
                    let move_rows = move || {
                        // SAFETY: `copy_rows` needs rows that nothing else writes meanwhile. One
                        // end is page-locked memory that is kept until the ticket is reached, and
                        // only this stream's steps touch it. `host` holds the other end, and
                        // `submit`'s caller vouches for its order.
                        unsafe { copy_rows(&rows) };
                        drop(host);
                    };
                    self.call(HostFn(Box::new(move_rows)), ticket, site)
                }
            };
            if let Err(failed) = answer {
                background::detach(move || drop(host));
                if enqueued > 0 {
                    // Also if the context has died: what was enqueued may still be using the
                    // staging memory, which is kept with the ticket.
                    let _ = self.context().is_killed_by(failed, None);
                    return Err(DriverError::Halfway(failed.into()).into());
                }
                return Err(failed.into());
            }
        }
        Ok(())
    }
}
