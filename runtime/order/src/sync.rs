//! The locks of a ledger. The loom models put their own in their place.

pub(crate) use crossbeam_utils::CachePadded;
pub(crate) use parking_lot::{Mutex, MutexGuard};
pub(crate) use std::sync::OnceLock;
