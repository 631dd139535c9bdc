//! Matrix products compared with direct calls of cuBLAS, by the clock of the device.
//!
//! The runtime uses cuBLAS if the process can load it, and its own kernel otherwise or if
//! `WARPLINE_CUBLAS` is `off`. `linear` also adds the bias; the direct call does not.

use crate::support::cublas::{Cublas, Product};
use crate::support::interleave;
use crate::timed::device_ns;
use crate::{Bench, by_cublas, open, products_by};
use warpline::kernels::{self, launch};
use warpline::prelude::*;
use warpline::{Result, WakeUp, reads, writes};

/// The sizes m, n and k, and whether either factor is stored as its transpose.
type Shape = ([usize; 3], [bool; 2]);

/// The products of a training step of `digits`.
const DIGITS: [Shape; 3] =
    [([32, 128, 10], [false, false]), ([10, 128, 32], [true, false]), ([128, 64, 32], [true, false])];
const DIGITS_LAYERS: [[usize; 3]; 2] = [[32, 128, 64], [32, 10, 128]];

pub(crate) fn against_cublas(bench: &Bench) {
    let (_runtime, device, _) = open(WakeUp::Balanced);
    let stream = device.new_stream().expect("a stream");
    // The kernels of the real cuBLAS do not run on the software driver. Products there run on the
    // CPU, so they are small.
    let cublas = Cublas::find(!bench.on_gpu);
    let sides: &[usize] = if bench.on_gpu { &[512, 1024, 4096] } else { &[64] };
    let cubes = sides.iter().map(|&side| ([side; 3], [false; 2]));
    for (sizes, transposed) in cubes.chain(DIGITS) {
        let stored = |name, transposed| if transposed { format!("{name}ᵀ") } else { String::from(name) };
        let [a, b] = [stored("a", transposed[0]), stored("b", transposed[1])];
        compare(bench, &stream, cublas.as_ref(), &format!("{a}·{b}"), (sizes, transposed), |at| {
            let [m, n, k] = sizes.map(|size| size as u64);
            let [a, b] = transposed.map(u32::from);
            let call = kernels::matmul(m, n, k, a, b, &at.a, &at.b, &at.c);
            stream.launch(call, launch::product(m, n)).queued()
        });
    }
    for sizes in DIGITS_LAYERS {
        compare(bench, &stream, cublas.as_ref(), "linear", (sizes, [false, true]), |at| {
            let [m, n, k] = sizes.map(|size| size as u64);
            let call = kernels::linear(m, n, k, 0, &at.a, &at.b, &at.bias, &at.c);
            stream.launch(call, launch::product(m, n)).queued()
        });
    }
}

struct Operands {
    a: Buffer<f32>,
    b: Buffer<f32>,
    bias: Buffer<f32>,
    c: Buffer<f32>,
}

fn compare(
    bench: &Bench,
    stream: &Stream,
    cublas: Option<&Cublas>,
    name: &str,
    (sizes, transposed): Shape,
    launch: impl Fn(&Operands) -> Result<()>,
) {
    let [m, n, k] = sizes;
    let filled = |len| {
        let buffer = stream.alloc::<f32>(len).expect("memory");
        stream.fill(&buffer, 0.5).queued().expect("it is taken");
        buffer
    };
    let at = Operands { a: filled(m * k), b: filled(k * n), bias: filled(n), c: filled(m * n) };
    let [a, b, c] = [&at.a, &at.b, &at.c].map(|buffer| buffer.device_ptr().0);
    let product = Product { sizes, transposed, a, b, c };
    let times = bench.options.scaled(if m * n * k > 1 << 30 { 10 } else { 100 });
    let micros = |ns: f64| ns / 1e3 / times as f64;
    let ours = || micros(device_ns(stream, || (0..times).try_for_each(|_| launch(&at))));
    let direct = |cublas: &Cublas| {
        let enqueue = || {
            let multiply = |raw: &mut warpline::RawStream| {
                let stream = raw.as_ptr().expect("a CUDA stream");
                // SAFETY: the buffers have the sizes in `product`, and the stream is live.
                unsafe { cublas.multiply(stream, product, times) };
            };
            // SAFETY: all work is on this stream. It reads both factors and writes their product.
            unsafe { stream.external(reads([&at.a, &at.b]), writes([&at.c]), multiply) }.queued()
        };
        micros(device_ns(stream, enqueue))
    };
    let what = || format!("{name}, {m} × {n} × {k}, by {}", products_by());
    let rounds = bench.options.rounds(11);
    let Some(cublas) = cublas else {
        let [ours] = interleave(rounds, [&mut || ours()]);
        return bench.table.report(&what(), "µs", &ours);
    };
    let [ours, theirs] = interleave(rounds, [&mut || ours(), &mut || direct(cublas)]);
    // With cuBLAS on both sides the times should be equal except for noise.
    let (goal, most) = if by_cublas() { ("ratio ≤ 1.05", 1.05) } else { ("ratio ≤ 3", 3.0) };
    let rival = ("cuBLAS by a direct call", &theirs);
    bench.table.compare(&what(), "µs", &ours, rival, goal, |ratio| bench.verdict(ratio <= most));
}
