//! What a stream is told to do.

use crate::DevicePtr;
use crate::device_id::DeviceId;
use crate::kernel::{Arg, Args, Kernel, LaunchConfig, Param, ParamKind, Workspace};
use crate::stamp::{DriverEvent, Stamp};
use crate::timeline::{Ticket, Timeline};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use warpline_order::{ByteRange, Site};

/// What a driver made of a [`Plan`](super::Plan).
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
    /// The bytes it touches, where the order check does not vouch for them: in every mode but `deny`.
    /// Work whose claims overlap, one of them exclusive, may be submitted on two streams with no order
    /// between them. A driver that runs twins must not run two such pieces at once, on whatever devices
    /// of the backend: a twin has references to its bytes.
    pub claims: Option<Box<[Claim]>>,
}

impl Submission {
    /// The ticket that the timeline has reached when this work has ended: its own, or for an
    /// [`Edge`](Command::Edge) the one before, since the work behind the edge has the same ticket.
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
    /// Run a kernel. A driver that runs its twin marks the call with
    /// [`reentry::calling`](crate::reentry::calling).
    Launch(Launch),
    /// Run all of a graph. The same one again runs after that.
    Graph(DriverGraph),
    /// Hold the stream until another timeline has got somewhere.
    Wait(Point),
    /// Hold the stream like `Wait`, as a part of the work that comes next, whose ticket this has. That
    /// work follows, or another one with the same ticket if it is refused.
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
    /// Drops work that [`submit`](crate::DriverStream::submit) refuses: on another thread, since a host
    /// function may own handles of its user, and the caller holds the stream's lock.
    #[cold]
    pub fn drop_elsewhere(self) {
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

/// A place on another timeline: of a stream of the same backend, or of a gate that the host opens.
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

/// A closure called once, in stream order, on a thread of the driver's choosing, which marks the call
/// with [`reentry::calling`](crate::reentry::calling). Panics of `Stream::call` do not leave it. One that
/// does is that of foreign work, and a fault of the device.
pub struct HostFn(pub Box<dyn FnOnce() + Send>);

impl fmt::Debug for HostFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostFn")
    }
}
