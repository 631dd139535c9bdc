//! The properties of devices, and the options of streams and wake-ups.

use crate::{Error, ErrorKind};
use std::ffi::c_void;
use std::str::FromStr;
use std::sync::Arc;

/// The way in which a driver completes tickets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The driver completes each ticket by itself.
    EveryOp,
    /// The driver completes only tickets that [`DriverStream::signal`](super::DriverStream::signal)
    /// was called for.
    Signalled,
}

/// The wake-up mode: how eagerly the host checks the progress of CUDA devices. It trades CPU time
/// for wake-up latency.
///
/// One thread per process, the reactor, checks all CUDA devices. It sleeps while nothing is
/// awaited. While something is awaited, it spins, then yields, then sleeps for a sixteenth of the
/// time since the last progress, at most a millisecond. Long work therefore costs little CPU time,
/// and its end is noticed late by at most about a sixteenth of its duration.
///
/// This setting decides how long the reactor spins first. If several runtimes are waiting with
/// different settings, the most eager setting applies. The CPU device wakes its waiters by itself.
///
/// It is set by `RuntimeBuilder::wake_up` or, in a runtime made from the environment, by
/// `WARPLINE_WAKE_UP`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WakeUp {
    /// Never spins. Wake-ups come at least 50 µs late and cost the least CPU time.
    LowPower,
    /// Spins for 20 µs after progress, then sleeps for increasingly long times.
    #[default]
    Balanced,
    /// Spins for 200 µs after progress, and for 20 µs in each `poll` of something unfinished.
    /// Occupies a core while something is awaited.
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

// Decision: docs/decisions/0035-normal-priority-is-zero.md
/// The urgency of a stream's work when several streams could run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Lower than the default priority of other libraries' streams. Most CUDA devices have no lower
    /// priority, and treat this as `Normal`.
    Low,
    /// The default priority of other libraries' streams: 0 on CUDA devices.
    #[default]
    Normal,
    /// The highest priority that the device has.
    High,
}

/// The memory of a device at the time when an allocation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeMemory {
    /// Bytes that were still free.
    pub free_bytes: usize,
    /// Bytes of the device in total.
    pub total_bytes: usize,
}

/// Memory of a device that is still allocated, because calls that were to free it failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotFreed {
    /// Bytes of device memory.
    pub device_bytes: usize,
    /// Bytes of host memory, from [`Driver::alloc_host`](crate::Driver::alloc_host).
    pub host_bytes: usize,
}

/// The options of a new stream.
#[derive(Clone, Debug, Default)]
pub struct StreamOptions {
    /// The name in errors and traces.
    pub label: Arc<str>,
    /// The urgency of the stream's work.
    pub priority: Priority,
    /// The stream's public number, for traces.
    pub key: u64,
    /// The number of its runtime in this process, for traces.
    pub runtime: u64,
    /// A stream created by other code, to be used instead of a new one. It outlives this stream. A
    /// driver without raw streams refuses it.
    pub borrowed: Option<RawHandle>,
}

/// A driver's own handle of a stream, such as a `CUstream`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawHandle(*mut c_void);

// SAFETY: it is only a number until the driver gets it, and drivers accept streams from any thread.
unsafe impl Send for RawHandle {}
// SAFETY: as above.
unsafe impl Sync for RawHandle {}

impl RawHandle {
    /// Creates a handle of this value.
    pub fn new<T>(handle: *mut T) -> Self {
        RawHandle(handle.cast())
    }

    /// Returns the value.
    pub fn as_ptr(self) -> *mut c_void {
        self.0
    }
}

/// The properties of a device, as returned by `Device::properties`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceProperties {
    /// The name that the manufacturer gives it, such as `NVIDIA L4`. It is the same for devices of
    /// one model.
    pub name: String,
    /// The device memory in bytes; 0 if it is not known. For a CPU device it is the memory of the
    /// machine on Linux and macOS, and 0 elsewhere.
    pub total_bytes: usize,
    /// The unique identity of the device, which does not depend on `CUDA_VISIBLE_DEVICES`.
    /// `None` for a CPU device. [`uuid_text`](Self::uuid_text) writes it like `nvidia-smi -L`.
    pub uuid: Option<[u8; 16]>,
    /// The compute capability of a GPU, major and minor: (9, 0) is Hopper's.
    pub compute_capability: Option<(u32, u32)>,
    /// The number of streaming multiprocessors of a GPU, or of worker threads of another device.
    pub multiprocessors: u32,
    /// The most dynamic shared memory that a launch can request, in bytes per block
    /// ([`LaunchConfig::with_shared_bytes`](crate::kernel::LaunchConfig::with_shared_bytes)).
    pub shared_bytes_per_block: u32,
    /// True if the device supports launches in which all blocks can wait for each other
    /// ([`LaunchConfig::cooperatively`](crate::kernel::LaunchConfig::cooperatively)).
    pub cooperative_launch: bool,
    /// True if the device writes its progress to host memory by itself. Otherwise the host queries
    /// events, which costs more for each wake-up.
    pub completion_words: bool,
}

impl DeviceProperties {
    /// Returns the UUID as `nvidia-smi -L` shows it and `CUDA_VISIBLE_DEVICES` takes it, such as
    /// `GPU-8932f937-d72c-4106-c12f-20bd9faed9f6`. `None` for a CPU device. Of a part of a GPU
    /// (MIG), whose UUID begins with `MIG-` there, it has the wrong beginning.
    pub fn uuid_text(&self) -> Option<String> {
        let mut text = "GPU-".to_owned();
        for (at, byte) in self.uuid?.iter().enumerate() {
            let dash = if let 4 | 6 | 8 | 10 = at { "-" } else { "" };
            text += &format!("{dash}{byte:02x}");
        }
        Some(text)
    }

    /// Returns properties of which only the name is known.
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
