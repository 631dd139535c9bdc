//! Parts of a pinned buffer that several threads use at once.

use super::Pinned;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use warpline_driver::Element;

/// A part of a [`Pinned`] buffer, which its owner alone reads and writes.
///
/// It derefs to a slice. Each part can go to a thread of its own, for example to fill a batch by
/// several tasks. The buffer returns to its pool when all its parts are dropped, unless the last
/// one becomes the [whole](Self::into_whole) buffer again.
///
/// # Examples
/// ```
/// # fn main() -> warpline::Result<()> {
/// # let runtime = warpline::Runtime::builder().build()?;
/// # let device = runtime.device("cpu".parse()?)?;
/// let mut rest = device.try_pinned::<f32>(6)?.into_part();
/// let mut first = rest.split_to(3);
/// std::thread::scope(|scope| {
///     scope.spawn(|| first.fill(1.0));
///     scope.spawn(|| rest.fill(2.0));
/// });
/// drop(first);
/// let whole = rest.into_whole().expect("the last part");
/// assert_eq!(whole[..], [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
/// # Ok(())
/// # }
/// ```
pub struct PinnedPart<T: Element> {
    whole: Arc<Pinned<T>>,
    start: NonNull<T>,
    len: usize,
}

// SAFETY: it gives access to elements that no other value gives access to, and `T` is `Send`.
unsafe impl<T: Element> Send for PinnedPart<T> {}
// SAFETY: a shared reference gives shared access to elements, and `T` is `Sync`.
unsafe impl<T: Element> Sync for PinnedPart<T> {}

impl<T: Element> Pinned<T> {
    /// Returns the buffer as a part that can be [split](PinnedPart::split_to).
    pub fn into_part(self) -> PinnedPart<T> {
        let (start, len) = (self.bytes.ptr.cast(), self.len);
        PinnedPart { whole: Arc::new(self), start, len }
    }
}

impl<T: Element> PinnedPart<T> {
    /// Splits the first `len` elements off. This part keeps the others.
    ///
    /// # Panics
    /// If the part has fewer elements.
    pub fn split_to(&mut self, len: usize) -> Self {
        assert!(len <= self.len, "{len} of {} elements are split off", self.len);
        let first = PinnedPart { whole: self.whole.clone(), start: self.start, len };
        // SAFETY: `add` needs a place within the buffer or at its end, and `len` elements are
        // left.
        self.start = unsafe { self.start.add(len) };
        self.len -= len;
        first
    }

    /// Returns the whole buffer if this is the last part of it.
    ///
    /// If several threads call this at once with the last parts, it may be the whole for none of
    /// them. Call it on one thread.
    ///
    /// # Errors
    /// Returns the part if others are left.
    pub fn into_whole(self) -> Result<Pinned<T>, Self> {
        let PinnedPart { whole, start, len } = self;
        // It synchronizes with the drops of the other parts.
        Arc::try_unwrap(whole).map_err(|whole| PinnedPart { whole, start, len })
    }
}

impl<T: Element> Deref for PinnedPart<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `from_raw_parts` needs `len` initialised elements, aligned and unwritten during
        // the borrow. `into_part` covers a buffer, which has these, and `split_to` divides it into
        // parts that do not overlap. Nothing reads or writes the buffer itself as long as there is
        // a part.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Element> DerefMut for PinnedPart<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; the borrow of `self` is exclusive, and so is the part.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Element> fmt::Debug for PinnedPart<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedPart<{}>(len {} of {})", T::NAME, self.len, self.whole.len())
    }
}
