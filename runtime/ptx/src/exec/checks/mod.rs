//! The checks of races, of reads of undefined bytes and of barriers.

pub(crate) mod report;
