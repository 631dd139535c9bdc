//! Instructions that load, store and form addresses.
//!
//! Of an op, `a` is the row of the address and `extra` what is added to it. `d`, `b`, `c` and `e`
//! are the elements.

use super::context::Context;
use super::effect::Moved;
use super::fault::FaultKind;
use super::lanes::Loops;
use super::memory::{Access, Element, extent, misaligned};
use super::op::{Flow, Op};
use super::registers::{Cell, LANES, Mask, for_each_lane};
use super::resolve::elsewhere;
use super::runs::{self, RUN, Runs, Vectors, load_run, store_run};
use super::warp::Lanes;

/// The memory to which the addresses of an instruction point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Window {
    /// Memory of the launch or the module alone: `.global` and `.const`.
    Global,
    /// Any memory, by an address of the host.
    Generic,
    /// An offset in the memory of the block.
    Shared,
    /// The memory of any block of the cluster: see `clusters`.
    Cluster,
    /// An offset in the memory of the thread.
    Local,
    /// An offset in the frame of the running function.
    Frame,
    /// An offset in the kernel's parameters.
    Param,
}

/// How an instruction's address is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// `extra` alone.
    None,
    /// A narrow row.
    Narrow,
    /// A wide row.
    Wide,
}

/// Returns the addresses that the lanes access, `bytes` each. Notes a fault if one of them may not.
#[inline(always)]
pub(crate) fn addresses(
    lanes: &mut Lanes,
    op: &Op,
    mask: Mask,
    context: &Context<'_>,
    bytes: u64,
    access: Access,
) -> Option<[u64; LANES]> {
    let mut of = [op.extra; LANES];
    match op.base {
        Base::None => {}
        Base::Narrow => {
            let row = u32::row(&lanes.registers, op.a);
            let offset = op.extra as u32;
            for (address, base) in of.iter_mut().zip(row) {
                *address = base.wrapping_add(offset).into();
            }
        }
        Base::Wide => {
            let row = u64::row(&lanes.registers, op.a);
            for (address, base) in of.iter_mut().zip(row) {
                *address = base.wrapping_add(op.extra);
            }
        }
    }
    let (from, to) = extent(&of, mask, bytes);
    let launch = context.launch;
    let start = match op.window {
        Window::Global | Window::Generic => launch.regions.distance(from, to, access),
        Window::Shared | Window::Cluster if to <= u64::from(launch.shared_bytes) => Some(context.shared),
        Window::Param if to <= launch.params().1 => Some(launch.params().0),
        _ => None,
    };
    let Some(start) = start else {
        return elsewhere(lanes, op, mask, context, bytes, access, of);
    };
    for address in &mut of {
        *address = address.wrapping_add(start);
    }
    if misaligned(&of, mask, bytes).is_none() {
        return Some(of);
    }
    if let Window::Global | Window::Generic = op.window {
        // The report has the address that the kernel uses.
        of.iter_mut().for_each(|address| *address = address.wrapping_sub(start));
    }
    misplaced(lanes, mask, bytes, &of)
}

/// Notes the fault of an address that is not a multiple of the size of the access.
#[cold]
pub(super) fn misplaced(
    lanes: &mut Lanes,
    mask: Mask,
    bytes: u64,
    of: &[u64; LANES],
) -> Option<[u64; LANES]> {
    let lane = misaligned(of, mask, bytes)?;
    lanes.fail(lane, FaultKind::Misaligned { address: of[lane], bytes });
    None
}

/// Loads `N` elements of type `T` into registers of cells `D`.
#[inline(always)]
fn load<L: Vectors, T: Element, D: Cell, const N: usize>(
    lanes: &mut Lanes,
    op: &Op,
    mask: Mask,
    context: &Context<'_>,
) -> Flow {
    let bytes = T::BYTES * N as u64;
    let rows = [op.d, op.b, op.c, op.e];
    let cell = |element: T| D::of_u64(element.extended());
    if mask == Mask::MAX
        && let Some(Runs { starts, is_same }) = Runs::of(&lanes.registers, op, context, bytes, Access::Read)
    {
        // Two loops, because the compiler uses short vectors in one that does both.
        if is_same {
            for (half, start) in starts.into_iter().enumerate() {
                for (at, row) in rows.into_iter().take(N).enumerate() {
                    // SAFETY: load needs an aligned address in memory that is valid for reads.
                    // `Runs` has checked both: the memory belongs to the launch or to the block,
                    // and all of it is accessed by these functions alone meanwhile.
                    let element = unsafe { T::load(start + at as u64 * T::BYTES) };
                    run_of(D::row_mut(&mut lanes.registers, row), half).fill(cell(element));
                }
            }
        } else {
            for (half, start) in starts.into_iter().enumerate() {
                // SAFETY: as above, for the elements of the whole run. The level is that for which
                // this function is compiled.
                let elements = unsafe { load_run::<L, T, N>(start) };
                for at in 0..N {
                    let run = run_of(D::row_mut(&mut lanes.registers, rows[at]), half);
                    for lane in 0..RUN {
                        run[lane] = cell(elements[at][lane]);
                    }
                }
            }
        }
        return Flow::Next;
    }
    load_each::<T, D, N>(lanes, op, mask, context)
}

