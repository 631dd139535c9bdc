// The slices of an array along its middle dimension that a list of indices names.
//
// Moves 8 bytes per element of the result, and 8 bytes per index. Bound by memory.
#include "vector.cuh"

KERNEL index_select(u64 outer, u64 n, u64 inner, u64 count, const float* __restrict__ x,
                    const i64* __restrict__ indices, float* __restrict__ y) {
    const float nan = __int_as_float(0x7fc00000);
    for (u64 e = thread(); e < outer * count * inner; e += threads()) {
        const u64 line = quotient_of(e, inner), at = e - line * inner;
        const u64 o = quotient_of(line, count);
        // As u64, an index below 0 is a large one.
        const u64 index = u64(indices[line - o * count]);
        y[e] = index < n ? x[(o * n + index) * inner + at] : nan;
    }
}
