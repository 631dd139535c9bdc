//! The throughput of memory-bound kernels, compared with that of a copy on the device. The bytes
//! that a kernel moves are those that the docs of its source file state.

use crate::support::interleave;
use crate::timed::device_ns;
use crate::{Bench, open};
use warpline::kernels::{self, launch};
use warpline::prelude::*;
use warpline::{Element, Result, WakeUp};

/// The number of columns of a matrix.
const COLS: usize = 1024;

/// The name of a kernel, the bytes that a call moves, and the call.
type Case<'a> = (&'static str, usize, Box<dyn Fn() -> Result<()> + 'a>);

fn filled<T: Element>(stream: &Stream, len: usize, value: T) -> Buffer<T> {
    let buffer = stream.alloc(len).expect("memory");
    stream.fill(&buffer, value).queued().expect("it is taken");
    buffer
}

/// Measures kernels on operands of 256 MiB.
pub(crate) fn against_a_copy(bench: &Bench) {
    let (_runtime, device, _) = open(WakeUp::Balanced);
    let stream = device.new_stream().expect("a stream");
    // The software driver runs kernels on the CPU, so the operands are small there.
    let n: usize = if bench.on_gpu { 64 << 20 } else { 64 << 10 };
    let (half, rows) = (n / 2, n / COLS);
    let [x, y, z] = [0.5, 0.25, 0.0].map(|value| filled::<f32>(&stream, n, value));
    let [a, b, c] = [1, 2, 0].map(|value| filled::<i64>(&stream, half, value));
    let [row, deviation] = [0.5, 1.0].map(|value| filled::<f32>(&stream, COLS, value));
    let [means, squares] = [0.5, 1.0].map(|value| filled::<f64>(&stream, n / 4, value));
    let seen = filled::<u64>(&stream, n / 4, 9);
    let of_columns = seen.slice(..COLS).expect("it is longer");
    let [mean_of_columns, square_of_columns] =
        [&means, &squares].map(|buffer| buffer.slice(..COLS).expect("it is longer"));
    let [mean, scale] = [&y, &z].map(|buffer| buffer.slice(..n / 4).expect("it is longer"));
    let (labels, count) = (filled::<i64>(&stream, rows, 7), filled::<i64>(&stream, 1, 0));
    let of = |shape: &[usize]| Tensor::from_buffer(x.clone(), shape).expect("as many elements");
    let (vector, matrix, wide) = (of(&[n]), of(&[rows, COLS]), of(&[64, n / 64]));
    let weight = Tensor::from_buffer(row.clone(), [COLS]).expect("as many elements");
    let eight = row.slice(..8).expect("it is longer");
    let classes = Tensor::from_buffer(labels, [rows]).expect("as many elements");

    let [len, halves, cols, quarter] = [n, half, COLS, n / 4].map(|count| count as u64);
    let [per_element, per_half] = [launch::elements(len), launch::elements(halves)];
    let stream = &stream;
    let run = |call, config| stream.launch(call, config).queued();
    let tensor = |op: &dyn Fn() -> Pending<Tensor>| stream.enter(|| op().queued()).map(drop);
    let cases: Vec<Case<'_>> = vec![
        ("fill", 4 * n, Box::new(|| stream.fill(&z, 1.5).queued())),
        ("add_", 12 * n, Box::new(|| run(kernels::add_(len, &z, &x), per_element))),
        ("add", 12 * n, Box::new(|| run(kernels::add(len, len, &x, &y, &z), per_element))),
        ("add of a row", 8 * n, Box::new(|| run(kernels::add(len, cols, &x, &row, &z), per_element))),
        ("add_scalar", 8 * n, Box::new(|| run(kernels::add_scalar(len, &x, 1.0, &z), per_element))),
        ("sub", 12 * n, Box::new(|| run(kernels::sub(len, len, &x, &y, &z), per_element))),
        ("mul", 12 * n, Box::new(|| run(kernels::mul(len, len, &x, &y, &z), per_element))),
        ("mul_scalar", 8 * n, Box::new(|| run(kernels::mul_scalar(len, &x, 2.0, &z), per_element))),
        ("add_i64", 24 * half, Box::new(|| run(kernels::add_i64(halves, halves, &a, &b, &c), per_half))),
        ("sub_i64", 24 * half, Box::new(|| run(kernels::sub_i64(halves, halves, &a, &b, &c), per_half))),
        ("mul_i64", 24 * half, Box::new(|| run(kernels::mul_i64(halves, halves, &a, &b, &c), per_half))),
        ("axpy", 12 * n, Box::new(|| run(kernels::axpy(len, 0.5, &x, &z), per_element))),
        ("relu", 8 * n, Box::new(|| run(kernels::relu(len, &x, &z), per_element))),
        ("relu_backward", 12 * n, Box::new(|| run(kernels::relu_backward(len, &x, &y, &z), per_element))),
        ("sgd", 20 * n, Box::new(|| run(kernels::sgd(len, 0.0, 0.5, &x, &y, &z), per_element))),
        (
            "standardize",
            8 * n,
            Box::new(|| run(kernels::standardize(rows as u64, cols, &row, &deviation, &z), per_element)),
        ),
        (
            "column_scales",
            8 * n,
            Box::new(|| {
                let call = kernels::column_scales(quarter, &seen, &means, &squares, &mean, &scale);
                run(call, launch::elements(quarter))
            }),
        ),
        (
            "transpose",
            8 * n,
            Box::new(|| {
                run(kernels::transpose(rows as u64, cols, &x, &z), launch::transpose(rows as u64, cols))
            }),
        ),
        (
            "transpose_i64",
            16 * half,
            Box::new(|| {
                let rows = rows as u64 / 2;
                run(kernels::transpose_i64(rows, cols, &a, &c), launch::transpose(rows, cols))
            }),
        ),
        (
            "philox_uniform",
            4 * n,
            Box::new(|| run(kernels::philox_uniform(len, 1, 2, 0, 0.0, 1.0, &z), per_element)),
        ),
        (
            "philox_normal",
            4 * n,
            Box::new(|| run(kernels::philox_normal(len, 1, 2, 0, 0.0, 1.0, &z), per_element)),
        ),
        ("sum", 4 * n, Box::new(|| tensor(&|| vector.sum()))),
        ("mean", 4 * n, Box::new(|| tensor(&|| vector.mean()))),
        ("column_sums", 4 * n, Box::new(|| tensor(&|| matrix.sum_rows()))),
        (
            "column_moments",
            8 * n,
            Box::new(|| {
                let state = (&of_columns, &mean_of_columns, &square_of_columns);
                let call = kernels::column_moments(rows as u64, cols, &x, state.0, state.1, state.2);
                run(call, launch::columns(cols))
            }),
        ),
        ("argmax", 4 * n + 8 * rows, Box::new(|| tensor(&|| matrix.argmax()))),
        (
            "count_equal",
            16 * half,
            Box::new(|| run(kernels::count_equal(halves, &a, &b, &count), launch::one_block())),
        ),
        (
            "cross_entropy",
            8 * n + 24 * rows,
            Box::new(|| stream.enter(|| matrix.cross_entropy(&classes).queued()).map(drop)),
        ),
        ("exp", 8 * n, Box::new(|| run(kernels::exp_f32(len, &x, &z), per_element))),
        ("log", 8 * n, Box::new(|| run(kernels::log_f32(len, &x, &z), per_element))),
        ("sqrt", 8 * n, Box::new(|| run(kernels::sqrt_f32(len, &x, &z), per_element))),
        ("tanh", 8 * n, Box::new(|| run(kernels::tanh_f32(len, &x, &z), per_element))),
        ("sigmoid", 8 * n, Box::new(|| run(kernels::sigmoid_f32(len, &x, &z), per_element))),
        ("gelu", 8 * n, Box::new(|| run(kernels::gelu_f32(len, &x, &z), per_element))),
        ("softmax of rows", 8 * n, Box::new(|| tensor(&|| matrix.softmax(1)))),
        ("softmax of columns", 8 * n, Box::new(|| tensor(&|| wide.softmax(0)))),
        ("layer_norm", 8 * n, Box::new(|| tensor(&|| matrix.layer_norm(&weight, &weight, 1e-5)))),
        ("max", 4 * n, Box::new(|| tensor(&|| vector.max()))),
        ("max_dim", 4 * n + 12 * rows, Box::new(|| stream.enter(|| matrix.max_dim(1).queued()).map(drop))),
        (
            "index_select of one row",
            4 * n + 8 * rows,
            Box::new(|| tensor(&|| matrix.index_select(0, &classes))),
        ),
        (
            "im2col",
            8 * n,
            Box::new(|| {
                // A weight of 2 × 2 in steps of 2: each element is in one column.
                let (down, across) = (rows as u64 / 2, cols / 2);
                let height = rows as u64;
                run(kernels::im2col(1, 1, height, cols, 2, 2, 2, 2, 0, 0, down, across, &x, &z), per_element)
            }),
        ),
        (
            "channels_to_images",
            8 * n,
            Box::new(|| run(kernels::channels_to_images(8, 8, len / 64, 1, &x, &eight, &z), per_element)),
        ),
    ];

    let times = bench.options.scaled(20);
    // Bytes per nanosecond are gigabytes per second.
    let rate = |bytes: usize, call: &dyn Fn() -> Result<()>| {
        (bytes * times) as f64 / device_ns(stream, || (0..times).try_for_each(|_| call()))
    };
    for (name, bytes, call) in &cases {
        let [ours, copy] = interleave(
            bench.options.rounds(7),
            [&mut || rate(*bytes, call), &mut || rate(8 * n, &|| stream.copy_buffer(&z, &y).queued())],
        );
        bench.table.compare(
            &format!("{name}, {} MiB moved", bytes >> 20),
            "GB/s",
            &ours,
            ("a copy on the device", &copy),
            "ratio ≥ 0.9",
            |ratio| bench.verdict(ratio >= 0.9),
        );
    }
}
