//! Special registers.

use super::context::{Context, Launch};
use super::op::{Flow, Op};
use super::registers::{LANES, Mask};
use super::warp::Lanes;
use super::workspace::Workspace;

/// Declares the special registers with their names in PTX.
macro_rules! special_registers {
    ($($(#[$comment:meta])* $register:ident: $($name:literal)|+,)*) => {
        /// A special register that is read into a narrow row. PTX ISA 10.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u64)]
        pub(crate) enum Special {
            $($(#[$comment])* $register,)*
        }

        impl Special {
            /// All of them, in the order of their numbers.
            const ALL: &[Special] = &[$(Special::$register,)*];

            /// Returns the special register with this name.
            pub(crate) fn of(name: &str) -> Option<Self> {
                match name {
                    $($($name)|+ => Some(Special::$register),)*
                    _ => None,
                }
            }
        }
    };
}

// `read` relies on each x, y and z being at a multiple of three.
special_registers! {
    TidX: "%tid.x",
    TidY: "%tid.y",
    TidZ: "%tid.z",
    NtidX: "%ntid.x",
    NtidY: "%ntid.y",
    NtidZ: "%ntid.z",
    CtaidX: "%ctaid.x",
    CtaidY: "%ctaid.y",
    CtaidZ: "%ctaid.z",
    NctaidX: "%nctaid.x",
    NctaidY: "%nctaid.y",
    NctaidZ: "%nctaid.z",
    ClusterCtaidX: "%cluster_ctaid.x",
    ClusterCtaidY: "%cluster_ctaid.y",
    ClusterCtaidZ: "%cluster_ctaid.z",
    ClusterNctaidX: "%cluster_nctaid.x",
    ClusterNctaidY: "%cluster_nctaid.y",
    ClusterNctaidZ: "%cluster_nctaid.z",
    ClusteridX: "%clusterid.x",
    ClusteridY: "%clusterid.y",
    ClusteridZ: "%clusterid.z",
    NclusteridX: "%nclusterid.x",
    NclusteridY: "%nclusterid.y",
    NclusteridZ: "%nclusterid.z",
    Laneid: "%laneid",
    Warpid: "%warpid",
    Nwarpid: "%nwarpid",
    Smid: "%smid",
    Nsmid: "%nsmid",
    LanemaskEq: "%lanemask_eq",
    LanemaskLe: "%lanemask_le",
    LanemaskLt: "%lanemask_lt",
    LanemaskGe: "%lanemask_ge",
    LanemaskGt: "%lanemask_gt",
    DynamicSmemSize: "%dynamic_smem_size",
    TotalSmemSize: "%total_smem_size",
    Clock: "%clock" | "%clock64" | "%globaltimer" | "%globaltimer_lo",
    ClockHigh: "%clock_hi" | "%globaltimer_hi",
    /// A launch without clusters is one of clusters of one block. PTX ISA 10, %cluster_ctaid.
    ClusterCtarank: "%cluster_ctarank",
    ClusterNctarank: "%cluster_nctarank",
    Zero: "%gridid",
    /// The words of the address of the launch's workspace.
    WorkspaceHigh: "%envreg1",
    WorkspaceLow: "%envreg2",
}

/// The threads for which a value is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Uniform {
    /// All threads of a launch.
    Launch,
    /// All threads of a block.
    Block,
    /// The threads with one number, in all blocks.
    Thread,
}

impl Uniform {
    /// Returns the threads for which a value is the same that depends on both of these.
    pub(crate) fn and(self, other: Uniform) -> Option<Uniform> {
        match (self, other) {
            (Uniform::Launch, uniform) | (uniform, Uniform::Launch) => Some(uniform),
            (one, other) if one == other => Some(one),
            _ => None,
        }
    }
}

impl Special {
    /// Returns the threads that read the same value, or `None` if a thread may read several.
    pub(crate) fn uniform(self) -> Option<Uniform> {
        Some(match self {
            Special::Clock | Special::ClockHigh => return None,
            Special::CtaidX | Special::CtaidY | Special::CtaidZ => Uniform::Block,
            Special::ClusterCtaidX | Special::ClusterCtaidY | Special::ClusterCtaidZ => Uniform::Block,
            Special::ClusteridX | Special::ClusteridY | Special::ClusteridZ => Uniform::Block,
            Special::ClusterCtarank => Uniform::Block,
            Special::TidX | Special::TidY | Special::TidZ | Special::Laneid | Special::Warpid => {
                Uniform::Thread
            }
            Special::LanemaskEq
            | Special::LanemaskLe
            | Special::LanemaskLt
            | Special::LanemaskGe
            | Special::LanemaskGt => Uniform::Thread,
            _ => Uniform::Launch,
        })
    }
}

/// Sets `d`, a narrow row, to the special register `extra`.
pub(crate) fn read(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    let Context { launch, block, .. } = context;
    let clusters = launch.clusters;
    let special = Special::ALL[op.extra as usize];
    let axis = op.extra as usize % 3;
    let of_all = match special {
        Special::TidX | Special::TidY | Special::TidZ => {
            let at = lanes.thread[axis];
            lanes.registers.set::<u32>(op.d, mask, |lane| at[lane]);
            return Flow::Next;
        }
        Special::Laneid
        | Special::LanemaskEq
        | Special::LanemaskLe
        | Special::LanemaskLt
        | Special::LanemaskGe
        | Special::LanemaskGt => {
            lanes.registers.set::<u32>(op.d, mask, |lane| {
                let bit = 1u32 << lane;
                match special {
                    Special::Laneid => lane as u32,
                    Special::LanemaskEq => bit,
                    Special::LanemaskLe => bit | (bit - 1),
                    Special::LanemaskLt => bit - 1,
                    Special::LanemaskGe => !(bit - 1),
                    _ => !(bit | (bit - 1)),
                }
            });
            return Flow::Next;
        }
        Special::NtidX | Special::NtidY | Special::NtidZ => launch.block[axis],
        Special::CtaidX | Special::CtaidY | Special::CtaidZ => block[axis],
        Special::NctaidX | Special::NctaidY | Special::NctaidZ => launch.grid[axis],
        Special::ClusterCtaidX | Special::ClusterCtaidY | Special::ClusterCtaidZ => {
            block[axis] % clusters.size[axis]
        }
        Special::ClusterNctaidX | Special::ClusterNctaidY | Special::ClusterNctaidZ => clusters.size[axis],
        Special::ClusteridX | Special::ClusteridY | Special::ClusteridZ => block[axis] / clusters.size[axis],
        Special::NclusteridX | Special::NclusteridY | Special::NclusteridZ => {
            clusters.grid(launch.grid)[axis]
        }
        Special::ClusterCtarank => context.cluster.rank,
        Special::ClusterNctarank => clusters.blocks(),
        Special::Warpid => lanes.first_thread / LANES as u32,
        Special::Nwarpid => launch.threads().div_ceil(LANES as u32),
        Special::Smid | Special::Zero => 0,
        Special::Nsmid => 1,
        Special::DynamicSmemSize => launch.dynamic_shared_bytes,
        Special::TotalSmemSize => launch.shared_bytes,
        Special::WorkspaceHigh => (workspace(launch) >> 32) as u32,
        Special::WorkspaceLow => workspace(launch) as u32,
        Special::Clock => clock() as u32,
        Special::ClockHigh => (clock() >> 32) as u32,
    };
    lanes.registers.set::<u32>(op.d, mask, |_| of_all);
    Flow::Next
}

/// Sets `d`, a predicate, to `%is_explicit_cluster`. PTX ISA 10.
pub(crate) fn read_is_explicit_cluster(
    lanes: &mut Lanes,
    op: &Op,
    mask: Mask,
    context: &Context<'_>,
) -> Flow {
    let is = context.launch.clusters.is_explicit;
    lanes.registers.set_predicate(op.d, mask, if is { Mask::MAX } else { 0 });
    Flow::Next
}

/// Sets `d`, a wide row, to the time in nanoseconds.
pub(crate) fn read_clock(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let now = clock();
    lanes.registers.set::<u64>(op.d, mask, |_| now);
    Flow::Next
}

/// Returns the address of the workspace of a cooperative launch, or null.
fn workspace(launch: &Launch<'_>) -> u64 {
    launch.regions.workspace().map_or(0, Workspace::address)
}

fn clock() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}
