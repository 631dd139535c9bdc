//! Checks and enables direct access between the memories of devices.

use crate::api::{Answer, opened};
use crate::context::Context;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::c_int;

/// The access of a device to the memory of other devices, by their ordinals. Each is checked once.
#[derive(Debug, Default)]
pub(crate) struct Peers(Mutex<BTreeMap<u32, bool>>);

impl Context {
    /// Lets this device's kernels and copies reach the memory of `peer` directly, if the machine
    /// can.
    ///
    /// Returns whether it can. This is checked and enabled once.
    pub(crate) fn enable_peer(&self, peer: &Context) -> Answer<bool> {
        let mut peers = self.work.peers.0.lock();
        if let Some(&can) = peers.get(&peer.ordinal) {
            return Ok(can);
        }
        let mut can = self.can_access(peer)?;
        if can {
            let _entered = self.enter_relaxed()?;
            // SAFETY: cuCtxEnablePeerAccess takes a live context.
            match unsafe { opened().cuCtxEnablePeerAccess(peer.raw(), 0) } {
                Err(failed) if failed.is_fault() => return Err(failed),
                // A device has a limited number of peers; copies to the others go through the host.
                Err(failed) if !failed.is_enabled_already() => can = false,
                _ => {}
            }
        }
        if can && let Err(failed) = peer.let_use_mapped(self.device) {
            if failed.is_fault() {
                return Err(failed);
            }
            can = false;
        }
        peers.insert(peer.ordinal, can);
        Ok(can)
    }

    /// Returns whether the machine lets this device reach the memory of `peer` directly.
    pub(crate) fn can_access(&self, peer: &Context) -> Answer<bool> {
        let mut can: c_int = 0;
        // SAFETY: cuDeviceCanAccessPeer writes one int.
        unsafe { opened().cuDeviceCanAccessPeer(&raw mut can, self.device, peer.device) }?;
        Ok(can != 0)
    }
}
