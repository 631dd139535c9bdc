//! Loads and stores of a whole warp whose addresses follow each other.
//!
//! # Runs
//! Kernels mostly access memory in one of two ways: neighbouring threads access neighbouring
//! elements, or all of them the same one. In a block with several rows of threads, that holds for
//! each half of a warp. So an access is recognised as two **runs** of 16 lanes, which are checked
//! together and moved by vectors. Every other access takes the path of `access`, lane by lane.
//!
//! # Races
//! A vector is moved by an instruction in `asm!`, which stands for a relaxed atomic access of each
//! element: see `memory`. Processors with AVX access 16 aligned bytes at once (Intel SDM 3A,
//! 9.1.1), and an element lies within those. The order of the elements is left open, as it is for
//! the lanes of a warp.

use super::access::{Base, Window};
use super::context::Context;
use super::memory::{Access, Element};
use super::op::Op;
use super::registers::{Cell, LANES, Registers};

/// The number of lanes of a run.
pub(crate) const RUN: usize = LANES / 2;

/// The addresses of the host that a whole warp accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Runs {
    /// The address of the first lane of each run.
    pub(crate) starts: [u64; 2],
    /// True if all lanes of a run have the same address. Otherwise each accesses what follows the
    /// access of the one before.
    pub(crate) is_same: bool,
}

impl Runs {
    /// Returns the addresses that all 32 lanes access, `bytes` each. Returns `None` if they do not
    /// make runs, or if one may not be accessed.
    #[inline(always)]
    pub(crate) fn of(
        registers: &Registers,
        op: &Op,
        context: &Context<'_>,
        bytes: u64,
        access: Access,
    ) -> Option<Runs> {
        let Runs { starts, is_same } = match op.base {
            Base::None => Runs { starts: [op.extra; 2], is_same: true },
            Base::Narrow => {
                let (starts, is_same) = narrow_runs(u32::row(registers, op.a), bytes as u32)?;
                let starts = starts.map(|start| u64::from(start.wrapping_add(op.extra as u32)));
                Runs { starts, is_same }
            }
            Base::Wide => {
                let (starts, is_same) = wide_runs(u64::row(registers, op.a), bytes)?;
                Runs { starts: starts.map(|start| start.wrapping_add(op.extra)), is_same }
            }
        };
        let len = if is_same { bytes } else { bytes * RUN as u64 };
        let (from, last) = (starts[0].min(starts[1]), starts[0].max(starts[1]));
        let to = last.saturating_add(len);
        let launch = context.launch;
        let distance = match op.window {
            Window::Global | Window::Generic => launch.regions.distance(from, to, access)?,
            Window::Shared | Window::Cluster if to <= u64::from(launch.shared_bytes) => context.shared,
            Window::Param if to <= launch.params().1 => launch.params().0,
            _ => return None,
        };
        let starts = starts.map(|start| start.wrapping_add(distance));
        ((starts[0] | starts[1]) & (bytes - 1) == 0).then_some(Runs { starts, is_same })
    }
}

/// Declares the function that finds the runs of a row: their starts, and whether the lanes of each
/// are the same.
macro_rules! runs_of {
    ($name:ident, $cell:ident) => {
        #[inline(always)]
        fn $name(row: &[$cell; LANES], bytes: $cell) -> Option<([$cell; 2], bool)> {
            /// The distances from the first lane of a run, if all lanes are the same, and if each
            /// accesses 1, 2, 4, 8 or 16 bytes.
            const DISTANCES: [[$cell; RUN]; 6] = {
                let mut distances = [[0; RUN]; 6];
                let mut at = 0;
                while at < 5 * RUN {
                    distances[1 + at / RUN][at % RUN] = ((at % RUN) << (at / RUN)) as $cell;
                    at += 1;
                }
                distances
            };
            let starts = [row[0], row[RUN]];
            let step = row[1].wrapping_sub(starts[0]);
            if step != 0 && step != bytes {
                return None;
            }
            let is_same = step == 0;
            let distances = &DISTANCES[if is_same { 0 } else { 1 + bytes.trailing_zeros() as usize }];
            // Without this the compiler leaves out the lanes that it has read, and uses no whole
            // vectors.
            let row = std::hint::black_box(row);
            let mut differences = [0; RUN];
            for half in 0..2 {
                for lane in 0..RUN {
                    let expected = starts[half].wrapping_add(distances[lane]);
                    differences[lane] |= row[half * RUN + lane] ^ expected;
                }
            }
            (differences.into_iter().fold(0, |any, difference| any | difference) == 0)
                .then_some((starts, is_same))
        }
    };
}

runs_of!(narrow_runs, u32);
runs_of!(wide_runs, u64);

/// The vector instructions of a level.
pub(crate) trait Vectors {
    /// The bytes of a vector, or 0 if there are none.
    const BYTES: usize;

    /// Loads a vector.
    ///
    /// # Safety
    /// The processor has the instructions of the level. `from` is the address of [`Self::BYTES`]
    /// bytes of aligned elements that are valid for reads, and that Rust code accesses by atomic
    /// operations alone meanwhile. `to` is valid for writes of as many bytes.
    unsafe fn load(from: u64, to: *mut u8);

    /// Stores a vector.
    ///
    /// # Safety
    /// The conditions are those of [`load`](Self::load), with `to` as the address of the elements,
    /// valid for writes, and `from` valid for reads.
    unsafe fn store(from: *const u8, to: u64);
}

/// The vectors that every processor of the target has.
pub(crate) struct Plain;

#[cfg(not(target_arch = "x86_64"))]
impl Vectors for Plain {
    const BYTES: usize = 0;

