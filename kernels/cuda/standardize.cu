// x ← (x − mean) / deviation, column by column.
//
// Moves 8 bytes per element. The 8 bytes per column come from a cache after the first read. Bound
// by memory.
#include "vector.cuh"

KERNEL standardize(u64 rows, u64 cols, const float* __restrict__ mean, const float* __restrict__ deviation,
                   float* __restrict__ x) {
    if (cols > 0) {
        map_columns(rows * cols, cols, x, x, [=](float x, u64 c) { return (x - mean[c]) / deviation[c]; });
    }
}
