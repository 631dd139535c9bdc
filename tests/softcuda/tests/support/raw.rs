//! The driver's C API, called as from C. Each call returns its code as a number.

use cudarc::driver::sys;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

/// Calls an entry point and returns its code.
macro_rules! cu {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        // SAFETY: pointers for results point to live variables of the test. The driver has to check
        // every other argument, which is what the tests check.
        unsafe { cudarc::driver::sys::$name($($arg),*) as u32 }
    }};
}
pub(crate) use cu;

/// Calls an entry point that has to succeed.
macro_rules! ok {
    ($name:ident($($arg:expr),* $(,)?)) => {
        assert_eq!($crate::raw::cu!($name($($arg),*)), 0, stringify!($name))
    };
}
pub(crate) use ok;

pub(crate) const INVALID_VALUE: u32 = 1;
pub(crate) const OUT_OF_MEMORY: u32 = 2;
pub(crate) const NOT_INITIALIZED: u32 = 3;
pub(crate) const NO_DEVICE: u32 = 100;
pub(crate) const INVALID_DEVICE: u32 = 101;
pub(crate) const INVALID_IMAGE: u32 = 200;
pub(crate) const INVALID_CONTEXT: u32 = 201;
pub(crate) const NO_BINARY_FOR_GPU: u32 = 209;
pub(crate) const INVALID_PTX: u32 = 218;
pub(crate) const UNSUPPORTED_PTX_VERSION: u32 = 222;
pub(crate) const INVALID_HANDLE: u32 = 400;
pub(crate) const NOT_FOUND: u32 = 500;
pub(crate) const NOT_READY: u32 = 600;
pub(crate) const ILLEGAL_ADDRESS: u32 = 700;
pub(crate) const CONTEXT_IS_DESTROYED: u32 = 709;
pub(crate) const LAUNCH_FAILED: u32 = 719;
pub(crate) const NOT_PERMITTED: u32 = 800;
pub(crate) const NOT_SUPPORTED: u32 = 801;

/// Makes the primary context of a device current, and returns it.
pub(crate) fn start_on(device: i32) -> sys::CUcontext {
    ok!(cuInit(0));
    let mut context = std::ptr::null_mut();
    ok!(cuDevicePrimaryCtxRetain(&mut context, device));
    ok!(cuCtxSetCurrent(context));
    context
}

/// Makes the primary context of the first device current, and returns it.
pub(crate) fn start() -> sys::CUcontext {
    start_on(0)
}

/// Creates a non-blocking stream.
pub(crate) fn stream() -> sys::CUstream {
    let mut stream = std::ptr::null_mut();
    ok!(cuStreamCreate(&mut stream, 1));
    stream
}

/// Creates an event without timing.
pub(crate) fn event() -> sys::CUevent {
    event_with(2)
}

/// Creates an event with these flags.
pub(crate) fn event_with(flags: u32) -> sys::CUevent {
    let mut event = std::ptr::null_mut();
    ok!(cuEventCreate(&mut event, flags));
    event
}

/// Allocates device memory.
pub(crate) fn alloc(bytes: usize) -> u64 {
    let mut address = 0;
    ok!(cuMemAlloc_v2(&mut address, bytes));
    address
}

/// Allocates page-locked memory that is zero.
pub(crate) fn pinned(bytes: usize) -> *mut c_void {
    let mut memory = std::ptr::null_mut();
    ok!(cuMemHostAlloc(&mut memory, bytes, 3));
    memory
}

/// A word in page-locked memory.
#[derive(Clone, Copy)]
pub(crate) struct Word(usize);

impl Word {
    pub(crate) fn new() -> Self {
        Word::at(pinned(8))
    }

    /// Returns the word at an address.
    pub(crate) fn at(address: *mut c_void) -> Self {
        Word(address as usize)
    }

