//! Direct driver calls, as a program without a runtime makes them: the rivals of the GPU benches.

use cudarc::driver::{result, sys};
use std::ffi::{CString, c_void};
use std::sync::atomic::AtomicU64;

/// `CU_MEMHOSTALLOC_PORTABLE`
const PORTABLE: u32 = 1;
/// `CU_MEMHOSTALLOC_DEVICEMAP`
const MAPPED: u32 = 2;

/// The context of a device that was opened on this thread.
#[derive(Clone, Copy)]
pub struct Raw(sys::CUcontext);

// SAFETY: a context may be used from any thread.
unsafe impl Send for Raw {}
// SAFETY: threads may use a context concurrently.
unsafe impl Sync for Raw {}

#[derive(Clone, Copy)]
pub struct RawStream(pub sys::CUstream);

// SAFETY: a stream may be used from any thread.
unsafe impl Send for RawStream {}
// SAFETY: threads may use a stream concurrently.
unsafe impl Sync for RawStream {}

#[derive(Clone, Copy)]
pub struct RawKernel(sys::CUfunction);

// SAFETY: a function may be used from any thread.
unsafe impl Send for RawKernel {}

#[derive(Clone, Copy)]
pub struct RawEvent(sys::CUevent);

/// A word in page-locked memory, with its host and its device address.
#[derive(Clone, Copy)]
pub struct Word {
    pub host: &'static AtomicU64,
    pub device: u64,
}

impl Word {
    pub fn host_address(&self) -> u64 {
        std::ptr::from_ref(self.host) as u64
    }
}

impl Raw {
    /// Returns the context that is current on this thread. The caller has opened and used a device
    /// on it.
    pub fn of_this_thread() -> Self {
        Raw(result::ctx::get_current().expect("a driver").expect("a context is current"))
    }

    /// Returns the current context of this thread, if it has one.
    pub fn current() -> Option<Self> {
        result::ctx::get_current().expect("a driver").map(Raw)
    }

    /// Makes no context current on this thread.
    pub fn none() {
        // SAFETY: cuCtxSetCurrent takes a context or null.
        unsafe { result::ctx::set_current(std::ptr::null_mut()) }.expect("nothing is current");
    }

    /// Makes the context current on this thread.
    pub fn bind(self) {
        // SAFETY: the context is the device's primary one, which lives as long as the process.
        unsafe { result::ctx::set_current(self.0) }.expect("it lives");
    }

    pub fn stream(self) -> RawStream {
        RawStream(result::stream::create(result::stream::StreamKind::NonBlocking).expect("a stream"))
    }

    pub fn kernel(self, text: &str, name: &str) -> RawKernel {
        let c = |text: &str| CString::new(text).expect("text without NUL");
        // SAFETY: cuModuleLoadData takes PTX text that ends with a NUL.
        let module = unsafe { result::module::load_data(c(text).as_ptr().cast()) }.expect("it loads");
        // SAFETY: the module is live and is never unloaded.
        RawKernel(unsafe { result::module::get_function(module, c(name)) }.expect("it is there"))
    }

    pub fn event(self) -> RawEvent {
        let untimed = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        RawEvent(result::event::create(untimed).expect("an event"))
    }

    pub fn word(self) -> Word {
        let bytes = self.pinned(4096);
        let mut device = 0;
        // SAFETY: cuMemHostGetDevicePointer takes mapped host memory and writes an address.
        let code =
            unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut device, bytes.as_mut_ptr().cast(), 0) };
        assert_eq!(code as u32, 0, "cuMemHostGetDevicePointer");
        // SAFETY: `pinned` zeroes the memory, aligns it to pages and never frees it. The host
        // accesses it only atomically.
        Word { host: unsafe { &*bytes.as_ptr().cast::<AtomicU64>() }, device }
    }

    /// Returns zeroed page-locked memory that lives as long as the process.
    pub fn pinned(self, len_bytes: usize) -> &'static mut [u8] {
        let mut host: *mut c_void = std::ptr::null_mut();
        // SAFETY: cuMemHostAlloc writes an address.
        let code = unsafe { sys::cuMemHostAlloc(&raw mut host, len_bytes, PORTABLE | MAPPED) };
        assert_eq!(code as u32, 0, "cuMemHostAlloc");
        // SAFETY: cuMemHostAlloc has just returned this memory, and it is `len_bytes` long.
        unsafe { host.cast::<u8>().write_bytes(0, len_bytes) };
        // SAFETY: the memory is initialised and never freed, and this is the only reference to it.
        unsafe { std::slice::from_raw_parts_mut(host.cast(), len_bytes) }
    }

    /// Returns the primary context of another device that was opened too.
    pub fn of_device(self, ordinal: i32) -> Self {
        let (mut device, mut context) = (0, std::ptr::null_mut());
        // SAFETY: cuDeviceGet writes a device.
        let code = unsafe { sys::cuDeviceGet(&raw mut device, ordinal) };
        assert_eq!(code as u32, 0, "cuDeviceGet");
        // SAFETY: cuDevicePrimaryCtxRetain writes a context. It is never released.
        let code = unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, device) };
        assert_eq!(code as u32, 0, "cuDevicePrimaryCtxRetain");
        Raw(context)
    }

    /// Allocates memory on the device of this context, whichever context is current. That one stays
    /// current.
    pub fn memory_there(self, len_bytes: usize) -> u64 {
        let before = Raw::of_this_thread();
        self.bind();
        let address = self.memory(len_bytes);
        before.bind();
        address
    }

    pub fn memory(self, len_bytes: usize) -> u64 {
        // SAFETY: the memory is uninitialised, and callers write it before they read it.
        unsafe { result::malloc_sync(len_bytes) }.expect("memory")
    }
}

