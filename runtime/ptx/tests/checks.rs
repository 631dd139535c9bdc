//! The checks of a launch: each rule with a kernel that breaks it, and one that does not.
//!
//! `launch` runs a body of PTX with checks. `races`, `init` and `sync` have the rules, and
//! `suspects` those for values that are dropped.

#[path = "checks/clusters.rs"]
mod clusters;
#[path = "checks/init.rs"]
mod init;
#[path = "checks/launch.rs"]
mod launch;
#[path = "checks/races.rs"]
mod races;
#[path = "checks/suspects.rs"]
mod suspects;
#[path = "checks/sync.rs"]
mod sync;
