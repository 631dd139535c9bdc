//! Launch configurations with which the kernels are fast on a GPU.
//!
//! A kernel is correct under every configuration that the driver accepts. The device code in
//! `cuda/` is written for the configurations here. For a matrix product, the driver refuses blocks
//! of more than 256 threads. The CPU device runs twins, which ignore the configuration, and so do
//! libraries.
// Decision: docs/decisions/0038-device-code-is-right-under-every-configuration.md

use warpline_runtime::kernel::LaunchConfig;

/// The number of elements that one block reads in about the time that a second launch takes.
///
/// Reductions of more elements use two steps: see [`sum_runs`](fn@crate::sum_runs) and
/// [`cross_entropy_rows`](fn@crate::cross_entropy_rows).
pub const ONE_BLOCK: u64 = 1 << 16;

const WARP: u64 = 32;

/// Returns the configuration for kernels that process or fill `n` elements or columns: one thread
/// per 16 bytes of f32.
pub fn elements(n: u64) -> LaunchConfig {
    LaunchConfig::for_elements(n.div_ceil(4))
}

/// Returns the configuration for kernels that reduce everything to one value, in which only the
/// first block works.
pub fn one_block() -> LaunchConfig {
    LaunchConfig::linear(1, 1024)
}

/// Returns the configuration for [`sum_runs`](fn@crate::sum_runs): one block per run.
///
/// A block has one thread for each of the 32 lanes of each of its 16 chunks.
pub fn runs(runs: u64) -> LaunchConfig {
    LaunchConfig::linear(blocks(runs), 512)
}

/// Returns the configuration for kernels that reduce each row: one warp per row.
pub fn rows(rows: u64) -> LaunchConfig {
    LaunchConfig::for_elements(rows.saturating_mul(WARP))
}

/// Returns the configuration for kernels that reduce along one dimension of `outer` × n × `inner`
/// elements: one warp per row if `inner` is 1, and otherwise one thread per line.
pub fn lines(outer: u64, inner: u64) -> LaunchConfig {
    if inner == 1 { rows(outer) } else { LaunchConfig::for_elements(outer.saturating_mul(inner)) }
}

/// Returns the configuration for kernels that reduce each column: one block per 32 neighbouring
/// columns.
///
/// In a block, one warp adds and 15 warps load the elements.
pub fn columns(cols: u64) -> LaunchConfig {
    LaunchConfig::linear(blocks(cols.div_ceil(32)), 512)
}

/// Returns the configuration for a transpose: one block per 32 rows and 32 columns.
pub fn transpose(rows: u64, cols: u64) -> LaunchConfig {
    LaunchConfig::linear(blocks(rows.div_ceil(32).saturating_mul(cols.div_ceil(32))), 256)
}

/// Returns the configuration for a product of `m` × `n` elements: one block per 64 × 64 elements.
///
/// If that gives fewer blocks than a device needs, a block computes 32 × 32 elements. A block with
/// fewer threads is slow.
pub fn product(m: u64, n: u64) -> LaunchConfig {
    // Equal to `MANY_TILES` in cuda/gemm.cuh.
    const MANY: u64 = 128;
    let tiles = |size| m.div_ceil(size).saturating_mul(n.div_ceil(size));
    let large = tiles(64);
    LaunchConfig::linear(blocks(if large >= MANY { large } else { tiles(32) }), 256)
}

/// Limits `wanted` to the blocks that a grid can have, and to at least one.
///
/// A kernel loops over the work that exceeds its grid.
fn blocks(wanted: u64) -> u32 {
    u32::try_from(wanted.clamp(1, i32::MAX as u64)).expect("the clamp is below")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_configuration_can_be_launched() {
        for n in [0, 1, 1000, 1 << 40, u64::MAX] {
            let all = [
                elements(n),
                one_block(),
                runs(n),
                rows(n),
                lines(n, 1),
                lines(n, n),
                columns(n),
                transpose(n, n),
                product(n, n),
            ];
            all.iter().for_each(|config| config.check("kernel").unwrap());
        }
    }

    #[test]
    fn products_take_large_tiles_where_there_are_many() {
        assert_eq!(product(64, 128).grid, [8, 1, 1]);
        assert_eq!(product(1024, 512).grid, [128, 1, 1]);
        assert_eq!(product(1024, 449).grid, [128, 1, 1]);
        assert_eq!(product(1024, 448).grid, [448, 1, 1]);
    }
}