    /// Returns the device address of the word.
    pub(crate) fn address(self) -> u64 {
        let mut address = 0;
        ok!(cuMemHostGetDevicePointer_v2(&mut address, self.host(), 0));
        address
    }

    pub(crate) fn host(self) -> *mut c_void {
        self.0 as *mut c_void
    }

    fn atomic(&self) -> &AtomicU64 {
        // SAFETY: eight bytes of page-locked memory, which the tests use only as this word.
        unsafe { AtomicU64::from_ptr(self.0 as *mut u64) }
    }

    pub(crate) fn load(self) -> u64 {
        self.atomic().load(Ordering::Acquire)
    }

    pub(crate) fn store(self, value: u64) {
        self.atomic().store(value, Ordering::Release);
    }

    /// Waits until the word has this value.
    pub(crate) fn wait_for(self, value: u64) {
        while self.load() != value {
            std::thread::yield_now();
        }
    }

    /// Enqueues a write of `value` to the word.
    pub(crate) fn written_by(self, stream: sys::CUstream, value: u64) {
        ok!(cuStreamWriteValue64_v2(stream, self.address(), value, 0));
    }
}

/// A gate, which holds a stream until it is opened.
pub(crate) struct Gate(Word);

impl Gate {
    pub(crate) fn on(stream: sys::CUstream) -> Self {
        let word = Word::new();
        ok!(cuStreamWaitValue64_v2(stream, word.address(), 1, 0));
        Gate(word)
    }

    pub(crate) fn open(&self) {
        self.0.store(1);
    }
}

/// Loads a module and returns one of its functions, or the code of the call that failed.
pub(crate) fn function(ptx: &str, name: &str) -> Result<sys::CUfunction, u32> {
    let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
    let (ptx, name) = (std::ffi::CString::new(ptx).unwrap(), std::ffi::CString::new(name).unwrap());
    let refused = cu!(cuModuleLoadData(&mut module, ptx.as_ptr().cast()));
    if refused != 0 {
        return Err(refused);
    }
    match cu!(cuModuleGetFunction(&mut function, module, name.as_ptr())) {
        0 => Ok(function),
        refused => Err(refused),
    }
}

/// Launches a function with one block of one thread, and returns the code.
pub(crate) fn launch(function: sys::CUfunction, stream: sys::CUstream, args: &mut [*mut c_void]) -> u32 {
    cu!(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, args.as_mut_ptr(), std::ptr::null_mut()))
}

/// Launches `add`, which adds `a` to `n` floats at `x`.
pub(crate) fn launch_add(function: sys::CUfunction, stream: sys::CUstream, x: u64, a: f32, n: u32) -> u32 {
    let (mut x, mut a, mut n) = (x, a, n);
    launch(function, stream, &mut [(&raw mut x).cast(), (&raw mut a).cast(), (&raw mut n).cast()])
}

/// Launches `add` with `a` = 1 and the length of `x`, for kernels that are registered with lengths.
pub(crate) fn launch_add_len(
    function: sys::CUfunction,
    stream: sys::CUstream,
    (x, len): (u64, u64),
    n: u32,
) -> u32 {
    let (mut x, mut len, mut n, mut a) = (x, len, n, 1f32);
    let args =
        &mut [(&raw mut x).cast(), (&raw mut a).cast(), (&raw mut n).cast(), (&raw mut len).cast::<c_void>()];
    launch(function, stream, args)
}

/// Reads floats from device memory.
pub(crate) fn floats<const N: usize>(address: u64) -> [f32; N] {
    let mut floats = [0.0; N];
    ok!(cuMemcpyDtoH_v2((&raw mut floats).cast(), address, N * 4));
    floats
}

/// Allocates device memory with these floats.
pub(crate) fn upload(floats: &[f32]) -> u64 {
    let address = alloc(size_of_val(floats));
    ok!(cuMemcpyHtoD_v2(address, floats.as_ptr().cast(), size_of_val(floats)));
    address
}
