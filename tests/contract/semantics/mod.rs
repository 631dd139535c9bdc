//! Programs of PyTorch's CUDA semantics note whose devices may be of any backend. The first line of
//! each test's docs names the program by its number in `docs/semantics.md`. The test binary
//! `semantics` has the programs that concern the process.

mod devices;
mod loading;
mod modules;
mod streams;
mod tensors;

use warpline::Result;
use warpline::prelude::*;

/// Returns the devices from which a program copies to another one: `device` and, if that is
/// another, `cpu:0`.
fn sources(device: &Device) -> Result<Vec<Device>> {
    let mut sources = vec![device.clone(), device.sibling(DeviceId::Cpu(0))?];
    sources.dedup();
    Ok(sources)
}
