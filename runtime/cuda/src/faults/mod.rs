//! The handling of device faults: checking whether a device lives, naming the ops that may have
//! failed, and failing the streams that depend on it.

pub(crate) mod checks;
pub(crate) mod dependents;
pub(crate) mod depends;
pub(crate) mod diagnosis;
pub(crate) mod fault;
pub(crate) mod life;
pub(crate) mod recent;

use crate::api::Answer;
use checks::Checks;
use depends::DependsOn;
use life::Life;

/// The fault state of a context: its life, its pending checks, and the devices that it depends on.
#[derive(Debug)]
pub(crate) struct Faults {
    pub(crate) life: Life,
    pub(crate) checks: Checks,
    pub(crate) depends_on: DependsOn,
}

impl Faults {
    /// Creates the fault state of the current context.
    pub(crate) fn begin() -> Answer<Self> {
        Ok(Faults { life: Life::begin()?, checks: Checks::default(), depends_on: DependsOn::default() })
    }
}
