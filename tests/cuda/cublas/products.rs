//! Results of products, which must agree whichever implementation computes them.

use crate::cublas::{cuda, enqueued, in_child_with_cublas, matrix, ran, values};
use warpline::kernels::libraries::{allow_tf32, tf32_is_allowed};
use warpline::kernels::{self, launch};
use warpline::prelude::*;

/// Returns the largest accepted difference between two `f32` sums of `k` products of numbers up to
/// 1.
pub(crate) fn tolerance(k: usize) -> f32 {
    2e-7 * (k as f32 + 1.0)
}

#[track_caller]
pub(crate) fn close(x: &[f32], y: &[f32], tolerance: f32) {
    assert_eq!(x.len(), y.len());
    let far = x.iter().zip(y).position(|(x, y)| (x - y).abs().is_nan() || (x - y).abs() > tolerance);
    assert_eq!(far, None, "{x:?} and {y:?}");
}

/// Returns the product of an `[m, k]` and a `[k, n]` matrix on a device. Each factor that is
/// `turned` is the view of its transpose.
fn product([m, n, k]: [usize; 3], turned: [bool; 2], device: &Device) -> Vec<f32> {
    let a = if turned[0] { matrix([k, m], 1, device).t() } else { matrix([m, k], 1, device) };
    let b = if turned[1] { matrix([n, k], 2, device).t() } else { matrix([k, n], 2, device) };
    a.matmul(b).to_vec::<f32>().blocking_wait().unwrap()
}

#[test]
fn products_of_all_shapes_are_those_of_the_twin_and_none_is_by_our_kernel() {
    in_child_with_cublas(&[], || {
        let (cpu, device) = (Device::open("cpu").unwrap(), cuda(0));
        let shapes = [
            [1, 1, 1],
            [2, 3, 4],
            [1, 7, 3],
            [7, 1, 3],
            [5, 3, 1],
            [33, 65, 17],
            [64, 64, 64],
            [100, 3, 129],
        ];
        for shape in shapes {
            for turned in [[false, false], [true, false], [false, true], [true, true]] {
                let [ours, theirs] = [&cpu, &device].map(|device| product(shape, turned, device));
                close(&ours, &theirs, tolerance(shape[2]));
            }
        }
        assert_eq!(ran(), (4 * shapes.len() as u64, 0));
    });
}

#[test]
fn a_layer_is_a_product_and_its_bias_in_one_op() {
    in_child_with_cublas(&[], || {
        let (cpu, device) = (Device::open("cpu").unwrap(), cuda(0));
        for [m, n, k] in [[1, 1, 1], [3, 5, 7], [64, 10, 33], [17, 128, 2]] {
            for turned in [false, true] {
                let [ours, theirs] = [&cpu, &device].map(|device| {
                    let x = matrix([m, k], 1, device);
                    let w = if turned { matrix([k, n], 2, device).t() } else { matrix([n, k], 2, device) };
                    let bias = Tensor::from_host(&values(n, 3), [n], device).queued().unwrap();
                    let stream = Stream::current(device).unwrap();
                    let (x, w) = (x.queued().unwrap(), w.queued().unwrap());
                    let before = stream.issued();
                    let y = x.linear(&w, &bias).queued().unwrap();
                    assert_eq!(stream.issued(), before + 1);
                    y.to_vec::<f32>().blocking_wait().unwrap()
                });
                close(&ours, &theirs, tolerance(k + 1));
            }
        }
        assert_eq!(ran(), (8, 0));
    });
}

#[test]
fn where_a_size_is_0_our_kernel_says_what_the_product_is() {
    in_child_with_cublas(&[], || {
        let device = cuda(0);
        for shape in [[2, 3, 0], [0, 3, 2], [2, 0, 3], [0, 0, 0]] {
            assert_eq!(product(shape, [false, false], &device), vec![0.0; shape[0] * shape[1]]);
        }
        let none = matrix([2, 0], 1, &device);
        let (w, bias) = (matrix([3, 0], 1, &device), Tensor::from_host(&[1.0f32, 2.0, 3.0], [3], &device));
        let y = none.linear(&w, bias).to_vec::<f32>().blocking_wait().unwrap();
        assert_eq!(y, [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
        assert_eq!(ran(), (0, 5));
    });
}

#[test]
fn what_is_nan_where_the_product_goes_does_not_get_into_it() {
    in_child_with_cublas(&[], || {
        let device = cuda(0);
        let stream = device.new_stream().unwrap();
        let [a, b, c] = [(); 3].map(|()| stream.alloc::<f32>(16).unwrap());
        [(&a, 1.0), (&b, 2.0), (&c, f32::NAN)].into_iter().for_each(|(x, value)| drop(stream.fill(x, value)));
        drop(stream.launch(kernels::matmul(4, 4, 4, 0, 1, &a, &b, &c), launch::product(4, 4)));
        assert_eq!(stream.read(&c).blocking_wait().unwrap(), [8.0; 16]);
        assert_eq!(ran(), (1, 0));
    });
}

#[test]
fn tf32_is_off_until_it_is_allowed_and_each_product_takes_what_holds_when_it_is_enqueued() {
    in_child_with_cublas(&[], || {
        let (cpu, device) = (Device::open("cpu").unwrap(), cuda(0));
        let shape = [16, 16, 64];
        let exact = product(shape, [false, false], &cpu);
        let off = product(shape, [false, false], &device);
        allow_tf32(true);
        let on = product(shape, [false, false], &device);
        allow_tf32(true);
        let again = product(shape, [false, false], &device);
        allow_tf32(false);
        let off_again = product(shape, [false, false], &device);
        close(&exact, &off, tolerance(64));
        assert_eq!(off, off_again);
        assert_eq!(on, again);
        let apart = exact.iter().zip(&on).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        assert!(apart > tolerance(64) && apart < 64.0 * 1e-3, "{apart}");
        assert_eq!(enqueued().iter().map(|product| product.math_mode).collect::<Vec<_>>(), [0, 3, 3, 0]);
    });
}

#[test]
fn the_variable_allows_tf32_until_the_program_says_otherwise() {
    in_child_with_cublas(&[("WARPLINE_ALLOW_TF32", "1")], || {
        let device = cuda(0);
        assert!(tf32_is_allowed());
        product([2, 2, 2], [false, false], &device);
        allow_tf32(false);
        assert!(!tf32_is_allowed());
        product([2, 2, 2], [false, false], &device);
        assert_eq!(enqueued().iter().map(|product| product.math_mode).collect::<Vec<_>>(), [3, 0]);
    });
}
