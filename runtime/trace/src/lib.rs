//! A recorder of op events, which writes Chrome/Perfetto trace JSON and pictures.
//!
//! The events are those of the module `trace` of the `warpline` facade. Users see this crate
//! through the facade.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod json;
mod perfetto;
mod recorder;
mod recording;
mod timeline;

pub use recorder::Recorder;
pub use timeline::Timeline;
