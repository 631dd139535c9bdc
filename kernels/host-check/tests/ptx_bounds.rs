//! Launches of the committed PTX that may touch less memory than the kernel needs.
//!
//! Each call touches the last element of each operand. If the launch may not touch that element, it
//! fails and names the operand. The launches of the other tests may touch the operands alone, so
//! those tests would notice an access behind the end.
#![cfg(target_os = "linux")]

use host_check::{
    Agree, CUBES, Check, Launch, ONE_THREAD, PARTIAL_WARPS, Problem, WARPS, load, plain, ptx_text,
};
use warpline_kernels::{ALL, AXPY, SUM_RUN, TypeCode, launch};
use warpline_ptx::FaultKind;
use warpline_runtime::kernel::ParamKind;

/// Returns a call of the kernel with this name that touches all elements of all operands. The first
/// elements are `offset` elements behind a multiple of 16 bytes.
fn call(name: &str, offset: usize) -> Check {
    let sizes = |sizes: &[u64]| sizes.iter().fold(Check::of(name), |check, &size| check.scalar(size));
    let floats = |n: usize| plain(n, 1);
    let doubles = |n: usize| floats(n).into_iter().map(f64::from).collect::<Vec<f64>>();
    match name {
        "add" | "sub" | "mul" | "divide" => {
            sizes(&[37, 37]).slice(&floats(37), offset).slice(&floats(37), offset).slice(&floats(37), offset)
        }
        "add_f64" | "sub_f64" | "mul_f64" | "divide_f64" => {
            sizes(&[36, 9]).slice(&doubles(36), offset).slice(&doubles(9), 0).slice(&doubles(36), offset)
        }
        "add_i64" | "sub_i64" | "mul_i64" => {
            sizes(&[36, 9]).slice(&[5i64; 36], offset).slice(&[7i64; 9], 0).slice(&[9i64; 36], offset)
        }
        "add_" => sizes(&[37]).slice(&floats(37), offset).slice(&floats(37), offset),
        "add_scalar" | "mul_scalar" | "divide_scalar" => {
            sizes(&[37]).slice(&floats(37), offset).scalar(3.0f32).slice(&floats(37), offset)
        }
        "add_scalar_f64" | "mul_scalar_f64" | "divide_scalar_f64" => {
            sizes(&[37]).slice(&doubles(37), offset).scalar(3.0f64).slice(&doubles(37), offset)
        }
        "add_scalar_i64" | "mul_scalar_i64" => {
            sizes(&[37]).slice(&[5i64; 37], offset).scalar(3i64).slice(&[5i64; 37], offset)
        }
        "exp_f32" | "gelu_f32" | "log_f32" | "relu" | "sigmoid_f32" | "sqrt_f32" | "tanh_f32" => {
            sizes(&[37]).slice(&floats(37), offset).slice(&floats(37), offset)
        }
        "argmax" => sizes(&[5, 33]).slice(&floats(165), offset).slice(&[9i64; 5], offset),
        "axpy" => sizes(&[37]).scalar(2.0f32).slice(&floats(37), offset).slice(&floats(37), offset),
        "cast" => {
            let (from, to) = (TypeCode::I16, TypeCode::F64);
            sizes(&[9])
                .scalar(from as u32)
                .scalar(to as u32)
                .slice(&[5u8; 18], offset)
                .slice(&[5u8; 72], offset)
        }
        "channels_to_images" => {
            let start = sizes(&[3, 2, 5]).scalar(1u32).slice(&floats(30), offset);
            start.slice(&floats(2), offset).slice(&floats(30), offset)
        }
        "column_moments" => {
            let start = sizes(&[9, 37]).slice(&floats(333), offset).slice(&[4u64; 37], offset);
            start.slice(&doubles(37), offset).slice(&doubles(37), offset)
        }
        "column_scales" => {
            let start = sizes(&[37]).slice(&[4u64; 37], offset);
            let start = start.slice(&doubles(37), offset).slice(&doubles(37), offset);
            start.slice(&floats(37), offset).slice(&floats(37), offset)
        }
        "column_sums" => {
            let start = sizes(&[9, 37]);
            start.slice(&floats(333), offset).slice(&floats(37), offset)
        }
        "count_equal" => {
            sizes(&[37]).slice(&[5i64; 37], offset).slice(&[5i64; 37], offset).slice(&[9i64], offset)
        }
        "cross_entropy" => {
            let start = sizes(&[5, 33]).slice(&floats(165), offset).slice(&[1i64; 5], offset);
            start.slice(&[9.0f32], offset).slice(&floats(165), offset)
        }
        "cross_entropy_mean" => sizes(&[37]).slice(&doubles(37), offset).slice(&[9.0f32], offset),
        "cross_entropy_rows" => {
            let start = sizes(&[5, 33]).slice(&floats(165), offset).slice(&[1i64; 5], offset);
            start.slice(&doubles(5), offset).slice(&floats(165), offset)
        }
        "expand_1" => sizes(&[30, 3, 5]).slice(&[1u8; 10], offset).slice(&[1u8; 30], offset),
        "expand_2" => sizes(&[30, 3, 5]).slice(&[1u16; 10], offset).slice(&[1u16; 30], offset),
        "expand_4" => sizes(&[30, 3, 5]).slice(&[1u32; 10], offset).slice(&[1u32; 30], offset),
        "expand_8" => sizes(&[30, 3, 5]).slice(&[1u64; 10], offset).slice(&[1u64; 30], offset),
        "im2col" => {
            // 2 images with 3 channels of 5 × 4 and a weight of 3 × 2: 3 × 3 pixels.
            let start = sizes(&[2, 3, 5, 4, 3, 2, 1, 1, 0, 0, 3, 3]).slice(&floats(120), offset);
            start.slice(&floats(3 * 3 * 2 * 2 * 9), offset)
        }
        "index_select" => {
            let start = sizes(&[3, 7, 5, 2]).slice(&floats(105), offset).slice(&[0i64, 6], offset);
            start.slice(&floats(30), offset)
        }
        "layer_norm" => {
            let start = sizes(&[5, 33]).scalar(1e-5f32).slice(&floats(165), offset);
            start.slice(&floats(33), offset).slice(&floats(33), offset).slice(&floats(165), offset)
        }
        "linear" => {
            let start = sizes(&[33, 35, 17]).scalar(0u32).slice(&floats(33 * 17), offset);
            let start = start.slice(&floats(35 * 17), offset).slice(&floats(35), offset);
            start.slice(&floats(33 * 35), offset)
        }
        "matmul" => {
            let start = sizes(&[33, 35, 17]).scalar(1u32).scalar(0u32).slice(&floats(33 * 17), offset);
            start.slice(&floats(35 * 17), offset).slice(&floats(33 * 35), offset)
        }
        "max_dim" => {
            let start = sizes(&[3, 7, 5]).slice(&floats(105), offset);
            start.slice(&floats(15), offset).slice(&[9i64; 15], offset)
        }
        "maxima" => sizes(&[37, 10]).slice(&floats(37), offset).slice(&floats(4), offset),
        "mean" | "sum" => sizes(&[1025]).slice(&floats(1025), offset).slice(&[9.0f32], offset),
        "philox_normal" | "philox_uniform" => {
            let start = sizes(&[37, 1, 2, 3]).scalar(0.0f32).scalar(1.0f32);
            start.slice(&floats(37), offset)
        }
        "relu_backward" => {
            sizes(&[37]).slice(&floats(37), offset).slice(&floats(37), offset).slice(&floats(37), offset)
        }
        "sgd" => {
            let start = sizes(&[37]).scalar(0.1f32).scalar(0.9f32).slice(&floats(37), offset);
            start.slice(&floats(37), offset).slice(&floats(37), offset)
        }
        "softmax" => sizes(&[3, 7, 5]).slice(&floats(105), offset).slice(&floats(105), offset),
        "standardize" => {
            let start = sizes(&[9, 37]).slice(&floats(37), offset);
            start.slice(&floats(37), offset).slice(&floats(333), offset)
        }
        "sum_runs" => {
            let n = 2 * SUM_RUN as usize + 77;
            sizes(&[n as u64]).slice(&floats(n), offset).slice(&floats(3), offset)
        }
        "sum_tree" => sizes(&[1025]).scalar(3.0f32).slice(&floats(1025), offset).slice(&[9.0f32], offset),
        "transpose" => sizes(&[37, 41]).slice(&floats(37 * 41), offset).slice(&floats(37 * 41), offset),
        "transpose_i64" => sizes(&[37, 41]).slice(&[5i64; 37 * 41], offset).slice(&[5i64; 37 * 41], offset),
        _ => panic!("{name} is new: write a call of it that touches all elements of its operands"),
    }
}

