//! What a backend implements: a device, and its streams.

use crate::command::{DriverGraph, HostFn, Submission};
use crate::kernel::{Kernel, LaunchConfig};
use crate::plan::Plan;
use crate::properties::{Completion, DeviceProperties, FreeMemory, RawHandle, StreamOptions};
use crate::stamp::DriverEvent;
use crate::timeline::{Ticket, Timeline};
use crate::{DeviceId, DevicePtr};
use std::any::Any;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use warpline_order::Site;

/// Why a driver call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverError {
    /// No memory of that size, and how much there is where the driver knows.
    OutOfMemory(Option<FreeMemory>),
    /// Anything else: the driver's own name of the error and, if it has one, a sentence.
    Refused(String),
    /// As `Refused`, of a submission that needs several driver calls and got through the first: its ticket is taken.
    Halfway(String),
    /// The stream is being captured by somebody else.
    Captured(String),
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DriverError::OutOfMemory(None) => f.write_str("out of memory"),
            DriverError::OutOfMemory(Some(FreeMemory { free_bytes, total_bytes })) => {
                write!(f, "out of memory, {free_bytes} bytes free of {total_bytes}")
            }
            DriverError::Refused(why) | DriverError::Halfway(why) | DriverError::Captured(why) => {
                f.write_str(why)
            }
        }
    }
}

