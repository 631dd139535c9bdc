//! The part of a stream that deals with captures: which capture it is in, and its waits there.

use super::core::StreamCore;
use super::place::{Place, Snapshot};
use crate::order::Site;
use crate::shared::{Capture, CaptureToken, captured};
use std::fmt;
use std::sync::Arc;
use warpline_driver::{Error, ErrorKind, Result};

/// The reason for refusing a stream that is in another capture of this thread.
const TWICE: &str = "the wait would join two captures; a stream can be in only one";
/// The reason for refusing a stream that another thread captures.
const ELSEWHERE: &str =
    "the stream is being captured into a graph by another thread; use another stream until that has ended";

impl StreamCore {
    /// Returns whether the stream is being captured. Checked before everything that a capture would
    /// record. Work that other threads enqueue just as the capture begins is on the stream itself,
    /// as if it had come before.
    #[inline]
    pub(crate) fn is_captured(&self) -> bool {
        self.admission.is_captured()
    }

    /// Puts the stream into `capture`.
    ///
    /// # Errors
    /// If the stream is in another capture: two threads may call this at the same time.
    pub(crate) fn begin_capture(&self, site: Site, capture: Arc<CaptureToken>) -> Result<()> {
        self.admission.begin_capture(capture).map_err(|other| {
            let why = if other.is_here() { TWICE } else { ELSEWHERE };
            captured(site, self, why)
        })
    }

    pub(crate) fn end_capture(&self) {
        self.admission.end_capture();
    }

    /// Returns the capture that this thread has the stream in.
    ///
    /// # Errors
    /// If another thread captures the stream.
    pub(crate) fn capture(&self, site: Site) -> Result<Option<Arc<Capture>>> {
        Ok(self.capture_token(site)?.and_then(|token| Capture::of(&token)))
    }

    /// Like [`capture`](Self::capture), of which this is the identity.
    pub(super) fn capture_token(&self, site: Site) -> Result<Option<Arc<CaptureToken>>> {
        match self.is_captured().then(|| self.admission.capture()).flatten() {
            Some(token) if !token.is_here() => Err(captured(site, self, ELSEWHERE)),
            token => Ok(token),
        }
    }

    /// Passes a refusal to the capture that this thread has the stream in. Returns whether there is
    /// such a capture, which then handles the refusal.
    pub(crate) fn note_refusal(&self, error: &Error) -> bool {
        let here = || self.admission.capture().and_then(|token| Capture::of(&token));
        match self.is_captured().then(here).flatten() {
            Some(capture) => {
                capture.note_refusal(error);
                true
            }
            None => false,
        }
    }

    /// Refuses what a graph cannot hold, if this thread captures the stream. A call by another
    /// thread concerns the stream itself.
    #[inline]
    pub(crate) fn refuse_captured(&self, site: Site, why: &str) -> Result<()> {
        match self.is_captured().then(|| self.capture(site)) {
            Some(Ok(Some(_))) => Err(captured(site, self, why)),
            _ => Ok(()),
        }
    }

    /// Makes this stream wait in a capture: the one it is in, or the one in `there`, where `from`
    /// gives the awaited place. Returns `None` if no capture is involved.
    #[cold]
    pub(crate) fn wait_captured(
        self: &Arc<Self>,
        site: Site,
        there: Option<&Arc<CaptureToken>>,
        from: impl FnOnce(&Arc<Capture>) -> Snapshot,
    ) -> Result<Option<Place>> {
        match (self.capture_token(site)?, there) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(captured(
                site,
                self,
                "the stream is being captured, and a graph cannot wait for work outside it; make \
                 the stream that launches it wait before the launch",
            )),
            (Some(here), Some(there)) if !Arc::ptr_eq(&here, there) => Err(captured(site, self, TWICE)),
            (_, Some(there)) if !there.is_here() => Err(captured(
                site,
                self,
                "the awaited work is being captured by another thread; wait for a launch of the \
                 graph instead",
            )),
            (_, Some(there)) => {
                let there = Capture::of(there).expect("this thread captures it");
                there.wait(self, site, &from(&there)).map(Some).inspect_err(|error| {
                    // A stream that did not join is no part of the capture, so later work on it
                    // would run.
                    if !self.is_captured() {
                        there.note_refusal(error);
                    }
                })
            }
        }
    }

    /// Returns the error for awaiting the step of a capture with this number, which has not run.
    #[cold]
    pub(crate) fn nothing_to_await(&self, number: u64) -> Error {
        let capture = self.admission.capture();
        let what: Box<dyn fmt::Display> = match capture.and_then(|capture| capture.site_of(self.id, number)) {
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
