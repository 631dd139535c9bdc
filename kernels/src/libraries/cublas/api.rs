//! The entry points of cuBLAS that are used, with the types of cublas_v2.h.
//!
//! Each returns 0 or a status.

use libloading::Library;
use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use warpline_runtime::kernel::{NoHandle, Workspace};

pub(super) type RawHandle = *mut c_void;

/// `CUBLAS_STATUS_NOT_INITIALIZED`
const NOT_INITIALIZED: c_int = 1;
/// `CUBLAS_STATUS_ALLOC_FAILED`
const ALLOC_FAILED: c_int = 3;
/// `CUBLAS_DEFAULT_MATH`: f32 throughout.
const DEFAULT_MATH: c_int = 0;
/// `CUBLAS_TF32_TENSOR_OP_MATH`
const TF32_MATH: c_int = 3;

type GetName = unsafe extern "C" fn(c_int) -> *const c_char;
/// The entry point `cublasSgemm_v2`. Its parameters are the handle, a transposition flag for each
/// factor, m, n, k, α, A and its leading dimension, B and its leading dimension, β, C and its
/// leading dimension.
type SgemmEntry = unsafe extern "C" fn(
    RawHandle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const f32,
    *const f32,
    c_int,
    *const f32,
    c_int,
    *const f32,
    *mut f32,
    c_int,
) -> c_int;

pub(super) struct Api {
    create: unsafe extern "C" fn(*mut RawHandle) -> c_int,
    destroy: unsafe extern "C" fn(RawHandle) -> c_int,
    set_stream: unsafe extern "C" fn(RawHandle, *mut c_void) -> c_int,
    set_workspace: unsafe extern "C" fn(RawHandle, *mut c_void, usize) -> c_int,
    set_math_mode: unsafe extern "C" fn(RawHandle, c_int) -> c_int,
    sgemm: SgemmEntry,
    status_name: GetName,
    pub(super) major: c_int,
    /// The name and version, for example `cuBLAS 12.9.1`.
    name: String,
    /// The names of the products in traces, in f32 and with TF32.
    pub(super) sgemm_f32: String,
    pub(super) sgemm_tf32: String,
    _library: Library,
}

/// Returns the loader's message, which names the file or the symbol.
fn why(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// A product in cuBLAS's column-major terms: left·right, with the way each factor is stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sgemm {
    pub(super) transposed: [bool; 2],
    pub(super) sizes: [c_int; 3],
    pub(super) left: u64,
    pub(super) left_pitch: c_int,
    pub(super) right: u64,
    pub(super) right_pitch: c_int,
    pub(super) to: u64,
    pub(super) to_pitch: c_int,
}

impl Api {
    /// Loads the library at `path`, or the library of that name on the loader's search path.
    pub(super) fn load(path: &Path) -> Result<Self, String> {
        // SAFETY: `Library::new` runs the initialisers of the library, which is called cuBLAS.
        let library = unsafe { Library::new(path) }.map_err(|error| why(&error))?;
        warpline_runtime::kernel::loaded_a_library();
        // SAFETY: the library is called cuBLAS.
        unsafe { Api::of(library) }
    }