/// One device.
///
/// # Safety
/// The contract above is kept, and what [`alloc`](Self::alloc) and [`alloc_host`](Self::alloc_host) return is memory of that
/// length that nobody else uses: safe code reads and writes it.
pub unsafe trait Driver: Send + Sync + fmt::Debug + 'static {
    /// Which device this is.
    fn id(&self) -> DeviceId;

    /// How its tickets become complete.
    fn completion(&self) -> Completion;

    /// A new stream, whose progress goes to `timeline`. Dropping the returned value gives it back once it is idle; work
    /// already submitted still runs.
    fn new_stream(
        &self,
        options: &StreamOptions,
        timeline: Arc<Timeline>,
    ) -> Result<Arc<dyn DriverStream>, DriverError>;

    /// `len_bytes` of device memory, more than 0, aligned to 256 bytes at least. All zero if twins run on it, as on the CPU
    /// device, since they read it as initialized memory; else its contents are unspecified until they are written.
    fn alloc(&self, len_bytes: usize) -> Result<DevicePtr, DriverError>;

    /// Gives memory back.
    ///
    /// # Safety
    /// `ptr` came from [`alloc`](Self::alloc) of this driver with the same length, and no work that touches it is
    /// unfinished or will be submitted.
    unsafe fn free(&self, ptr: DevicePtr, len_bytes: usize);

    /// Returns whether a call that frees would return. While it would not, what is freed all the same is
    /// kept, and the pools above give nothing back.
    fn can_free(&self) -> bool {
        true
    }

    /// As [`free`](Self::free), but nobody waits for the memory, so that it may be put off.
    ///
    /// # Safety
    /// As for `free`.
    unsafe fn free_in_time(&self, ptr: DevicePtr, len_bytes: usize) {
        // SAFETY: the caller vouches for it.
        unsafe { self.free(ptr, len_bytes) };
    }

    /// `len_bytes` of host memory that the device can copy to and from while the host continues, aligned to 64 bytes. All zero:
    /// users read it as initialized memory. May take milliseconds.
    fn alloc_host(&self, len_bytes: usize) -> Result<*mut u8, DriverError>;

    /// Returns whether [`alloc_host`](Self::alloc_host) takes so long that nobody is to wait for
    /// it: pools keep some ahead then, and work that needs more is held back.
    fn host_memory_is_slow(&self) -> bool {
        false
    }

    /// [`alloc_host`](Self::alloc_host) before somebody needs the memory. Returns `None` if asking
    /// now could hold up who lets the device continue.
    fn alloc_host_ahead(&self, len_bytes: usize) -> Option<Result<*mut u8, DriverError>> {
        Some(self.alloc_host(len_bytes))
    }

    /// Gives host memory back, perhaps later.
    ///
    /// # Safety
    /// `ptr` came from [`alloc_host`](Self::alloc_host) of this driver with the same length, and no work that touches it is
    /// unfinished or will be submitted.
    unsafe fn free_host(&self, ptr: *mut u8, len_bytes: usize);

    /// Lets the device copy to and from this host memory while the host goes on. May take milliseconds.
    ///
    /// # Safety
    /// The memory stays until [`unregister_host`](Self::unregister_host).
    ///
    /// # Errors
    /// If the driver does not take it: it is registered already, say.
    unsafe fn register_host(&self, _ptr: *mut u8, _len_bytes: usize) -> Result<(), DriverError> {
        Ok(())
    }

    /// Ends what [`register_host`](Self::register_host) began.
    ///
    /// # Safety
    /// It was registered with this driver, and no work that touches it is unfinished or will be submitted.
    ///
    /// # Errors
    /// If the driver does not let go of it: then the memory is to stay.
    unsafe fn unregister_host(&self, _ptr: *mut u8) -> Result<(), DriverError> {
        Ok(())
    }

    /// The time between two marks that [`Command::Stamp`](crate::Command::Stamp) made, both of which were passed.
    ///
    /// # Errors
    /// If the marks cannot be compared.
    fn elapsed(&self, _earlier: &DriverEvent, _later: &DriverEvent) -> Result<Duration, DriverError> {
        Err(DriverError::Refused("the device does not mark times".into()))
    }

    /// Asks the device whether it still works, before somebody is told that everything went well. Never blocks.
    ///
    /// # Errors
    /// If it does not; its health says so from then on.
    fn confirm(&self) -> Result<(), DriverError> {
        Ok(())
    }

    /// What sort of device it is.
    fn properties(&self) -> DeviceProperties {
        DeviceProperties::unknown(self.id().to_string())
    }

    /// Bytes of device memory that nobody has, as far as the driver knows; `None` if it does not.
    fn free_bytes(&self) -> Option<usize> {
        None
    }

    /// A launch configuration for `elements` independent elements that keeps the device busy.
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

    /// Loads `kernel` now, so that its first launch does not.
    ///
    /// # Errors
    /// If it cannot be loaded.
    fn load(&self, _kernel: &'static Kernel) -> Result<(), DriverError> {
        Ok(())
    }

    /// Gets the library form of `kernel` ready for a launch, outside of graphs. Returns how many
    /// bytes it works in, at least and at best; `None` if no library is asked on this device.
    ///
    /// # Errors
    /// If the library cannot be used. [`OutOfMemory`](DriverError::OutOfMemory) if it could with
    /// more memory.
    fn ready_library(&self, _kernel: &'static Kernel) -> Result<Option<RangeInclusive<usize>>, DriverError> {
        Ok(None)
    }

    /// Gives back device memory that the driver keeps for libraries and nobody uses, perhaps later.
    /// Returns true if there is more free memory now.
    fn release_idle(&self) -> bool {
        false
    }

    /// Where a variable of the module that `kernel` is in stands, and how many bytes it has.
    ///
    /// # Errors
    /// If there is none, or no modules here.
    fn global(&self, _kernel: &'static Kernel, _name: &str) -> Result<(DevicePtr, usize), DriverError> {
        Err(DriverError::Refused("the device has no modules".into()))
    }

    /// For each stream of `plan`, how many bytes libraries want there to work in: what [`instantiate`](Self::instantiate) then finds in
    /// the plan, where it is more than 0.
    ///
    /// # Errors
    /// If the device cannot say.
    fn workspace_bytes(&self, plan: &Plan) -> Result<Vec<usize>, DriverError> {
        Ok(vec![0; plan.streams.len()])
    }

    /// Makes a graph of `plan`, for [`Command::Graph`](crate::Command::Graph) on streams of this device. May take milliseconds. It is dropped when no work
    /// of it is unfinished, on any thread.
    ///
    /// # Errors
    /// If the device has no graphs, or cannot make this one.
    fn instantiate(&self, _plan: &Arc<Plan>) -> Result<DriverGraph, DriverError> {
        Err(DriverError::Refused("the device has no graphs".into()))
    }

    /// Runs at most one piece of work on the calling thread, if this driver runs work only so; whether it did.
    ///
    /// For schedules without threads: every poll or query of something unfinished calls it, a poll **after** registering
    /// its waker with the timeline. After `true` the poller wakes itself and looks again. After `false` it may sleep:
    /// whatever makes something runnable wakes it.
    fn turn(&self) -> bool {
        false
    }

    /// Says that work was submitted and that the caller holds no lock any more: a driver that runs in turns wakes the
    /// pollers that found nothing to run. `submit` itself cannot, because wakers must not run under the stream's lock.
    fn after_submit(&self) {}

    /// How many streams the driver's own books have, for figures.
    fn streams_kept(&self) -> usize {
        0
    }

    /// Whether [`turn`](Self::turn) is how work runs here.
    fn runs_in_turns(&self) -> bool {
        false
    }

    /// Asks the driver to stop. Work that can still run runs. A stream that waits for a place which is
    /// not on a timeline of this backend waits for a gate that nobody will open: the device fails with
    /// an error of kind [`ShutDown`](crate::ErrorKind::ShutDown), through
    /// [`Health::fail`](crate::Health::fail). Never blocks.
    fn shut_down(&self);
}

