// Philox4x32-10, like kernels/src/philox.rs: key, counter and order of the words are those of
// cuRAND's device API.
//
// Source: Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11.
#pragma once
#include "vector.cuh"

struct Words {
    u32 at[4];
};

// Returns the four random words for a counter and a key.
__device__ __forceinline__ Words philox4x32_10(u64 block, u64 subsequence, u64 seed) {
    Words w = {{u32(block), u32(block >> 32), u32(subsequence), u32(subsequence >> 32)}};
    u32 key0 = u32(seed), key1 = u32(seed >> 32);
#pragma unroll
    for (u32 round = 0; round < 10; ++round) {
        const u64 product0 = u64(0xD2511F53u) * w.at[0], product1 = u64(0xCD9E8D57u) * w.at[2];
        w = {{u32(product1 >> 32) ^ w.at[1] ^ key0, u32(product1), u32(product0 >> 32) ^ w.at[3] ^ key1,
              u32(product0)}};
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return w;
}

// Fills `y`. Element i is made from word offset + i: `f` converts the block that contains the word,
// and element i is the value at the word's place. A thread converts one block at a time. Its
// elements are one 16-byte store if the stream of words and `y` are aligned alike.
template <class F>
__device__ __forceinline__ void fill(u64 n, u64 seed, u64 subsequence, u64 offset, float* y, F f) {
    // offset + n may have 65 bits, so words are counted from the start of the first block.
    const u64 first_block = offset / 4, skipped = offset % 4;
    const u64 end = skipped + n;
    const bool aligned = (reinterpret_cast<u64>(y) - 4 * skipped) % 16 == 0;
    for (u64 b = thread(); 4 * b < end; b += threads()) {
        const Pack<float> values = f(philox4x32_10(first_block + b, subsequence, seed));
        if (aligned && 4 * b >= skipped && 4 * b + 4 <= end) {
            store_pack(y + (4 * b - skipped), values);
        } else {
#pragma unroll
            for (u32 k = 0; k < 4; ++k) {
                const u64 word = 4 * b + k;
                if (word >= skipped && word < end) {
                    y[word - skipped] = values.at[k];
                }
            }
        }
    }
}

// Converts a word to a number in (0, 1]: x·2⁻³² + 2⁻³³ in f32, like cuRAND's curand_uniform. The
// product is exact.
__device__ __forceinline__ float unit(u32 x) {
    return float(x) * 0x1p-32f + 0x1p-33f;
}
