//! Which grid and blocks a kernel is fast with on a GPU.
//!
//! A kernel is right under every configuration that the driver takes; these are the ones that its device code in `cuda/` is made for.
//! Blocks of more than 256 threads are refused for a product. The CPU device runs twins, which do not look at it, no more
//! than a library does.

use warpline_runtime::kernel::LaunchConfig;

/// Elements that one block reads in about the time that another launch would take. What reduces more is done in two steps: see
/// [`sum_runs`](fn@crate::sum_runs) and [`cross_entropy_rows`](fn@crate::cross_entropy_rows).
pub const ONE_BLOCK: u64 = 1 << 16;

const WARP: u64 = 32;

/// For kernels that go over `n` elements, or columns, or fill them: a thread for 16 bytes of f32.
pub fn elements(n: u64) -> LaunchConfig {
    LaunchConfig::for_elements(n.div_ceil(4))
}

/// For kernels that reduce everything to one value, of which only the first block works.
pub fn one_block() -> LaunchConfig {
    LaunchConfig::linear(1, 1024)
}

/// For [`sum_runs`](fn@crate::sum_runs): a block a run, a thread for one of 32 lanes of each of its 16 chunks.
pub fn runs(runs: u64) -> LaunchConfig {
    LaunchConfig::linear(blocks(runs), 512)
}

/// For kernels that reduce each row: a warp a row.
pub fn rows(rows: u64) -> LaunchConfig {
    LaunchConfig::for_elements(rows.saturating_mul(WARP))
}

/// For kernels that reduce each column: a block for 32 neighbours, of one warp that adds and 15 that fetch.
pub fn columns(cols: u64) -> LaunchConfig {
    LaunchConfig::linear(blocks(cols.div_ceil(32)), 512)
}

/// For a transpose: a block for 32 rows and 32 columns.
pub fn transpose(rows: u64, cols: u64) -> LaunchConfig {
    LaunchConfig::linear(blocks(rows.div_ceil(32).saturating_mul(cols.div_ceil(32))), 256)
}

/// For a product of `m` × `n` elements: a block for 64 × 64 of them, or 32 × 32 where that is less than a device's worth of blocks.
/// A smaller block is slow.
pub fn product(m: u64, n: u64) -> LaunchConfig {
    // As cuda/gemm.cuh has it.
    const MANY: u64 = 128;
    let tiles = |size| m.div_ceil(size).saturating_mul(n.div_ceil(size));
    let large = tiles(64);
    LaunchConfig::linear(blocks(if large >= MANY { large } else { tiles(32) }), 256)
}

/// As many blocks as a grid takes, and at least one. Kernels go on where a grid ends.
fn blocks(wanted: u64) -> u32 {
    wanted.clamp(1, i32::MAX as u64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_configuration_can_be_launched() {
        for n in [0, 1, 1000, 1 << 40, u64::MAX] {
            let all =
                [elements(n), one_block(), runs(n), rows(n), columns(n), transpose(n, n), product(n, n)];
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
