// The sum of each column of a matrix, in f64, in row order, rounded once. It has the same bits as
// the twin's.
//
// Reads 4 bytes per element and writes 4 bytes per column. A block of 512 threads takes 32 columns.
// Bound by memory from some thousand columns on. With fewer columns, bound by the additions of a
// column, which depend on one another: about 10 clocks per row.
#include "columns.cuh"

KERNEL column_sums(u64 rows, u64 cols, const float* __restrict__ x, float* __restrict__ sums) {
    __shared__ Tiles tiles;
    __shared__ Columns exact;
    for (u64 first = block() * TILE_COLUMNS; first < cols; first += blocks() * TILE_COLUMNS) {
        const u32 width = u32(cols - first < TILE_COLUMNS ? cols - first : TILE_COLUMNS);
        for (u32 c = thread_in_block(); c < width; c += block_threads()) {
            exact[c] = 0.0;
        }
        each_column(rows, cols, first, width, x, tiles, [&](u32 c, const float (*values)[TILE_COLUMNS], u32 count) {
            double sum = exact[c];
#pragma unroll 8
            for (u32 r = 0; r < count; ++r) {
                sum += double(values[r][0]);
            }
            exact[c] = sum;
        });
        for (u32 c = thread_in_block(); c < width; c += block_threads()) {
            sums[first + c] = float(exact[c]);
        }
    }
}
