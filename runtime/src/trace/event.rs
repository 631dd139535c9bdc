//! One `tracing` event for each step in an op's life: enqueued, started, finished.
//!
//! Target `warpline::op`, level `TRACE`. Where nobody listens at that level, a step costs one load and one branch; the
//! event itself is made in a cold function.

use crate::device::DeviceId;
use crate::site::Site;
use crate::timeline::Ticket;
use tracing::level_filters::LevelFilter;

#[inline]
fn listened_to() -> bool {
    LevelFilter::current() >= LevelFilter::TRACE
}

macro_rules! phase {
    ($(#[$doc:meta])* $name:ident, $phase:literal) => {
        $(#[$doc])*
        #[inline]
        pub(crate) fn $name(
            device: DeviceId,
            stream_label: &str,
            stream_key: u64,
            ticket: Ticket,
            site: &Site,
            bytes: impl FnOnce() -> u64,
        ) {
            if listened_to() {
                emit(device, stream_label, stream_key, ticket, site, bytes());
            }

            #[cold]
            fn emit(device: DeviceId, label: &str, stream_key: u64, ticket: Ticket, site: &Site, bytes: u64) {
                tracing::trace!(
                    target: "warpline::op",
                    phase = $phase,
                    device = %device,
                    stream = label,
                    stream_key,
                    ticket,
                    op = site.op(),
                    file = site.location.file(),
                    line = site.location.line(),
                    bytes,
                );
            }
        }
    };
}

phase!(
    /// The op has been put on its stream. `bytes` are those it moves or touches.
    op_enqueued, "enqueue"
);
phase!(
    /// The op begins on the device.
    op_started, "start"
);
phase!(
    /// The op has ended on the device.
    op_finished, "end"
);
