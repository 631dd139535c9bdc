// The running mean and squared deviations of each column, batch by batch. The formulas and their
// source are in kernels/src/column_moments.rs. All arithmetic is f64, in row order, so the results
// have the same bits as the twin's.
//
// Reads 8 bytes per element, in two passes, and moves 48 bytes per column. A block of 512 threads
// takes 32 columns. Bound by memory from some thousand columns on. With fewer columns, bound by the
// additions of a column, which depend on one another.
#include "columns.cuh"

KERNEL column_moments(u64 rows, u64 cols, const float* __restrict__ x, u64* __restrict__ seen,
                      double* __restrict__ means, double* __restrict__ squares) {
    __shared__ Tiles tiles;
    __shared__ Columns batch_means, deviations, batch_squares;
    const double count = double(rows);
    for (u64 first = block() * TILE_COLUMNS; first < cols; first += blocks() * TILE_COLUMNS) {
        const u32 width = u32(cols - first < TILE_COLUMNS ? cols - first : TILE_COLUMNS);
        for (u32 c = thread_in_block(); c < width; c += block_threads()) {
            batch_means[c] = deviations[c] = batch_squares[c] = 0.0;
            if (seen[first + c] == 0) {
                means[first + c] = squares[first + c] = 0.0;
            }
        }
        if (rows == 0) {
            continue;
        }
        each_column(rows, cols, first, width, x, tiles, [&](u32 c, const float (*values)[TILE_COLUMNS], u32 count) {
            double sum = batch_means[c];
#pragma unroll 8
            for (u32 r = 0; r < count; ++r) {
                sum += double(values[r][0]);
            }
            batch_means[c] = sum;
        });
        for (u32 c = thread_in_block(); c < width; c += block_threads()) {
            batch_means[c] /= count;
        }
        each_column(rows, cols, first, width, x, tiles, [&](u32 c, const float (*values)[TILE_COLUMNS], u32 count) {
            const double mean = batch_means[c];
            double sum = deviations[c], square = batch_squares[c];
#pragma unroll 8
            for (u32 r = 0; r < count; ++r) {
                const double deviation = double(values[r][0]) - mean;
                sum += deviation;
                square += deviation * deviation;
            }
            deviations[c] = sum;
            batch_squares[c] = square;
        });
        for (u32 c = thread_in_block(); c < width; c += block_threads()) {
            const double batch_square = batch_squares[c] - deviations[c] * deviations[c] / count;
            const double delta = batch_means[c] - means[first + c];
            const double before = double(seen[first + c]), share = count / (before + count);
            means[first + c] += delta * share;
            squares[first + c] += batch_square + delta * delta * (before * share);
            seen[first + c] += rows;
        }
    }
}
