//! The shape of an op: its operands are on devices that it reaches, few enough, and apart.

use super::core::StreamCore;
use super::request::{Effect, Reach, Request};
use crate::order::{MAX_ACCESSES, Site, overlap_within};
use crate::shared::Allocation;
use std::sync::Arc;
use warpline_driver::{DeviceId, Error, ErrorKind, Result};

/// The maximum number of operands of one op.
const MAX_OPERANDS: usize = 255;

/// Checks the shape of an op. `disjoint`: true if its operands are known to be apart.
#[inline(always)]
pub(super) fn check_shape(core: &StreamCore, request: &Request<'_>, disjoint: bool) -> Result<()> {
    let accesses = request.operands;
    for operand in accesses {
        if !Arc::ptr_eq(&operand.allocation.device, &core.device) {
            check_device(core, request.site, request.reach, operand.allocation)?;
        }
    }
    let in_place = matches!(request.effect, Effect::InPlace);
    let most = if request.is_graph() { MAX_ACCESSES } else { MAX_OPERANDS };
    if accesses.len() > most {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{}: {} operands, and an op takes {most}; split it", request.site, accesses.len()),
        ));
    }
    if !disjoint
        && !request.is_graph()
        && let Some((one, two)) = overlap_within(accesses, in_place)
    {
        let (a, b) = (accesses[one].range, accesses[two].range);
        return Err(Error::new(
            ErrorKind::Overlap,
            format!(
                "{}: operand {two} (bytes {}..{}) overlaps operand {one} (bytes {}..{}) of the \
                 same memory, and one of them is written; {}",
                request.site.on(&core.label),
                b.offset(),
                b.end(),
                a.offset(),
                a.end(),
                if in_place {
                    "an op in place needs exactly the same range for both"
                } else {
                    "copy one of them first"
                }
            ),
        ));
    }
    Ok(())
}

#[cold]
fn check_device(core: &StreamCore, site: Site, reach: Reach, allocation: &Allocation) -> Result<()> {
    let (here, there) = (core.device.id, allocation.device.id);
    let same_runtime = Arc::ptr_eq(&core.device.runtime, &allocation.device.runtime);
    let is_reached = match reach {
        Reach::Own => false,
        Reach::Backend => here.backend() == there.backend(),
        Reach::Cpu => matches!(there, DeviceId::Cpu(_)),
    };
    if is_reached && same_runtime {
        return core.needs(site, there, allocation.device.health.fault());
    }
    let is_cpu = |id| matches!(id, DeviceId::Cpu(_));
    let (what, remedy) = match (same_runtime, reach) {
        (false, _) => (
            " of another runtime",
            "open both devices from one runtime, or read it on the host and write it here",
        ),
        (true, Reach::Own) => ("", "move a tensor with to, or a buffer with copy_buffer_peer"),
        (true, _) if is_cpu(here) || is_cpu(there) => ("", "copy on a stream of that device"),
        (true, _) => ("", "copy it to cpu:0 first"),
    };
    Err(Error::new(
        ErrorKind::DeviceMismatch,
        format!(
            "{}: the stream is on {here} and an operand is on {there}{what}; {remedy}",
            site.on(&core.label),
        ),
    ))
}
