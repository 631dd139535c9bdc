//! The record of which other devices have to live for a device's work to continue.
//!
//! When a device dies, a stream of another device that waits for its work stalls. A stream of that
//! other device which waits for the first stream stalls too, and a task may wait for either. So
//! dependencies are recorded by device, and for ever. A wait that has ended costs a query now and
//! then. If a wait were forgotten, the waiters behind it would not learn of the failure.

use crate::context::Context;
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use std::fmt;

/// The other devices whose work a device waits for or has waited for.
#[derive(Default)]
pub(crate) struct DependsOn(Mutex<Vec<&'static Context>>);

impl DependsOn {
    pub(crate) fn add(&self, other: &'static Context) {
        let mut others = self.0.lock();
        if !others.iter().any(|known| std::ptr::eq(*known, other)) {
            others.push(other);
        }
    }
}

impl Context {
    /// Returns the devices that have to live for this device's work to continue: itself first, then
    /// those that it waits for, then those that they wait for.
    pub(crate) fn devices(&'static self) -> SmallVec<[&'static Context; 2]> {
        let mut devices: SmallVec<[&'static Context; 2]> = smallvec![self];
        let mut at = 0;
        while let Some(device) = devices.get(at) {
            let others = device.faults.depends_on.0.lock();
            let new =
                others.iter().filter(|other| !devices.iter().any(|known| std::ptr::eq(*known, **other)));
            let new: Vec<_> = new.copied().collect();
            drop(others);
            devices.extend(new);
            at += 1;
        }
        devices
    }
}

/// Lists only the ordinals: devices may depend on each other.
impl fmt::Debug for DependsOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.lock().iter().map(|other| other.ordinal)).finish()
    }
}
