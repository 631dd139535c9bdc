//! Reports of errors that cannot be returned, through `tracing` or on standard error.
//!
//! Standard error is used where no `tracing` subscriber is set and the error would be lost
//! otherwise.

use crate::order::{Conflict, Site};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use warpline_driver::{ByteSize, DeviceId, Error};

/// Reports an error that its caller dropped. An event reports only the first of a stream's errors
/// until they are returned. Without a subscriber the report is a line on standard error, once for
/// each line of the program.
pub(crate) fn error_not_awaited(stream: &str, error: &Error, is_first: bool) {
    if !tracing::dispatcher::has_been_set() {
        return print_once(error);
    }
    if !is_first {
        return;
    }
    tracing::error!(target: "warpline", stream, %error, "a call was refused or failed, and its \
        error was never observed");
}

/// The number of lines of the program that are printed at most.
const MOST_LINES: usize = 1024;

fn print_once(error: &Error) {
    static PRINTED: Mutex<BTreeSet<Line>> = Mutex::new(BTreeSet::new());
    let line = error.site().map(|site| (site.op(), site.location.file(), site.location.line()));
    let mut printed = PRINTED.lock();
    if printed.len() < MOST_LINES && printed.insert(line) {
        drop(printed);
        eprintln!("warpline: this error was never observed, and no tracing subscriber is set: {error}");
    }
}

/// An op and a line of the program.
type Line = Option<(&'static str, &'static str, u32)>;

/// Warns of `what`. Without a subscriber the warning is a line on standard error.
fn warn(what: &dyn fmt::Display) {
    if !tracing::dispatcher::has_been_set() {
        return eprintln!("warpline: {what}");
    }
    tracing::warn!(target: "warpline", "{what}");
}

/// Warns of a missing edge. The caller calls this once for each pair of lines.
pub(crate) fn unordered(conflict: &Conflict) {
    warn(conflict);
}

/// Warns of a blocking call in a task. The caller calls this once for each line.
pub(crate) fn blocks_a_task(what: &str) {
    warn(&what);
}

/// Warns that an op which draws random numbers is captured. The caller calls this once for each
/// line.
pub(crate) fn random_numbers_are_captured(op: Site, label: &str) {
    warn(&format_args!(
        "{} is captured: each launch of the graph writes the same random numbers, those of the capture; draw \
         them before each launch, into a tensor that the graph reads",
        op.on(label)
    ));
}

/// Reports that the CPU device is used in place of a GPU. It is a warning unless `is_expected` is
/// true.
pub(crate) fn fell_back(missing: &Error, is_expected: bool) {
    static PRINTED: AtomicBool = AtomicBool::new(false);
    if is_expected {
        tracing::info!(target: "warpline", %missing, "using cpu:0");
    } else if tracing::dispatcher::has_been_set() {
        tracing::warn!(target: "warpline", %missing, "using cpu:0");
    } else if !PRINTED.swap(true, Ordering::Relaxed) {
        eprintln!("warpline: using cpu:0: {missing}");
    }
}

/// Warns that a CUDA device is left out of all devices, because it has failed.
pub(crate) fn left_out(fault: &Error) {
    tracing::warn!(target: "warpline", %fault, "a CUDA device that has failed is left out");
}

/// Warns that the pinned memory of a device has reached its cap. The caller calls this once for
/// each pool, under no lock. `reserved_bytes`: the bytes that are page-locked, in use and cached.
pub(crate) fn pinned_cap_reached(
    device: DeviceId,
    asked_bytes: usize,
    reserved_bytes: usize,
    cap_bytes: usize,
) {
    let [asked, reserved, cap] = [asked_bytes, reserved_bytes, cap_bytes].map(ByteSize);
    tracing::warn!(target: "warpline", %device, asked_bytes, reserved_bytes, cap_bytes, "the pinned \
        memory of {device} has reached its cap: {asked} asked, {reserved} page-locked of {cap}; \
        cached buffers are freed to make room, which is slow, requests wait for copies in flight, and \
        what does not fit beside buffers in use is refused; drop pinned buffers, await the copies that hold them, or raise pinned_cap");
}