/// Returns one of the two runs of lanes of a row.
#[inline(always)]
fn run_of<C: Cell>(row: &mut [C; LANES], half: usize) -> &mut [C; RUN] {
    &mut row.as_chunks_mut().0[half]
}

/// Loads the elements of each lane on their own.
#[inline(never)]
fn load_each<T: Element, D: Cell, const N: usize>(
    lanes: &mut Lanes,
    op: &Op,
    mask: Mask,
    context: &Context<'_>,
) -> Flow {
    let Some(of) = addresses(lanes, op, mask, context, T::BYTES * N as u64, Access::Read) else {
        return Flow::Fault;
    };
    let rows = [op.d, op.b, op.c, op.e];
    for (at, row) in rows.into_iter().take(N).enumerate() {
        let row = D::row_mut(&mut lanes.registers, row);
        for_each_lane(mask, |lane| {
            // SAFETY: as in `load`, but `addresses` has checked, and the memory may be that of the
            // thread.
            let element = unsafe { T::load(of[lane] + at as u64 * T::BYTES) };
            row[lane] = D::of_u64(element.extended());
        });
    }
    Flow::Next
}

/// Stores `N` elements of type `T` from registers of cells `D`.
#[inline(always)]
fn store<L: Vectors, T: Element, D: Cell, const N: usize>(
    lanes: &mut Lanes,
    op: &Op,
    mask: Mask,
    context: &Context<'_>,
) -> Flow {
    let bytes = T::BYTES * N as u64;
    let rows = [op.d, op.b, op.c, op.e];
    let element = |cell: D| T::of_u64(cell.to_u64());
    if mask == Mask::MAX
        && let Some(Runs { starts, is_same: false }) =
            Runs::of(&lanes.registers, op, context, bytes, Access::Write)
    {
        for (half, start) in starts.into_iter().enumerate() {
            let mut elements = [[T::of_u64(0); RUN]; N];
            for at in 0..N {
                let row = D::row(&lanes.registers, rows[at]);
                for lane in 0..RUN {
                    elements[at][lane] = element(row[half * RUN + lane]);
                }
            }
            // SAFETY: as in `load`, for writes.
            unsafe { store_run::<L, T, N>(elements, start) };
        }
        return Flow::Next;
    }
    store_each::<T, D, N>(lanes, op, mask, context)
}

/// Stores the elements of each lane on their own.
#[inline(never)]
fn store_each<T: Element, D: Cell, const N: usize>(
    lanes: &mut Lanes,
    op: &Op,
    mask: Mask,
    context: &Context<'_>,
) -> Flow {
    let Some(of) = addresses(lanes, op, mask, context, T::BYTES * N as u64, Access::Write) else {
        return Flow::Fault;
    };
    let rows = [op.d, op.b, op.c, op.e];
    for (at, row) in rows.into_iter().take(N).enumerate() {
        let row = D::row(&lanes.registers, row);
        for_each_lane(mask, |lane| {
            let element = T::of_u64(row[lane].to_u64());
            // SAFETY: as in `load_each`, for writes.
            unsafe { element.store(of[lane] + at as u64 * T::BYTES) };
        });
    }
    Flow::Next
}

