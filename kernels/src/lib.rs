//! Typed kernels for `warpline`, each with a CPU implementation, its *twin*.
//!
//! A kernel's file states at its top what the kernel computes and how many bytes it moves. A kernel
//! consists of a function that returns a [`KernelCall`](warpline_runtime::kernel::KernelCall) and
//! of a descriptor, for example [`axpy`](axpy()) and [`AXPY`]. [`ALL`] lists the descriptors.
//! Lengths are `u64` and are checked against the operands at every call. Matrices are row-major and
//! dense.
//!
//! # Device code
//! `cuda/` holds a CUDA C++ file for each kernel file here. `ci/ptx` compiles these files with
//! NVRTC 12.0 to PTX 8.0 and stores the PTX in `ptx/`. Drivers for CUDA 12.0 and newer (525 and
//! newer) compile the PTX to machine code. Its target is `sm_70`, and on Pascal `sm_60` in place of
//! it. The descriptors contain the PTX, so neither a compiler nor a file is needed at run time.
//! ptxas assembles the PTX without spills for architectures from `sm_60` to `sm_120`, but for
//! `sm_62`, where seven kernels spill. `host-check` compiles the same sources for the host, runs
//! the PTX on the CPU, and compares the results of both with the twins' results.
//!
//! Matrix products can also use a library, cuBLAS: see [`libraries`].
//!
//! A kernel is correct with any launch configuration that the driver accepts. [`launch`] has the
//! configurations with which the kernels are fast; `benches/RESULTS.md` has figures of an H100.
// Decision: docs/decisions/0037-the-crate-carries-ptx.md
#![cfg_attr(docsrs, feature(doc_cfg))]
// A size that is cut gives a wrong result instead of an error.
#![cfg_attr(not(test), deny(clippy::cast_possible_truncation))]

mod add;
mod argmax;
mod axpy;
mod cast;
mod cells;
mod column_moments;
mod column_scales;
mod column_sums;
mod columns;
mod conv;
mod convert;
mod count_equal;
mod cross_entropy;
mod elementwise;
mod expand;
mod gemm;
mod index_select;
pub mod launch;
mod layer_norm;
pub mod libraries;
mod linear;
mod matmul;
mod max;
mod mean;
mod philox;
mod philox_normal;
mod philox_uniform;
mod relu;
mod relu_backward;
mod sgd;
mod softmax;
mod standardize;
mod sum;
mod threads;
mod transpose;
mod unary;

pub use add::{ADD_IN_PLACE, add_};
pub use argmax::{ARGMAX, argmax};
pub use axpy::{AXPY, axpy};
pub use cast::{CAST, TypeCode, cast, cast_on_host};
pub use column_moments::{COLUMN_MOMENTS, column_moments};
pub use column_scales::{COLUMN_SCALES, column_scales};
pub use column_sums::{COLUMN_SUMS, column_sums};
pub use conv::{CHANNELS_TO_IMAGES, IM2COL, channels_to_images, im2col};
pub use count_equal::{COUNT_EQUAL, count_equal};
pub use cross_entropy::{
    CROSS_ENTROPY, CROSS_ENTROPY_MEAN, CROSS_ENTROPY_ROWS, cross_entropy, cross_entropy_mean,
    cross_entropy_rows,
};
pub use elementwise::{
    ADD, ADD_F64, ADD_I64, ADD_SCALAR, ADD_SCALAR_F64, ADD_SCALAR_I64, DIVIDE, DIVIDE_F64, DIVIDE_SCALAR,
    DIVIDE_SCALAR_F64, MUL, MUL_F64, MUL_I64, MUL_SCALAR, MUL_SCALAR_F64, MUL_SCALAR_I64, SUB, SUB_F64,
    SUB_I64, add, add_f64, add_i64, add_scalar, add_scalar_f64, add_scalar_i64, divide, divide_f64,
    divide_scalar, divide_scalar_f64, mul, mul_f64, mul_i64, mul_scalar, mul_scalar_f64, mul_scalar_i64, sub,
    sub_f64, sub_i64,
};
pub use expand::{EXPAND_1, EXPAND_2, EXPAND_4, EXPAND_8, expand_1, expand_2, expand_4, expand_8};
pub use index_select::{INDEX_SELECT, index_select};
pub use layer_norm::{LAYER_NORM, layer_norm};
pub use linear::{LINEAR, linear};
pub use matmul::{MATMUL, matmul};
pub use max::{MAX_DIM, MAX_RUN, MAXIMA, max_dim, maxima};
pub use mean::{MEAN, mean};
pub use philox::philox4x32_10;
pub use philox_normal::{PHILOX_NORMAL, philox_normal};
pub use philox_uniform::{PHILOX_UNIFORM, philox_uniform};
pub use relu::{RELU, relu};
pub use relu_backward::{RELU_BACKWARD, relu_backward};
pub use sgd::{SGD, sgd};
pub use softmax::{SOFTMAX, softmax};
pub use standardize::{STANDARDIZE, standardize};
pub use sum::{SUM, SUM_RUN, SUM_RUNS, SUM_TREE, sum, sum_runs, sum_tree};
pub use transpose::{TRANSPOSE, TRANSPOSE_I64, transpose, transpose_i64};
pub use unary::{
    EXP_F32, GELU_F32, LOG_F32, SIGMOID_F32, SQRT_F32, TANH_F32, exp_f32, gelu_f32, log_f32, sigmoid_f32,
    sqrt_f32, tanh_f32,
};

