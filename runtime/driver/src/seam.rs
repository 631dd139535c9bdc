//! The traits that a backend implements: a device, and its streams.
// Decision: docs/decisions/0013-two-driver-traits.md
// Decision: docs/decisions/0014-halfway-submission-keeps-its-ticket.md

use crate::command::{DriverGraph, HostFn, Submission};
use crate::failure::DriverFailure;
use crate::kernel::{Kernel, LaunchConfig};
use crate::plan::Plan;
use crate::properties::{Completion, DeviceProperties, FreeMemory, NotFreed, RawHandle, StreamOptions};
use crate::stamp::DriverEvent;
use crate::timeline::{Ticket, Timeline};
use crate::{DeviceId, DevicePtr};
use std::any::Any;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use warpline_order::Site;

/// The reason why a driver call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverError {
    /// The device has no memory of that size. Holds the amount of free memory, if the driver knows
    /// it.
    OutOfMemory(Option<FreeMemory>),
    /// Any other failure, with the driver's name of the error and, if there is one, its
    /// description.
    Refused(DriverFailure),
    /// A refusal of a submission that needs several driver calls, of which at least the first
    /// succeeded. Its ticket is taken.
    Halfway(DriverFailure),
    /// Other code is capturing the stream.
    Captured(DriverFailure),
}

impl DriverError {
    /// Returns the failure that the driver reported; `None` where the device had no memory.
    pub const fn failure(&self) -> Option<&DriverFailure> {
        match self {
            DriverError::OutOfMemory(_) => None,
            DriverError::Refused(why) | DriverError::Halfway(why) | DriverError::Captured(why) => Some(why),
        }
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DriverError::OutOfMemory(None) => f.write_str("out of memory"),
            DriverError::OutOfMemory(Some(FreeMemory { free_bytes, total_bytes })) => {
                write!(f, "out of memory, {free_bytes} bytes free of {total_bytes}")
            }
            DriverError::Refused(why) | DriverError::Halfway(why) | DriverError::Captured(why) => why.fmt(f),
        }
    }
}