#[test]
fn a_launch_without_the_last_element_of_an_operand_fails_and_names_it() {
    let tiled = Launch::new(launch::product(33, 35));
    for kernel in ALL {
        for offset in [0, 1] {
            let call = call(kernel.name, offset);
            let slices = (0..).zip(kernel.params);
            for (i, param) in slices.filter(|(_, param)| matches!(param.kind, ParamKind::Slice { .. })) {
                for launch in [ONE_THREAD, PARTIAL_WARPS, WARPS, CUBES, tiled] {
                    // SAFETY: `call` gives all operands the lengths that the kernels require.
                    let result = unsafe { call.without_the_last_of(i, &launch) };
                    let what =
                        || format!("{} without the last of {} with {launch:?}", kernel.name, param.name);
                    let fault = result.expect_err(&what());
                    match &fault.kind {
                        FaultKind::OutOfBounds { nearest: Some(region), .. } => {
                            assert_eq!(region.name, param.name, "{}: {fault}", what());
                        }
                        _ => panic!("{}: {fault}", what()),
                    }
                }
            }
        }
    }
}

#[test]
fn a_launch_that_writes_a_read_operand_fails_and_names_it() {
    let axpy = call("axpy", 0);
    // The loads of the addresses change places, so the kernel writes `x`.
    let swapped = ptx_text(&AXPY).replace("[axpy_param_2]", "[x]");
    let swapped = swapped.replace("[axpy_param_3]", "[axpy_param_2]").replace("[x]", "[axpy_param_3]");
    let swapped = load(&swapped, "axpy");
    // SAFETY: `call` gives both operands the same length.
    let result = unsafe { axpy.compares_with(&swapped, Agree::Bits, &WARPS) };
    let Err(Problem::Fault(fault)) = result else { panic!("{result:?}") };
    assert!(matches!(&fault.kind, FaultKind::ReadOnly { region, .. } if region.name == "x"), "{fault}");
}

#[test]
fn the_calls_agree_with_their_twins_when_no_element_is_missing() {
    // In units of the results here, which are below 1000.
    let close = Agree::Within { absolute: 1e-4, relative: 1e-5 };
    for kernel in ALL {
        for offset in [0, 1] {
            // SAFETY: `call` gives all operands the lengths that the kernels require.
            unsafe { call(kernel.name, offset).agrees(close, &[WARPS]) };
        }
    }
}
