//! Calls that bear the name and line of another op, for ops that are made of several calls.
//!
//! The methods stand beside those of [`Stream`], which call them with their own name and line.

use crate::order::Site;
use crate::shared::Stream;

/// A stream whose calls have the name and the source line of another op, from [`Stream::at`].
///
/// It is for ops that are made of several calls. Each method does the same as the one of that name
/// on [`Stream`], with the same errors.
#[must_use = "it does nothing until one of its methods is called"]
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    pub(super) stream: &'a Stream,
    pub(super) site: Site,
}

impl Stream {
    /// Returns a handle to this stream whose calls appear in errors and traces with the name and
    /// the source line of `site`.
    ///
    /// # Examples
    /// ```
    /// # use warpline::{Buffer, Pending, Stream, backend::Site};
    /// /// Sets all elements to one. Errors call this op `ones`.
    /// #[track_caller]
    /// fn ones(stream: &Stream, buffer: &Buffer<f32>) -> Pending<()> {
    ///     stream.at(Site::here(&"ones")).fill(buffer, 1.0)
    /// }
    /// ```
    #[inline]
    pub const fn at(&self, site: Site) -> At<'_> {
        At { stream: self, site }
    }
}
