//! The expected results of the kernels, computed on the host.
//!
//! Arrays that a reference does not mention are inputs or scratch memory.

mod arithmetic;
mod control;
mod elementwise;
mod locks;
mod prints;
mod reductions;
mod scans;
mod sorts;
mod sparse;
mod tiles;
mod warps;

use super::manifest::Case;
use super::values::Values;

/// A part of a kernel's result.
#[derive(Debug)]
pub(crate) enum Expected {
    /// The contents of an array after the launch.
    Array { parameter: &'static str, values: Values, agreement: Agreement },
    /// The lines that the threads print, in any order.
    Lines(Vec<String>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Agreement {
    Exact,
    /// Equal elements, in any order.
    AnyOrder,
    /// No element differs by more than `relative` times its size plus `absolute`.
    Within {
        relative: f64,
        absolute: f64,
    },
}

impl Agreement {
    /// Compares memory after a launch with the expected values.
    pub(crate) fn check(self, expected: &Values, found: &Values) -> Result<(), String> {
        let (expected, found) = match self {
            Agreement::AnyOrder => (&expected.sorted(), &found.sorted()),
            _ => (expected, found),
        };
        if expected == found {
            return Ok(());
        }
        let (relative, absolute) = match self {
            Agreement::Within { relative, absolute } => (relative, absolute),
            _ => (0.0, 0.0),
        };
        if expected.len() != found.len() {
            return Err(format!("{} elements; expected {}", found.len(), expected.len()));
        }
        for (i, (e, f)) in expected.numbers().into_iter().zip(found.numbers()).enumerate() {
            let near = (e - f).abs() <= relative * e.abs() + absolute;
            if e != f && !near {
                return Err(format!("element {i} is {f}; expected {e} ({self:?})"));
            }
        }
        match self {
            Agreement::Within { .. } => Ok(()),
            _ => Err("elements differ beyond the 53rd bit, or are NaN".to_owned()),
        }
    }
}

/// The results of a launch of a sound kernel.
pub(crate) fn expected(case: &Case) -> Vec<Expected> {
    let reference = match case.kernel.as_str() {
        "vector_add" => elementwise::vector_add,
        "saxpy" => elementwise::saxpy,
        "grid_stride" => elementwise::grid_stride,
        "volume" => elementwise::volume,
        "vector_loads" => elementwise::vector_loads,
        "bytes_shorts" => elementwise::bytes_shorts,
        "constant_convolution" => elementwise::constant_convolution,
        "math" => arithmetic::math,
        "conversions" => arithmetic::conversions,
        "bits" => arithmetic::bits,
        "carry" => arithmetic::carry,
        "half_bfloat" => arithmetic::half_bfloat,
        "mandelbrot" => control::mandelbrot,
        "binary_search" => control::binary_search,
        "switch_table" => control::switch_table,
        "switch_tree" => control::switch_tree,
        "recursion" => control::recursion,
        "function_pointers" => control::function_pointers,
        "local_array" => control::local_array,
        "generic_pointers" => control::generic_pointers,
        "scan_hillis_steele" => scans::scan_hillis_steele,
        "scan_blelloch" => scans::scan_blelloch,
        "segmented_scan" => scans::segmented_scan,
        "scan_look_back" => scans::scan_look_back,
        "compaction" => scans::compaction,
        "reduce_tree" | "reduce_shuffle" => reductions::reduce_by_block,
        "reduce_last_block" => reductions::reduce_last_block,
        "histogram" => reductions::histogram,
        "cluster_histogram" => reductions::cluster_histogram,
        "float_atomic" => reductions::float_atomic,
        "max_by_cas" => reductions::max_by_cas,
        "atomic_kinds" => reductions::atomic_kinds,
        "warp_aggregated" => warps::warp_aggregated,
        "warp_groups" => warps::warp_groups,
        "warp_votes" => warps::warp_votes,
        "warp_exchange" => warps::warp_exchange,
        "warp_two_sides" => warps::warp_two_sides,
        "transpose" => tiles::transpose,
        "cluster_stencil" => tiles::cluster_stencil,
        "stencil_1d" => tiles::stencil_1d,
        "stencil_2d" => tiles::stencil_2d,
        "matmul_tiled" => tiles::matmul_tiled,
        "async_tiles" => tiles::async_tiles,
        "tensor_product" => tiles::tensor_product,
        "matrix_vector" => tiles::matrix_vector,
        "nbody_tile" => tiles::nbody_tile,
        "two_arrays" => tiles::two_arrays,
        "bitonic_sort" | "odd_even_sort" => sorts::sort_by_block,
        "radix_pass" => sorts::radix_pass,
        "merge" => sorts::merge,
        "spin_lock" => locks::spin_lock,
        "ticket_lock" => locks::ticket_lock,
        "producer_consumer" => locks::producer_consumer,
        "release_acquire" => locks::release_acquire,
        "grid_barrier" => locks::grid_barrier,
        "grid_groups" => locks::grid_groups,
        "ping_pong" => locks::ping_pong,
        "named_barriers" => locks::named_barriers,
        "double_buffer" => locks::double_buffer,
        "queue" => locks::queue,
        "bfs_step" => sparse::bfs_step,
        "spmv" => sparse::spmv,
        "print" => prints::print,
        "check" => prints::check,
        "trap" => prints::trap,
        kernel => panic!("no reference for {kernel}"),
    };
    reference(case)
}

fn exact<T>(parameter: &'static str, values: Vec<T>) -> Expected
where
    Values: From<Vec<T>>,
{
    Expected::Array { parameter, values: values.into(), agreement: Agreement::Exact }
}

fn any_order<T>(parameter: &'static str, values: Vec<T>) -> Expected
where
    Values: From<Vec<T>>,
{
    Expected::Array { parameter, values: values.into(), agreement: Agreement::AnyOrder }
}

fn within<T>(relative: f64, absolute: f64, parameter: &'static str, values: Vec<T>) -> Expected
where
    Values: From<Vec<T>>,
{
    Expected::Array { parameter, values: values.into(), agreement: Agreement::Within { relative, absolute } }
}
