//! A software stand-in for `libcuda.so.1`: the CUDA driver API's C entry points, executed on the CPU.
//!
//! **It is not CUDA and no GPU is involved.** It exists so that a CUDA backend's real FFI code, its handles, streams,
//! events, words and error paths, runs in tests on machines without a GPU. Its device calls itself "software CUDA driver
//! (not a GPU)".
//!
//! # Using it
//! Put the folder that [`library_dir`] returns on `LD_LIBRARY_PATH` of a child process; it has
//! `libcuda.so` and `libcuda.so.1`. [`stubs_dir`] is a decoy: loaded from a folder called `stubs`,
//! each call answers `CUDA_ERROR_STUB_LIBRARY`, as in a CUDA toolkit's folder of that name
//! (NVIDIA/warp #219). A program that uses Warpline needs nothing else: the runtime registers the
//! CPU form of each kernel that it loads. Other programs find `softcudaRegisterKernel` with `dlsym`
//! and register a CPU form, a *twin*, for each kernel to be launched: device code itself is never
//! run. PTX text is read for its declarations, so that wrong parameters are found; images that
//! begin like an ELF file or a fat binary have the kernels that are registered.
//!
//! ```c
//! typedef struct { size_t bytes; uint32_t kind; uint32_t element_bytes; } SoftcudaParam;
//!     // kind: 0 value, 1 pointer that is read, 2 pointer that is written
//! typedef struct { uint32_t grid[3]; uint32_t block[3]; uint32_t shared_bytes; uint32_t reserved; } SoftcudaLaunch;
//! typedef struct {
//!     const char* name;
//!     const SoftcudaParam* params; size_t param_count;
//!     size_t extra_count;
//!     int (*twin)(const void* const* params, const SoftcudaLaunch* launch, const void* user);
//!     const void* user;
//! } SoftcudaKernel;
//! int softcudaRegisterKernel(const SoftcudaKernel* kernel);   // a CUresult; copies all but user
//! uint64_t softcudaCallCount(const char* entry_point);        // UINT64_MAX: there is none of that name
//! uint64_t softcudaThreadCallCount(const char* entry_point);  // grows with the calling thread's calls alone
//! uint64_t softcudaWaitsForRoom(void);                         // grows with calls that find a stream full
//! uint64_t softcudaWaitsForDevice(void);                       // grows with those that begin to wait for a device
//! uint64_t softcudaLateCalls(void);                            // after the exit handler
//! void softcudaResetCounts(void);
//! void softcudaPrintCounts(void);                              // to stderr
//! ```
//!
//! `extra_count` is 0 or the number of pointer parameters. Then `kernelParams` has so many entries more, after the
//! kernel's own, each a `uint64_t`: how many elements each pointer covers, in order, which are checked to lie in one live
//! allocation. A twin gets the arguments with pointers that the host can use. It returns 0; anything else is a trap and
//! poisons the context with `CUDA_ERROR_LAUNCH_FAILED`. It must not unwind and must not wait for another stream.
//!
//! # What it keeps to
//! Streams run asynchronously and in order. Device addresses cannot be dereferenced by the host, and fresh memory is not
//! zero. Every handle, range and context is checked, and what a caller did wrong is said on stderr besides the driver's
//! code for it. A fault poisons the context: nothing queued runs, words freeze, every call returns the code. A stream of
//! another context that already waits for the poisoned one waits for ever. Freeing device memory waits for the context's
//! work. Page-locked memory that ends while queued work uses it poisons the context of that work. Host functions run one
//! after the other on one thread.
//!
//! `cuInit` registers an exit handler, as libcuda does. After it has run, every call returns
//! `CUDA_ERROR_DEINITIALIZED` (ucx #11275, rmm #2366). Handlers that were registered earlier run
//! later.
//!
//! Streams that block take turns with the null stream as in CUDA; there is no per-thread default
//! stream. Streams take any amount of work, unless `SOFTCUDA_DEPTH` bounds it as real ones do at
//! about a thousand pieces. Two contexts on one device do not reach each other's memory.
//!
//! Managed memory has one address for the host and all contexts, and never moves: the devices say
//! that both may access it at the same time. Stream memory operations on it are refused.
//!
//! Arrays, textures, virtual memory, IPC and profiling are not there, and neither are their
//! symbols; nor are export tables.
//!
//! # What device code may ask for
//! PTX is held against the driver's version and the device's compute capability when it is loaded.
//! The table of PTX versions is that of the PTX ISA's release notes, and 222 what drivers answer
//! (openmm #3585). No source says what drivers answer to a `.target` that is too new; 209 is the
//! code whose description in cuda.h fits. A kernel with more than 48 KiB of static shared memory
//! does not load, with what ptxas of CUDA 12.8 says about it for every architecture (also llama.cpp
//! #16081).
//!
//! A launch of more threads than `.maxntid`, or of others than `.reqntid`, is refused with 1, as
//! drivers do (TensorComprehensions #526). Static and dynamic shared memory count together (cuda.h,
//! `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`). Clusters need compute capability 9.0 (CUDA
//! C++ Programming Guide, "Thread Block Clusters").
//!
//! # Graphs
//! What a stream captures becomes a graph: launches with their arguments as they were, copies, fills, words that are
//! written and waited for, and host functions. Recorded events that are waited for are edges. A launch of a graph into a
//! capture breaks it. Graphs come from captures only; there are no calls that add nodes or set their parameters. Allocations and their ends in stream order, and records and waits with the external flag, are refused with
//! `CUDA_ERROR_NOT_SUPPORTED` and leave the capture as it is.
//!
//! `cuGraphExecUpdate_v2` takes graphs whose nodes and edges are the same and were captured in the same order; it does not
//! say which node was at fault.
//!
//! A launch of an executable graph is one piece of its stream's work. It runs when the launch of the same executable graph
//! before it has ended, on whatever stream that is. Its nodes run one after the other, and where no edge orders them a
//! different order is taken by turns, so that a missing edge shows: an executable graph's first launch runs what was
//! captured last as early as it can, its second runs branch after branch in the order of their capture, each further one
//! mixes by its number and a seed. With `CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY` the priority of the stream that a
//! node was captured on comes first, of copies and fills as of kernels. A node that waits for a word lets other branches pass, but nothing is promised to run
//! at the same time.
//!
//! A graph keeps no memory alive. Addresses are looked up when a node runs: device or page-locked memory that has ended
//! since the capture poisons the context, even if something else is at that address now. Pageable memory is read and
//! written at the launch; that it is still there cannot be checked. A launch is refused if a context of its nodes is lost
//! or the module of a kernel was unloaded. A fault poisons the context of the node and that of the launching stream.
//!
//! Each run of a node counts for the faults below as if it had been put on a stream then: a graph of two kernels that is
//! launched three times executes six launches.
//!
//! Calls that use a stream or an event of another context than the current one follow the runtime API's rules: copies,
//! queries and waits may, launches, stream memory operations and records on the wrong context may not.
//!
//! # Settings
//! Read from the environment at the first call. What is malformed is said on stderr, and `cuInit` returns
//! `CUDA_ERROR_INVALID_VALUE`.
//!
//! | variable | |
//! |---|---|
//! | `SOFTCUDA_DEVICES=n` | so many devices (1) |
//! | `SOFTCUDA_MEMORY=bytes` | memory of each (8 GiB); committed when written |
//! | `SOFTCUDA_PEER=0` | no peer access between devices |
//! | `SOFTCUDA_FAIL=name:nth:code[:sticky],…` | the nth call of that entry point returns that code and does nothing else; `sticky` also poisons the current context. A Rust program may only be given codes that its `CUresult` has |
//! | `SOFTCUDA_POISON_LAUNCH=nth[:code],…` | the nth launch that executes poisons its context, with 700 or any code from 1 to 9999 |
//! | `SOFTCUDA_FAULT_SEEN=stream` | idle streams go on answering success after a fault, see below |
//! | `SOFTCUDA_LOSE_WRITE=nth` | the nth `cuStreamWriteValue` that executes stores nothing |
//! | `SOFTCUDA_COPY_DELAY_US=n` | each asynchronous copy takes at least so long |
//! | `SOFTCUDA_DEPTH=n` | what puts work on a stream, or records an event there, waits while `n` pieces of work on it are unfinished |
//! | `SOFTCUDA_CONNECTIONS=n` | the streams of a context share `n` hardware queues, 1 to 32, see below |
//! | `SOFTCUDA_ONE_AT_A_TIME=1` | calls with the same current context wait for each other, also for one that waits for room or for memory to be idle. Those that wait for the device by their name do not, nor those that ask about devices or what is current. So a stream that the host holds hangs for ever if memory is freed meanwhile and who would let it go calls first |
//! | `SOFTCUDA_ALLOC_WAITS=1` | allocating, page-locking and loading wait for the context's work, see below |
//! | `SOFTCUDA_GRAPH_SEED=n` | another order of nodes from an executable graph's third launch on (0) |
//! | `SOFTCUDA_CAPTURE_STRICT=1` | more calls count as unsafe beside a capture, see below |
//! | `SOFTCUDA_NO_MEMOPS=1` | no stream memory operations |
//! | `SOFTCUDA_NO_REGISTER=1` | `cuMemHostRegister` returns `CUDA_ERROR_NOT_SUPPORTED`, see below |
//! | `SOFTCUDA_CONFIDENTIAL=1` | a device in confidential computing, see below |
//! | `SOFTCUDA_IMMEDIATE=1` | nothing runs: calls do their bookkeeping and return, words are stored at the call, events are complete at once; a launch of a graph stores its words and calls its host functions, in the order of their capture. For measuring what a host spends on its calls |
//! | `SOFTCUDA_COUNTS=1` | calls are printed at exit |
//! | `SOFTCUDA_LATE_CALLS=abort`, `=file` | a call after the exit handler has begun ends the process, or its name goes into that file, see below |
//! | `SOFTCUDA_NVTX=file` | the library is a profiler too, where `NVTX_INJECTION64_PATH` names it: NVTX ranges go into that file, a line each push and pop |
//! | `SOFTCUDA_DRIVER_VERSION=n` | what `cuDriverGetVersion` says (12040); PTX of a newer `.version` is refused with 222 |
//! | `SOFTCUDA_CAPABILITY=major.minor` | the compute capability (8.0); PTX of a newer `.target` is refused with 209, clusters below 9.0 with 801 |
//! | `CUDA_VISIBLE_DEVICES` | as with the driver: which devices, in which order |
//!
//! # What the meaner settings copy
//! Each shows a behaviour that a program may meet on hardware, and names its source.
//!
//! `SOFTCUDA_FAULT_SEEN=stream`: after a fault, queries and synchronizations of idle streams and of
//! complete events succeed, and queries of other streams return `CUDA_ERROR_NOT_READY`. The first
//! call that reports the fault is one that names the faulted stream or an unfinished event of it,
//! puts work on a stream of the context, or waits for work that cannot end. An event record is
//! work; a copy between peers is work of both contexts. After that every call returns the code.
//! cuda.h says of most calls that they "may" return errors of earlier asynchronous launches, and of
//! none that it looks for them.
//!
//! `SOFTCUDA_CONNECTIONS`: streams get their queue by turns, in the order in which they are made.
//! Work of all streams of a queue starts in the order in which it was enqueued. So a piece that
//! waits for an event or a word holds up later work of other streams. `CUDA_DEVICE_MAX_CONNECTIONS`
//! is 8 unless it is set (CUDA programming guide, "CUDA Environment Variables"), and each context
//! has queues of its own (GPU deployment guide, MPS). Kernels and copies share the queues here.
//! Without the setting each stream has its own.
//!
//! `SOFTCUDA_ALLOC_WAITS`: `cuMemAlloc`, `cuMemHostAlloc`, `cuMemHostRegister`, the loading of a
//! module and the first `cuModuleGetFunction` of a kernel wait (CUDA programming guide, "Implicit
//! Synchronization" and "Lazy Loading"; KernelAbstractions.jl #76). A call that has to wait is
//! named on stderr. With `SOFTCUDA_ONE_AT_A_TIME` other threads' calls wait for it too (torchcomms
//! #2334).
//!
//! `SOFTCUDA_CAPTURE_STRICT`: these calls become potentially unsafe, as no document says that they
//! are not: queries and synchronizations of streams that do not capture, creation and destruction
//! of streams, elapsed times, `cuMemGetInfo`, `cuMemPoolTrimTo`, `cuModuleGetFunction` and
//! `cuFuncLoad`. The documented rules hold without the setting (cuda.h,
//! `cuThreadExchangeStreamCaptureMode`).
//!
//! `SOFTCUDA_NO_REGISTER`: the device attributes about registered memory are 0 too, as on devices
//! without I/O coherency (CUDA for Tegra, "I/O Coherency"). WSL2 limits page-locked memory (CUDA on
//! WSL, "Known Limitations").
//!
//! `SOFTCUDA_CONFIDENTIAL`: as on an H100 in confidential computing, there is no registration
//! (NVIDIA developer forum, thread 261009), page-locked allocations are managed memory (release
//! notes of R550 TRD1, "Limitations"), and stream memory operations refuse words in managed memory
//! (cuda.h, `cuStreamWriteValue64`). No device attribute tells this mode; NVML alone does.
//!
//! `SOFTCUDA_LATE_CALLS`: the exit handler takes 20 ms, so that threads that still call the driver
//! are caught. Calls after the handler are counted without the setting too.

#![cfg(target_os = "linux")]
// A C ABI has C's names.
#![allow(clippy::upper_case_acronyms)]

mod abi;
mod arena;
mod capture;
mod connection;
mod context;
mod copy;
mod counts;
mod device;
mod door;
mod ending;
mod entries;
mod errors;
mod event;
mod exports;
mod faults;
mod graph;
mod host;
mod kernel;
mod launch;
mod library;
mod managed;
mod memops;
mod memory;
mod module;
mod op;
mod plan;
mod pool;
mod profiler;
mod ptx;
mod slab;
mod stream;
mod target;
mod timer;
mod visible;
mod work;
mod worker;

pub use library::{cublas_library, library_dir, stubs_dir};