impl RawEvent {
    pub fn query(self) -> u32 {
        // SAFETY: the event lives.
        unsafe { sys::cuEventQuery(self.0) as u32 }
    }
}

impl RawStream {
    /// Launches one block of 32 threads. The parameters are those of the kernel. Only the software
    /// driver reads any that follow them.
    pub fn launch(self, kernel: RawKernel, params: &mut [u64]) {
        let mut params: Vec<*mut c_void> = params.iter_mut().map(|param| (&raw mut *param).cast()).collect();
        // SAFETY: callers pass at least as many parameters as the kernel has, and memory that
        // lives.
        let done = unsafe { result::launch_kernel(kernel.0, (1, 1, 1), (32, 1, 1), 0, self.0, &mut params) };
        done.expect("it is taken");
    }

    pub fn write(self, word: Word, value: u64) -> u32 {
        // SAFETY: stream and word live.
        unsafe { sys::cuStreamWriteValue64_v2(self.0, word.device, value, 0) as u32 }
    }

    pub fn record(self, event: RawEvent) -> u32 {
        // SAFETY: stream and event live.
        unsafe { sys::cuEventRecord(event.0, self.0) as u32 }
    }

    /// Waits for the stream. Returns the code of the driver, 0 for success.
    pub fn synchronize(self) -> u32 {
        // SAFETY: the stream lives.
        unsafe { sys::cuStreamSynchronize(self.0) as u32 }
    }

    pub fn query(self) -> u32 {
        // SAFETY: the stream lives.
        unsafe { sys::cuStreamQuery(self.0) as u32 }
    }

    /// Enqueues a host function that adds one to a number.
    pub fn count_up(self, number: &'static AtomicU64) -> u32 {
        unsafe extern "C" fn add(number: *mut c_void) {
            // SAFETY: the number is static.
            unsafe { &*number.cast::<AtomicU64>() }.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
        // SAFETY: the function does not unwind, and the number that it gets is static.
        unsafe {
            sys::cuLaunchHostFunc(self.0, Some(add), std::ptr::from_ref(number).cast_mut().cast()) as u32
        }
    }

    /// # Safety
    /// Both outlive the copy: until the stream has been synchronized.
    pub unsafe fn copy_in(self, to: u64, from: &[u8]) {
        // SAFETY: the caller guarantees that both outlive the copy.
        unsafe { result::memcpy_htod_async(to, from, self.0) }.expect("it is taken");
    }

    /// Copies memory between the devices of two contexts.
    pub fn copy_across(self, to: (u64, Raw), from: (u64, Raw), len_bytes: usize) {
        // SAFETY: callers pass device memory that is at least that long and outlives the copy, with
        // its contexts.
        let code = unsafe { sys::cuMemcpyPeerAsync(to.0, to.1.0, from.0, from.1.0, len_bytes, self.0) };
        assert_eq!(code as u32, 0, "cuMemcpyPeerAsync");
    }

    /// Fills `len` elements of four bytes.
    pub fn fill(self, to: u64, value: u32, len: usize) {
        // SAFETY: callers pass device memory that is at least that long and outlives the fill.
        let code = unsafe { sys::cuMemsetD32Async(to, value, len, self.0) };
        assert_eq!(code as u32, 0, "cuMemsetD32Async");
    }

    /// Begins to copy `to.len()` bytes out.
    ///
    /// # Safety
    /// Both outlive the copy, and nothing reads `to` before the copy has finished.
    pub unsafe fn begin_copy_out(self, to: &mut [u8], from: u64) {
        // SAFETY: the caller guarantees that both outlive the copy, and reads `to` only after it.
        unsafe { result::memcpy_dtoh_async(to, from, self.0) }.expect("it is taken");
    }

    /// Copies `to.len()` bytes out and waits for the copy.
    pub fn copy_out(self, to: &mut [u8], from: u64) {
        // SAFETY: callers pass device memory that is at least that long.
        unsafe { result::memcpy_dtoh_async(to, from, self.0) }.expect("it is taken");
        self.synchronize();
    }

    pub fn alloc_and_free(self, len_bytes: usize) {
        // SAFETY: cuMemAllocAsync takes a live stream.
        let address = unsafe { result::malloc_async(self.0, len_bytes) }.expect("memory");
        // SAFETY: no work uses the memory.
        unsafe { result::free_async(address, self.0) }.expect("it is taken back");
    }
}
