// The maximum of each run of elements; the maximum of each line, and its index.
//
// Reads 4 bytes per element. `maxima` writes 4 bytes per run, and a block takes a run. `max_dim`
// writes 12 bytes per line. It is bound by memory from some thousand lines on; a few long lines
// keep few warps busy.
#include "fold.cuh"
#include "lines.cuh"
#include "places.cuh"

// Returns the larger one, or NaN if either is.
__device__ __forceinline__ float larger(float a, float b) {
    return a != a || a > b ? a : b;
}

KERNEL maxima(u64 n, u64 run, const float* __restrict__ x, float* __restrict__ maxima) {
    __shared__ float lanes[LANES];
    const u64 runs = n == 0 ? 0 : (n - 1) / run + 1;
    for (u64 r = block(); r < runs; r += blocks()) {
        const u64 start = r * run, end = n - start < run ? n : start + run;
        for (u32 l = thread_in_block(); l < LANES; l += block_threads()) {
            float max = __int_as_float(0xff800000);
#pragma unroll 8
            for (u64 i = start + l; i < end; i += LANES) {
                max = larger(max, x[i]);
            }
            lanes[l] = max;
        }
        const float max = folded(lanes, larger);
        if (thread_in_block() == 0) {
            // The sum makes +0 of −0, so that the bits do not depend on the order.
            maxima[r] = max + 0.0f;
        }
        // The next run overwrites the lanes.
        __syncthreads();
    }
}

KERNEL max_dim(u64 outer, u64 n, u64 inner, const float* __restrict__ x, float* __restrict__ values,
               i64* __restrict__ indices) {
    each_line(outer, n, inner, [=](const Team& us, u64 line, u64 first) {
        const Place best = best_of(us, n, inner, x + first);
        if (us.lane == 0) {
            values[line] = best.value;
            indices[line] = best.index;
        }
    });
}
