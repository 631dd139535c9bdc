//! The error of a dead context, which names the op that failed or the ops that may have failed.

use crate::api::Failed;
use crate::completion::track::Track;
use std::fmt::{Display, Write};
use std::sync::Arc;
use warpline_driver::internal::ErrorParts;
use warpline_driver::timeline::Ticket;
use warpline_driver::{Error, ErrorKind, Site};

/// The most ops of one stream that an error names.
const OPS_NAMED: usize = 8;

/// Builds the error of a dead context.
///
/// `culprit` is the op by [`named`], if it is known. Otherwise the error lists every op after its
/// stream's last completed marker, because each may have failed.
pub(crate) fn error(
    ordinal: u32,
    failed: Failed,
    culprit: Option<&dyn Display>,
    tracks: &[Arc<Track>],
) -> Error {
    let device = format!("cuda:{ordinal}");
    let end = format!("{device} accepts no more work in this process");
    let text = match culprit {
        Some(op) => format!("{op}: {failed}; {end}"),
        None => match candidates(tracks) {
            Some(ops) => format!(
                "{device} failed: {failed}; it was one of these ops or one before them: {ops}; {end}; run with \
                 CUDA_LAUNCH_BLOCKING=1 to learn which"
            ),
            None => format!("{device} failed: {failed}, and no op was in flight; {end}"),
        },
    };
    Error::new(ErrorKind::Fault, text).caused_by(failed.into())
}

/// Returns the beginning of an error that names the failed op: `saxpy failed on stream "compute" at
/// ticket 41 (src/step.rs:88)`.
pub(crate) fn named(site: Site, label: &str, ticket: Ticket) -> String {
    let (file, line) = (site.location.file(), site.location.line());
    format!("{} failed on stream \"{label}\" at ticket {ticket} ({file}:{line})", site.op())
}

/// Lists the unfinished ops of every stream, oldest first.
fn candidates(tracks: &[Arc<Track>]) -> Option<String> {
    let mut text = String::new();
    for track in tracks {
        let ops = track.unfinished();
        for (ticket, site) in ops.iter().take(OPS_NAMED) {
            let comma = if text.is_empty() { "" } else { ", " };
            let _ = write!(text, "{comma}{} at ticket {ticket}", site.on(track.label()));
        }
        if let Some(more) = ops.len().checked_sub(OPS_NAMED).filter(|&more| more > 0) {
            let _ = write!(text, " and {more} more on that stream");
        }
    }
    (!text.is_empty()).then_some(text)
}
