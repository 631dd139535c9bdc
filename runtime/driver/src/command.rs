//! The commands that a stream executes, and their operands.

use crate::DevicePtr;
use crate::device_id::DeviceId;
use crate::kernel::{Arg, Args, Kernel, LaunchConfig, Param, ParamKind, Workspace};
use crate::stamp::{DriverEvent, Stamp};
use crate::timeline::{Keep, Ticket, Timeline};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use warpline_order::{AccessMode, ByteRange, Site};

/// A graph that a driver made from a [`Plan`](super::Plan).
pub type DriverGraph = Arc<dyn Any + Send + Sync>;

/// One piece of work.
#[derive(Debug)]
pub struct Submission {
    /// The position of the work on the stream.
    pub ticket: Ticket,
    /// The name of the work and the line that requested it.
    pub site: Site,
    /// The command to execute.
    pub command: Command,
    /// The bytes that the work touches, where the order check does not guarantee their order: in
    /// every mode but `deny`.
    ///
    /// Work whose claims overlap, one of them exclusive, may be submitted on two streams with no
    /// order between them. A driver that runs twins must not run two such pieces at the same time,
    /// on any devices of the backend, because a twin has references to its bytes.
    pub claims: Option<Box<[Claim]>>,
    /// The `tracing` span in which the work was requested, from [`op_events::caller`]. `None` if
    /// no subscriber listens to ops.
    ///
    /// [`op_events::caller`]: crate::op_events::caller
    pub caller: Option<tracing::Id>,
}

impl Submission {
    /// Returns the ticket that the timeline has reached when this work has ended. It is the work's
    /// own ticket. For an [`Edge`](Command::Edge) it is the one before, since the work after the
    /// edge has the same ticket.
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
    /// The bytes. Offsets are addresses.
    pub range: ByteRange,
    /// True if the bytes are written.
    pub exclusive: bool,
}

/// One command of a stream.
#[derive(Debug)]
pub enum Command {
    /// Moves bytes.
    Copy(Copy),
    /// Moves bytes between the device and pageable memory of a CPU device. A CPU device gets none
    /// of these.
    StagedCopy(Box<StagedCopy>),
    /// Repeats a pattern.
    Fill(Fill),
    /// Runs a kernel. A driver that runs its twin announces the call with
    /// [`reentry::calling`](crate::reentry::calling).
    Launch(Launch),
    /// Runs all of a graph. A later launch of the same graph runs after this one.
    Graph(DriverGraph),
    /// Holds the stream until another timeline reaches the point.
    Wait(Point),
    /// Holds the stream like `Wait`, as a part of the next work, whose ticket it has. That work
    /// follows next. If that work is refused, other work with the same ticket follows.
    Edge(Point),
    /// Does nothing. A wait whose order holds already takes its ticket this way.
    Elided,
    /// Calls a host function in stream order. It may wait, and may delay those of other streams.
    Call(HostFn),
    /// Calls a function that does the work of other code, such as another library, in stream order.
    /// It runs beside the kernels of other streams, as a kernel does. A device that lends its raw
    /// streams gets none of these.
    HostWork(HostFn),
    /// Records the time at which the stream reaches this command.
    Stamp(Arc<Stamp>),
    /// Does nothing. Other code enqueues the work of this ticket on the raw stream.
    Foreign,
}

impl Command {
    /// Drops work that [`submit`](crate::DriverStream::submit) refuses. Commands that own handles,
    /// such as a host function, are dropped on another thread, since the caller holds the stream's
    /// lock.
    #[cold]
    pub fn drop_elsewhere(self) {
        if let Command::Call(_) | Command::HostWork(_) | Command::StagedCopy(_) = self {
            crate::background::detach(move || drop(self));
        }
    }

    /// Returns the kind of work in one word, for traces.
    pub fn kind(&self) -> &'static str {
        match self {
            Command::Copy(_) | Command::StagedCopy(_) => "copy",
            Command::Fill(_) => "fill",
            Command::Launch(_) => "kernel",
            Command::Graph(_) => "graph",
            Command::Wait(_) | Command::Edge(_) | Command::Elided => "wait",
            Command::Call(_) | Command::HostWork(_) => "call",
            Command::Stamp(_) => "stamp",
            Command::Foreign => "foreign",
        }
    }

    /// Returns the point until which a wait holds the stream.
    pub fn holds_until(&self) -> Option<&Point> {
        match self {
            Command::Wait(point) | Command::Edge(point) => Some(point),
            _ => None,
        }
    }

    /// Returns the bytes moved or touched, for traces.
    pub fn bytes(&self) -> u64 {
        match self {
            Command::Copy(copy) => copy.bytes(),
            Command::StagedCopy(staged) => staged.copy.bytes(),
            Command::Fill(fill) => (fill.width_bytes * fill.height) as u64,
            Command::Launch(launch) => launch.bytes(),
            Command::Graph(_)
            | Command::Wait(_)
            | Command::Edge(_)
            | Command::Elided
            | Command::Call(_)
            | Command::HostWork(_)
            | Command::Stamp(_)
            | Command::Foreign => 0,
        }
    }
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyKind {
    /// From host memory to the device. A driver of the same backend allocated or registered that
    /// memory, so that the device may copy it while the host continues.
    HostToDevice,
    /// From the device to host memory of the same sort.
    DeviceToHost,
    /// Within the stream's device.
    DeviceToDevice,
    /// Between devices of one backend, or within one that is not the stream's device.
    Peer {
        /// The device that `src` is on.
        source: DeviceId,
        /// The device that `dst` is on.
        destination: DeviceId,
    },
}

