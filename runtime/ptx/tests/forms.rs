//! Runs each form of each instruction on edge values, and compares with what the ISA states.
//!
//! `table` lists forms that compute each lane alone, a family a file. `programs` has the others: a
//! kernel each. Expected values come from the arithmetic of the host, from `exact`, or are written
//! out: never from the crate's own arithmetic. Sections are those of the PTX ISA 8.5.

mod driver;

#[path = "forms/bits.rs"]
mod bits;
#[path = "forms/cluster_faults.rs"]
mod cluster_faults;
#[path = "forms/cluster_launches.rs"]
mod cluster_launches;
#[path = "forms/clusters.rs"]
mod clusters;
#[path = "forms/comparisons.rs"]
mod comparisons;
#[path = "forms/conversions.rs"]
mod conversions;
#[path = "forms/copies.rs"]
mod copies;
#[path = "forms/coverage.rs"]
mod coverage;
#[path = "forms/exact.rs"]
mod exact;
#[path = "forms/floats.rs"]
mod floats;
#[path = "forms/flow.rs"]
mod flow;
#[path = "forms/halves.rs"]
mod halves;
#[path = "forms/integers.rs"]
mod integers;
#[path = "forms/matrices.rs"]
mod matrices;
#[path = "forms/meetings.rs"]
mod meetings;
#[path = "forms/memory.rs"]
mod memory;
#[path = "forms/packed.rs"]
mod packed;
#[path = "forms/program.rs"]
mod program;
#[path = "forms/refusals.rs"]
mod refusals;
#[path = "forms/runs.rs"]
mod runs;
#[path = "forms/table.rs"]
mod table;
#[path = "forms/warps.rs"]
mod warps;
