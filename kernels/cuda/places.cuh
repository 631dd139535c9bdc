// The largest element of a line, and its index.
#pragma once
#include "warps.cuh"

struct Place {
    float value;
    i64 index;
};

// Returns the place that a maximum prefers: the first NaN, or else the larger element. Of equal
// elements it prefers the first.
__device__ __forceinline__ Place preferred(const Place& a, const Place& b) {
    const bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
    const bool alike = a_is_nan ? b_is_nan : a.value == b.value;
    const bool first = alike ? a.index < b.index : a_is_nan || a.value > b.value;
    return first ? a : b;
}

// Returns the preferred place of the `n` elements that are `stride` apart. All threads of the team
// call this and get the same place.
__device__ __forceinline__ Place best_of(const Team& us, u64 n, u64 stride, const float* __restrict__ x) {
    // The start value, also the result of a lane without elements, of a line of −∞ alone, and of a
    // line without elements.
    Place best = {__int_as_float(0xff800000), 0};
    for (u64 k = us.lane; k < n; k += us.lanes) {
        best = preferred(best, {x[k * stride], i64(k)});
    }
    for (u32 half = us.lanes / 2; half > 0; half /= 2) {
        best = preferred(best, {__shfl_xor_sync(0xffffffffu, best.value, half),
                                __shfl_xor_sync(0xffffffffu, best.index, half)});
    }
    return best;
}
