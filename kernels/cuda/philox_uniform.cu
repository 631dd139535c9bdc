// Uniformly distributed numbers from Philox4x32-10.
//
// Writes 4 bytes per element, for about 20 integer operations. Bound by memory on devices that have
// half of their arithmetic for integers. Bound by arithmetic if memory has more than 25 bytes per
// clock for each multiprocessor.
#include "philox.cuh"

KERNEL philox_uniform(u64 n, u64 seed, u64 subsequence, u64 offset, float low, float high, float* y) {
    const float width = high - low;
    fill(n, seed, subsequence, offset, y, [=](const Words& words) {
        Pack<float> values;
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            values.at[k] = low + width * unit(words.at[k]);
        }
        return values;
    });
}
