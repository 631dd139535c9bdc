// Normally distributed numbers from Philox4x32-10 and the Box–Muller transform, in the form of
// cuRAND's curand_normal4.
//
// Writes 4 bytes per element. Bound by arithmetic: a logarithm, a root, a sine and a cosine for two
// elements.
#include "philox.cuh"

struct Pair {
    float sin, cos;
};

// Returns √(−2·ln u)·sin v and √(−2·ln u)·cos v. v is computed in units of π, because sinf and cosf
// would bring code, and a stack, for angles far outside the circle. The twin computes v in radians,
// with more rounding, so the two differ by at most 4.2e-7.
__device__ __forceinline__ Pair box_muller(u32 x, u32 y) {
    const float radius = sqrtf(-2.0f * logf(unit(x)));
    Pair z;
    sincospif(float(y) * 0x1p-31f + 0x1p-32f, &z.sin, &z.cos);
    return {radius * z.sin, radius * z.cos};
}

KERNEL philox_normal(u64 n, u64 seed, u64 subsequence, u64 offset, float mean, float deviation, float* y) {
    fill(n, seed, subsequence, offset, y, [=](const Words& words) {
        const Pair a = box_muller(words.at[0], words.at[1]), b = box_muller(words.at[2], words.at[3]);
        return Pack<float>{{mean + deviation * a.sin, mean + deviation * a.cos, mean + deviation * b.sin,
                            mean + deviation * b.cos}};
    });
}
