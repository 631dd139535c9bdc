//! What is put on a stream: copies, launches, host functions, foreign work, graphs and gates.

pub(crate) mod capturing;
pub(crate) mod copy;
pub(crate) mod foreign;
pub(crate) mod gate;
pub(crate) mod graph;
pub(crate) mod host_fn;
pub(crate) mod launch;
pub(crate) mod refused;
pub(crate) mod wait;
