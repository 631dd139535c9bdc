//! Device and host memory.

mod pinned;
pub use pinned::Pinned;
pub(crate) use pinned::PinnedBytes;
