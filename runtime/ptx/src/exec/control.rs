//! Instructions that move lanes to another place, and special registers.

use super::context::Context;
use super::fault::FaultKind;
use super::op::{Flow, Op};
use super::registers::{LANES, Mask, for_each_lane};
use super::warp::{Barrier, Lanes};

/// `bra`: to the op `extra`.
pub(crate) fn jump(_: &mut Lanes, _: &Op, _: Mask, _: &Context<'_>) -> Flow {
    Flow::Jump
}

/// `brx.idx`: to the target with the index `a` in the list `extra`.
pub(crate) fn jump_by_index(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    let indices = lanes.registers.get::<u32>(op.a);
    let targets = &context.launch.code.targets[op.extra as usize];
    let mut wrong = None;
    for_each_lane(mask, |lane| match targets.get(indices[lane] as usize) {
        Some(target) => lanes.targets[lane] = *target,
        None => wrong = wrong.or(Some(lane)),
    });
    match wrong {
        None => Flow::JumpEach,
        Some(lane) => {
            let (index, len) = (indices[lane], targets.len() as u32);
            lanes.fail(lane, FaultKind::NoSuchTarget { index, len })
        }
    }
}

/// `call` of the function `extra`.
pub(crate) fn call(_: &mut Lanes, _: &Op, _: Mask, _: &Context<'_>) -> Flow {
    Flow::Call
}

/// The address of the function with number 0. No host address looks like it.
pub(crate) const FUNCTIONS: u64 = 0xf0f0_0000_0000_0000;

/// `call` of the function at address `a`.
pub(crate) fn call_address(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    let addresses = lanes.registers.get::<u64>(op.a);
    let numbers = &context.launch.code.numbers;
    let mut wrong = None;
    for_each_lane(mask, |lane| {
        let number = numbers.iter().find(|(address, _)| *address == addresses[lane]);
        match number {
            Some((_, number)) => lanes.targets[lane] = *number,
            None => wrong = wrong.or(Some(lane)),
        }
    });
    match wrong {
        None => Flow::CallEach,
        Some(lane) => lanes.fail(lane, FaultKind::NoSuchFunction { address: addresses[lane] }),
    }
}

/// `ret`
pub(crate) fn ret(_: &mut Lanes, _: &Op, _: Mask, _: &Context<'_>) -> Flow {
    Flow::Return
}

/// `exit`
pub(crate) fn exit(_: &mut Lanes, _: &Op, _: Mask, _: &Context<'_>) -> Flow {
    Flow::Exit
}

/// `trap`
pub(crate) fn trap(lanes: &mut Lanes, _: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    lanes.fail(mask.trailing_zeros() as usize, FaultKind::Trap)
}

/// Does nothing, as fences do in a warp whose accesses are in order.
pub(crate) fn nothing(_: &mut Lanes, _: &Op, _: Mask, _: &Context<'_>) -> Flow {
    Flow::Next
}

/// `membar` and `fence`: all accesses before it are before all accesses after it.
pub(crate) fn fence(_: &mut Lanes, _: &Op, _: Mask, _: &Context<'_>) -> Flow {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    Flow::Next
}

/// `bar.sync`: at the barrier `a`, with `b` threads if `extra` is 1.
pub(crate) fn barrier(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    lanes.barrier = barrier_of(lanes, op, mask);
    Flow::WaitAtBarrier
}

/// `bar.arrive`
pub(crate) fn arrive(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let id = barrier_of(lanes, op, mask).id;
    lanes.arrivals.push((id, mask.count_ones()));
    Flow::Next
}

/// Returns the barrier of an op. All lanes name the same one. PTX ISA 9.7.13.1, bar.
pub(crate) fn barrier_of(lanes: &Lanes, op: &Op, mask: Mask) -> Barrier {
    let lane = mask.trailing_zeros() as usize;
    let id = lanes.registers.narrow[op.a as usize][lane];
    let threads = (op.extra == 1).then(|| lanes.registers.narrow[op.b as usize][lane]);
    Barrier { id, threads }
}

/// A special register that is read into a narrow row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Special {
    TidX,
    TidY,
    TidZ,
    NtidX,
    NtidY,
    NtidZ,
    CtaidX,
    CtaidY,
    CtaidZ,
    NctaidX,
    NctaidY,
    NctaidZ,
    Laneid,
    Warpid,
    Nwarpid,
    Smid,
    Nsmid,
    LanemaskEq,
    LanemaskLe,
    LanemaskLt,
    LanemaskGe,
    LanemaskGt,
    DynamicSmemSize,
    TotalSmemSize,
    Clock,
    ClockHigh,
    Zero,
    One,
}