/// One stream of a device.
///
/// # Safety
/// The contract above is kept: work runs in order, and its ticket is reached only when it is over.
pub unsafe trait DriverStream: Send + Sync + fmt::Debug + 'static {
    /// Puts work at the end of the stream.
    ///
    /// # Safety
    /// Every address the command names is valid for its length, for the access the command makes,
    /// until the ticket is reached; an address of the host's lies in memory that [`CopyKind`](crate::CopyKind) asks
    /// for; nothing else touches written bytes meanwhile, nor writes read ones, unless `claims`
    /// says how to find out; a launch's arguments fit its kernel's parameters.
    unsafe fn submit(&self, work: Submission) -> Result<(), DriverError>;

    /// Advances the timeline to `ticket` once everything submitted so far is done. Called with `Completion::Signalled` alone; else
    /// there is nothing to do.
    fn signal(&self, ticket: Ticket);

    /// Whether the calling thread may [`signal`](Self::signal): not from a host function that the driver itself is calling.
    fn may_signal(&self) -> bool {
        true
    }

    /// Waits for a moment, without giving the thread up, until `ticket` is reached: where the
    /// driver knows that this takes less time than sleeping and being woken. Returns whether it is
    /// reached. For a poll that would sleep otherwise.
    fn wait_briefly(&self, _ticket: Ticket) -> bool {
        false
    }

    /// Marks the stream's present end for [`Command::Wait`](crate::Command::Wait) on another stream, if the driver needs a mark: one that waits on
    /// timelines does not.
    fn record(&self) -> Result<Option<DriverEvent>, DriverError>;

    /// The driver's own handle, where other code can enqueue with it.
    fn raw(&self) -> Option<RawHandle> {
        None
    }

    /// Makes the device the calling thread's current one, for foreign work, until the returned value is dropped.
    ///
    /// # Errors
    /// If the device has failed.
    fn make_current(&self) -> Result<Box<dyn Any>, DriverError> {
        Ok(Box::new(()))
    }

    /// Says that others enqueue what `ticket`, the newest, stands for, by this thread until the returned value is dropped: for those
    /// who trace.
    fn foreign_begins(&self, _ticket: Ticket, _site: Site) -> Box<dyn Any> {
        Box::new(())
    }

    /// Returns true if each op gets its marker when it is submitted, because a later one might not
    /// be possible.
    fn marks_every_op(&self) -> bool {
        false
    }

    /// Says that the turn of foreign work ends.
    ///
    /// # Errors
    /// If the work has left the stream so that it is of no more use; it was given up then.
    fn foreign_ends(&self) -> Result<(), DriverError> {
        Ok(())
    }

    /// Puts a host function at the stream's present end, for foreign work: it belongs to the newest ticket.
    ///
    /// # Errors
    /// If the driver does not take it, or has no raw streams.
    fn call_now(&self, _site: Site, _function: HostFn) -> Result<(), DriverError> {
        Err(DriverError::Refused("the device has no raw streams".into()))
    }
}
