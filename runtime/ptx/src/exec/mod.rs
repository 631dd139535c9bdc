//! The executor, from a lowered kernel to a finished launch.
//!
//! In this order the modules explain each other: `registers`, `op`, `code`: what runs; `lanes`,
//! `select`, `runs`, `access`, `copies`, `atomics`, `control`, `clusters`, `special`, `vote`,
//! `matrix`, `print`, `heap`: the instructions; `warp`, `turns`, `splits`, `meetings`, `block`,
//! `grid`, `schedule`: the order in which threads run; `memory`, `workspace`, `aligned`, `fault`:
//! what may be touched, and what fails; `effect`, `dependence`, `checks`: what a launch may ask to
//! be checked.
// Decision: docs/decisions/0061-ptx-runs-in-an-interpreter-of-warps.md

pub(crate) mod access;
mod aligned;
pub(crate) mod atomics;
pub(crate) mod block;
pub(crate) mod checks;
pub(crate) mod clusters;
pub(crate) mod code;
pub(crate) mod context;
pub(crate) mod control;
pub(crate) mod copies;
pub(crate) mod dependence;
pub(crate) mod effect;
pub(crate) mod fault;
mod fragment;
pub(crate) mod grid;
pub(crate) mod heap;
pub(crate) mod lanes;
pub(crate) mod matrix;
mod meetings;
pub(crate) mod memory;
pub(crate) mod op;
pub(crate) mod print;
pub(crate) mod registers;
mod resolve;
mod runs;
mod schedule;
pub(crate) mod select;
pub(crate) mod source;
pub(crate) mod special;
mod splits;
mod turns;
pub(crate) mod vote;
mod warp;
pub(crate) mod windows;
mod workspace;
