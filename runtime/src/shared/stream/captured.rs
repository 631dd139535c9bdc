//! A stream that is being captured: who may, and what becomes of its waits.

use super::core::StreamCore;
use super::place::{Place, Snapshot};
use crate::order::Site;
use crate::shared::{Capture, captured};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use warpline_driver::{Error, ErrorKind, Result};

/// Why a stream that another capture of this thread has is not taken.
const TWICE: &str = "the wait would join two captures; a stream can be in one";
/// Why one that another thread captures is not.
const ELSEWHERE: &str =
    "the stream is being captured into a graph by another thread; use another stream until that has ended";

impl StreamCore {
    /// Whether it may be: asked before everything that a capture would write down. What is put on the stream by other threads just as
    /// the capture begins is on it, as if it had come before.
    #[inline]
    pub(crate) fn is_captured(&self) -> bool {
        self.captured.load(Ordering::Relaxed)
    }

    /// Makes it `capture`'s.
    ///
    /// # Errors
    /// If it is another's: two threads may come here at once.
    pub(crate) fn begin_capture(&self, site: Site, capture: Arc<Capture>) -> Result<()> {
        let mut of = self.capture.lock();
        if let Some(other) = &*of {
            let why = if other.is_here() { TWICE } else { ELSEWHERE };
            return Err(captured(site, self, why));
        }
        *of = Some(capture);
        self.captured.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn end_capture(&self) {
        self.captured.store(false, Ordering::Relaxed);
        let ended = self.capture.lock().take();
        drop(ended);
    }

    /// The capture that this thread has the stream in.
    ///
    /// # Errors
    /// If another thread has it in one.
    pub(crate) fn capture(&self, site: Site) -> Result<Option<Arc<Capture>>> {
        if !self.is_captured() {
            return Ok(None);
        }
        let capture = self.capture.lock().clone();
        match capture {
            Some(capture) if !capture.is_here() => Err(captured(site, self, ELSEWHERE)),
            capture => Ok(capture),
        }
    }

    /// Tells the capture that this thread has the stream in of a refusal; whether there is one, which then sees to it.
    pub(crate) fn note_refusal(&self, error: &Error) -> bool {
        let here = || self.capture.lock().clone().filter(|capture| capture.is_here());
        match self.is_captured().then(here).flatten() {
            Some(capture) => {
                capture.note_refusal(error);
                true
            }
            None => false,
        }
    }

    /// Refuses what a graph cannot hold, where this thread captures the stream. What another thread asks is of the stream itself.
    #[inline]
    pub(crate) fn refuse_captured(&self, site: Site, why: &str) -> Result<()> {
        match self.is_captured().then(|| self.capture(site)) {
            Some(Ok(Some(_))) => Err(captured(site, self, why)),
            _ => Ok(()),
        }
    }

    /// A wait that has to do with a capture: of this stream, or for a place in `there`, where `from` says it is. `None` if none has.
    #[cold]
    pub(crate) fn wait_captured(
        self: &Arc<Self>,
        site: Site,
        there: Option<&Arc<Capture>>,
        from: impl FnOnce(&Arc<Capture>) -> Snapshot,
    ) -> Result<Option<Place>> {
        match (self.capture(site)?, there) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(captured(
                site,
                self,
                "the stream is being captured, and a graph cannot wait for what is not in it; have the stream that launches it wait \
                 before the launch",
            )),
            (Some(here), Some(there)) if !Arc::ptr_eq(&here, there) => Err(captured(site, self, TWICE)),
            (_, Some(there)) if !there.is_here() => Err(captured(
                site,
                self,
                "what it would wait for is being captured by another thread; wait for a launch of the graph instead",
            )),
            (_, Some(there)) => there.wait(self, site, &from(there)).map(Some).inspect_err(|error| {
                // A stream that does not come in is no part of it, and what is put there next would run.
                if !self.is_captured() {
                    there.note_refusal(error);
                }
            }),
        }
    }

    /// Why nobody can await the step with this number of a capture.
    #[cold]
    pub(crate) fn nothing_to_await(&self, number: u64) -> Error {
        let capture = self.capture.lock().clone();
        let what: Box<dyn fmt::Display> = match capture.and_then(|capture| capture.site_of(self, number)) {
            Some(site) => Box::new(site.on(&self.label)),
            None => Box::new(format!("stream \"{}\" at a place in a capture", self.label)),
        };
        Error::new(
            ErrorKind::Captured,
            format!(
                "{what}: it was captured into a graph and has not run; launch the graph and await that, or take its value with \
                 `queued`"
            ),
        )
    }
}
