//! Stands in for the driver's seam: its commands and errors, a stream that notes its calls, and a
//! driver of host memory.

use crate::timeline::{Ticket, Timeline};
use crate::{Error, sync::Arc};
use loom::cell::UnsafeCell;
use std::fmt;

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;
pub(crate) type DeviceId = &'static str;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ErrorKind {
    Driver,
    OutOfMemory,
    InvalidArgument,
    Reentrant,
}

#[derive(Clone, Debug)]
pub(crate) enum DriverError {
    OutOfMemory(()),
    Refused(String),
}

#[derive(Clone, Debug)]
pub(crate) struct DriverEvent;

impl Error {
    pub(crate) fn new(_kind: ErrorKind, _text: String) -> Self {
        Error
    }

    pub(crate) fn kind(&self) -> ErrorKind {
        ErrorKind::Driver
    }

    /// Returns the details of each error, since no model has one that is not about memory.
    pub(crate) fn out_of_memory(&self) -> Option<OutOfMemory> {
        Some(OutOfMemory::new("cuda:0", 0, MemoryShortage::System))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("error")
    }
}

pub(crate) mod internal {
    pub(crate) trait ErrorParts: Sized {
        fn caused_like(self, _other: &Self) -> Self {
            self
        }

        fn with_out_of_memory(self, _details: crate::OutOfMemory) -> Self {
            self
        }

        fn caused_by(self, _failure: crate::DriverError) -> Self {
            self
        }
    }

    impl ErrorParts for crate::Error {}
}

pub(crate) enum CopyKind {
    HostToDevice,
    DeviceToHost,
}

pub(crate) struct Copy {
    pub(crate) kind: CopyKind,
    pub(crate) src: u64,
    pub(crate) dst: u64,
}

pub(crate) struct StagedCopy {
    pub(crate) staging: u64,
}

pub(crate) struct Point {
    pub(crate) timeline: Arc<Timeline>,
    pub(crate) ticket: Ticket,
    pub(crate) event: Option<DriverEvent>,
}

pub(crate) enum Command {
    Copy(Copy),
    StagedCopy(StagedCopy),
    Wait(Point),
    Edge(Point),
    Elided,
}

impl Command {
    pub(crate) fn drop_elsewhere(self) {}
}

pub(crate) struct Submission {
    pub(crate) ticket: Ticket,
    pub(crate) command: Command,
}

pub(crate) trait DriverStream: Send + Sync {
    fn submit(&self, submission: Submission);
    fn signal(&self, ticket: Ticket);
    fn record(&self) -> Result<Option<DriverEvent>, DriverError>;

    fn may_signal(&self) -> bool {
        true
    }

    fn wait_briefly(&self, _ticket: Ticket) -> bool {
        false
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Call {
    Submit(Ticket),
    Signal(Ticket),
    Record,
}

/// The calls that the driver got, in order. Loom fails the model if two threads call it at the
/// same time.
#[derive(Default)]
pub(crate) struct Calls(UnsafeCell<Vec<Call>>);

// SAFETY: only the holder of the stream's lock calls the driver, which the models check.
unsafe impl Sync for Calls {}
// SAFETY: as above, and no field belongs to one thread.
unsafe impl Send for Calls {}

impl Calls {
    fn note(&self, call: Call) {
        // SAFETY: this thread holds the stream's lock; loom checks that no other thread calls.
        self.0.with_mut(|calls| unsafe { (*calls).push(call) });
    }

    /// Returns the calls, after the model's threads were joined.
    pub(crate) fn all(&self) -> Vec<Call> {
        // SAFETY: no other thread is left.
        self.0.with(|calls| unsafe { (*calls).clone() })
    }
}

impl DriverStream for Calls {
    fn submit(&self, submission: Submission) {
        match submission.command {
            Command::Copy(copy) => assert_ne!(copy.src, 0, "memory that does not exist yet"),
            Command::Wait(point) => assert!(point.event.is_some(), "an event that is not recorded"),
            _ => {}
        }
        self.note(Call::Submit(submission.ticket));
    }

    fn signal(&self, ticket: Ticket) {
        self.note(Call::Signal(ticket));
    }

    fn record(&self) -> Result<Option<DriverEvent>, DriverError> {
        self.note(Call::Record);
        Ok(Some(DriverEvent))
    }
}

impl DriverError {
    pub(crate) fn failure(&self) -> Option<&DriverError> {
        None
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("error")
    }
}

pub(crate) struct OutOfMemory {
    pub(crate) shortage: MemoryShortage,
    pub(crate) earlier_requests: usize,
    pub(crate) holders: Vec<()>,
}

impl OutOfMemory {
    pub(crate) const MOST_HOLDERS: usize = 1;

    pub(crate) fn new(_device: DeviceId, _len_bytes: usize, shortage: MemoryShortage) -> Self {
        OutOfMemory { shortage, earlier_requests: 0, holders: Vec::new() }
    }
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum MemoryShortage {
    System,
    Planned,
    Unaddressable,
    Budget { free_bytes: usize },
    Device { free_bytes: usize, total_bytes: usize },
}

impl fmt::Display for MemoryShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("shortage")
    }
}

pub(crate) struct ByteSize(pub(crate) usize);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

pub(crate) trait Element: Send + 'static {}

/// The properties of a device, whose memory has no known length.
pub(crate) struct Properties {
    pub(crate) total_bytes: usize,
}

#[derive(Default)]
pub(crate) struct NotFreed {
    pub(crate) host_bytes: usize,
}

/// A driver that gives host memory and takes it back.
pub(crate) trait Driver: Send + Sync + fmt::Debug {
    fn id(&self) -> DeviceId {
        "cuda:0"
    }

    fn runs_in_turns(&self) -> bool {
        false
    }

    fn can_free(&self) -> bool {
        true
    }

    fn not_freed(&self) -> NotFreed {
        NotFreed::default()
    }

    fn free_bytes(&self) -> Option<usize> {
        None
    }

    fn properties(&self) -> Properties {
        Properties { total_bytes: 0 }
    }

    fn host_memory_is_slow(&self) -> bool {
        false
    }

    fn alloc_host_ahead(&self, _len: usize) -> Option<Result<*mut u8, DriverError>> {
        None
    }

    fn alloc_host(&self, len: usize) -> Result<*mut u8, DriverError> {
        Ok(Box::into_raw(vec![0u8; len].into_boxed_slice()).cast())
    }

    /// # Safety
    /// The block is one of `alloc_host`, with its length, and nothing uses it.
    unsafe fn free_host(&self, ptr: *mut u8, len: usize) {
        // SAFETY: `Box::from_raw` needs what `Box::into_raw` returned, which the caller has.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(ptr, len)) });
    }

    /// # Safety
    /// None. No model registers memory.
    unsafe fn register_host(&self, _ptr: *mut u8, _len: usize) -> Result<(), DriverError> {
        unreachable!("no model registers memory")
    }
}

#[derive(Debug)]
pub(crate) struct NoDriver;

impl Driver for NoDriver {}
