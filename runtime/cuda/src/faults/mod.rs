//! What becomes of a device that fails: asking whether it lives, naming the ops that may have done it, and who depended on it.

pub(crate) mod checks;
pub(crate) mod dependents;
pub(crate) mod depends;
pub(crate) mod diagnosis;
pub(crate) mod fault;
pub(crate) mod life;
pub(crate) mod recent;
