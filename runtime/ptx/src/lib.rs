//! Runs PTX, the assembly language of NVIDIA GPUs, on the CPU.
//!
//! # Words
//! A **module** is one PTX text, a **kernel** one of its entry functions. A launch runs a **grid**
//! of **blocks** (PTX: CTAs) of **threads**. 32 threads of a block make a **warp**, and a thread is
//! a **lane** of its warp.
//!
//! # Examples
//! ```
//! use warpline_ptx::{Config, Memory, Module, Region};
//!
//! let module = Module::new(
//!     ".version 8.0 .target sm_70 .address_size 64
//!     .visible .entry double(.param .u64 x) {
//!         .reg .b32 %r<3>; .reg .b64 %rd<3>;
//!         ld.param.u64 %rd1, [x];
//!         mov.u32 %r1, %tid.x;
//!         mul.wide.u32 %rd2, %r1, 4;
//!         add.u64 %rd1, %rd1, %rd2;
//!         ld.global.u32 %r2, [%rd1];
//!         add.u32 %r2, %r2, %r2;
//!         st.global.u32 [%rd1], %r2;
//!         ret;
//!     }",
//! )?;
//! let kernel = module.kernel("double")?;
//! let mut x = [1u32, 2, 3, 4];
//! let start = x.as_mut_ptr().expose_provenance() as u64;
//! let region = Region { is_writable: true, ..Region::new("x", start, 16, 4) };
//! let launch = |threads| {
//!     let memory = Memory::Regions(vec![region.clone()]);
//!     // SAFETY: the region is `x`, which nothing else uses meanwhile.
//!     unsafe { kernel.launch(&Config::linear(1, threads), &start.to_le_bytes(), memory) }
//! };
//! launch(4)?;
//! let fault = launch(5).unwrap_err();
//! // The warp has failed at its load, before it stored anything.
//! assert_eq!(x, [2, 4, 6, 8]);
//! let text = fault.to_string();
//! assert!(text.starts_with("double failed in thread [4, 0, 0] of block [0, 0, 0] (PTX line 8): "));
//! assert!(text.ends_with("which is element 4 of x, and it has 4 elements; mend the index"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Checks
//! Alignment, masks of lanes and deadlocks are always checked, and so are bounds, except with
//! [`Memory::Unchecked`]. A launch may also ask for [`Checks`]: of races, of undefined bytes and
//! of barriers. Then one thread of the host runs it.
//!
//! # Modules
//! In this order they explain each other:
//! * `text`: the parser, from a PTX text to statements;
//! * `number`: arithmetic with PTX's rounding, on numbers that the host has no instructions for;
//! * `checks`: what a launch may ask to be checked;
//! * `exec`: the executor, which runs the instructions of a kernel a warp at a time;
//! * `program`: from statements to instructions of the executor;
//! * `kernel`: what users call.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod checks;
mod exec;
mod kernel;
mod number;
mod program;
pub mod text;

pub use checks::{Checks, UnknownCheck};
pub use exec::checks::report::{Earlier, NamedByte, Race, Relation};
pub use exec::fault::{AtBarrier, Fault, FaultKind, SharedVariable};
pub use exec::memory::{Access, AddressSpace, Region};
pub use exec::source::SourceLine;
pub use kernel::{Config, Host, Kernel, LoadError, Memory, Module, vector_instructions};
pub use program::LowerError;

/// Runs the program of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
