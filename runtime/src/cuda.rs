//! CUDA devices: whether there are any.
//!
//! Nothing of CUDA is needed to build or to start: the driver's library, `libcuda.so.1`, is looked for when the first device is
//! asked for, where the loader looks and in `LD_LIBRARY_PATH`. A driver for CUDA 12 or newer will do. [`Device::best`] takes
//! `cuda:0` where there is one; [`Device::open`] of `cuda:0` where there is none is an error that says what is missing.
//!
//! A device is its primary context, which it shares with every library in the process. Streams do not block, the null stream is
//! never used, and the calling thread's current context is what it was when a call returns; a thread that has none may be left
//! with the device's. Streams and events are pooled and none is destroyed.
//!
//! # Faults
//! After an error that kills its context, such as an illegal address, a device takes no more work in this process, in no runtime:
//! whatever waits resolves to that error, within milliseconds. A forked child can use no device.
//!
//! # Environment
//! | variable | |
//! |---|---|
//! | `CUDA_VISIBLE_DEVICES` | the driver's: which devices, numbered anew in that order |
//! | `CUDA_LAUNCH_BLOCKING=1` | each op is waited for, so that an error names the op that it came of |
//! | `WARPLINE_COMPLETION` | `word`: the device writes its progress to host memory, where it can; `event`: events are asked |
//! | `WARPLINE_WAKE_UP` | `low-power`, `balanced`, `low-latency`: [`WakeUp`] |
//!
//! The last two are read by [`Runtime::new`] and [`RuntimeBuilder::from_env`], not by
//! [`Runtime::builder`]. `WARPLINE_CUBLAS` and `WARPLINE_ALLOW_TF32` are the crate
//! `warpline-kernels`'s (`kernels::libraries`), `WARPLINE_NVRTC` says where NVRTC is for kernels of
//! CUDA C++.
//!
//! # Other code
//! [`Stream::external`] lets other code enqueue on a stream of ours, [`StreamBuilder::borrow_raw`] puts our work on a stream of
//! theirs, [`Stream::borrow_memory`] and [`Buffer::device_ptr`] share memory, [`Stream::global`] reaches the variables of modules.
//!
//! [`Device::best`]: crate::Device::best
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

pub use warpline_cuda::{device_count, is_available};
