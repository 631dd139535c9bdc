//! What devices and streams are, and how they are asked for.

use crate::{Error, ErrorKind};
use std::ffi::c_void;
use std::str::FromStr;
use std::sync::Arc;

/// How a driver lets tickets become complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The driver completes each ticket by itself.
    EveryOp,
    /// Only tickets that [`DriverStream::signal`](super::DriverStream::signal) was called for.
    Signalled,
}

/// How eagerly the host looks for what a device that signals has done: what a wake-up may cost against what it may be late by.
///
/// One thread a process, the reactor, looks for all CUDA devices, and sleeps where nothing is awaited. While something is, it spins,
/// then yields, then sleeps for a sixteenth of the time that nothing has happened, at most a millisecond: work that takes long
/// costs little, and is seen late by a sixteenth of what it took. What is said here is how long it spins before. If runtimes say
/// different things, the most eager of those that wait for something counts. The CPU device wakes who waits by itself.
///
/// Set by `RuntimeBuilder::wake_up` or, in a runtime made
/// from the environment, by `WARPLINE_WAKE_UP`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WakeUp {
    /// Never spins: wake-ups are late by 50 µs or more, and cost least.
    LowPower,
    /// Spins for 20 µs after something happened, then sleeps for ever longer times.
    #[default]
    Balanced,
    /// Spins for 200 µs after something happened, and for 20 µs in each `poll` of something unfinished: takes a core while
    /// something is awaited.
    LowLatency,
}

impl FromStr for WakeUp {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "low-power" => Ok(WakeUp::LowPower),
            "balanced" => Ok(WakeUp::Balanced),
            "low-latency" => Ok(WakeUp::LowLatency),
            _ => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("\"{text}\" is not a wake-up mode; expected low-power, balanced or low-latency"),
            )),
        }
    }
}

/// How urgently a stream's work is picked when several streams could run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Below the priority that other libraries' streams have by default. On CUDA devices that have
    /// no lower one, which are most, the same as `Normal`.
    Low,
    /// The priority that other libraries' streams have by default: 0 on CUDA devices.
    #[default]
    Normal,
    /// The highest that the device has.
    High,
}

/// The memory of a device when it could not give more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeMemory {
    /// Bytes that could still be had.
    pub free_bytes: usize,
    /// Bytes of the device in all.
    pub total_bytes: usize,
}

/// What a stream is made with.
#[derive(Clone, Debug, Default)]
pub struct StreamOptions {
    /// The name in errors and traces.
    pub label: Arc<str>,
    /// How urgent it is.
    pub priority: Priority,
    /// The stream's public number, for traces.
    pub key: u64,
    /// The number of its runtime in this process, for traces.
    pub runtime: u64,
    /// A stream of other code to work on, which lives for as long as this one. A driver without raw
    /// streams refuses it.
    pub borrowed: Option<RawHandle>,
}

/// A driver's own handle of a stream: a `CUstream`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawHandle(*mut c_void);

// SAFETY: it is a number until the driver gets it, and drivers take streams from any thread.
unsafe impl Send for RawHandle {}
// SAFETY: as above.
unsafe impl Sync for RawHandle {}

impl RawHandle {
    /// A handle of this value.
    pub fn new<T>(handle: *mut T) -> Self {
        RawHandle(handle.cast())
    }

    /// Its value.
    pub fn as_ptr(self) -> *mut c_void {
        self.0
    }
}

/// What sort of device one is, from `Device::properties`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceProperties {
    /// Its name, as its maker has it: `NVIDIA L4`. The same for devices of one model.
    pub name: String,
    /// Its memory, in bytes; 0 if that is not known, as of the CPU device.
    pub total_bytes: usize,
    /// What tells it from others, whatever `CUDA_VISIBLE_DEVICES` numbers it as; `nvidia-smi -L` shows it. None of a CPU device.
    pub uuid: Option<[u8; 16]>,
    /// The compute capability of a GPU, major and minor: (9, 0) is Hopper's.
    pub compute_capability: Option<(u32, u32)>,
    /// Streaming multiprocessors of a GPU, worker threads else.
    pub multiprocessors: u32,
    /// The most dynamic shared memory that a launch can ask for, in bytes a block
    /// ([`LaunchConfig::with_shared_bytes`](crate::kernel::LaunchConfig::with_shared_bytes)).
    pub shared_bytes_per_block: u32,
    /// Whether all blocks of a launch can wait for each other
    /// ([`LaunchConfig::cooperatively`](crate::kernel::LaunchConfig::cooperatively)).
    pub cooperative_launch: bool,
    /// Whether the device writes its progress to host memory by itself; else events are asked, which costs more for each wake-up.
    pub completion_words: bool,
}

impl DeviceProperties {
    /// Those of a device of which nothing is known but its name.
    pub fn unknown(name: String) -> Self {
        DeviceProperties {
            name,
            total_bytes: 0,
            uuid: None,
            compute_capability: None,
            multiprocessors: 0,
            shared_bytes_per_block: 0,
            cooperative_launch: false,
            completion_words: false,
        }
    }
}
