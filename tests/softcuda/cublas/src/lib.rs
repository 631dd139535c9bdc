//! A software stand-in for `libcublas.so.12`: a few of its C entry points, over the software CUDA driver.
//!
//! **It is not cuBLAS and no GPU is involved.** It exists so that code which finds cuBLAS, makes handles and enqueues products runs in
//! tests on machines without a GPU. It calls itself version 12.0.0. Its products are right and slow.
//!
//! As with cuBLAS, a product is a kernel on the handle's stream, launched through whatever `libcuda.so.1` the process has loaded: so it
//! is ordered, checked and captured as kernels are. That driver has to be the software one, which gets a CPU form of it.
//! [`cublas_library`](../warpline_softcuda/fn.cublas_library.html) says where the built library is.
//!
//! # What it keeps to
//! A handle belongs to the context that was current when it was made, and allocates 60 MiB of
//! device memory there, which breaks a capture. Destroying it gives them back and waits for all
//! work of the context. What a caller does wrong is said on stderr besides the status for it: a
//! handle that was destroyed, or that two threads use at once, or whose context is not current; a
//! stream of another context; a workspace that is not aligned. A product scribbles over the
//! workspace that its handle was lent; setting the stream takes that away again. With TF32 factors
//! are rounded to it, so that tests see it.
//!
//! # Settings and figures
//! `SOFTCUBLAS_FAIL=name:nth:status,…`: the nth call of that entry point returns that status and does nothing else.
//!
//! ```c
//! uint64_t softcublasCallCount(const char* entry_point);   // UINT64_MAX: there is none of that name
//! typedef struct { uint64_t handle, stream, workspace, bytes; int32_t math_mode; uint32_t reserved; } SoftcublasProduct;
//! size_t softcublasProducts(SoftcublasProduct* to, size_t room);   // the first so many products; how many there were
//! ```

#![cfg(target_os = "linux")]

mod driver;
mod exports;
mod figures;
mod gemm;
mod handle;
mod plan;
mod status;
