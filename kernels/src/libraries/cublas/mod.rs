//! Matrix products by cuBLAS: the library forms of `matmul` and `linear`.
//!
//! Our matrices are row-major and cuBLAS's are column-major, where the same memory is the
//! transpose. So the calls compute Cᵀ ← Bᵀ·Aᵀ, and an operand that is stored untransposed is passed
//! without a flag.
//!
//! `linear` is two steps of one op: the product, then our kernel that adds the bias to each row.
//! cuBLASLt would add the bias in the same step, but needs another library and its descriptors.
// Decision: docs/decisions/0041-linear-adds-its-bias-by-a-kernel.md

mod api;
mod find;

use self::api::{Api, Sgemm};
use self::find::Found;
use super::{BY_CUBLAS, BY_KERNELS};
use crate::elementwise::ADD;
use crate::launch::elements;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use warpline_runtime::kernel::{
    Arg, Library, LibraryAnswer, LibraryCall, LibraryDevice, LibraryHandle, LibraryProvider, NoHandle,
};

/// The library form of `matmul`.
pub(crate) static MATMUL: Library = Library { provider: &CUBLAS, enqueue: matmul, kernels: &[] };
/// The library form of `linear`.
pub(crate) static LINEAR: Library = Library { provider: &CUBLAS, enqueue: linear, kernels: &[&ADD] };

/// The provider of cuBLAS handles and workspaces.
///
/// The manual of cublasSetWorkspace says that 16 KiB are enough for every call, and that more
/// memory lets cuBLAS choose faster algorithms.
static CUBLAS: LibraryProvider =
    LibraryProvider { workspace_bytes, least_workspace_bytes: 16 << 10, make, destroy };

/// Returns the size that the manual of cublasSetWorkspace recommends: 32 MiB on Hopper and later,
/// and 4 MiB before.
fn workspace_bytes(device: LibraryDevice, (major, _): (u32, u32)) -> Result<usize, String> {
    match find::found(device) {
        Found::Library(_) if major >= 9 => Ok(32 << 20),
        Found::Library(_) => Ok(4 << 20),
        Found::Nothing { .. } => Ok(0),
        Found::Refused(why) => Err(why.clone()),
    }
}

fn make(device: LibraryDevice) -> Result<LibraryHandle, NoHandle> {
    library(device).create().map(LibraryHandle)
}

/// Destroys a handle.
///
/// # Safety
/// The caller keeps the rules of [`LibraryProvider::destroy`].
unsafe fn destroy(LibraryHandle(handle): LibraryHandle) {
    if let Some(Found::Library(api)) = find::known() {
        // SAFETY: the caller vouches for the conditions of `Api::destroy`.
        unsafe { api.destroy(handle) };
    }
}

/// Returns the library that handles are made with.
fn library(device: LibraryDevice) -> &'static Api {
    match find::found(device) {
        Found::Library(api) => api,
        Found::Nothing { .. } | Found::Refused(_) => unreachable!("it asks for no workspace"),
    }
}

/// Enqueues a `matmul` by cuBLAS.
///
/// # Safety
/// The conditions of [`Library::enqueue`] hold, for `matmul`.
unsafe fn matmul(call: &LibraryCall<'_>) -> LibraryAnswer {
    let [m, n, k, a_transposed, b_transposed, a, b, c] = call.args else {
        unreachable!("matmul takes 8 arguments")
    };
    let product = Product {
        sizes: [m, n, k].map(Arg::to_scalar),
        a: Factor { address: a.bits, transposed: a_transposed.to_scalar::<u32>() != 0 },
        b: Factor { address: b.bits, transposed: b_transposed.to_scalar::<u32>() != 0 },
        c: c.bits,
    };
    // SAFETY: by the kernel's conditions, the operands have these sizes. The caller vouches that
    // the work may access them.
    counted(unsafe { product.enqueue(call) })
}

