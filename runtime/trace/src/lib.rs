//! A recorder of op events, which writes Chrome/Perfetto trace JSON and pictures.
//!
//! The events are those of the module `trace` of the `warpline` facade. Users see this crate
//! through the facade.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod json;
mod perfetto;
mod picture;
mod recorder;
mod recording;

pub use picture::Picture;
pub use recorder::Recorder;
