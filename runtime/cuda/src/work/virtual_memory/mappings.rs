//! The record of the memory that is mapped on a device.

use crate::api::{CUdevice, CUdeviceptr};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// The memory that is mapped on a device.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    /// The memory that the device can map, once it is known; `None` if it has no virtual memory.
    pub(super) unit: OnceLock<Option<Unit>>,
    pub(super) state: Mutex<State>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    pub(super) granule_bytes: usize,
    /// True if other devices on the bus can reach mapped memory that is made for it.
    pub(super) direct_rdma: bool,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// The mapped pieces: addresses and lengths.
    pub(super) pieces: BTreeMap<CUdeviceptr, usize>,
    /// The other devices that may use them.
    pub(super) peers: Vec<CUdevice>,
}
