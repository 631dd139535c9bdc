//! A software stand-in for `libcublas.so.12`: a few of its C entry points, over the software CUDA
//! driver.
//!
//! **It is not cuBLAS and no GPU is involved.** It exists to test code that finds cuBLAS, creates
//! handles and enqueues products on machines without a GPU. It reports version 12.0.0. Its products
//! are right and slow.
//!
//! As with cuBLAS, a product is a kernel on the handle's stream. It is launched through the
//! `libcuda.so.1` that the process has loaded, and is ordered, checked and captured like any
//! kernel. That driver has to be the software one, which gets a CPU form of the kernel.
//! [`cublas_library`](../warpline_softcuda/fn.cublas_library.html) returns the path of the built
//! library.
//!
//! # Behaviour
//! A handle belongs to the context that was current when it was created. It allocates 60 MiB of
//! device memory there, which invalidates a capture. Destroying the handle frees that memory and
//! waits for all work of the context.
//!
//! A caller's mistake is reported on stderr, in addition to its status: a handle that was
//! destroyed, that two threads use at the same time, or whose context is not current; a stream of
//! another context; a misaligned workspace.
//!
//! A product overwrites both ends of the workspace that its handle was lent. Setting the stream
//! takes the workspace away again. With TF32 the factors are rounded to it, so that tests observe
//! the effect.
//!
//! # Settings and figures
//! With `SOFTCUBLAS_FAIL=name:nth:status,…` the nth call of that entry point returns that status
//! and does nothing else.
//!
//! ```c
//! // UINT64_MAX: no entry point has that name
//! uint64_t softcublasCallCount(const char* entry_point);
//! typedef struct {
//!     uint64_t handle, stream, workspace, bytes;
//!     int32_t math_mode;
//!     uint32_t reserved;
//! } SoftcublasProduct;
//! // writes the first `room` products and returns how many there were
//! size_t softcublasProducts(SoftcublasProduct* to, size_t room);
//! ```

#![cfg(target_os = "linux")]

mod driver;
mod exports;
mod figures;
mod gemm;
mod handle;
mod plan;
mod status;
