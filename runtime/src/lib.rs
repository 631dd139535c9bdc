//! Devices, streams, events, the order check and memory behind `warpline`.

mod desk;
pub mod device;
pub mod driver;
mod element;
mod error;
pub mod kernel;
pub mod memory;
pub mod order;
mod report;
mod site;
mod sync;
pub mod timeline;

pub use element::Element;
pub use error::{Error, ErrorKind, Result};
pub use site::Site;
