//! The figures that tests read afterwards: the calls of each entry point, and every product.

use parking_lot::Mutex;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const ENTRIES: [&CStr; 8] = [
    c"cublasCreate_v2",
    c"cublasDestroy_v2",
    c"cublasSetStream_v2",
    c"cublasSetWorkspace_v2",
    c"cublasSetMathMode",
    c"cublasSgemm_v2",
    c"cublasGetProperty",
    c"cublasGetStatusName",
];

static CALLS: [AtomicU64; ENTRIES.len()] = [const { AtomicU64::new(0) }; ENTRIES.len()];

/// Counts a call and returns its number among the calls of the entry point, from 1.
pub(crate) fn count(entry: &str) -> u64 {
    let index = index_of(entry).expect("an entry point");
    CALLS[index].fetch_add(1, Relaxed) + 1
}

fn index_of(entry: &str) -> Option<usize> {
    ENTRIES.iter().position(|name| name.to_str() == Ok(entry))
}

/// Returns the number of calls of an entry point so far.
pub(crate) fn calls(entry: &str) -> Option<u64> {
    index_of(entry).map(|index| CALLS[index].load(Relaxed))
}

/// A product that was enqueued.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub(crate) handle: u64,
    pub(crate) stream: u64,
    /// The workspace that its handle was lent; 0 if the handle uses its own.
    pub(crate) workspace: u64,
    pub(crate) bytes: usize,
    pub(crate) math_mode: i32,
    pub(crate) reserved: u32,
}

pub(crate) static PRODUCTS: Mutex<Vec<Product>> = Mutex::new(Vec::new());