/// A copy of `height` rows of `width_bytes`. The pitches are the bytes between the starts of rows.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    /// The direction.
    pub kind: CopyKind,
    /// First byte read.
    pub src: u64,
    /// Bytes between rows read.
    pub src_pitch: usize,
    /// First byte written.
    pub dst: u64,
    /// Bytes between rows written.
    pub dst_pitch: usize,
    /// Bytes per row.
    pub width_bytes: usize,
    /// Rows.
    pub height: usize,
}

impl Copy {
    /// Returns the number of bytes that are moved.
    pub fn bytes(&self) -> u64 {
        (self.width_bytes * self.height) as u64
    }
}

/// A copy between memory of the stream's device and memory of a CPU device.
pub struct StagedCopy {
    /// The rows. The kind is `HostToDevice` or `DeviceToHost`. Unlike in
    /// [`Command::Copy`](crate::Command::Copy), the host's end is pageable memory of a CPU device.
    pub copy: Copy,
    /// The address of host memory of the sort that [`CopyKind`] asks for.
    pub staging: u64,
    /// The length of that memory, at least 1.
    pub staging_bytes: usize,
    /// Holds the CPU device's memory. Each host function owns a clone of it, because a device that
    /// has failed may still be running one.
    pub host: Keep,
}

impl fmt::Debug for StagedCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StagedCopy")
            .field("copy", &self.copy)
            .field("staging_bytes", &self.staging_bytes)
            .finish_non_exhaustive()
    }
}

/// A fill of `height` rows of `width_bytes` with the low `pattern_bytes` (1, 2, 4 or 8) of
/// `pattern`, little-endian.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    /// First byte written.
    pub dst: DevicePtr,
    /// Bytes between rows.
    pub pitch: usize,
    /// Bytes per row: a multiple of `pattern_bytes`.
    pub width_bytes: usize,
    /// Rows.
    pub height: usize,
    /// The pattern to repeat.
    pub pattern: u64,
    /// The size of the pattern in bytes.
    pub pattern_bytes: u8,
}

/// A kernel with its arguments.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel.
    pub kernel: &'static Kernel,
    /// The grid, the blocks and the shared memory.
    pub config: LaunchConfig,
    /// One argument for each of the kernel's parameters.
    pub args: Args,
    /// The parts that few launches have. Boxed, since a command should stay small.
    pub extras: Option<Box<LaunchExtras>>,
}

/// The parts of a launch that few launches have.
#[derive(Clone, Debug, Default)]
pub struct LaunchExtras {
    /// Workspace for the kernel's library, if the library is asked. In a graph the workspace of the
    /// plan's stream is used instead.
    pub workspace: Option<Workspace>,
    /// Memory that the kernel reaches through pointers in other memory or in scalars. Drivers of
    /// GPUs do not need it.
    pub reached: Vec<ReachedMemory>,
}

/// Memory that a kernel reaches through pointers that are not parameters.
#[derive(Clone, Copy, Debug)]
pub struct ReachedMemory {
    /// The first byte.
    pub address: DevicePtr,
    /// The number of bytes.
    pub len_bytes: u64,
    /// The type of the elements, as in [`Element::NAME`](crate::Element::NAME).
    pub element: &'static str,
    /// The size of one element in bytes, for reports.
    pub element_bytes: usize,
    /// The access mode of the kernel.
    pub access: AccessMode,
}

impl Launch {
    /// Returns the workspace for the kernel's library, if there is one.
    pub fn workspace(&self) -> Option<Workspace> {
        self.extras.as_ref().and_then(|extras| extras.workspace)
    }

    /// Returns the memory that the kernel reaches through pointers which are not parameters.
    pub fn reached(&self) -> &[ReachedMemory] {
        self.extras.as_ref().map_or(&[], |extras| &extras.reached)
    }

    /// Returns the bytes of all operands.
    fn bytes(&self) -> u64 {
        let bytes = |(param, arg): (&Param, &Arg)| match param.kind {
            ParamKind::Slice { element_bytes, .. } => arg.len * element_bytes as u64,
            ParamKind::Scalar { .. } => 0,
        };
        self.kernel.params.iter().zip(&self.args).map(bytes).sum()
    }
}

/// A ticket on another timeline: of a stream of the same backend, or of a gate that the host opens.
#[derive(Clone)]
pub struct Point {
    /// The timeline that is waited for.
    pub timeline: Arc<Timeline>,
    /// The ticket that it has to reach.
    pub ticket: Ticket,
    /// The driver's event at that ticket, if it recorded one.
    pub event: Option<DriverEvent>,
}

impl fmt::Debug for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Point").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

/// A closure that is called once, in stream order, on a thread that the driver chooses.
///
/// The driver announces the call with [`reentry::calling`](crate::reentry::calling). Panics of
/// `Stream::call` do not leave the closure. A panic that does comes from foreign work, and is a
/// fault of the device.
pub struct HostFn(pub Box<dyn FnOnce() + Send>);

impl fmt::Debug for HostFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostFn")
    }
}