use warpline_runtime::kernel::Kernel;

/// The descriptors of all kernels in this crate, sorted by name.
pub static ALL: &[&Kernel] = &[
    &ADD,
    &ADD_IN_PLACE,
    &ADD_F64,
    &ADD_I64,
    &ADD_SCALAR,
    &ADD_SCALAR_F64,
    &ADD_SCALAR_I64,
    &ARGMAX,
    &AXPY,
    &CAST,
    &CHANNELS_TO_IMAGES,
    &COLUMN_MOMENTS,
    &COLUMN_SCALES,
    &COLUMN_SUMS,
    &COUNT_EQUAL,
    &CROSS_ENTROPY,
    &CROSS_ENTROPY_MEAN,
    &CROSS_ENTROPY_ROWS,
    &DIVIDE,
    &DIVIDE_F64,
    &DIVIDE_SCALAR,
    &DIVIDE_SCALAR_F64,
    &EXP_F32,
    &EXPAND_1,
    &EXPAND_2,
    &EXPAND_4,
    &EXPAND_8,
    &GELU_F32,
    &IM2COL,
    &INDEX_SELECT,
    &LAYER_NORM,
    &LINEAR,
    &LOG_F32,
    &MATMUL,
    &MAX_DIM,
    &MAXIMA,
    &MEAN,
    &MUL,
    &MUL_F64,
    &MUL_I64,
    &MUL_SCALAR,
    &MUL_SCALAR_F64,
    &MUL_SCALAR_I64,
    &PHILOX_NORMAL,
    &PHILOX_UNIFORM,
    &RELU,
    &RELU_BACKWARD,
    &SGD,
    &SIGMOID_F32,
    &SOFTMAX,
    &SQRT_F32,
    &STANDARDIZE,
    &SUB,
    &SUB_F64,
    &SUB_I64,
    &SUM,
    &SUM_RUNS,
    &SUM_TREE,
    &TANH_F32,
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
            let Source::Ptx { texts: [text], from_sm_60: true } = kernel.source else {
                panic!("{} has no PTX that Pascal loads", kernel.name)
            };
            let sizes = kernel.params.iter().map(|param| match param.kind {
                ParamKind::Scalar { bytes, .. } => bytes,
                ParamKind::Slice { .. } => size_of::<u64>(),
            });
            let expected: Vec<_> = sizes.collect();
            assert_eq!(entry_params(text, kernel.name), Some(expected), "{}", kernel.name);
            assert!(text.contains("\n.version 8.0\n.target sm_70\n"), "{}", kernel.name);
        }
    }

    #[test]
    fn every_kernel_is_listed_once_and_in_order() {
        let names: Vec<_> = super::ALL.iter().map(|kernel| kernel.name).collect();
        assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
    }
}
