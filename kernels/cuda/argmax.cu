// The index of the largest element of each row.
//
// Reads 4 bytes per element and writes 8 bytes per row. A warp takes a row, so the kernel is bound
// by memory from some thousand rows on. A few long rows keep few warps busy.
#include "places.cuh"

KERNEL argmax(u64 rows, u64 cols, const float* __restrict__ x, i64* __restrict__ indices) {
    const Team us = team();
    const u64 teams = threads() / us.lanes;
    for (u64 r = thread() / us.lanes; r < rows; r += teams) {
        const Place best = best_of(us, cols, 1, x + r * cols);
        if (us.lane == 0) {
            indices[r] = best.index;
        }
    }
}
