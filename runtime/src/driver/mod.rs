//! The seam between Warpline and a device.
//!
//! A driver runs what it is told, in ticket order on each stream, and advances that stream's [`Timeline`]. It **does not**
//! check shapes, devices, ranges or order (that is done before it is called, and it may rely on it), does not decide what
//! waits for what, does not own memory that users see, and never calls user code but for host functions and twins.
//!
//! A new backend fills in two traits: [`Driver`], one a device, and [`DriverStream`], one a stream.
//!
//! # Contract
//! 1. [`DriverStream::submit`] is called with growing tickets, by one caller at a time.
//! 2. It returns before the work has run, or as if. An error means that nothing of it will run and the ticket is free, but for
//!    [`DriverError::Halfway`].
//! 3. Work on a stream runs one after the other in ticket order, each starting after the one before has ended and its
//!    writes are visible.
//! 4. A driver whose [`completion`](Driver::completion) is `EveryOp` advances the timeline after each; with `Signalled`,
//!    at each [`signal`](DriverStream::signal).
//! 5. A device that fails for good says so once through [`Health::fail`], runs nothing more, and then lets go of what
//!    its timelines keep ([`Timeline::abandon`]) once nothing running can touch it.

pub mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod health;
mod panic;
mod plan;
mod stamp;

pub use health::Health;
pub(crate) use panic::message_of;
pub(crate) use plan::OF_ONE_DEVICE;
pub use plan::{Plan, PlanStream, Step, Work};
pub use stamp::Stamp;

use crate::device::DeviceId;
use crate::kernel::{Arg, Args, Kernel, LaunchConfig, Param, ParamKind, Workspace};
use crate::order::ByteRange;
use crate::order::Site;
use crate::timeline::{Ticket, Timeline};
use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// An address in a device's memory. On the CPU device it is the host address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// The address `bytes` further on.
    #[inline]
    pub const fn offset(self, bytes: u64) -> Self {
        DevicePtr(self.0 + bytes)
    }
}

/// How a driver lets tickets become complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The driver completes each ticket by itself.
    EveryOp,
    /// Only tickets that [`DriverStream::signal`] was called for.
    Signalled,
}

/// How eagerly the host looks for what a device that signals has done: what a wake-up may cost against what it may be late by.
///
/// One thread a process, the reactor, looks for all CUDA devices, and sleeps where nothing is awaited. While something is, it spins,
/// then yields, then sleeps for a sixteenth of the time that nothing has happened, at most a millisecond: work that takes long
/// costs little, and is seen late by a sixteenth of what it took. What is said here is how long it spins before. If runtimes say
/// different things, the most eager of those that wait for something counts. The CPU device wakes who waits by itself.
///
/// Set by [`RuntimeBuilder::wake_up`](crate::RuntimeBuilder::wake_up) or, in a runtime made
/// [from the environment](crate::RuntimeBuilder::from_env), by `WARPLINE_WAKE_UP`.
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

    /// `len_bytes` of device memory, aligned to 256 bytes at least. All zero where the host reads it in place, as on the CPU
    /// device; else its contents are unspecified until they are written.
    fn alloc(&self, len_bytes: usize) -> Result<DevicePtr, DriverError>;

    /// Gives memory back.
    ///
    /// # Safety
    /// `ptr` came from [`alloc`](Self::alloc) of this driver with the same length, and no work that touches it is
    /// unfinished or will be submitted.
    unsafe fn free(&self, ptr: DevicePtr, len_bytes: usize);

    /// As [`free`](Self::free), but nobody waits for the memory, so that it may be put off.
    ///
    /// # Safety
    /// As for `free`.
    unsafe fn free_in_time(&self, ptr: DevicePtr, len_bytes: usize) {
        // SAFETY: the caller vouches for it.
        unsafe { self.free(ptr, len_bytes) };
    }

    /// `len_bytes` of host memory that the device can copy to and from while the host goes on, aligned to 64 bytes, all
    /// zero. May take milliseconds.
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

    /// Ends what [`register_host`](Self::register_host) began, and then drops `owner`, whose the memory is: perhaps on another
    /// thread, or never if the driver does not let go of it.
    ///
    /// # Safety
    /// It was registered with this driver, and no work that touches it is unfinished or will be submitted.
    ///
    /// # Errors
    /// If the driver does not let go of it: then the memory is to stay.
    unsafe fn unregister_host(&self, _ptr: *mut u8) -> Result<(), DriverError> {
        Ok(())
    }

    /// The time between two marks that [`Command::Stamp`] made, both of which were passed.
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

    /// Makes a graph of `plan`, for [`Command::Graph`] on streams of this device. May take milliseconds. It is dropped when no work
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

    /// Asks the driver to stop: work that can still run runs, work that waits for something that will not come (a gate)
    /// is reported through [`Health::fail`]. Never blocks.
    fn shut_down(&self);
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
    /// Somebody else's stream to work on, which lives for as long as this one.
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