impl Special {
    /// Returns the special register with this name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        Some(match name {
            "%tid.x" => Special::TidX,
            "%tid.y" => Special::TidY,
            "%tid.z" => Special::TidZ,
            "%ntid.x" => Special::NtidX,
            "%ntid.y" => Special::NtidY,
            "%ntid.z" => Special::NtidZ,
            "%ctaid.x" => Special::CtaidX,
            "%ctaid.y" => Special::CtaidY,
            "%ctaid.z" => Special::CtaidZ,
            "%nctaid.x" => Special::NctaidX,
            "%nctaid.y" => Special::NctaidY,
            "%nctaid.z" => Special::NctaidZ,
            "%laneid" => Special::Laneid,
            "%warpid" => Special::Warpid,
            "%nwarpid" => Special::Nwarpid,
            "%smid" => Special::Smid,
            "%nsmid" => Special::Nsmid,
            "%lanemask_eq" => Special::LanemaskEq,
            "%lanemask_le" => Special::LanemaskLe,
            "%lanemask_lt" => Special::LanemaskLt,
            "%lanemask_ge" => Special::LanemaskGe,
            "%lanemask_gt" => Special::LanemaskGt,
            "%dynamic_smem_size" => Special::DynamicSmemSize,
            "%total_smem_size" => Special::TotalSmemSize,
            "%clock" | "%clock64" | "%globaltimer" | "%globaltimer_lo" => Special::Clock,
            "%clock_hi" | "%globaltimer_hi" => Special::ClockHigh,
            // A launch without clusters is one of clusters of one block. PTX ISA 10, %cluster_….
            "%cluster_ctaid.x"
            | "%cluster_ctaid.y"
            | "%cluster_ctaid.z"
            | "%cluster_ctarank"
            | "%is_explicit_cluster"
            | "%gridid" => Special::Zero,
            "%cluster_nctaid.x" | "%cluster_nctaid.y" | "%cluster_nctaid.z" | "%cluster_nctarank" => {
                Special::One
            }
            _ => return None,
        })
    }

    /// Returns whether a thread reads the same value in each block of a launch.
    pub(crate) fn is_same_in_all_blocks(self) -> bool {
        let is_of_block = matches!(self, Special::CtaidX | Special::CtaidY | Special::CtaidZ);
        !is_of_block && !matches!(self, Special::Clock | Special::ClockHigh)
    }

    fn all() -> [Special; 28] {
        use Special::*;
        [
            TidX,
            TidY,
            TidZ,
            NtidX,
            NtidY,
            NtidZ,
            CtaidX,
            CtaidY,
            CtaidZ,
            NctaidX,
            NctaidY,
            NctaidZ,
            Laneid,
            Warpid,
            Nwarpid,
            Smid,
            Nsmid,
            LanemaskEq,
            LanemaskLe,
            LanemaskLt,
            LanemaskGe,
            LanemaskGt,
            DynamicSmemSize,
            TotalSmemSize,
            Clock,
            ClockHigh,
            Zero,
            One,
        ]
    }
}

/// Sets `d`, a narrow row, to the special register `extra`.
pub(crate) fn special(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    let Context { launch, block, .. } = context;
    let special = Special::all()[op.extra as usize];
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
        Special::Warpid => lanes.first_thread / LANES as u32,
        Special::Nwarpid => launch.threads().div_ceil(LANES as u32),
        Special::Smid | Special::Zero => 0,
        Special::Nsmid | Special::One => 1,
        Special::DynamicSmemSize => launch.dynamic_shared_bytes,
        Special::TotalSmemSize => launch.shared_bytes,
        Special::Clock => clock() as u32,
        Special::ClockHigh => (clock() >> 32) as u32,
    };
    lanes.registers.set::<u32>(op.d, mask, |_| of_all);
    Flow::Next
}

/// Sets `d`, a wide row, to the time in nanoseconds.
pub(crate) fn clock64(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let now = clock();
    lanes.registers.set::<u64>(op.d, mask, |_| now);
    Flow::Next
}

fn clock() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}
