//! Products by cuBLAS itself and by Warpline's device code, compared with those of the twin. The
//! stand-in cannot show these.
//!
//! Each test needs a process of its own:
//! `cargo test -p warpline-tests --test cuda -- --ignored --exact cublas::gpu::NAME`. Set
//! `WARPLINE_CUBLAS` to the path of `libcublas.so.12` if the loader does not find it.

use crate::cublas::products::{close, tolerance};
use crate::cublas::{cuda, ran, values};
use warpline::kernel::Source;
use warpline::kernels::libraries::allow_tf32;
use warpline::kernels::{self, launch};
use warpline::prelude::*;

warpline::kernel! {
    /// Computes the product of `kernels::matmul`, always by Warpline's device code.
    unsafe fn matmul(
        m: u64, n: u64, k: u64, a_transposed: u32, b_transposed: u32, a: &[f32], b: &[f32], write c: &mut [f32]
    )
    where m * k == a.len() as u64, k * n == b.len() as u64, m * n == c.len() as u64
    {
        ptx: match kernels::MATMUL.source {
            Source::Ptx { texts: [text], .. } => text,
            _ => panic!("it has PTX"),
        },
        cpu: |m, n, k, a_is, b_is, a, b, c| {
            let element = |x: &[f32], rows, cols, turned, row, col| x[(if turned == 0 { row * cols + col } else { col * rows + row }) as usize];
            for (i, c) in (0..).zip(c) {
                let (row, col) = (i / n, i % n);
                *c = (0..k).map(|l| element(a, m, k, a_is, row, l) * element(b, k, n, b_is, l, col)).sum();
            }
        },
    }
}

const SHAPES: [[u64; 3]; 8] = [
    [1, 1, 1],
    [3, 5, 7],
    [64, 64, 64],
    [128, 10, 784],
    [1000, 1, 300],
    [1, 1000, 300],
    [257, 129, 1025],
    [1024, 1024, 512],
];

/// Returns the product that `launch` computes of factors of these sizes, on a new stream of the
/// device.
fn product(
    device: &Device,
    [m, n, k]: [u64; 3],
    launch: impl FnOnce(&Stream, [&Buffer<f32>; 3]) -> Pending<()>,
) -> Vec<f32> {
    let stream = device.new_stream().unwrap();
    let [a, b] = [(m * k, 1), (k * n, 2)].map(|(len, salt)| {
        let buffer = stream.alloc::<f32>(len as usize).unwrap();
        drop(stream.write(&buffer, &values(len as usize, salt)));
        buffer
    });
    let c = stream.alloc::<f32>((m * n) as usize).unwrap();
    drop(stream.fill(&c, f32::NAN));
    drop(launch(&stream, [&a, &b, &c]));
    stream.read(&c).blocking_wait().unwrap()
}

#[test]
#[ignore = "needs a GPU and cuBLAS"]
fn cublas_our_kernel_and_the_twin_agree() {
    let (cpu, device) = (Device::open("cpu").unwrap(), cuda(0));
    for [m, n, k] in SHAPES {
        for (a_is, b_is) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
            let config = launch::product(m, n);
            let chosen = |stream: &Stream, [a, b, c]: [&Buffer<f32>; 3]| {
                stream.launch(kernels::matmul(m, n, k, a_is, b_is, a, b, c), config)
            };
            let twin = product(&cpu, [m, n, k], chosen);
            let by_cublas = product(&device, [m, n, k], chosen);
            let by_kernel = product(&device, [m, n, k], |stream, [a, b, c]| {
                stream.launch(matmul(m, n, k, a_is, b_is, a, b, c), config)
            });
            close(&twin, &by_cublas, tolerance(k as usize));
            close(&twin, &by_kernel, tolerance(k as usize));
        }
    }
    assert_eq!(ran(), (4 * SHAPES.len() as u64, 0));
}

#[test]
#[ignore = "needs a GPU and cuBLAS"]
fn tf32_is_less_exact_and_only_where_it_is_allowed() {
    let (cpu, device) = (Device::open("cpu").unwrap(), cuda(0));
    let multiply = |stream: &Stream, [a, b, c]: [&Buffer<f32>; 3]| {
        stream.launch(kernels::matmul(256, 256, 256, 0, 0, a, b, c), launch::product(256, 256))
    };
    let [exact, off] = [&cpu, &device].map(|device| product(device, [256; 3], multiply));
    allow_tf32(true);
    let on = product(&device, [256; 3], multiply);
    allow_tf32(false);
    close(&exact, &off, tolerance(256));
    close(&exact, &on, 256.0 * 1e-3);
    // Without TF32 on the GPU both results are the same, so there is no lower bound.
    let apart = exact.iter().zip(&on).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
    println!("with TF32 the furthest is {apart:e}");
    close(&off, &product(&device, [256; 3], multiply), 0.0);
}

#[test]
#[ignore = "needs a GPU and cuBLAS"]
fn a_layer_with_its_bias_by_cublas_is_that_of_the_twin() {
    let devices = [Device::open("cpu").unwrap(), cuda(0)];
    for [m, n, k] in SHAPES.map(|sizes| sizes.map(|size| size as usize)) {
        let [ours, theirs] = devices.each_ref().map(|device| {
            let tensor = |shape: &[usize], salt| {
                Tensor::from_host(&values(shape.iter().product(), salt), shape.to_vec(), device)
            };
            tensor(&[m, k], 1)
                .linear(tensor(&[n, k], 2), tensor(&[n], 3))
                .to_vec::<f32>()
                .blocking_wait()
                .unwrap()
        });
        close(&ours, &theirs, tolerance(k + 1));
    }
    assert_eq!(ran(), (SHAPES.len() as u64, 0));
}

#[test]
#[ignore = "needs a GPU and cuBLAS"]
fn products_of_a_graph_are_those_of_the_calls() {
    let device = cuda(0);
    // cuBLAS sums the first product in parts, which needs a workspace.
    for [m, n, k] in [[64, 64, 1 << 14], [257, 129, 1025]] {
        let launch = |stream: &Stream, [a, b, c]: [&Buffer<f32>; 3]| {
            stream.launch(kernels::matmul(m, n, k, 0, 0, a, b, c), launch::product(m, n))
        };
        let by_call = product(&device, [m, n, k], launch);
        let by_graph = product(&device, [m, n, k], |stream, operands| {
            let (graph, ()) = stream.capture(|s| launch(s, operands)).unwrap();
            assert!(graph.memory_bytes() >= 4 << 20, "what cuBLAS works in");
            drop(graph.launch(stream));
            graph.launch(stream)
        });
        close(&by_call, &by_graph, tolerance(k as usize));
    }
    assert_eq!(ran(), (4, 0));
}
