//! Page-locked host memory, recycled.

use crate::element::Element;
use std::marker::PhantomData;

#[derive(Debug)]
pub(crate) struct PinnedBytes {}

/// Pinned memory.
#[derive(Debug)]
pub struct Pinned<T: Element> {
    _bytes: PinnedBytes,
    _element: PhantomData<T>,
}

impl<T: Element> Pinned<T> {
    pub(crate) fn from_bytes(bytes: PinnedBytes) -> Result<Self, PinnedBytes> {
        Ok(Pinned { _bytes: bytes, _element: PhantomData })
    }
}
