//! Which devices have to live for the work of one to go on.
//!
//! A stream that waits for another device's work, and one of the same device that waits for that stream, stand still alike when the
//! other device dies, and somebody may wait for either. So it is kept by device, and for ever: a wait that is over costs a question now
//! and then, a wait that nobody remembers costs whoever waits behind it the news.

use crate::context::Context;
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use std::fmt;

/// The other devices whose work one waits or waited for.
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
    /// The devices that have to live for its work to go on: its own first, then those that it waits for, then those that they do.
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

/// By ordinal: devices may depend on each other.
impl fmt::Debug for DependsOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.lock().iter().map(|other| other.ordinal)).finish()
    }
}
