//! A software stand-in for `libcuda.so.1`: the CUDA driver API's C entry points, executed on the
//! CPU.
//!
//! **It is not CUDA and no GPU is involved.** It lets a CUDA backend's real FFI code run in tests
//! on machines without a GPU: handles, streams, events, stream memory operations and error paths.
//! Its device calls itself "software CUDA driver (not a GPU)".
//!
//! # Using it
//! Put the folder that [`library_dir`] returns on `LD_LIBRARY_PATH` of a child process; it holds
//! `libcuda.so` and `libcuda.so.1`. [`stubs_dir`] returns a decoy. A library loaded from a folder
//! called `stubs` answers every driver call with `CUDA_ERROR_STUB_LIBRARY`, like the one in a CUDA
//! toolkit's folder of that name (NVIDIA/warp #219).
//!
//! A program that uses Warpline needs nothing else: the runtime registers the CPU form of each
//! kernel that it loads. Other programs may find `softcudaRegisterKernel` with `dlsym` and register
//! a CPU form, a *twin*. A launch of a kernel with a twin runs the twin. Any other launch runs the
//! kernel's PTX, see "Device code". An image that begins like an ELF file or a fat binary is
//! assumed to contain every registered kernel, and only those run.
//!
//! ```c
//! typedef struct {
//!     size_t bytes;
//!     uint32_t kind;              // 0 value, 1 pointer that is read, 2 pointer that is written
//!     uint32_t element_bytes;
//! } SoftcudaParam;
//! typedef struct {
//!     uint32_t grid[3];
//!     uint32_t block[3];
//!     uint32_t shared_bytes;
//!     uint32_t reserved;
//! } SoftcudaLaunch;
//! typedef struct {
//!     const char* name;
//!     const SoftcudaParam* params; size_t param_count;
//!     size_t extra_count;
//!     int (*twin)(const void* const* params, const SoftcudaLaunch* launch, const void* user);
//!     const void* user;
//! } SoftcudaKernel;
//!
//! // Returns a CUresult. Copies everything except the data behind `user`.
//! int softcudaRegisterKernel(const SoftcudaKernel* kernel);
//!
//! // Calls of an entry point since the last reset. UINT64_MAX if the name is unknown.
//! uint64_t softcudaCallCount(const char* entry_point);
//! // Grows with the calling thread's calls only; starts at any number, and no reset changes it.
//! uint64_t softcudaThreadCallCount(const char* entry_point);
//! // Grows with each call that finds a stream full.
//! uint64_t softcudaWaitsForRoom(void);
//! // Grows with each busy stream that a call waits for because it waits for the whole device.
//! uint64_t softcudaWaitsForDevice(void);
//! // Calls made after the exit handler began.
//! uint64_t softcudaLateCalls(void);
//! // Resets the counts that softcudaCallCount returns.
//! void softcudaResetCounts(void);
//! // Prints those counts to stderr.
//! void softcudaPrintCounts(void);
//! ```
//!
//! `extra_count` is 0 or the number of pointer parameters. In the second case `kernelParams` has
//! that many more entries after the kernel's own. Each points to a `uint64_t`: the number of
//! elements that a pointer covers, in the order of the pointers. When the launch runs, it checks
//! that the elements of each pointer lie in one live allocation.
//!
//! A twin receives the arguments with pointers that the host can dereference. It returns 0; any
//! other value is a trap, which poisons the context with `CUDA_ERROR_LAUNCH_FAILED`. A twin must
//! not unwind and must not wait for another stream.
//!
//! # Behaviour
//! Streams run asynchronously and in order. The host cannot dereference device addresses, and fresh
//! memory is not zeroed. Every handle, range and context is checked; besides returning the driver's
//! code, a refused call often writes the caller's mistake to stderr. A fault poisons the context:
//! nothing queued runs, words keep their values, and every call returns the code. A stream of
//! another context that already waits for the poisoned one waits forever. Freeing device memory
//! waits for the context's work. Releasing page-locked memory while queued work uses it poisons the
//! context of that work. Host functions run one after the other on a single thread.
//!
//! `cuInit` registers an exit handler, as libcuda does. After that handler, calls return
//! `CUDA_ERROR_DEINITIALIZED` (ucx #11275, rmm #2366). Exempt are the queries that also work before
//! `cuInit`: the driver version and the error texts. Handlers that were registered earlier run
//! later.
//!
//! In the child of a process that forks after `cuInit`, calls return `CUDA_ERROR_NOT_INITIALIZED`,
//! also `cuInit` itself.
//!
//! Blocking streams synchronize with the null stream as in CUDA; there is no per-thread default
//! stream. A stream takes any amount of work, unless `SOFTCUDA_DEPTH` bounds it. Real streams have
//! a bound of about a thousand pieces of work. Two contexts on one device cannot access each
//! other's memory.
//!
//! Managed memory has one address for the host and all contexts, and never moves. The devices
//! report that both may access it at the same time. Stream memory operations on it are refused.
//!
//! A synchronous fill of memory that the host can read, page-locked or managed, has ended when the
//! call returns (CUDA driver API, "API synchronization behavior").
//!
//! Arrays, textures and IPC are missing, and so are their symbols.
//! `cuProfilerStart` and `cuProfilerStop` do nothing, because no tool is attached.
//! `cuGetExportTable` finds no table.
//! `cuGetProcAddress` knows in which CUDA version the entry points with a suffix appeared; the
//! others count as old as the oldest version.
//!
//! # Virtual memory
//! Reserved addresses belong to no device, and the hint for their place is ignored. The
//! granularity is 2 MiB. Adjacent mappings serve copies, fills and kernels as one range. Mapped
//! memory belongs to no context: the devices that `cuMemSetAccess` names may use it, and peer
//! access does not matter. A granted peer needs a machine with peer access.
//!
//! `cuMemUnmap` waits for no work, since no document says that it does (PyTorch's allocator waits
//! itself). Unmapping memory that queued or running work uses poisons the context of that work, as
//! the release of page-locked memory does. For a kernel's PTX this is known of the memory at its
//! pointer arguments.
//!
//! A handle is mapped once at most, and whole. Other uses, read-only access, memory on the host
//! and memory for other processes are refused with `CUDA_ERROR_NOT_SUPPORTED`. Mapped memory
//! outlives the contexts.
//!
//! # Libraries and links
//! A library is checked when it is loaded, and loaded into a context on first use there, as with
//! `CUDA_MODULE_LOADING=LAZY`. The handle of a kernel may take the place of a function's. Its
//! attributes are those of the function in the current context.
//!
//! A link takes PTX alone. Cubins, objects and libraries such as `libcudadevrt.a` hold machine code
//! and are refused with `CUDA_ERROR_NOT_SUPPORTED`. The image of a link is one PTX text, which any
//! load call accepts. Texts that each define a name, one of them for itself alone, are refused too.
//!
//! # Device code
//! `warpline-ptx` runs the PTX of kernels that have no twin. The rules of its memory are those of
//! `executor.rs`. A launch of a kernel with an instruction that `warpline-ptx` does not support is
//! refused with `CUDA_ERROR_NOT_SUPPORTED`, and the reason is written to stderr.
//!
//! A kernel may use all memory that is live when it runs: device memory that its context reaches,
//! managed memory and mapped page-locked memory. `malloc` takes from the heap of the context, up to
//! the limit `CU_LIMIT_MALLOC_HEAP_SIZE`. What it prints is on standard output when the
//! launch has finished; if the launch fails, it is lost. A failed launch poisons the context, and
//! the report on stderr names the thread, the line and the nearest allocation:
//!
//! | fault | code |
//! |---|---|
//! | access outside of memory, also of shared and local memory | 700, illegal address |
//! | misaligned access | 716 |
//! | failed `assert` | 710 |
//! | `trap` | 719, launch failed |
//! | threads that wait for each other forever | 702, launch timeout |
//! | call of an address that is no function | 718 |
//! | local memory that overflows in recursion | 714 |
//!
//! cuda.h describes these codes. No source says which code `trap` gives; a program's other failures
//! are 719. A GPU hangs where 702 is returned here.
//!
//! # Requirements of device code
//! Loading compares PTX with the driver's version and the device's compute capability. The table of
//! PTX versions follows the PTX ISA's release notes; drivers refuse newer ones with 222 (openmm
//! #3585). No source names the code for a `.target` that is too new; the description of 209 in
//! cuda.h fits. A kernel with more than 48 KiB of static shared memory does not load. The message
//! is that of CUDA 12.8's ptxas, which is the same for every architecture (also llama.cpp #16081).
//!
//! Drivers refuse a launch with more threads than `.maxntid`, or with other blocks than `.reqntid`,
//! with 1 (TensorComprehensions #526); so does this library. Static and dynamic shared memory count
//! together (cuda.h, `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`). Clusters need compute
//! capability 9.0 (CUDA C++ Programming Guide, "Thread Block Clusters").
//!
//! # Graphs
//! The operations that a stream captures become a graph: launches with copies of their arguments,
//! copies, fills, writes of words and waits for them, and host functions. A wait for an event
//! recorded in the capture becomes an edge. Launching a graph on a capturing stream invalidates the
//! capture. Graphs come only from captures: no call adds nodes or sets their parameters.
//!
//! Some operations are refused with `CUDA_ERROR_NOT_SUPPORTED` and leave the capture intact:
//! stream-ordered allocations and frees, attachments and prefetches of managed memory, and records
//! and waits with the external flag.
//!
//! `cuGraphExecUpdate_v2` accepts a graph with the same kinds of nodes and the same edges, captured
//! in the same order. It does not report the node that prevented an update.
//!
//! A launch of an executable graph is one piece of its stream's work. It starts once the previous
//! launch of the same executable graph has ended, on whatever stream. Its nodes run one after the
//! other. Nodes that no edge orders run in an order that changes from launch to launch, so that a
//! missing edge shows:
//! - The first launch runs the nodes captured last as early as possible.
//! - The second launch runs one branch after the other, in the order of their capture.
//! - Each further launch mixes the order by its number and a seed.
//!
//! With `CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY`, the priority of the stream that a node was
//! captured on takes precedence, for copies and fills as well as for kernels. A node that waits for
//! a word lets other branches run, but no two nodes are guaranteed to run concurrently.
//!
//! A graph keeps no memory alive. A node looks up its addresses when it runs. It poisons the
//! context if its device or page-locked memory was released after the capture, even if other memory
//! is at that address now. Nodes read and write pageable memory when they run; no check can tell
//! that it is still allocated. A launch is refused if the context of a node is lost or the module
//! of a kernel was unloaded. A fault poisons the node's context and that of the launching stream.
//!
//! The planned faults below count each run of a node, not its capture: a graph of two kernels that
//! is launched three times executes six launches.
//!
//! # Streams and events of other contexts
//! Calls follow the runtime API's rules. Copies, fills, host functions, queries and waits may use a
//! stream or an event of a context that is not current. Launches and stream memory operations need
//! a stream of the current context. A record needs an event and a stream of one context.
//!
//! # Settings
//! The first call reads the settings from the environment. Malformed settings make `cuInit` write
//! them to stderr and return `CUDA_ERROR_INVALID_VALUE`.
//!
//! | variable | effect (default) |
//! |---|---|
//! | `SOFTCUDA_DEVICES=n` | the number of devices (1) |
//! | `SOFTCUDA_MEMORY=bytes` | the memory of each (8 GiB); committed when written |
//! | `SOFTCUDA_PEER=0` | no peer access between devices |
//! | `SOFTCUDA_FAIL=name:nth:code[:sticky],…` | planned failures of calls, see below |
//! | `SOFTCUDA_POISON_LAUNCH=nth[:code],…` | planned failures of launches, see below |
//! | `SOFTCUDA_FAULT_SEEN=stream` | idle streams keep answering success after a fault, see below |
//! | `SOFTCUDA_LOSE_WRITE=nth` | the nth `cuStreamWriteValue` that executes stores nothing |
//! | `SOFTCUDA_COPY_DELAY_US=n` | each asynchronous copy takes at least n µs |
//! | `SOFTCUDA_FAULT_DELAY_US=n` | a kernel whose device code fails ends n µs later, see below |
//! | `SOFTCUDA_DEPTH=n` | streams with room for `n` pieces of work, see below |
//! | `SOFTCUDA_CONNECTIONS=n` | hardware queues that a context's streams share, see below |
//! | `SOFTCUDA_ONE_AT_A_TIME=1` | calls with one current context exclude each other, see below |
//! | `SOFTCUDA_ALLOC_WAITS=1` | allocating, page-locking and loading wait for work, see below |
//! | `SOFTCUDA_KERNELS=ptx` | kernels with a twin run their PTX, see below (`twins`) |
//! | `SOFTCUDA_GRAPH_SEED=n` | varies the order of nodes from a graph's third launch on (0) |
//! | `SOFTCUDA_CAPTURE_STRICT=1` | more calls are potentially unsafe beside a capture, see below |
//! | `SOFTCUDA_NO_MEMOPS=1` | no stream memory operations |
//! | `SOFTCUDA_NO_REGISTER=1` | no registration of host memory, see below |
//! | `SOFTCUDA_VIRTUAL_MEMORY=0` | no virtual memory: its calls return `CUDA_ERROR_NOT_SUPPORTED` |
//! | `SOFTCUDA_CONFIDENTIAL=1` | a device in confidential computing mode, see below |
//! | `SOFTCUDA_IMMEDIATE=1` | nothing runs asynchronously, see below |
//! | `SOFTCUDA_COUNTS=1` | prints the call counts at exit |
//! | `SOFTCUDA_LATE_CALLS=abort`, `=file` | the fate of calls after the exit handler, see below |
//! | `SOFTCUDA_NVTX=file` | records NVTX ranges, see below |
//! | `SOFTCUDA_DRIVER_VERSION=n` | the result of `cuDriverGetVersion` (12040), see below |
//! | `SOFTCUDA_CAPABILITY=major.minor` | the compute capability (8.0), see below |
//! | `CUDA_VISIBLE_DEVICES` | the visible devices and their order, as with the driver |
//!
//! `SOFTCUDA_FAIL`: the nth call of that entry point returns that code and does nothing else. With
//! `sticky` it also poisons the current context. For a Rust program, use only codes that its
//! `CUresult` has.
//!
//! `SOFTCUDA_POISON_LAUNCH`: the nth launch that executes poisons its context, with 700 or any code
//! from 1 to 9999.
//!
//! `SOFTCUDA_FAULT_DELAY_US`: for programs that rely on the calls right behind a launch to
//! succeed, as they do on a GPU, which reports a fault later than the CPU.
//!
//! `SOFTCUDA_DEPTH`: a call that puts work on a stream, or records an event there, waits while `n`
//! pieces of work on the stream are unfinished.
//!
//! `SOFTCUDA_ONE_AT_A_TIME`: a call waits until no other call with the same current context runs,
//! even if the other waits for room on a stream or for idle memory. Exempt are the calls whose
//! names end in `Synchronize`, and those about devices or about the current context. A deadlock can
//! follow: one thread frees memory while the host holds a stream, and the thread that would release
//! the stream makes another call first.
//!
//! `SOFTCUDA_KERNELS=ptx`: a kernel with a twin runs its PTX. It runs the twin if it is in an
//! image, or if its PTX does nothing, because such a text only declares the parameters.
//!
//! `SOFTCUDA_IMMEDIATE`: measures a host's cost of calling the driver. Calls do their bookkeeping
//! and return, and events are complete immediately. `cuStreamWriteValue` stores its word, and
//! `cuLaunchHostFunc` calls its function. A launch of a graph stores its words and calls its host
//! functions, in the order of their capture.
//!
//! `SOFTCUDA_NVTX`: makes the library a profiler as well, if `NVTX_INJECTION64_PATH` names it. It
//! appends the NVTX ranges to that file, one line for each push and pop.
//!
//! `SOFTCUDA_DRIVER_VERSION`: PTX with a newer `.version` than the driver's is refused with 222.
//!
//! `SOFTCUDA_CAPABILITY`: PTX with a newer `.target` is refused with 209, and clusters below 9.0
//! with 801.
//!
//! # Settings that imitate hardware
//! Each shows a behaviour that a program may meet on hardware, and names its source.
//!
//! `SOFTCUDA_FAULT_SEEN=stream`: after a fault, queries and synchronizations of idle streams and of
//! complete events succeed, and queries of other streams return `CUDA_ERROR_NOT_READY`. The first
//! call that reports the fault is one that names the faulted stream or an unfinished event of it,
//! puts work on a stream of the context, or waits for work that cannot end. An event record is
//! work; a copy between peers is work of both contexts. After that every call returns the code.
//! cuda.h says that most calls "may" return errors of earlier asynchronous launches. It does not
//! say that any call checks for them.
//!
//! `SOFTCUDA_CONNECTIONS`: the streams of a context share `n` hardware queues, from 1 to 32.
//! Streams get their queues round-robin, in the order of their creation. The work of all streams of
//! a queue starts in the order in which it was enqueued. A piece that waits for an event or a word
//! therefore delays later work of other streams. `CUDA_DEVICE_MAX_CONNECTIONS` is 8 by default
//! (CUDA programming guide, "CUDA Environment Variables"), and each context has queues of its own
//! (GPU deployment guide, MPS). Here kernels and copies share the queues. Without the setting each
//! stream has its own.
//!
//! `SOFTCUDA_ALLOC_WAITS`: `cuMemAlloc`, `cuMemHostAlloc`, `cuMemHostRegister`, the loading of a
//! module and the first `cuModuleGetFunction` of a kernel wait for the context's work (CUDA
//! programming guide, "Implicit Synchronization" and "Lazy Loading"; KernelAbstractions.jl #76). A
//! call that has to wait writes its name to stderr. With `SOFTCUDA_ONE_AT_A_TIME` other threads'
//! calls wait for it too (torchcomms #2334).
//!
//! `SOFTCUDA_CAPTURE_STRICT`: more calls count as potentially unsafe, because no document says
//! that they are safe: queries and synchronizations of streams that do not capture, creation and
//! destruction of streams, elapsed times, `cuMemGetInfo`, `cuMemPoolTrimTo`,
//! `cuModuleGetFunction`, `cuFuncLoad`, and the calls that change virtual memory. The documented
//! rules hold without the setting (cuda.h, `cuThreadExchangeStreamCaptureMode`).
//!
//! `SOFTCUDA_NO_REGISTER`: `cuMemHostRegister` returns `CUDA_ERROR_NOT_SUPPORTED`, and the device
//! attributes about registered memory are 0, as on devices without I/O coherency (CUDA for Tegra,
//! "I/O Coherency"). WSL2 limits page-locked memory (CUDA on WSL, "Known Limitations").
//!
//! `SOFTCUDA_CONFIDENTIAL`: imitates an H100 in confidential computing mode. Host memory cannot be
//! registered (NVIDIA developer forum, thread 261009). Page-locked allocations are managed memory
//! (release notes of R550 TRD1, "Limitations"), and stream memory operations refuse words in
//! managed memory (cuda.h, `cuStreamWriteValue64`). No device attribute reports this mode; only
//! NVML does.
//!
//! `SOFTCUDA_LATE_CALLS`: with `abort`, the first call after the exit handler began ends the
//! process. With a file's name, such calls append their names to it. In both cases the exit handler
//! takes 20 ms, so that it overlaps with threads that still call the driver. Late calls are counted
//! without the setting too.

#![cfg(target_os = "linux")]
// The names are those of the C ABI.
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
mod executor;
mod exports;
mod faults;
mod graph;
mod heap;
mod host;
mod jit_log;
mod kernel;
mod launch;
mod libraries;
mod library;
mod linker;
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
mod symbols;
mod target;
mod texts;
mod timer;
mod virtual_memory;
mod visible;
mod work;
mod worker;

pub use library::{cublas_library, library_dir, stubs_dir};