/// What sort of device one is, from [`Device::properties`](crate::Device::properties).
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

/// One stream of a device.
///
/// # Safety
/// The contract above is kept: work runs in order, and its ticket is reached only when it is over.
pub unsafe trait DriverStream: Send + Sync + fmt::Debug + 'static {
    /// Puts work at the end of the stream.
    ///
    /// # Safety
    /// Every address the command names is valid for its length, for the access the command makes,
    /// until the ticket is reached; an address of the host's lies in memory that [`CopyKind`] asks
    /// for; nothing else touches written bytes meanwhile, nor writes read ones, unless `claims`
    /// says how to find out; a launch's arguments fit its kernel's parameters.
    unsafe fn submit(&self, work: Submission) -> Result<(), DriverError>;

    /// Advances the timeline to `ticket` once everything submitted so far is done. Only for `Completion::Signalled`.
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

    /// Marks the stream's present end for [`Command::Wait`] on another stream, if the driver needs a mark: one that waits on
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

/// A driver's own mark on a stream.
pub type DriverEvent = Arc<dyn Any + Send + Sync>;

/// What a driver made of a [`Plan`].
pub type DriverGraph = Arc<dyn Any + Send + Sync>;

/// One piece of work.
#[derive(Debug)]
pub struct Submission {
    /// Its place on the stream.
    pub ticket: Ticket,
    /// What it is called and who asked for it.
    pub site: Site,
    /// What to do.
    pub command: Command,
    /// The bytes it touches, where the order check does not vouch for them (every mode but `deny`).
    pub claims: Option<Box<[Claim]>>,
}

impl Submission {
    /// The newest ticket that is reached when it is over.
    #[inline]
    pub fn reaches(&self) -> Ticket {
        match self.command {
            Command::Edge(_) => self.ticket - 1,
            _ => self.ticket,
        }
    }
}

/// Bytes that a piece of work touches, by absolute address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Which bytes: offsets are addresses.
    pub range: ByteRange,
    /// Whether they are written.
    pub exclusive: bool,
}

/// What a stream can do.
#[derive(Debug)]
pub enum Command {
    /// Move bytes.
    Copy(Copy),
    /// Repeat a pattern.
    Fill(Fill),
    /// Run a kernel.
    Launch(Launch),
    /// Run all of a graph. The same one again runs after that.
    Graph(DriverGraph),
    /// Hold the stream until another timeline has got somewhere.
    Wait(Point),
    /// Hold the work that comes next, whose ticket this has. It does not reach that ticket, and
    /// where it is submitted, that work follows or its ticket goes to other work.
    Edge(Point),
    /// Nothing: a wait whose order holds already takes its ticket.
    Elided,
    /// Call a host function in stream order.
    Call(HostFn),
    /// Note the time at which the stream gets here.
    Stamp(Arc<Stamp>),
    /// Nothing: others enqueue what this ticket stands for, on the raw stream.
    Foreign,
}

impl Command {
    /// Drops what was not enqueued, which may own anything of its user's, where no stream's lock is held.
    #[cold]
    pub(crate) fn drop_elsewhere(self) {
        if let Command::Call(function) = self {
            crate::background::detach(move || drop(function));
        }
    }

