//! Reports of errors that cannot be returned: through `tracing` or, where no subscriber is set, on
//! standard error if it would be lost otherwise.

use crate::error::Error;
use crate::order::Conflict;
#[cfg(feature = "cuda")]
use crate::order::{Site, Ticket};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) fn waker_panicked() {
    tracing::error!(target: "warpline", "a task's waker panicked; the other waiters were woken");
}

/// Tells of an error that its caller dropped: the first of those that a stream has not returned
/// since. Without a subscriber it is a line on standard error, once for each line of the program.
pub(crate) fn error_not_awaited(stream: &str, error: &Error, is_first: bool) {
    if !tracing::dispatcher::has_been_set() {
        return print_once(error);
    }
    if !is_first {
        return;
    }
    tracing::error!(target: "warpline", stream, %error, "a call was refused or has failed, and nobody looked at its error");
}

/// The most lines of a program that are told apart.
const MOST_LINES: usize = 1024;

fn print_once(error: &Error) {
    static PRINTED: Mutex<BTreeSet<Line>> = Mutex::new(BTreeSet::new());
    let line = error.site().map(|site| (site.op(), site.location.file(), site.location.line()));
    let mut printed = PRINTED.lock();
    if printed.len() < MOST_LINES && printed.insert(line) {
        drop(printed);
        eprintln!("warpline: nobody looked at this error, and there is no tracing subscriber: {error}");
    }
}

/// An op and a line of the program.
type Line = Option<(&'static str, &'static str, u32)>;

/// Warns of a missing edge: once for each pair of lines, which the caller sees to. Without a
/// subscriber it is a line on standard error.
pub(crate) fn unordered(conflict: &Conflict) {
    if !tracing::dispatcher::has_been_set() {
        return eprintln!("warpline: {conflict}");
    }
    tracing::warn!(target: "warpline", "{conflict}");
}

/// Tells of the CPU device in place of a GPU: aloud where the machine has one, or has a driver that
/// does not say so.
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

#[cfg(feature = "cuda")]
pub(crate) fn no_completion_words(ordinal: u32, why: Option<String>) {
    let why = why.unwrap_or_else(|| "the device does not write them, or not within a second".to_owned());
    tracing::warn!(target: "warpline", device = ordinal, why, "no completion words; events are asked instead");
}

#[cfg(feature = "cuda")]
pub(crate) fn completion_word_lost(stream: &str) {
    tracing::error!(target: "warpline", stream, "the stream is idle and its completion word does not say so; it completes by events now");
}

#[cfg(feature = "cuda")]
pub(crate) fn queue_is_full(first: bool, stream: &str) {
    if first {
        tracing::warn!(
            target: "warpline",
            stream,
            "more than a thousand ops are in flight on one stream, about what the driver's queue takes; further calls block until it \
             has room: limit the stream with max_in_flight and await room()"
        );
    }
}

#[cfg(feature = "cuda")]
pub(crate) fn no_profiler(why: &str) {
    tracing::warn!(target: "warpline", why, "the profiler that is named cannot take part; it is shown no ranges of ops");
}

#[cfg(feature = "cuda")]
pub(crate) fn no_library(why: &str) {
    tracing::info!(target: "warpline", why, "a library is not used; kernels of warpline's own run in its place");
}

/// What did the work of an op for which there is a library: the library, or the kernel of this name.
#[cfg(feature = "cuda")]
pub(crate) fn which_ran(device: u32, stream: &str, ticket: Ticket, site: &Site, by: &str, why: &str) {
    let (op, file, line) = (site.op(), site.location.file(), site.location.line());
    tracing::debug!(target: "warpline", op, by, why, device, stream, ticket, file, line, "which ran");
}

#[cfg(feature = "cuda")]
pub(crate) fn subscriber_panicked() {
    tracing::error!(target: "warpline", "a tracing subscriber panicked when it was told of an op");
}

#[cfg(feature = "cuda")]
pub(crate) fn twin_panicked(kernel: &str, why: &str) {
    tracing::error!(target: "warpline", kernel, why, "the CPU form of a kernel panicked under the software CUDA driver");
}

pub(crate) fn drop_panicked() {
    tracing::error!(target: "warpline", "a value inside work that was dropped unrun panicked when it was dropped");
}

pub(crate) fn worker_not_started(error: &std::io::Error) {
    tracing::error!(target: "warpline", %error, "a worker thread of the cpu device could not be started");
}