/// One device.
///
/// # Safety
/// The implementation keeps the [contract](crate#contract) of this crate. Memory that
/// [`alloc`](Self::alloc) and [`alloc_host`](Self::alloc_host) return has the requested length and
/// no other user, because safe code reads and writes it.
pub unsafe trait Driver: Send + Sync + fmt::Debug + 'static {
    /// Returns the name of this device.
    fn id(&self) -> DeviceId;

    /// Returns how this driver completes tickets.
    fn completion(&self) -> Completion;

    /// Creates a stream, whose progress goes to `timeline`. Dropping the returned value releases
    /// the stream once it is idle. Work already submitted still runs.
    fn new_stream(
        &self,
        options: &StreamOptions,
        timeline: Arc<Timeline>,
    ) -> Result<Arc<dyn DriverStream>, DriverError>;

    /// Allocates `len_bytes` of device memory, more than 0, aligned to at least 256 bytes.
    ///
    /// If twins run on the memory, as on the CPU device, it is all zero, since they read it as
    /// initialized memory. Otherwise its contents are unspecified until they are written.
    fn alloc(&self, len_bytes: usize) -> Result<DevicePtr, DriverError>;

    /// Frees device memory.
    ///
    /// # Safety
    /// `ptr` came from [`alloc`](Self::alloc) of this driver with the same length, and no work that
    /// touches it is unfinished or will be submitted.
    unsafe fn free(&self, ptr: DevicePtr, len_bytes: usize);

    /// Frees several allocations like [`free`](Self::free), because a caller is waiting for their
    /// memory.
    ///
    /// # Safety
    /// The rules of `free`, for each address and its length.
    unsafe fn free_all(&self, memory: Vec<(DevicePtr, usize)>) {
        for (ptr, len_bytes) in memory {
            // SAFETY: `free` has the same rules, which the caller keeps.
            unsafe { self.free(ptr, len_bytes) };
        }
    }

    /// Returns false while a call that frees memory might not return, for example because a gate
    /// holds a stream. The pools above the driver then free nothing, and the driver keeps memory
    /// that is freed nevertheless.
    fn can_free(&self) -> bool {
        true
    }

    /// Frees memory like [`free`](Self::free), but possibly later: no caller is waiting for the
    /// memory.
    ///
    /// # Safety
    /// The rules of `free`.
    unsafe fn free_in_time(&self, ptr: DevicePtr, len_bytes: usize) {
        // SAFETY: `free` has the same rules, which the caller keeps.
        unsafe { self.free(ptr, len_bytes) };
    }

    /// Returns the unit of addresses and lengths for [`reserve`](Self::reserve) and
    /// [`map`](Self::map), in bytes: a power of two, and at most 2 MiB. `None`: the device has no
    /// virtual memory.
    fn granule_bytes(&self) -> Option<usize> {
        None
    }

    /// Reserves `len_bytes` of addresses without memory behind them, a multiple of the granule.
    /// They start at a multiple of the granule, and stay reserved until the driver is dropped.
    ///
    /// # Errors
    /// If the device has no virtual memory or too few addresses.
    fn reserve(&self, _len_bytes: usize) -> Result<DevicePtr, DriverError> {
        Err(DriverError::Refused("the device has no virtual memory".into()))
    }

    /// Maps new memory to `len_bytes` reserved addresses from `at` on: pieces of `piece_bytes`
    /// each, of which the last may be shorter. All lengths are multiples of the granule. Maps
    /// everything or nothing. The contents are those of [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// The errors of `alloc`.
    ///
    /// # Safety
    /// The addresses came from [`reserve`](Self::reserve) of this driver, and have no memory.
    unsafe fn map(&self, _at: DevicePtr, _len_bytes: usize, _piece_bytes: usize) -> Result<(), DriverError> {
        Err(DriverError::Refused("the device has no virtual memory".into()))
    }

    /// Unmaps pieces and frees their memory, in the order given, until the device refuses one.
    /// Returns the number of pieces that were unmapped; the others are as before. Unmaps nothing
    /// where the call might not return, as with [`can_free`](Self::can_free). With `is_needed`, a
    /// caller is waiting for the memory, and the call may wait for gates as
    /// [`free_all`](Self::free_all) does.
    ///
    /// # Safety
    /// Each address and length is that of a whole piece which [`map`](Self::map) of this driver
    /// mapped, and no work that touches it is unfinished or will be submitted.
    unsafe fn unmap(&self, _pieces: &[(DevicePtr, usize)], _is_needed: bool) -> usize {
        0
    }

    /// Returns the memory that calls of [`free`](Self::free), [`free_in_time`](Self::free_in_time)
    /// and [`free_host`](Self::free_host) have failed to free so far. It stays allocated until the
    /// process ends.
    fn not_freed(&self) -> NotFreed {
        NotFreed::default()
    }

    /// Allocates `len_bytes` of host memory that the device can copy to and from while the host
    /// continues, aligned to 64 bytes. The memory is all zero, because users read it as initialized
    /// memory. May take milliseconds.
    fn alloc_host(&self, len_bytes: usize) -> Result<*mut u8, DriverError>;

    /// Returns true if [`alloc_host`](Self::alloc_host) is too slow to wait for. Pools then keep
    /// some memory ahead, and hold back work that needs more.
    fn host_memory_is_slow(&self) -> bool {
        false
    }

    /// Calls [`alloc_host`](Self::alloc_host) before the memory is needed. Returns `None` if the
    /// call could delay a thread that the device is waiting for, such as one that opens a gate.
    fn alloc_host_ahead(&self, len_bytes: usize) -> Option<Result<*mut u8, DriverError>> {
        Some(self.alloc_host(len_bytes))
    }

    /// Frees host memory, perhaps later.
    ///
    /// # Safety
    /// `ptr` came from [`alloc_host`](Self::alloc_host) of this driver with the same length, and no
    /// work that touches it is unfinished or will be submitted.
    unsafe fn free_host(&self, ptr: *mut u8, len_bytes: usize);

    /// Registers host memory, so that the device can copy to and from it while the host continues.
    /// May take milliseconds.
    ///
    /// # Safety
    /// The memory stays valid until [`unregister_host`](Self::unregister_host).
    ///
    /// # Errors
    /// If the driver refuses the memory, for example because it is registered already.
    unsafe fn register_host(&self, _ptr: *mut u8, _len_bytes: usize) -> Result<(), DriverError> {
        Ok(())
    }

    /// Unregisters memory that [`register_host`](Self::register_host) registered.
    ///
    /// # Safety
    /// The memory was registered with this driver, and no work that touches it is unfinished or
    /// will be submitted.
    ///
    /// # Errors
    /// If the driver does not release the memory. The memory then has to stay valid.
    unsafe fn unregister_host(&self, _ptr: *mut u8) -> Result<(), DriverError> {
        Ok(())
    }

    /// Returns the time between two events that [`Command::Stamp`](crate::Command::Stamp) recorded.
    /// The device has passed both. Returns 0 if it passed `later` first.
    ///
    /// # Errors
    /// If the events cannot be compared.
    fn elapsed(&self, _earlier: &DriverEvent, _later: &DriverEvent) -> Result<Duration, DriverError> {
        Err(DriverError::Refused("the device has no timed events; measure on the host".into()))
    }

    /// Asks the device whether it still works, before the caller reports success. Never blocks.
    ///
    /// # Errors
    /// If the device does not work. Its health reports the failure from then on.
    fn confirm(&self) -> Result<(), DriverError> {
        Ok(())
    }

    /// Returns the properties of the device.
    fn properties(&self) -> DeviceProperties {
        DeviceProperties::unknown(self.id().to_string())
    }

    /// Returns the free device memory in bytes as far as the driver knows, or `None` if it does not
    /// know.
    fn free_bytes(&self) -> Option<usize> {
        None
    }

    /// Returns true if this device reaches the memory of `peer`, another device of the backend,
    /// directly. Copies between the two work in any case.
    ///
    /// # Errors
    /// If the driver cannot tell.
    fn can_access_peer(&self, _peer: DeviceId) -> Result<bool, DriverError> {
        Ok(true)
    }

    /// Returns a launch configuration for `elements` independent elements that keeps the device
    /// busy.
    ///
    /// # Errors
    /// If the kernel cannot be loaded.
    fn suggest(
        &self,
        _kernel: &'static Kernel,
        elements: u64,
        shared_bytes: u32,
    ) -> Result<LaunchConfig, DriverError> {
        Ok(LaunchConfig::for_elements(elements).with_shared_bytes(shared_bytes))
    }

    /// Loads `kernel` now, so that its first launch does not have to.
    ///
    /// # Errors
    /// If the kernel cannot be loaded.
    fn load(&self, _kernel: &'static Kernel) -> Result<(), DriverError> {
        Ok(())
    }

    /// Prepares the library form of `kernel` for a launch outside of graphs. Returns its smallest
    /// and its best workspace size in bytes, or `None` if the device asks no library for it.
    ///
    /// # Errors
    /// If the library cannot be used. [`OutOfMemory`](DriverError::OutOfMemory) if it could be used
    /// with more memory.
    fn ready_library(&self, _kernel: &'static Kernel) -> Result<Option<RangeInclusive<usize>>, DriverError> {
        Ok(None)
    }

    /// Releases unused device memory that the driver keeps for libraries, perhaps later. Returns
    /// true if there is more free memory now.
    fn release_idle(&self) -> bool {
        false
    }

    /// Returns the address and the size in bytes of a variable in the module of `kernel`.
    ///
    /// # Errors
    /// If the module has no such variable, or the device has no modules.
    fn global(&self, _kernel: &'static Kernel, _name: &str) -> Result<(DevicePtr, usize), DriverError> {
        Err(DriverError::Refused("the device has no modules; pass a buffer to the kernel".into()))
    }

    /// Returns the workspace size in bytes that libraries want for each stream of `plan`. Where a
    /// size is more than 0, the plan then holds such a workspace when
    /// [`instantiate`](Self::instantiate) is called.
    ///
    /// # Errors
    /// If the device cannot tell the sizes.
    fn workspace_bytes(&self, plan: &Plan) -> Result<Vec<usize>, DriverError> {
        Ok(vec![0; plan.streams.len()])
    }

    /// Creates a graph from `plan`, for [`Command::Graph`](crate::Command::Graph) on streams of
    /// this device. May take milliseconds. The graph is dropped on any thread, once no work of it
    /// is unfinished.
    ///
    /// # Errors
    /// If the device has no graphs, or cannot create this one.
    fn instantiate(&self, _plan: &Arc<Plan>) -> Result<DriverGraph, DriverError> {
        Err(DriverError::Refused("the device has no graphs; enqueue the work op by op".into()))
    }

    /// Runs at most one piece of work on the calling thread, if this driver runs work only that
    /// way. Returns true if it ran one.
    ///
    /// For schedules without threads: every poll or query of something unfinished calls it. A poll
    /// calls it **after** registering its waker with the timeline. After `true` the poller wakes
    /// itself and checks again. After `false` it may sleep: the event that makes work runnable
    /// wakes it.
    fn turn(&self) -> bool {
        false
    }

    /// Returns true if the device has failed until the end of the process: no driver that is opened
    /// later can use it. Calls no driver function.
    fn is_lost_to_process(&self) -> bool {
        false
    }

    /// Notifies the driver that work was submitted and that the caller holds no lock any more. A
    /// driver that runs work in turns then wakes the pollers that found nothing to run. `submit`
    /// itself cannot do that, because wakers must not run under the stream's lock.
    fn after_submit(&self) {}

    /// Sets a function for a driver that runs work in turns: it wakes the pollers of other
    /// backends, whose work may wait for this driver's. Such a driver calls it whenever it wakes
    /// the pollers that found nothing to run, while it holds no lock. Called once, before there are
    /// streams.
    fn on_change(&self, _wake: Box<dyn Fn() + Send + Sync>) {}

    /// Returns how many streams the driver keeps track of, for statistics.
    fn streams_kept(&self) -> usize {
        0
    }

    /// Returns true if work of this device runs only in [`turn`](Self::turn).
    fn runs_in_turns(&self) -> bool {
        false
    }

    /// Asks the driver to stop. Work that can still run runs. Never blocks.
    ///
    /// A stream may be waiting for a point that is not on a timeline of this backend, which is a
    /// gate that will never open. The device then fails with an error of kind
    /// [`ShutDown`](crate::ErrorKind::ShutDown), through [`Health::fail`](crate::Health::fail).
    fn shut_down(&self);
}

