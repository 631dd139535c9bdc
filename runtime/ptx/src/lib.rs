//! Runs PTX, the assembly language of NVIDIA GPUs, on the CPU.
//!
//! # Words
//! A **module** is one PTX text, a **kernel** one of its entry functions. A launch runs a **grid**
//! of **blocks** (PTX: CTAs) of **threads**. 32 threads of a block make a **warp**, and a thread is
//! a **lane** of its warp.
//!
//! # Modules
//! In this order they explain each other:
//! * `text`: the parser, from a PTX text to statements;
//! * `number`: arithmetic with PTX's rounding, on numbers that the host has no instructions for;
//! * `exec`: the executor, which runs the instructions of a kernel a warp at a time;
//! * `program`: from statements to instructions of the executor;
//! * `kernel`: what users call.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod exec;
mod kernel;
mod number;
mod program;
pub mod text;

pub use exec::fault::{Fault, FaultKind};
pub use exec::memory::{Access, AddressSpace, Region};
pub use kernel::{Config, Kernel, LoadError, Memory, Module};
pub use program::LowerError;
