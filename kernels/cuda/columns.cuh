// Walks the columns of a row-major matrix in row order, one tile of neighbouring columns at a time,
// like kernels/src/columns.rs.
//
// Adding in row order leaves one thread per column. That thread alone would wait for memory at each
// step. So the first warp adds the rows that are in shared memory, while the other warps fetch the
// next rows.
#pragma once
#include "threads.cuh"

// Columns per tile: one for each thread of a warp.
constexpr u32 TILE_COLUMNS = 32;
// Rows fetched at a time. Adding them takes about as long as fetching them.
constexpr u32 TILE_ROWS = 128;

// One value for each column of the tile, in shared memory. Only the thread of a column uses its
// value, so no barrier is needed.
using Columns = double[TILE_COLUMNS];

// Two sets of rows in shared memory: one is added while the other is fetched.
using Tiles = float[2][TILE_ROWS][TILE_COLUMNS];

// Copies up to TILE_ROWS rows, from `row` on, of the columns from `first` to `first + width` to
// `to` in shared memory. In a block of more threads than one warp, the first warp skips this.
__device__ __forceinline__ void fetch_rows(u64 rows, u64 cols, u64 row, u64 first, u32 width,
                                           const float* __restrict__ x, float (*to)[TILE_COLUMNS]) {
    const u32 adders = block_threads() > TILE_COLUMNS ? TILE_COLUMNS : 0;
    if (thread_in_block() < adders) {
        return;
    }
    const u32 count = u32(rows - row < TILE_ROWS ? rows - row : TILE_ROWS);
#pragma unroll 4
    for (u32 i = thread_in_block() - adders; i < count * TILE_COLUMNS; i += block_threads() - adders) {
        const u32 r = i / TILE_COLUMNS, c = i % TILE_COLUMNS;
        if (c < width) {
            to[r][c] = x[(row + r) * cols + first + c];
        }
    }
}

// Calls add(c, values, count) for each column c below `width`, with some rows at a time, in row
// order. values[r][0], for r below `count`, are the next values of column `first + c`. A column
// gets the same thread every time. All threads of the block call this, and it ends with a barrier.
template <class F>
__device__ __forceinline__ void each_column(u64 rows, u64 cols, u64 first, u32 width, const float* __restrict__ x,
                                            Tiles& tile, F add) {
    if (rows > 0) {
        fetch_rows(rows, cols, 0, first, width, x, tile[0]);
    }
    __syncthreads();
    u32 now = 0;
    // `row` ends at exactly `rows`, so it cannot overflow.
    for (u64 row = 0; row < rows; now = 1 - now) {
        const u32 count = u32(rows - row < TILE_ROWS ? rows - row : TILE_ROWS);
        for (u32 c = thread_in_block(); c < width; c += block_threads()) {
            add(c, reinterpret_cast<const float(*)[TILE_COLUMNS]>(&tile[now][0][c]), count);
        }
        row += count;
        if (row < rows) {
            fetch_rows(rows, cols, row, first, width, x, tile[1 - now]);
        }
        __syncthreads();
    }
}