/// One stream of a device.
///
/// # Safety
/// The implementation keeps the [contract](crate#contract) of this crate. Work runs in order, and a
/// ticket is reached only when its work has ended.
pub unsafe trait DriverStream: Send + Sync + fmt::Debug + 'static {
    /// Puts work at the end of the stream.
    ///
    /// # Safety
    /// Every address that the command names is valid for its length and for the command's access,
    /// until the ticket is reached. A host address lies in memory of the sort that
    /// [`CopyKind`](crate::CopyKind) asks for.
    ///
    /// Until then nothing else touches bytes that the command writes, or writes bytes that it
    /// reads, unless `claims` lets the driver find out. The arguments of a launch fit its kernel's
    /// parameters.
    unsafe fn submit(&self, work: Submission) -> Result<(), DriverError>;

    /// Advances the timeline to `ticket` once all work submitted so far is done. Called only with
    /// `Completion::Signalled`. Other drivers do nothing here.
    fn signal(&self, ticket: Ticket);

    /// Returns true if the calling thread may [`signal`](Self::signal). A host function that the
    /// driver itself is calling may not.
    fn may_signal(&self) -> bool {
        true
    }

    /// Waits briefly, without parking the thread, until `ticket` is reached. A driver does so if it
    /// knows that this takes less time than sleeping and being woken. Returns true if the ticket is
    /// reached.
    ///
    /// Called by a poll that would otherwise sleep.
    fn wait_briefly(&self, _ticket: Ticket) -> bool {
        false
    }

    /// Records an event at the stream's present end, for [`Command::Wait`](crate::Command::Wait) on
    /// another stream. Returns `None` if the driver waits on timelines and needs no event.
    fn record(&self) -> Result<Option<DriverEvent>, DriverError>;

    /// Returns the driver's own handle, if other code can enqueue work with it.
    fn raw(&self) -> Option<RawHandle> {
        None
    }

    /// Makes the device current on the calling thread, for foreign work, until the returned value
    /// is dropped.
    ///
    /// # Errors
    /// If the device has failed.
    fn make_current(&self) -> Result<Box<dyn Any>, DriverError> {
        Ok(Box::new(()))
    }

    /// Notifies the driver that this thread enqueues the foreign work of `ticket`, the newest one,
    /// until the returned value is dropped. For traces.
    fn foreign_begins(&self, _ticket: Ticket, _site: Site) -> Box<dyn Any> {
        Box::new(())
    }

    /// Returns true if each op gets its marker when it is submitted, because a later marker might
    /// not be possible.
    fn signals_every_op(&self) -> bool {
        false
    }

    /// Notifies the driver that the turn of foreign work ends.
    ///
    /// # Errors
    /// If the work has left the stream unusable. The driver has then called [`Timeline::give_up`].
    fn foreign_ends(&self) -> Result<(), DriverError> {
        Ok(())
    }

    /// Enqueues a host function at the stream's present end, for foreign work. The function belongs
    /// to the newest ticket.
    ///
    /// # Errors
    /// If the driver refuses the function, or has no raw streams.
    fn call_now(&self, _site: Site, _function: HostFn) -> Result<(), DriverError> {
        Err(DriverError::Refused("the device has no raw streams; use Stream::call".into()))
    }
}
