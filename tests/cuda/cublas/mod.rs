//! Matrix products by cuBLAS, or here by a stand-in for it on the software CUDA driver. Each test
//! runs in a child process, since a process looks for the library once. Tests that need cuBLAS
//! itself, and so a GPU, are ignored.
#![cfg(target_os = "linux")]

mod choice;
mod failures;
mod gpu;
mod handles;
mod memory;
mod products;
mod stand_in;

use crate::support::cuda;
use crate::support::software::in_child;
use std::ffi::{CStr, c_char};
use warpline::kernels::libraries::{Products, products};
use warpline::prelude::*;

/// Like `in_child`, with `WARPLINE_CUBLAS` naming the stand-in.
#[track_caller]
fn in_child_with_cublas<F: FnOnce()>(variables: &[(&str, &str)], body: F) -> String {
    let library = library();
    let named = [("WARPLINE_CUBLAS", library.as_str())];
    in_child(&[&named, variables].concat(), body)
}

/// Returns the path of the stand-in.
fn library() -> String {
    let path = warpline_softcuda::cublas_library().expect("the library was built with this test");
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// Returns the number of products that cuBLAS computed, and the number that Warpline's kernels
/// computed.
fn ran() -> (u64, u64) {
    let Products { by_cublas, by_kernels, .. } = products();
    (by_cublas, by_kernels)
}

/// Returns `n` pseudorandom numbers, from -1 to less than 1.
fn values(n: usize, salt: u32) -> Vec<f32> {
    let mixed = |i: u32| {
        let i = (i ^ (salt << 24)).wrapping_mul(0x9e37_79b1);
        let i = (i ^ (i >> 15)).wrapping_mul(0x85eb_ca6b);
        (i ^ (i >> 13)).wrapping_mul(0xc2b2_ae35) >> 8
    };
    (0..n as u32).map(|i| mixed(i) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// Returns a matrix of such numbers.
fn matrix(shape: [usize; 2], salt: u32, device: &Device) -> Pending<Tensor> {
    Tensor::from_host(&values(shape[0] * shape[1], salt), shape, device)
}

/// A product, as the stand-in records it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Enqueued {
    handle: u64,
    stream: u64,
    /// The workspace that the handle was lent; 0 if it uses its own.
    workspace: u64,
    workspace_bytes: usize,
    math_mode: i32,
    reserved: u32,
}

/// Returns an entry point of the stand-in.
///
/// # Safety
/// `F` must be the type with which the stand-in declares the entry point.
unsafe fn entry_point<F: Copy>(name: &CStr) -> F {
    assert_eq!(size_of::<F>(), size_of::<*mut ()>());
    // SAFETY: with RTLD_NOLOAD, `dlopen` runs no initialisers: it only finds a library that is
    // loaded.
    let library = unsafe { libc::dlopen(c"libcublas.so.12".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    assert!(!library.is_null(), "the stand-in is not loaded");
    // SAFETY: the library is loaded, and the name ends with a NUL.
    let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!symbol.is_null(), "the stand-in has no {name:?}");
    // SAFETY: the caller guarantees that `F` is the type of the symbol. The sizes are equal.
    unsafe { std::mem::transmute_copy(&symbol) }
}

/// Returns how often an entry point of the stand-in was called.
fn calls(entry: &CStr) -> u64 {
    type Count = unsafe extern "C" fn(*const c_char) -> u64;
    // SAFETY: the stand-in declares softcublasCallCount with this type.
    let count = unsafe { entry_point::<Count>(c"softcublasCallCount") };
    // SAFETY: softcublasCallCount reads a string that ends with a NUL.
    let calls = unsafe { count(entry.as_ptr()) };
    assert_ne!(calls, u64::MAX, "the stand-in has no {entry:?}");
    calls
}

/// Returns every product that the stand-in has enqueued.
fn enqueued() -> Vec<Enqueued> {
    type List = unsafe extern "C" fn(*mut Enqueued, usize) -> usize;
    // SAFETY: the stand-in declares softcublasProducts with this type.
    let list = unsafe { entry_point::<List>(c"softcublasProducts") };
    let mut products = vec![Enqueued::default(); 10_000];
    // SAFETY: the call writes no more than `products.len()` products, for which there is room.
    let len = unsafe { list(products.as_mut_ptr(), products.len()) };
    products.truncate(len);
    products
}