/// Enqueues a `linear` by cuBLAS, followed by the kernel that adds the bias.
///
/// # Safety
/// The conditions of [`Library::enqueue`] hold, for `linear`.
unsafe fn linear(call: &LibraryCall<'_>) -> LibraryAnswer {
    let [m, n, k, w_transposed, x, w, bias, y] = call.args else { unreachable!("linear takes 8 arguments") };
    let product = Product {
        sizes: [m, n, k].map(Arg::to_scalar),
        a: Factor { address: x.bits, transposed: false },
        b: Factor { address: w.bits, transposed: w_transposed.to_scalar::<u32>() == 0 },
        c: y.bits,
    };
    // SAFETY: as above.
    let answer = unsafe { product.enqueue(call) };
    let LibraryAnswer::Enqueued(_) = answer else { return counted(answer) };
    // y ← y + bias, repeated along the rows.
    let args = [Arg::scalar(y.len), Arg::scalar(bias.len), *y, *bias, *y];
    // SAFETY: `add` takes two sizes and three operands: `y` twice, which may be the same, and
    // `bias`. The length of `y` is a whole number of rows of the length of `bias`.
    match unsafe { call.driver.launch(&ADD, elements(y.len), &args) } {
        Ok(()) => counted(answer),
        Err(why) => LibraryAnswer::Failed { why: format!("the bias was not added: {why}"), halfway: true },
    }
}

fn counted(answer: LibraryAnswer) -> LibraryAnswer {
    match &answer {
        LibraryAnswer::Enqueued(_) => BY_CUBLAS.fetch_add(1, Ordering::Relaxed),
        LibraryAnswer::Declined { .. } => BY_KERNELS.fetch_add(1, Ordering::Relaxed),
        LibraryAnswer::Failed { .. } => 0,
    };
    answer
}

/// A dense row-major matrix, or the transpose of one, in device memory.
#[derive(Clone, Copy)]
struct Factor {
    address: u64,
    transposed: bool,
}

/// The product C ← A·B, with its sizes m, n and k.
struct Product {
    sizes: [u64; 3],
    a: Factor,
    b: Factor,
    c: u64,
}

impl Product {
    /// Enqueues the product by cuBLAS.
    ///
    /// # Safety
    /// The operands have these sizes, and the conditions of [`Library::enqueue`] hold.
    unsafe fn enqueue(&self, call: &LibraryCall<'_>) -> LibraryAnswer {
        let Some(sgemm) = self.sgemm() else {
            return declined("a size is 0 or larger than cuBLAS takes");
        };
        let api = match find::found(call.device) {
            Found::Library(api) => api,
            Found::Nothing { because } => {
                return LibraryAnswer::Declined { because, is_news: find::is_news() };
            }
            Found::Refused(why) => return LibraryAnswer::Failed { why: why.clone(), halfway: false },
        };
        let failed = |why, halfway| LibraryAnswer::Failed { why, halfway };
        let tf32 = match super::tf32() {
            Ok(tf32) => tf32,
            Err(why) => return failed(why.to_owned(), false),
        };
        let (Some(LibraryHandle(handle)), Some(workspace)) = (call.handle, call.workspace) else {
            return too_little(call);
        };
        // SAFETY: the caller vouches that the handle and the stream are alive and belong to the
        // current context, and that this call alone uses them.
        let set = unsafe { api.set_stream(handle, call.stream) };
        // After `set_stream`, which takes a workspace away.
        // SAFETY: as above, and the same for the workspace.
        let set = set.and_then(|()| unsafe { api.set_workspace(handle, workspace) });
        // SAFETY: as above.
        if let Err(why) = set.and_then(|()| unsafe { api.set_math_mode(handle, tf32) }) {
            return failed(why, false);
        }
        // SAFETY: `sgemm` was made from the sizes of the operands. The caller vouches for the rest.
        match unsafe { api.sgemm(handle, &sgemm) } {
            Ok(()) => LibraryAnswer::Enqueued(if tf32 { &api.sgemm_tf32 } else { &api.sgemm_f32 }),
            // Some products consist of several kernels.
            Err(why) => failed(why, true),
        }
    }

