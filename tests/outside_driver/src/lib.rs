//! A backend written against `warpline-driver` alone: one thread per stream, on the host's memory.
//!
//! It is a minimal backend that keeps the contract, and a start for one of your own. A real backend
//! enqueues work where `stream.rs` runs it.
//!
//! | file | contents |
//! |---|---|
//! | `lib.rs` | the device: streams, memory, shutdown |
//! | `stream.rs` | the thread of a stream: how it runs, waits and fails |
//! | `work.rs` | the effect of each command on memory |

mod stream;
mod work;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use stream::ThreadStream;
use warpline_driver::{
    Completion, DeviceId, DevicePtr, Driver, DriverError, DriverGraph, DriverStream, Health, Plan,
    StreamOptions, Timeline, Work,
};

/// The name of the backend. Its devices are `thread:0`, `thread:1` and so on.
pub const BACKEND: &str = "thread";

/// The alignment that [`Driver::alloc`] requires.
const ALIGN: usize = 256;

/// A device of the backend.
#[derive(Debug)]
pub struct ThreadDevice(Arc<Shared>);

/// The state that a device and its streams share.
#[derive(Debug)]
struct Shared {
    id: DeviceId,
    health: Arc<Health>,
    stopping: AtomicBool,
    /// All streams that are not dropped. Nothing is called while the lock is held.
    streams: Mutex<Vec<Weak<ThreadStream>>>,
}

impl ThreadDevice {
    /// Opens `thread:ordinal`.
    pub fn open(ordinal: u32, health: Arc<Health>) -> Self {
        ThreadDevice(Arc::new(Shared {
            id: DeviceId::Other { backend: BACKEND, ordinal },
            health,
            stopping: AtomicBool::new(false),
            streams: Mutex::default(),
        }))
    }
}

impl Shared {
    /// Returns the streams that exist now.
    fn streams(&self) -> Vec<Arc<ThreadStream>> {
        let mut streams = self.streams.lock().expect("nobody panics under it");
        streams.retain(|stream| stream.strong_count() > 0);
        streams.iter().filter_map(Weak::upgrade).collect()
    }

    /// Wakes every stream, so that it looks at the device's state again.
    fn wake_streams(&self) {
        self.streams().iter().for_each(|stream| stream.wake());
    }
}

fn layout(len_bytes: usize) -> Result<Layout, DriverError> {
    Layout::from_size_align(len_bytes.max(1), ALIGN).map_err(|_| DriverError::OutOfMemory(None))
}

fn alloc(len_bytes: usize) -> Result<*mut u8, DriverError> {
    // SAFETY: alloc_zeroed needs a layout that is not empty. `layout` makes it at least one byte
    // long.
    let memory = unsafe { alloc_zeroed(layout(len_bytes)?) };
    if memory.is_null() { Err(DriverError::OutOfMemory(None)) } else { Ok(memory) }
}

/// # Safety
/// `memory` came from [`alloc`] with the same length and is not used any more.
unsafe fn free(memory: *mut u8, len_bytes: usize) {
    let layout = layout(len_bytes).expect("it was allocated with it");
    // SAFETY: dealloc needs a block that alloc_zeroed returned for this layout. The caller
    // guarantees that.
    unsafe { dealloc(memory, layout) };
}

// SAFETY: the contract requires order on each stream, which its thread keeps. It also requires
// memory that has no other owner, which the host's allocator provides.
unsafe impl Driver for ThreadDevice {
    fn id(&self) -> DeviceId {
        self.0.id
    }

    fn completion(&self) -> Completion {
        Completion::EveryOp
    }

    fn new_stream(
        &self,
        options: &StreamOptions,
        timeline: Arc<Timeline>,
    ) -> Result<Arc<dyn DriverStream>, DriverError> {
        if options.borrowed.is_some() {
            return Err(DriverError::Refused("the device has no raw streams; make one of its own".into()));
        }
        let stream = ThreadStream::start(self.0.clone(), options, timeline)
            .map_err(|error| DriverError::Refused(format!("no thread for the stream: {error}").into()))?;
        self.0.streams.lock().expect("nobody panics under it").push(Arc::downgrade(&stream));
        Ok(stream)
    }

    fn alloc(&self, len_bytes: usize) -> Result<DevicePtr, DriverError> {
        alloc(len_bytes).map(|memory| DevicePtr(memory.expose_provenance() as u64))
    }

    unsafe fn free(&self, ptr: DevicePtr, len_bytes: usize) {
        // SAFETY: the requirements of `Driver::free` include those of `free`.
        unsafe { free(std::ptr::with_exposed_provenance_mut(ptr.0 as usize), len_bytes) };
    }

    fn alloc_host(&self, len_bytes: usize) -> Result<*mut u8, DriverError> {
        alloc(len_bytes)
    }

    unsafe fn free_host(&self, ptr: *mut u8, len_bytes: usize) {
        // SAFETY: the requirements of `Driver::free_host` include those of `free`.
        unsafe { free(ptr, len_bytes) };
    }

    fn instantiate(&self, plan: &Arc<Plan>) -> Result<DriverGraph, DriverError> {
        for step in &plan.steps {
            if let Work::Launch(launch) = &step.work {
                work::check(launch.kernel)?;
            }
        }
        Ok(plan.clone())
    }

    fn shut_down(&self) {
        self.0.stopping.store(true, Ordering::SeqCst);
        self.0.wake_streams();
    }
}
