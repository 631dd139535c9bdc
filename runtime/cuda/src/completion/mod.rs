//! Markers: how the device says how far a stream is, and who looks.

pub(crate) mod events;
pub(crate) mod reactor;
pub(crate) mod track;
pub(crate) mod watch;
pub(crate) mod words;
