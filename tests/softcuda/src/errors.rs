//! The driver's result codes and the failures of calls.

use std::ffi::CStr;
use std::io::Write;

/// A `CUresult`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) u32);

macro_rules! codes {
    ($($name:ident = $value:literal $sentence:literal)*) => {
        #[allow(dead_code, reason = "some are only ever what a plan asks for")]
        impl Code {
            $(pub(crate) const $name: Code = Code($value);)*

            /// Returns the C name of the code and a sentence about it.
            pub(crate) fn texts(self) -> Option<(&'static CStr, &'static CStr)> {
                let (name, sentence) = match self.0 {
                    0 => ("CUDA_SUCCESS\0", "no error\0"),
                    $($value => (
                        concat!("CUDA_ERROR_", stringify!($name), "\0"),
                        concat!($sentence, "\0"),
                    ),)*
                    _ => return None,
                };
                let c_str = |text: &'static str| CStr::from_bytes_with_nul(text.as_bytes()).ok();
                Some((c_str(name)?, c_str(sentence)?))
            }
        }
    };
}

impl Code {
    pub(crate) const SUCCESS: Code = Code(0);

    /// Returns the C name, or the number of a code that has no name here.
    pub(crate) fn name(self) -> String {
        match self.texts() {
            Some((name, _)) => name.to_string_lossy().into_owned(),
            None => format!("error {}", self.0),
        }
    }
}

// Every `CUDA_ERROR_…` of cuda.h 12.9, for cuGetErrorName.
codes! {
    INVALID_VALUE = 1 "invalid argument"
    OUT_OF_MEMORY = 2 "out of memory"
    NOT_INITIALIZED = 3 "initialization error"
    DEINITIALIZED = 4 "driver shutting down"
    PROFILER_DISABLED = 5 "profiler disabled while using external profiling tool"
    PROFILER_NOT_INITIALIZED = 6 "profiler not initialized"
    PROFILER_ALREADY_STARTED = 7 "profiler already started"
    PROFILER_ALREADY_STOPPED = 8 "profiler already stopped"
    STUB_LIBRARY = 34 "CUDA driver is a stub library"
    CALL_REQUIRES_NEWER_DRIVER = 36 "the API call requires a newer CUDA driver"
    DEVICE_UNAVAILABLE = 46 "the device is busy or unavailable"
    MULTICAST_RESOURCE_FULL = 47 "no multicast object can be made at this time"
    NO_DEVICE = 100 "no CUDA-capable device is detected"
    INVALID_DEVICE = 101 "invalid device ordinal"
    DEVICE_NOT_LICENSED = 102 "the device has no valid license"
    INVALID_IMAGE = 200 "device kernel image is invalid"
    INVALID_CONTEXT = 201 "invalid device context"
    CONTEXT_ALREADY_CURRENT = 202 "context already current"
    MAP_FAILED = 205 "mapping of buffer object failed"
    UNMAP_FAILED = 206 "unmapping of buffer object failed"
    ARRAY_IS_MAPPED = 207 "array is mapped"
    ALREADY_MAPPED = 208 "resource already mapped"
    NO_BINARY_FOR_GPU = 209 "no kernel image is available for execution on the device"
    ALREADY_ACQUIRED = 210 "resource already acquired"
    NOT_MAPPED = 211 "resource not mapped"
    NOT_MAPPED_AS_ARRAY = 212 "resource not mapped as array"
    NOT_MAPPED_AS_POINTER = 213 "resource not mapped as pointer"
    ECC_UNCORRECTABLE = 214 "uncorrectable ECC error encountered"
    UNSUPPORTED_LIMIT = 215 "limit is not supported on this architecture"
    CONTEXT_ALREADY_IN_USE = 216 "the context is in use by another thread"
    PEER_ACCESS_UNSUPPORTED = 217 "peer access is not supported between these two devices"
    INVALID_PTX = 218 "a PTX JIT compilation failed"
    INVALID_GRAPHICS_CONTEXT = 219 "invalid OpenGL or DirectX context"
    NVLINK_UNCORRECTABLE = 220 "uncorrectable NVLink error detected during the execution"
    JIT_COMPILER_NOT_FOUND = 221 "PTX JIT compiler library not found"
    UNSUPPORTED_PTX_VERSION = 222 "the provided PTX was compiled with an unsupported toolchain."
    JIT_COMPILATION_DISABLED = 223 "PTX JIT compilation was disabled"
    UNSUPPORTED_EXEC_AFFINITY = 224 "the provided execution affinity is not supported"
    UNSUPPORTED_DEVSIDE_SYNC = 225 "the provided PTX contains a device-side synchronization that is not supported"
    CONTAINED = 226 "an exception occurred on the device and was contained"
    INSUFFICIENT_LOADER_VERSION = 227 "the loader version is insufficient"
    INVALID_SOURCE = 300 "device kernel image is invalid"
    FILE_NOT_FOUND = 301 "file not found"
    SHARED_OBJECT_SYMBOL_NOT_FOUND = 302 "shared object symbol not found"
    SHARED_OBJECT_INIT_FAILED = 303 "shared object initialization failed"
    OPERATING_SYSTEM = 304 "OS call failed or operation not supported on this OS"
    INVALID_HANDLE = 400 "invalid resource handle"
    ILLEGAL_STATE = 401 "the operation cannot be performed in the present state"
    LOSSY_QUERY = 402 "a semantically important part of the answer cannot be given"
    NOT_FOUND = 500 "named symbol not found"
    NOT_READY = 600 "device not ready"
    ILLEGAL_ADDRESS = 700 "an illegal memory access was encountered"
    LAUNCH_OUT_OF_RESOURCES = 701 "too many resources requested for launch"
    LAUNCH_TIMEOUT = 702 "the launch timed out and was terminated"
    LAUNCH_INCOMPATIBLE_TEXTURING = 703 "the launch uses an incompatible texturing mode"
    PEER_ACCESS_ALREADY_ENABLED = 704 "peer access is already enabled"
    PEER_ACCESS_NOT_ENABLED = 705 "peer access has not been enabled"
    PRIMARY_CONTEXT_ACTIVE = 708 "cannot set while device is active in this process"
    CONTEXT_IS_DESTROYED = 709 "context is destroyed"
    ASSERT = 710 "device-side assert triggered"
    TOO_MANY_PEERS = 711 "peer mapping resources exhausted"
    HOST_MEMORY_ALREADY_REGISTERED = 712 "part or all of the requested memory range is already mapped"
    HOST_MEMORY_NOT_REGISTERED = 713 "pointer does not correspond to a registered memory region"
    HARDWARE_STACK_ERROR = 714 "hardware stack error"
    ILLEGAL_INSTRUCTION = 715 "an illegal instruction was encountered"
    MISALIGNED_ADDRESS = 716 "misaligned address"
    INVALID_ADDRESS_SPACE = 717 "operation not supported on this address space"
    INVALID_PC = 718 "invalid program counter"
    LAUNCH_FAILED = 719 "unspecified launch failure"
    COOPERATIVE_LAUNCH_TOO_LARGE = 720 "too many blocks in cooperative launch"
    TENSOR_MEMORY_LEAK = 721 "tensor memory not completely freed"
    NOT_PERMITTED = 800 "operation not permitted"
    NOT_SUPPORTED = 801 "operation not supported"
    SYSTEM_NOT_READY = 802 "system not yet initialized"
    SYSTEM_DRIVER_MISMATCH = 803 "system has unsupported display driver / cuda driver combination"
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804 "forward compatibility was attempted on hardware without support for it"
    MPS_CONNECTION_FAILED = 805 "the MPS client failed to connect to the MPS control daemon or server"
    MPS_RPC_FAILURE = 806 "a remote procedure call between the MPS server and client failed"
    MPS_SERVER_NOT_READY = 807 "the MPS server is not ready to accept new clients"
    MPS_MAX_CLIENTS_REACHED = 808 "all resources for MPS clients are in use"
    MPS_MAX_CONNECTIONS_REACHED = 809 "all resources for device connections are in use"
    MPS_CLIENT_TERMINATED = 810 "the MPS client has been terminated by the server"
    CDP_NOT_SUPPORTED = 811 "the program uses dynamic parallelism, which this configuration does not support"
    CDP_VERSION_MISMATCH = 812 "the program mixes versions of dynamic parallelism"
    STREAM_CAPTURE_UNSUPPORTED = 900 "operation not permitted when stream is capturing"
    STREAM_CAPTURE_INVALIDATED = 901 "operation failed due to a previous error during capture"
    STREAM_CAPTURE_MERGE = 902 "operation would result in a merge of separate capture sequences"
    STREAM_CAPTURE_UNMATCHED = 903 "capture was not ended in the same stream as it began"
    STREAM_CAPTURE_UNJOINED = 904 "capturing stream has unjoined work"
    STREAM_CAPTURE_ISOLATION = 905 "dependency created on uncaptured work in another stream"
    STREAM_CAPTURE_IMPLICIT = 906 "operation would make the legacy stream depend on a capturing blocking stream"
    CAPTURED_EVENT = 907 "operation not permitted on an event last recorded in a capturing stream"
    STREAM_CAPTURE_WRONG_THREAD = 908 "attempt to terminate a thread-local capture sequence from another thread"
    TIMEOUT = 909 "wait operation timed out"
    GRAPH_EXEC_UPDATE_FAILURE = 910 "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update"
    EXTERNAL_DEVICE = 911 "an error occurred on a device outside of CUDA"
    INVALID_CLUSTER_SIZE = 912 "cluster misconfiguration"
    FUNCTION_NOT_LOADED = 913 "the function handle is not loaded"
    INVALID_RESOURCE_TYPE = 914 "the resource type is invalid for this operation"
    INVALID_RESOURCE_CONFIGURATION = 915 "the resource configuration is invalid"
    KEY_ROTATION = 916 "an error occurred during key rotation"
    STREAM_DETACHED = 917 "the stream is detached"
    UNKNOWN = 999 "unknown error"
}

