//! Direct calls of cuBLAS, as a program without a runtime makes them: the rival of the matrix
//! products.
//!
//! `WARPLINE_BENCH_CUBLAS` names the library if the loader does not find it.

use libloading::{Library, Symbol};
use std::ffi::{c_int, c_void};

type Handle = *mut c_void;
type Create = unsafe extern "C" fn(*mut Handle) -> c_int;
type SetStream = unsafe extern "C" fn(Handle, *mut c_void) -> c_int;
/// The parameters of `cublasSgemm`: the handle, the two transpositions, m, n, k, α, A and its
/// leading dimension, B and its leading dimension, β, C and its leading dimension.
type Sgemm = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const f32,
    u64,
    c_int,
    u64,
    c_int,
    *const f32,
    u64,
    c_int,
) -> c_int;

pub struct Cublas {
    handle: Handle,
    set_stream: SetStream,
    sgemm: Sgemm,
}

/// A product of row-major operands by their device addresses. Either factor may be stored as its
/// transpose.
#[derive(Clone, Copy)]
pub struct Product {
    pub sizes: [usize; 3],
    pub transposed: [bool; 2],
    pub a: u64,
    pub b: u64,
    pub c: u64,
}

impl Cublas {
    /// Loads the library that `WARPLINE_BENCH_CUBLAS` names. If it names none, loads one that the
    /// loader finds, unless `only_named`. The caller has made the context of the device current.
    pub fn find(only_named: bool) -> Option<Self> {
        const NAMES: [&str; 2] = ["libcublas.so.13", "libcublas.so.12"];
        let named = std::env::var("WARPLINE_BENCH_CUBLAS").ok().filter(|name| !name.is_empty());
        let names = match &named {
            Some(name) => vec![name.as_str()],
            None if only_named => Vec::new(),
            None => NAMES.to_vec(),
        };
        // SAFETY: loading runs the initialisers of the library, and this trusts one of that name to
        // be cuBLAS.
        let library = names.into_iter().find_map(|name| unsafe { Library::new(name) }.ok())?;
        // The library stays loaded until the process ends.
        let library: &'static Library = Box::leak(Box::new(library));
        // SAFETY: cublas_v2.h declares `cublasCreate_v2` with this type.
        let create: Symbol<'_, Create> = unsafe { library.get(b"cublasCreate_v2\0") }.ok()?;
        // SAFETY: cublas_v2.h declares `cublasSetStream_v2` with this type.
        let set_stream: Symbol<'_, SetStream> = unsafe { library.get(b"cublasSetStream_v2\0") }.ok()?;
        // SAFETY: cublas_v2.h declares `cublasSgemm_v2` with this type.
        let sgemm: Symbol<'_, Sgemm> = unsafe { library.get(b"cublasSgemm_v2\0") }.ok()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: cublasCreate writes a handle.
        let status = unsafe { create(&raw mut handle) };
        (status == 0).then(|| Cublas { handle, set_stream: *set_stream, sgemm: *sgemm })
    }

    /// Computes c ← a·b in f32 on a `CUstream`, `times` times.
    ///
    /// # Safety
    /// The stream is live. The operands have these sizes and outlive the work.
    pub unsafe fn multiply(&self, stream: *mut c_void, product: Product, times: usize) {
        let Product { sizes, transposed, a, b, c } = product;
        let [m, n, k] = sizes.map(|size| c_int::try_from(size).expect("a size of a bench"));
        let [a_transposed, b_transposed] = transposed.map(c_int::from);
        // cuBLAS is column-major and sees each matrix as its transpose, so it computes cᵀ = bᵀ·aᵀ.
        let (b_pitch, a_pitch) = (if transposed[1] { k } else { n }, if transposed[0] { m } else { k });
        // SAFETY: cublasSetStream takes the handle and a live stream.
        let status = unsafe { (self.set_stream)(self.handle, stream) };
        assert_eq!(status, 0, "cublasSetStream");
        for _ in 0..times {
            // SAFETY: cublasSgemm takes device memory of these sizes, which the caller guarantees.
            // It reads the two factors α and β from host memory.
            let status = unsafe {
                (self.sgemm)(
                    self.handle,
                    b_transposed,
                    a_transposed,
                    n,
                    m,
                    k,
                    &1.0,
                    b,
                    b_pitch,
                    a,
                    a_pitch,
                    &0.0,
                    c,
                    n,
                )
            };
            assert_eq!(status, 0, "cublasSgemm");
        }
    }
}
