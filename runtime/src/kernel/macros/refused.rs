//! Declarations that do not compile, each because one part is missing or doubled.
//!
//! ```compile_fail
//! warpline::kernel! { fn negate(y: &mut [f32]) { cpu: |y| y[0] = -y[0] } }
//! ```
//!
//! ```compile_fail
//! warpline::kernel! { in_place fn negate(y: &mut [f32]) { cpu: |y| y[0].set(-y[0].get()) }
//! }
//! ```
//!
//! ```compile_fail
//! warpline::kernel! { unsafe fn negate(y: &mut [f32]) { descriptor: NEGATE } }
//! ```
//!
//! ```compile_fail
//! warpline::kernel! { unsafe fn negate(y: &mut [f32]) { cpu: |y| (), cuda: "", ptx: "" } }
//! ```