/// The failure of a call: its code and, where a caller's mistake is likely, a line for stderr.
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) why: Option<Box<str>>,
}

impl From<Code> for Failure {
    fn from(code: Code) -> Self {
        Failure { code, why: None }
    }
}

/// The result of an entry point's body.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Returns from the enclosing function with a code and a line for stderr.
macro_rules! refuse {
    ($code:ident, $($why:tt)*) => {
        return Err($crate::errors::Failure {
            code: $crate::errors::Code::$code,
            why: Some(format!($($why)*).into()),
        })
    };
}
pub(crate) use refuse;

/// Writes a line to stderr, this library's only place for messages.
pub(crate) fn say(line: &str) {
    // A single write keeps the line whole: other threads and processes write to stderr too.
    let _ = std::io::stderr().write_all(format!("softcuda: {line}\n").as_bytes());
}

/// Returns the name of this thread from the operating system.
///
/// `std::thread::current` does not know it: the program's threads belong to another copy of the
/// standard library.
pub(crate) fn thread_name() -> String {
    let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap_or_default();
    name.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_their_c_names() {
        assert_eq!(Code::ILLEGAL_ADDRESS.name(), "CUDA_ERROR_ILLEGAL_ADDRESS");
        assert_eq!(Code::SUCCESS.name(), "CUDA_SUCCESS");
        assert_eq!(Code(4711).name(), "error 4711");
    }
}