    /// What sort of work it is, in one word, for traces.
    pub fn kind(&self) -> &'static str {
        match self {
            Command::Copy(_) => "copy",
            Command::Fill(_) => "fill",
            Command::Launch(_) => "kernel",
            Command::Graph(_) => "graph",
            Command::Wait(_) | Command::Edge(_) | Command::Elided => "wait",
            Command::Call(_) => "call",
            Command::Stamp(_) => "stamp",
            Command::Foreign => "foreign",
        }
    }

    /// Returns the place that a wait holds the stream for.
    pub fn holds_until(&self) -> Option<&Point> {
        match self {
            Command::Wait(point) | Command::Edge(point) => Some(point),
            _ => None,
        }
    }

    /// Bytes moved or touched, for traces.
    pub fn bytes(&self) -> u64 {
        match self {
            Command::Copy(copy) => (copy.width_bytes * copy.height) as u64,
            Command::Fill(fill) => (fill.width_bytes * fill.height) as u64,
            Command::Launch(launch) => launch.bytes(),
            Command::Graph(_)
            | Command::Wait(_)
            | Command::Edge(_)
            | Command::Elided
            | Command::Call(_)
            | Command::Stamp(_)
            | Command::Foreign => 0,
        }
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyKind {
    /// Host memory to the device. A driver of the same backend gave or registered that memory, so
    /// that the device may copy it while the host continues.
    HostToDevice,
    /// The device to host memory of the same sort.
    DeviceToHost,
    /// Within a device.
    DeviceToDevice,
    /// Between devices of one backend, or within one that is not the stream's.
    Peer {
        /// The device that `src` is on.
        source: DeviceId,
        /// The device that `dst` is on.
        destination: DeviceId,
    },
}

/// `height` rows of `width_bytes`; the pitches are the bytes between the starts of rows.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    /// Which way.
    pub kind: CopyKind,
    /// First byte read.
    pub src: u64,
    /// Bytes between rows read.
    pub src_pitch: usize,
    /// First byte written.
    pub dst: u64,
    /// Bytes between rows written.
    pub dst_pitch: usize,
    /// Bytes a row.
    pub width_bytes: usize,
    /// Rows.
    pub height: usize,
}

/// `height` rows of `width_bytes`, filled with the low `pattern_bytes` (1, 2, 4 or 8) of `pattern`, little-endian.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    /// First byte written.
    pub dst: DevicePtr,
    /// Bytes between rows.
    pub pitch: usize,
    /// Bytes a row: a multiple of `pattern_bytes`.
    pub width_bytes: usize,
    /// Rows.
    pub height: usize,
    /// What is repeated.
    pub pattern: u64,
    /// How much of it.
    pub pattern_bytes: u8,
}

/// A kernel with its arguments.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Which kernel.
    pub kernel: &'static Kernel,
    /// Grid, block, shared memory.
    pub config: LaunchConfig,
    /// One for each of the kernel's parameters.
    pub args: Args,
    /// Memory that the kernel's library may work in, if it is asked. In a graph that of the plan's
    /// stream counts. In a box, since few launches have one and a command is to stay small.
    pub workspace: Option<Box<Workspace>>,
}

impl Launch {
    /// Bytes of all operands.
    fn bytes(&self) -> u64 {
        let bytes = |(param, arg): (&Param, &Arg)| match param.kind {
            ParamKind::Slice { element_bytes, .. } => arg.len * element_bytes as u64,
            ParamKind::Scalar { .. } => 0,
        };
        self.kernel.params.iter().zip(&self.args).map(bytes).sum()
    }
}

/// A place on another timeline.
#[derive(Clone)]
pub struct Point {
    /// Whose progress is waited for.
    pub timeline: Arc<Timeline>,
    /// How far it has to be.
    pub ticket: Ticket,
    /// The driver's mark there, if it made one.
    pub event: Option<DriverEvent>,
}

impl fmt::Debug for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Point").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

/// A closure called once, in stream order, on a thread of the driver's choosing. A panic that comes
/// out of it is a fault of the device: that of foreign work.
pub struct HostFn(pub Box<dyn FnOnce() + Send>);

impl fmt::Debug for HostFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostFn")
    }
}