/// Returns the bytes that a lane stores, from the lowest address on.
pub(crate) fn stored(lanes: &Lanes, op: &Op, lane: usize, moved: Moved, is_wide: bool) -> [u8; 16] {
    let mut bytes = [0; 16];
    let size = usize::from(moved.bytes);
    for (element, row) in bytes.chunks_exact_mut(size).zip([op.d, op.b, op.c, op.e]) {
        let value = match is_wide {
            true => lanes.registers.wide[row as usize][lane],
            false => lanes.registers.narrow[row as usize][lane].into(),
        };
        element.copy_from_slice(&value.to_le_bytes()[..size]);
    }
    bytes
}

/// Compiles a loop over addresses for each level.
macro_rules! compiled {
    ($module:ident, $body:ident) => {
        mod $module {
            use super::*;

            fn plain<T: Element, D: Cell, const N: usize>(
                lanes: &mut Lanes,
                op: &Op,
                mask: Mask,
                context: &Context<'_>,
            ) -> Flow {
                $body::<runs::Plain, T, D, N>(lanes, op, mask, context)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
            fn avx2<T: Element, D: Cell, const N: usize>(
                lanes: &mut Lanes,
                op: &Op,
                mask: Mask,
                context: &Context<'_>,
            ) -> Flow {
                $body::<runs::Avx2, T, D, N>(lanes, op, mask, context)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
            fn avx512<T: Element, D: Cell, const N: usize>(
                lanes: &mut Lanes,
                op: &Op,
                mask: Mask,
                context: &Context<'_>,
            ) -> Flow {
                $body::<runs::Avx512, T, D, N>(lanes, op, mask, context)
            }

            pub(super) const fn loops<T: Element, D: Cell, const N: usize>() -> Loops {
                // The unit tests run no loop, so they compile one where the library compiles three.
                if cfg!(test) {
                    return Loops::all(plain::<T, D, N>);
                }
                Loops {
                    plain: plain::<T, D, N>,
                    #[cfg(target_arch = "x86_64")]
                    avx2: avx2::<T, D, N>,
                    #[cfg(target_arch = "x86_64")]
                    avx512: avx512::<T, D, N>,
                }
            }
        }
    };
}

compiled!(loads, load);
compiled!(stores, store);

/// Declares the function that returns the loop for `n` elements of a type in registers, which are
/// wide or not.
macro_rules! loops_by_type {
    ($(#[$comment:meta])* $name:ident, $module:ident) => {
        $(#[$comment])*
        pub(crate) fn $name(element: &str, n: usize, is_wide: bool) -> Option<Loops> {
            macro_rules! of {
                ($t:ty, $cell:ty) => {
                    match n {
                        1 => $module::loops::<$t, $cell, 1>(),
                        2 => $module::loops::<$t, $cell, 2>(),
                        4 => $module::loops::<$t, $cell, 4>(),
                        _ => return None,
                    }
                };
                ($t:ty) => {
                    if is_wide { of!($t, u64) } else { of!($t, u32) }
                };
            }
            Some(match element {
                "b8" | "u8" => of!(u8),
                "s8" => of!(i8),
                "b16" | "u16" | "f16" | "bf16" => of!(u16),
                "s16" => of!(i16),
                "b32" | "u32" | "f32" | "f16x2" | "bf16x2" => of!(u32),
                "s32" => of!(i32),
                "b64" | "u64" | "s64" | "f64" if is_wide => of!(u64, u64),
                _ => return None,
            })
        }
    };
}

loops_by_type!(
    /// Returns the loop that loads `n` elements of a type into registers, which are wide or not.
    load_of,
    loads
);
loops_by_type!(
    /// Returns the loop that stores `n` elements of a type from registers, which are wide or not.
    store_of,
    stores
);

/// Copies `extra` bytes from offset `a` of the frame to offset `b`, in all lanes.
pub(crate) fn copy_in_frame(lanes: &mut Lanes, op: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    let (len, end) = (op.extra, lanes.local_bytes);
    let (from, to) = (lanes.frame + u64::from(op.a), lanes.frame + u64::from(op.b));
    if from.max(to) + len > end {
        let lane = mask.trailing_zeros() as usize;
        return lanes.fail(lane, FaultKind::StackOverflow { len_bytes: end });
    }
    for_each_lane(mask, |lane| {
        let start = lanes.local_of(lane);
        for at in 0..len {
            // SAFETY: load needs memory that is valid for reads: the local memory of this lane,
            // within which the offset is by the check above.
            let byte = unsafe { u8::load(start + from + at) };
            // SAFETY: as above, for writes.
            unsafe { byte.store(start + to + at) };
        }
    });
    Flow::Next
}
