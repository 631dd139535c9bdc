//! Typed kernels with a CPU twin each, for `warpline`.
//!
//! One file a kernel: what it computes and which bytes it moves stands at its top. Each is a function that makes a
//! [`KernelCall`](warpline_runtime::kernel::KernelCall) and a descriptor, [`axpy`](axpy()) and [`AXPY`]; [`ALL`] lists the descriptors.
//! Lengths are `u64` and are checked against the operands at every call; matrices are row-major and dense.
//!
//! # Device code
//! `cuda/` has a file of CUDA C++ for each file here, and `ptx/` what `ci/ptx` compiles from it with NVRTC 12.1: PTX 8.1 for
//! `compute_70`, which drivers from 530 on turn into code for Volta and everything since. The text is in the descriptors, so
//! neither a compiler nor a file is needed at run time. ptxas assembles it without spills for `sm_75`, `sm_80`, `sm_90` and
//! `sm_100`, and `host-check` compiles the same sources for the host and compares them with the twins.
//!
//! Products of matrices have a library form as well, cuBLAS: see [`libraries`].
//!
//! Kernels are right under any launch configuration, or refused by the driver; [`launch`] has the ones they are fast with. None has
//! run on a GPU yet.

mod add;
mod argmax;
mod axpy;
mod cells;
mod column_moments;
mod column_scales;
mod column_sums;
mod columns;
mod count_equal;
mod cross_entropy;
mod gemm;
pub mod launch;
pub mod libraries;
mod linear;
mod matmul;
mod mean;
mod mul;
mod philox;
mod philox_normal;
mod philox_uniform;
mod relu;
mod relu_backward;
mod sgd;
mod standardize;
mod sub;
mod sum;
mod threads;
mod transpose;

pub use add::{
    ADD, ADD_I64, ADD_IN_PLACE, ADD_SCALAR, ADD_SCALAR_I64, add, add_, add_i64, add_scalar, add_scalar_i64,
};
pub use argmax::{ARGMAX, argmax};
pub use axpy::{AXPY, axpy};
pub use column_moments::{COLUMN_MOMENTS, column_moments};
pub use column_scales::{COLUMN_SCALES, column_scales};
pub use column_sums::{COLUMN_SUMS, column_sums};
pub use count_equal::{COUNT_EQUAL, count_equal};
pub use cross_entropy::{
    CROSS_ENTROPY, CROSS_ENTROPY_MEAN, CROSS_ENTROPY_ROWS, cross_entropy, cross_entropy_mean,
    cross_entropy_rows,
};
pub use linear::{LINEAR, linear};
pub use matmul::{MATMUL, matmul};
pub use mean::{MEAN, mean};
pub use mul::{MUL, MUL_I64, MUL_SCALAR, MUL_SCALAR_I64, mul, mul_i64, mul_scalar, mul_scalar_i64};
pub use philox::philox4x32_10;
pub use philox_normal::{PHILOX_NORMAL, philox_normal};
pub use philox_uniform::{PHILOX_UNIFORM, philox_uniform};
pub use relu::{RELU, relu};
pub use relu_backward::{RELU_BACKWARD, relu_backward};
pub use sgd::{SGD, sgd};
pub use standardize::{STANDARDIZE, standardize};
pub use sub::{SUB, SUB_I64, sub, sub_i64};
pub use sum::{SUM, SUM_RUN, SUM_RUNS, SUM_TREE, sum, sum_runs, sum_tree};
pub use transpose::{TRANSPOSE, TRANSPOSE_I64, transpose, transpose_i64};

use warpline_runtime::kernel::Kernel;

/// The descriptors of all kernels here, by name.
pub static ALL: &[&Kernel] = &[
    &ADD,
    &ADD_IN_PLACE,
    &ADD_I64,
    &ADD_SCALAR,
    &ADD_SCALAR_I64,
    &ARGMAX,
    &AXPY,
    &COLUMN_MOMENTS,
    &COLUMN_SCALES,
    &COLUMN_SUMS,
    &COUNT_EQUAL,
    &CROSS_ENTROPY,
    &CROSS_ENTROPY_MEAN,
    &CROSS_ENTROPY_ROWS,
    &LINEAR,
    &MATMUL,
    &MEAN,
    &MUL,
    &MUL_I64,
    &MUL_SCALAR,
    &MUL_SCALAR_I64,
    &PHILOX_NORMAL,
    &PHILOX_UNIFORM,
    &RELU,
    &RELU_BACKWARD,
    &SGD,
    &STANDARDIZE,
    &SUB,
    &SUB_I64,
    &SUM,
    &SUM_RUNS,
    &SUM_TREE,
    &TRANSPOSE,
    &TRANSPOSE_I64,
];

#[cfg(test)]
mod twin;

#[cfg(test)]
mod tests {
    use warpline_runtime::kernel::{ParamKind, Source, entry_params};

    #[test]
    fn every_kernel_takes_on_the_device_what_its_descriptor_says() {
        for kernel in super::ALL {
            let Source::Ptx(ptx) = kernel.source else { panic!("{} has no PTX", kernel.name) };
            let expected = kernel.params.iter().map(|param| match param.kind {
                ParamKind::Scalar { bytes, .. } => bytes,
                ParamKind::Slice { .. } => size_of::<u64>(),
            });
            assert_eq!(entry_params(ptx, kernel.name), Some(expected.collect()), "{}", kernel.name);
        }
    }

    #[test]
    fn every_kernel_is_listed_once_and_in_order() {
        let names: Vec<_> = super::ALL.iter().map(|kernel| kernel.name).collect();
        assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
    }
}
