//! Products of matrices by cuBLAS: the stand-in for it, on the software CUDA driver. Each test runs in a child process, since the
//! library is looked for once a process. What needs cuBLAS itself, and so a GPU, is ignored.
#![cfg(all(target_os = "linux", feature = "cuda"))]

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

/// As `in_child`, where the stand-in is what `WARPLINE_CUBLAS` names.
#[track_caller]
fn in_child_with_cublas<F: FnOnce()>(variables: &[(&str, &str)], body: F) -> String {
    let library = library();
    let named = [("WARPLINE_CUBLAS", library.as_str())];
    in_child(&[&named, variables].concat(), body)
}

/// Where the stand-in is.
fn library() -> String {
    let path = warpline_softcuda::cublas_library().expect("the library was built with this test");
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// How many products cuBLAS did, and how many our kernels.
fn ran() -> (u64, u64) {
    let Products { by_cublas, by_kernels, .. } = products();
    (by_cublas, by_kernels)
}

/// Numbers between -1 and 1, as if drawn.
fn values(n: usize, salt: u32) -> Vec<f32> {
    let mixed = |i: u32| {
        let i = (i ^ (salt << 24)).wrapping_mul(0x9e37_79b1);
        let i = (i ^ (i >> 15)).wrapping_mul(0x85eb_ca6b);
        (i ^ (i >> 13)).wrapping_mul(0xc2b2_ae35) >> 8
    };
    (0..n as u32).map(|i| mixed(i) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// A matrix of such numbers.
fn matrix(shape: [usize; 2], salt: u32, device: &Device) -> Pending<Tensor> {
    Tensor::from_host(&values(shape[0] * shape[1], salt), shape, device)
}

/// A product as the stand-in has noted it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Enqueued {
    handle: u64,
    stream: u64,
    /// What the handle was lent to work in; 0: it has its own.
    workspace: u64,
    workspace_bytes: usize,
    math_mode: i32,
    reserved: u32,
}

/// The stand-in's entry point of that name, at its type.
///
/// # Safety
/// The stand-in declares it so.
unsafe fn entry_point<F: Copy>(name: &CStr) -> F {
    assert_eq!(size_of::<F>(), size_of::<*mut ()>());
    // SAFETY: the library is found if it is there already; the name is that of its file.
    let library = unsafe { libc::dlopen(c"libcublas.so.12".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    assert!(!library.is_null(), "the stand-in is not loaded");
    // SAFETY: a library that is loaded, and a string.
    let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!symbol.is_null(), "the stand-in has no {name:?}");
    // SAFETY: the caller vouches for the type.
    unsafe { std::mem::transmute_copy(&symbol) }
}

/// How often an entry point of the stand-in was called.
fn calls(entry: &CStr) -> u64 {
    type Count = unsafe extern "C" fn(*const c_char) -> u64;
    // SAFETY: the stand-in declares it so.
    let count = unsafe { entry_point::<Count>(c"softcublasCallCount") };
    // SAFETY: it takes a string.
    let calls = unsafe { count(entry.as_ptr()) };
    assert_ne!(calls, u64::MAX, "the stand-in has no {entry:?}");
    calls
}

/// Every product that the stand-in has enqueued.
fn enqueued() -> Vec<Enqueued> {
    type List = unsafe extern "C" fn(*mut Enqueued, usize) -> usize;
    // SAFETY: the stand-in declares it so.
    let list = unsafe { entry_point::<List>(c"softcublasProducts") };
    let mut products = vec![Enqueued::default(); 10_000];
    // SAFETY: there is room for so many.
    let len = unsafe { list(products.as_mut_ptr(), products.len()) };
    products.truncate(len);
    products
}
