//! What becomes of a device that fails: asking whether it lives, naming the ops that may have done it, and who depended on it.

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

/// What is known of a context's faults, and who finds out.
#[derive(Debug)]
pub(crate) struct Faults {
    pub(crate) life: Life,
    pub(crate) checks: Checks,
    pub(crate) depends_on: DependsOn,
}

impl Faults {
    /// Of the context that is current.
    pub(crate) fn begin() -> Answer<Self> {
        Ok(Faults { life: Life::begin()?, checks: Checks::default(), depends_on: DependsOn::default() })
    }
}
