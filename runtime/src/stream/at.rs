//! Calls that bear the name and line of another op, for ops that are made of several calls.

use crate::buffer::Buffer;
use crate::edge::Edge;
use crate::kernel::{KernelCall, LaunchConfig};
use crate::memory::Pinned;
use crate::order::Site;
use crate::pending::Pending;
use crate::shared::Stream;
use warpline_driver::{Element, Result};

/// A stream whose calls have the name and the source line of another op, from [`Stream::at`].
///
/// It is for ops that are made of several calls. Each method does the same as the one of that name
/// on [`Stream`], with the same errors.
#[must_use = "it does nothing until one of its methods is called"]
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    stream: &'a Stream,
    site: Site,
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

impl At<'_> {
    /// Does the same as [`Stream::alloc`].
    #[inline]
    pub fn alloc<T: Element>(self, len: usize) -> Result<Buffer<T>> {
        self.stream.alloc_at(self.site, len)
    }

    /// Does the same as [`Stream::alloc_zeroed`].
    pub fn alloc_zeroed<T: Element>(self, len: usize) -> Result<Buffer<T>> {
        self.stream.alloc_zeroed_at(self.site, len)
    }

    /// Does the same as [`Stream::launch`].
    #[inline]
    pub fn launch(self, call: KernelCall<'_>, config: LaunchConfig) -> Pending<()> {
        self.stream.launch_at(self.site, call, config)
    }

    /// Does the same as [`Stream::fill`].
    pub fn fill<T: Element>(self, buffer: &Buffer<T>, value: T) -> Pending<()> {
        self.stream.fill_at(self.site, buffer, value)
    }

    /// Does the same as [`Stream::copy_to_device`].
    ///
    /// # Errors
    /// The errors of [`Stream::copy_to_device`].
    pub fn copy_to_device<T: Element>(self, host: Pinned<T>) -> Result<(Buffer<T>, Pending<Pinned<T>>)> {
        self.stream.copy_to_device_at(self.site, host)
    }

    /// Does the same as [`Stream::copy_to_host`].
    pub fn copy_to_host<T: Element>(self, buffer: &Buffer<T>) -> Pending<Pinned<T>> {
        self.stream.copy_to_host_at(self.site, buffer)
    }

    /// Does the same as [`Stream::read`].
    pub fn read<T: Element>(self, buffer: &Buffer<T>) -> Pending<Vec<T>> {
        self.stream.read_at(self.site, buffer, Vec::extend_from_slice)
    }

    /// Does the same as [`Stream::read`], for a vector of other elements. `append` adds one of them
    /// for each element that it gets.
    pub fn read_as<T: Element, U: Send + 'static>(
        self,
        buffer: &Buffer<T>,
        append: fn(&mut Vec<U>, &[T]),
    ) -> Pending<Vec<U>> {
        self.stream.read_at(self.site, buffer, append)
    }

    /// Does the same as [`Stream::read_one`].
    pub fn read_one<T: Element>(self, buffer: &Buffer<T>) -> Pending<T> {
        self.stream.read_one_at(self.site, buffer)
    }

    /// Does the same as [`Stream::write`].
    pub fn write<T: Element>(self, buffer: &Buffer<T>, host: &[T]) -> Pending<()> {
        self.stream.write_at(self.site, buffer, host)
    }

    /// Does the same as [`Stream::copy_buffer_peer`].
    pub fn copy_buffer_peer<T: Element>(self, destination: &Buffer<T>, source: &Buffer<T>) -> Pending<()> {
        self.stream.copy_between(self.site, destination, source, true)
    }

    /// Does the same as [`Stream::wait_stream`].
    pub fn wait_stream(self, other: &Stream) -> Edge {
        self.stream.wait_stream_at(self.site, other)
    }

    /// Does the same as [`Stream::copy_buffer`].
    pub fn copy_buffer<T: Element>(self, destination: &Buffer<T>, source: &Buffer<T>) -> Pending<()> {
        self.stream.copy_buffer_at(self.site, destination, source)
    }
}
