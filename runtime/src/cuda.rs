//! CUDA devices, their faults and their environment variables.
//!
//! Neither building nor starting a program needs CUDA. The driver's library, `libcuda.so.1`, is
//! loaded when the program first asks for a CUDA device, from the loader's search path and
//! `LD_LIBRARY_PATH`. The driver has to support CUDA 12 or newer. [`Device::best`] takes `cuda:0`
//! if it exists. Where there is none, [`Device::open`] of `cuda:0` returns an error that names the
//! missing part.
//!
//! A device uses its primary context, which it shares with every library in the process. Its
//! streams are non-blocking, and the null stream is never used. A call leaves the calling thread's
//! current context as it was, but may leave the device's context current on a thread that had none.
//! Streams and events are pooled and never destroyed.
//!
//! # Faults
//! After an error that destroys its context, such as an illegal address, a device accepts no more
//! work in this process, in any runtime. Every waiter gets that error within milliseconds, and
//! [`Device::health`] reports it within a second, even if nobody waits.
//!
//! # Forks
//! The driver does not work in a child that is forked after it was initialised: calls there return
//! an error of kind `Forked`. [`is_available`] and [`device_count`] initialise it.
//! [`likely_device_count`] does not, so a process that forks its workers can ask.
//!
//! # Environment
//! | variable | meaning |
//! |---|---|
//! | `CUDA_VISIBLE_DEVICES` | read by the driver: the visible devices, renumbered in that order |
//! | `CUDA_LAUNCH_BLOCKING=1` | each call waits for its op, so that the error names that op; also on CPU devices |
//! | `WARPLINE_COMPLETION` | `word`: progress in host memory if possible; `event`: queried events |
//! | `WARPLINE_WAKE_UP` | `low-power`, `balanced`, `low-latency`: see [`WakeUp`] |
//!
//! Set the first one before the first use of a CUDA device. If it has changed since the driver read
//! it, a warning and each `NoSuchDevice` error show both values.
//!
//! [`Runtime::new`] and [`RuntimeBuilder::from_env`] read the last two of the table;
//! [`Runtime::builder`] does not. The crate `warpline-kernels` reads `WARPLINE_CUBLAS` and
//! `WARPLINE_ALLOW_TF32` (`kernels::libraries`). `WARPLINE_NVRTC` is the path of NVRTC, which
//! compiles kernels written in CUDA C++, or of its folder. `WARPLINE_NVRTC_INCLUDE` lists folders
//! of headers for them, `WARPLINE_NVRTC_ARCH` the architecture that CPU devices ask for, and
//! `WARPLINE_KEEP_PTX` names a folder for the PTX that NVRTC makes.
//!
//! # Other code
//! [`Stream::external`] lets other code enqueue on a stream of this runtime.
//! [`StreamBuilder::borrow_raw`] puts work on a stream of another library.
//! [`Stream::borrow_memory`] and [`Buffer::device_ptr`] share memory. [`Stream::global`] gives
//! access to the variables of modules.
//!
//! [`Device::best`]: crate::Device::best
//! [`Device::health`]: crate::Device::health
//! [`Device::open`]: crate::Device::open
//! [`WakeUp`]: crate::WakeUp
//! [`Runtime::builder`]: crate::Runtime::builder
//! [`Runtime::new`]: crate::Runtime::new
//! [`RuntimeBuilder::from_env`]: crate::RuntimeBuilder::from_env
//! [`Stream::external`]: crate::Stream::external
//! [`StreamBuilder::borrow_raw`]: crate::StreamBuilder::borrow_raw
//! [`Stream::borrow_memory`]: crate::Stream::borrow_memory
//! [`Buffer::device_ptr`]: crate::Buffer::device_ptr
//! [`Stream::global`]: crate::Stream::global

pub use warpline_cuda::{device_count, is_available, likely_device_count};