    unsafe fn load(_: u64, _: *mut u8) {}

    unsafe fn store(_: *const u8, _: u64) {}
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::{Plain, Vectors};
    use std::arch::asm;
    use std::arch::x86_64::{__m128i, __m256i, __m512i};

    /// The vectors of AVX2.
    pub(crate) struct Avx2;

    /// The vectors of AVX-512.
    pub(crate) struct Avx512;

    /// Declares the vectors of a level, whose functions need a processor feature.
    macro_rules! vectors {
        ($level:ident, $vector:ident, $class:ident, $feature:literal, $move:literal) => {
            const _: () = {
                #[inline]
                #[target_feature(enable = $feature)]
                unsafe fn load(from: u64) -> $vector {
                    let vector;
                    // SAFETY: the instruction reads the bytes at `from`, which the caller of
                    // `Vectors::load` promises to be valid, and does nothing else.
                    unsafe {
                        asm!(
                            concat!($move, " {vector}, [{from}]"),
                            vector = lateout($class) vector,
                            from = in(reg) from,
                            options(nostack, preserves_flags, readonly)
                        );
                    }
                    vector
                }

                #[inline]
                #[target_feature(enable = $feature)]
                unsafe fn store(vector: $vector, to: u64) {
                    // SAFETY: the instruction writes the bytes at `to`, which the caller of
                    // `Vectors::store` promises to be valid, and does nothing else.
                    unsafe {
                        asm!(
                            concat!($move, " [{to}], {vector}"),
                            vector = in($class) vector,
                            to = in(reg) to,
                            options(nostack, preserves_flags)
                        );
                    }
                }

                impl Vectors for $level {
                    const BYTES: usize = size_of::<$vector>();

                    #[inline(always)]
                    unsafe fn load(from: u64, to: *mut u8) {
                        // SAFETY: the caller promises the feature and the bytes.
                        let vector = unsafe { load(from) };
                        // SAFETY: the caller promises that as many bytes are valid for writes.
                        unsafe { to.cast::<$vector>().write_unaligned(vector) };
                    }

                    #[inline(always)]
                    unsafe fn store(from: *const u8, to: u64) {
                        // SAFETY: the caller promises that as many bytes are valid for reads.
                        let vector = unsafe { from.cast::<$vector>().read_unaligned() };
                        // SAFETY: the caller promises the feature and the bytes.
                        unsafe { store(vector, to) };
                    }
                }
            };
        };
    }

    vectors!(Plain, __m128i, xmm_reg, "sse2", "movdqu");
    vectors!(Avx2, __m256i, ymm_reg, "avx", "vmovdqu");
    vectors!(Avx512, __m512i, zmm_reg, "avx512f", "vmovdqu64");
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{Avx2, Avx512};

/// Loads `N` elements for each lane of a run.
///
/// # Safety
/// The conditions are those of [`Vectors::load`], for the bytes of all elements.
#[inline(always)]
pub(crate) unsafe fn load_run<L: Vectors, T: Element, const N: usize>(start: u64) -> [[T; RUN]; N] {
    let mut flat = [[T::of_u64(0); RUN]; N];
    let bytes = size_of_val(&flat);
    if L::BYTES > 0 && bytes.is_multiple_of(L::BYTES) {
        let to = (&raw mut flat).cast::<u8>();
        for at in (0..bytes).step_by(L::BYTES) {
            // SAFETY: add needs to stay within `flat`: `at` is less than its size.
            let to = unsafe { to.add(at) };
            // SAFETY: the caller promises the elements, and a vector at `to` lies within `flat`,
            // whose size is a multiple of that of a vector.
            unsafe { L::load(start + at as u64, to) };
        }
    } else {
        for (at, element) in flat.as_flattened_mut().iter_mut().enumerate() {
            // SAFETY: the caller promises the elements.
            *element = unsafe { T::load(start + at as u64 * T::BYTES) };
        }
    }
    // Loops, because the compiler does not inline nested calls of `from_fn`.
    let mut elements = [[T::of_u64(0); RUN]; N];
    for at in 0..N {
        for lane in 0..RUN {
            elements[at][lane] = flat[(lane * N + at) / RUN][(lane * N + at) % RUN];
        }
    }
    elements
}

/// Stores `N` elements of each lane of a run.
///
/// # Safety
/// The conditions are those of [`Vectors::store`], for the bytes of all elements.
#[inline(always)]
pub(crate) unsafe fn store_run<L: Vectors, T: Element, const N: usize>(elements: [[T; RUN]; N], start: u64) {
    let mut flat = [[T::of_u64(0); RUN]; N];
    for at in 0..N {
        for lane in 0..RUN {
            flat[(lane * N + at) / RUN][(lane * N + at) % RUN] = elements[at][lane];
        }
    }
    let bytes = size_of_val(&flat);
    if L::BYTES > 0 && bytes.is_multiple_of(L::BYTES) {
        let from = (&raw const flat).cast::<u8>();
        for at in (0..bytes).step_by(L::BYTES) {
            // SAFETY: add needs to stay within `flat`: `at` is less than its size.
            let from = unsafe { from.add(at) };
            // SAFETY: the caller promises the elements, and a vector at `from` lies within `flat`,
            // whose size is a multiple of that of a vector.
            unsafe { L::store(from, start + at as u64) };
        }
    } else {
        for (at, element) in flat.as_flattened().iter().enumerate() {
            // SAFETY: the caller promises the elements.
            unsafe { element.store(start + at as u64 * T::BYTES) };
        }
    }
}