    /// Returns the product in cuBLAS's terms, or `None` if a size is 0 or does not fit an int.
    fn sgemm(&self) -> Option<Sgemm> {
        let sizes = self.sizes.map(|size| c_int::try_from(size).ok().filter(|&size| size > 0));
        let [Some(m), Some(n), Some(k)] = sizes else { return None };
        Some(Sgemm {
            transposed: [self.b.transposed, self.a.transposed],
            sizes: [n, m, k],
            left: self.b.address,
            left_pitch: if self.b.transposed { k } else { n },
            right: self.a.address,
            right_pitch: if self.a.transposed { m } else { k },
            to: self.c,
            to_pitch: n,
        })
    }
}

/// Returns the answer to a call without a handle or without a workspace.
///
/// A missing workspace is news, since products are slower until memory is freed.
#[cold]
fn too_little(call: &LibraryCall<'_>) -> LibraryAnswer {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if call.workspace.is_some() {
        return declined("no cuBLAS handle was free, and none could be created");
    }
    LibraryAnswer::Declined {
        because: "there was too little device memory for a cuBLAS handle and its workspace",
        is_news: !TOLD.swap(true, Ordering::Relaxed),
    }
}

fn declined(because: &'static str) -> LibraryAnswer {
    LibraryAnswer::Declined { because, is_news: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes the product column by column, like cuBLAS.
    fn by_columns(sgemm: &Sgemm, left: &[f32], right: &[f32]) -> Vec<f32> {
        let [rows, cols, depth] = sgemm.sizes.map(|size| size as usize);
        let at = |matrix: &[f32], pitch: c_int, transposed: bool, row: usize, col: usize| {
            let (row, col) = if transposed { (col, row) } else { (row, col) };
            assert!(row < pitch as usize);
            matrix[col * pitch as usize + row]
        };
        let [left_is, right_is] = sgemm.transposed;
        let mut to = vec![f32::NAN; cols * sgemm.to_pitch as usize];
        for (row, col) in (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col))) {
            let products = (0..depth).map(|i| {
                at(left, sgemm.left_pitch, left_is, row, i) * at(right, sgemm.right_pitch, right_is, i, col)
            });
            to[col * sgemm.to_pitch as usize + row] = products.sum();
        }
        to
    }

    #[test]
    fn what_is_asked_for_by_columns_is_the_product_by_rows_however_the_factors_lie() {
        for [m, n, k] in [[1, 1, 1], [2, 3, 4], [4, 1, 3], [1, 5, 2], [3, 3, 1]] {
            let a: Vec<f32> = (0..m * k).map(|i| i as f32 + 1.0).collect();
            let b: Vec<f32> = (0..k * n).map(|i| 7.0 - i as f32).collect();
            let expected: Vec<f32> =
                (0..m * n).map(|i| (0..k).map(|l| a[i / n * k + l] * b[l * n + i % n]).sum()).collect();
            let turn = |rows: usize, cols: usize, x: &[f32]| -> Vec<f32> {
                (0..rows * cols).map(|i| x[i % rows * cols + i / rows]).collect()
            };
            for (a_transposed, a) in [(false, a.clone()), (true, turn(m, k, &a))] {
                for (b_transposed, b) in [(false, b.clone()), (true, turn(k, n, &b))] {
                    let product = Product {
                        sizes: [m, n, k].map(|size| size as u64),
                        a: Factor { address: 1, transposed: a_transposed },
                        b: Factor { address: 2, transposed: b_transposed },
                        c: 3,
                    };
                    let sgemm = product.sgemm().unwrap();
                    assert_eq!((sgemm.left, sgemm.right, sgemm.to), (2, 1, 3));
                    assert_eq!(
                        by_columns(&sgemm, &b, &a),
                        expected,
                        "{m} {n} {k} {a_transposed} {b_transposed}"
                    );
                }
            }
        }
    }

    #[test]
    fn sizes_of_none_and_those_that_do_not_fit_an_int_are_left_to_the_kernel() {
        let factor = Factor { address: 0, transposed: false };
        let sgemm = |sizes| Product { sizes, a: factor, b: factor, c: 0 }.sgemm();
        for sizes in [[0, 1, 1], [1, 0, 1], [1, 1, 0], [1 << 31, 1, 1], [1, 1 << 31, 1], [1, 1, u64::MAX]] {
            assert!(sgemm(sizes).is_none(), "{sizes:?}");
        }
        assert!(sgemm([(1 << 31) - 1, 1, 1]).is_some());
    }
}
