// Uniform numbers from Philox4x32-10.
//
// Writes 4 bytes an element, for about 20 integer operations: bound by memory on devices with half of their arithmetic for
// integers, by arithmetic where memory has more than 25 bytes a clock for each multiprocessor.
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
