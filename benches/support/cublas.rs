//! cuBLAS by a direct call, as a program without a runtime makes it: what products are compared with.
//!
//! `WARPLINE_BENCH_CUBLAS` names the library where the loader does not find it.

use libloading::{Library, Symbol};
use std::ffi::{c_int, c_void};

type Handle = *mut c_void;
type Create = unsafe extern "C" fn(*mut Handle) -> c_int;
type SetStream = unsafe extern "C" fn(Handle, *mut c_void) -> c_int;
/// The handle, whether either is transposed, m, n, k, α, A and its leading dimension, B and its, β, C and its.
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

/// Row-major operands by their addresses on the device, either stored as its transpose.
#[derive(Clone, Copy)]
pub struct Product {
    pub sizes: [usize; 3],
    pub transposed: [bool; 2],
    pub a: u64,
    pub b: u64,
    pub c: u64,
}

impl Cublas {
    /// The library that is named, or one that the loader finds unless `only_named`. The context of the device is current.
    pub fn find(only_named: bool) -> Option<Self> {
        const NAMES: [&str; 2] = ["libcublas.so.13", "libcublas.so.12"];
        let named = std::env::var("WARPLINE_BENCH_CUBLAS").ok().filter(|name| !name.is_empty());
        let names = match &named {
            Some(name) => vec![name.as_str()],
            None if only_named => Vec::new(),
            None => NAMES.to_vec(),
        };
        // SAFETY: loading runs the initialisers of what is called cuBLAS.
        let library = names.into_iter().find_map(|name| unsafe { Library::new(name) }.ok())?;
        // It stays until the process ends.
        let library: &'static Library = Box::leak(Box::new(library));
        // SAFETY: cublas_v2.h declares it so.
        let create: Symbol<'_, Create> = unsafe { library.get(b"cublasCreate_v2\0") }.ok()?;
        // SAFETY: as above.
        let set_stream: Symbol<'_, SetStream> = unsafe { library.get(b"cublasSetStream_v2\0") }.ok()?;
        // SAFETY: as above.
        let sgemm: Symbol<'_, Sgemm> = unsafe { library.get(b"cublasSgemm_v2\0") }.ok()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: cublasCreate writes a handle.
        let status = unsafe { create(&raw mut handle) };
        (status == 0).then(|| Cublas { handle, set_stream: *set_stream, sgemm: *sgemm })
    }

    /// c ← a·b in f32 on a `CUstream`, `times` times.
    ///
    /// # Safety
    /// The stream lives, and the operands have such sizes and stay until it is done.
    pub unsafe fn multiply(&self, stream: *mut c_void, product: Product, times: usize) {
        let Product { sizes, transposed, a, b, c } = product;
        let [m, n, k] = sizes.map(|size| c_int::try_from(size).expect("a size of a bench"));
        let [a_transposed, b_transposed] = transposed.map(c_int::from);
        // Column-major it is the transpose of c: bᵀ·aᵀ.
        let (b_pitch, a_pitch) = (if transposed[1] { k } else { n }, if transposed[0] { m } else { k });
        // SAFETY: cublasSetStream takes the handle and a live stream.
        let status = unsafe { (self.set_stream)(self.handle, stream) };
        assert_eq!(status, 0, "cublasSetStream");
        for _ in 0..times {
            // SAFETY: cublasSgemm takes device memory of these sizes, as the caller vouches; the factors are the host's.
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
