// The index of the largest element of each row.
//
// Reads 4 bytes per element and writes 8 bytes per row. A warp takes a row, so the kernel is bound
// by memory from some thousand rows on. A few long rows keep few warps busy.
#include "warps.cuh"

struct Place {
    float value;
    i64 index;
};

// Returns the place that argmax prefers: the first NaN, or else the larger element. Of equal
// elements it prefers the first.
__device__ __forceinline__ Place preferred(const Place& a, const Place& b) {
    const bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
    const bool alike = a_is_nan ? b_is_nan : a.value == b.value;
    const bool first = alike ? a.index < b.index : a_is_nan || a.value > b.value;
    return first ? a : b;
}

KERNEL argmax(u64 rows, u64 cols, const float* __restrict__ x, i64* __restrict__ indices) {
    const Team us = team();
    const u64 teams = threads() / us.lanes;
    for (u64 r = thread() / us.lanes; r < rows; r += teams) {
        // The start value, also the result of a lane without elements, of a row of −∞ alone, and of
        // a row without columns.
        Place best = {__int_as_float(0xff800000), 0};
        for (u64 c = us.lane; c < cols; c += us.lanes) {
            best = preferred(best, {x[r * cols + c], i64(c)});
        }
        for (u32 half = us.lanes / 2; half > 0; half /= 2) {
            best = preferred(best, {__shfl_xor_sync(0xffffffffu, best.value, half),
                                    __shfl_xor_sync(0xffffffffu, best.index, half)});
        }
        if (us.lane == 0) {
            indices[r] = best.index;
        }
    }
}
