//! Typed kernels with a CPU twin each, for `warpline`.
//!
//! One file a kernel: what it computes and which bytes it moves stands at its top. Each is a function that makes a
//! [`KernelCall`](warpline_runtime::kernel::KernelCall) and a descriptor, [`axpy`](axpy()) and [`AXPY`]; [`ALL`] lists the descriptors.
//! Lengths are `u64` and are checked against the operands at every call; matrices are row-major and dense.
//!
//! All kernels run on the CPU device alone so far.

mod add;
mod axpy;
mod column_moments;
mod column_scales;
mod column_sums;
mod columns;
mod philox;
mod philox_normal;
mod philox_uniform;
mod relu;
mod standardize;
mod sum;

pub use add::{ADD, add_};
pub use axpy::{AXPY, axpy};
pub use column_moments::{COLUMN_MOMENTS, column_moments};
pub use column_scales::{COLUMN_SCALES, column_scales};
pub use column_sums::{COLUMN_SUMS, column_sums};
pub use philox_normal::{PHILOX_NORMAL, philox_normal};
pub use philox_uniform::{PHILOX_UNIFORM, philox_uniform};
pub use relu::{RELU, relu};
pub use standardize::{STANDARDIZE, standardize};
pub use sum::{SUM, sum};

use warpline_runtime::kernel::Kernel;

/// The descriptors of all kernels here, by name.
pub static ALL: &[&Kernel] = &[
    &ADD,
    &AXPY,
    &COLUMN_MOMENTS,
    &COLUMN_SCALES,
    &COLUMN_SUMS,
    &PHILOX_NORMAL,
    &PHILOX_UNIFORM,
    &RELU,
    &STANDARDIZE,
    &SUM,
];

#[cfg(test)]
mod twin;

#[cfg(test)]
mod tests {
    #[test]
    fn every_kernel_is_listed_once_and_in_order() {
        let names: Vec<_> = super::ALL.iter().map(|kernel| kernel.name).collect();
        assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
    }
}