    /// Resolves the entry points of `library`.
    ///
    /// # Safety
    /// `library` is cuBLAS.
    unsafe fn of(library: Library) -> Result<Self, String> {
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the caller vouches that the functions have the types of cublas_v2.h.
                *unsafe { library.get($name) }.map_err(|error| why(&error))?
            };
        }
        let get_property: unsafe extern "C" fn(c_int, *mut c_int) -> c_int =
            function!(b"cublasGetProperty\0");
        let [major, minor, patch] = [0, 1, 2].map(|which| {
            let mut value = 0;
            // SAFETY: cublasGetProperty writes an int. The numbers 0, 1 and 2 stand for the major,
            // minor and patch number of the version.
            let _ = unsafe { get_property(which, &raw mut value) };
            value
        });
        let name = format!("cuBLAS {major}.{minor}.{patch}");
        Ok(Api {
            create: function!(b"cublasCreate_v2\0"),
            destroy: function!(b"cublasDestroy_v2\0"),
            set_stream: function!(b"cublasSetStream_v2\0"),
            set_workspace: function!(b"cublasSetWorkspace_v2\0"),
            set_math_mode: function!(b"cublasSetMathMode\0"),
            sgemm: function!(b"cublasSgemm_v2\0"),
            status_name: function!(b"cublasGetStatusName\0"),
            major,
            sgemm_f32: format!("{name} sgemm"),
            sgemm_tf32: format!("{name} sgemm with TF32"),
            name,
            _library: library,
        })
    }

    /// Creates a handle on the current context. Allocates device memory, and may wait for the
    /// device.
    pub(super) fn create(&self) -> Result<RawHandle, NoHandle> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: cublasCreate writes a handle.
        let status = unsafe { (self.create)(&raw mut handle) };
        self.check("cublasCreate", status).map(|()| handle).map_err(|why| {
            let why = format!("{why}; set WARPLINE_CUBLAS=off to run without cuBLAS");
            match status {
                ALLOC_FAILED => NoHandle::NoMemory,
                // cuBLAS also gives this answer if there is too little memory (tensorflow #9489,
                // lm-evaluation-harness #1689).
                NOT_INITIALIZED => NoHandle::PerhapsNoMemory(why),
                _ => NoHandle::Failed(why),
            }
        })
    }

    /// Destroys a handle.
    ///
    /// # Safety
    /// The handle is alive, has no work, and is not used again. Its context is current.
    pub(super) unsafe fn destroy(&self, handle: RawHandle) {
        // SAFETY: cublasDestroy takes a live handle. A failure is ignored, since there is no
        // remedy.
        let _ = unsafe { (self.destroy)(handle) };
    }

    /// Sets the stream of the handle, and takes its workspace away.
    ///
    /// # Safety
    /// The handle and the stream are alive and belong to the current context. One caller at a time
    /// uses the handle.
    pub(super) unsafe fn set_stream(&self, handle: RawHandle, stream: *mut c_void) -> Result<(), String> {
        // SAFETY: the caller vouches for the arguments of cublasSetStream.
        self.check("cublasSetStream", unsafe { (self.set_stream)(handle, stream) })
    }

    /// Gives the handle a workspace, until the stream is set again.
    ///
    /// # Safety
    /// The handle is alive and its context is current. One caller at a time uses the handle.
    /// Nothing else uses the workspace until the work enqueued with it has finished.
    pub(super) unsafe fn set_workspace(&self, handle: RawHandle, workspace: Workspace) -> Result<(), String> {
        let Workspace { ptr, len_bytes } = workspace;
        // SAFETY: the caller vouches for the arguments of cublasSetWorkspace; the address is a
        // multiple of 256.
        let status = unsafe { (self.set_workspace)(handle, ptr.0 as *mut c_void, len_bytes) };
        self.check("cublasSetWorkspace", status)
    }

    /// Allows or forbids TF32 in the products of the handle.
    ///
    /// # Safety
    /// The handle is alive. One caller at a time uses it.
    pub(super) unsafe fn set_math_mode(&self, handle: RawHandle, tf32: bool) -> Result<(), String> {
        let mode = if tf32 { TF32_MATH } else { DEFAULT_MATH };
        // SAFETY: cublasSetMathMode takes a live handle and a mode.
        self.check("cublasSetMathMode", unsafe { (self.set_math_mode)(handle, mode) })
    }

    /// Enqueues `product` on the handle's stream.
    ///
    /// # Safety
    /// The handle is alive and its context is current. One caller at a time uses it. The product's
    /// addresses refer to device memory of its sizes, which work enqueued now may read and write.
    pub(super) unsafe fn sgemm(&self, handle: RawHandle, product: &Sgemm) -> Result<(), String> {
        let ([left_is, right_is], [m, n, k]) = (product.transposed.map(c_int::from), product.sizes);
        let (one, zero) = (1.0f32, 0.0f32);
        // SAFETY: cublasSgemm takes a live handle and reads α and β before it returns. The caller
        // vouches for the work that it enqueues. With β = 0 it does not read the result.
        let status = unsafe {
            (self.sgemm)(
                handle,
                left_is,
                right_is,
                m,
                n,
                k,
                &raw const one,
                product.left as *const f32,
                product.left_pitch,
                product.right as *const f32,
                product.right_pitch,
                &raw const zero,
                product.to as *mut f32,
                product.to_pitch,
            )
        };
        self.check("cublasSgemm", status)
    }

    fn check(&self, call: &str, status: c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: cublasGetStatusName returns a static string for every number.
        let name = unsafe { (self.status_name)(status) };
        // SAFETY: as stated above, `name` is a string that ends with a NUL.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        Err(format!("{call} of {} returned {name}", self.name))
    }
}
