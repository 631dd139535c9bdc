//! The order check: which op may touch which bytes after which.
#![forbid(unsafe_code)]

mod clock;
mod range;

pub(crate) use clock::Clock;
pub use clock::{StreamId, Use};
pub use range::ByteRange;

/// One unordered earlier use.
#[derive(Clone, Debug)]
pub struct Conflict {}
