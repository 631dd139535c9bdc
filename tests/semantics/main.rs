//! Programs of PyTorch's CUDA semantics note that concern the process: names of devices of the
//! default runtime, the environment, and peer access. They run on the software CUDA driver. The
//! first line of each test's docs names the program by its number in `docs/semantics.md`. The test
//! binary `contract` has the programs whose devices may be of any backend.

#[path = "../support/mod.rs"]
mod support;

#[path = "../support/note.rs"]
mod note;

mod arguments;
mod devices;
mod modules;
mod streams;
