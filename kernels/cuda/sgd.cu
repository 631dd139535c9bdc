// A step of stochastic gradient descent with momentum: velocity ← momentum·velocity + grad, then
// param ← param − lr·velocity.
//
// Moves 20 bytes per element. Bound by memory.
#include "vector.cuh"

KERNEL sgd(u64 n, float lr, float momentum, const float* __restrict__ grad, float* __restrict__ velocity,
           float* __restrict__ param) {
    each<float>(
        split<float>(n, grad, velocity, param),
        [=](u64 i) {
            const Pack<float> g = load_pack(grad + i);
            Pack<float> v = load_pack(velocity + i), p = load_pack(param + i);
#pragma unroll
            for (u32 k = 0; k < Pack<float>::LEN; ++k) {
                v.at[k] = momentum * v.at[k] + g.at[k];
                p.at[k] -= lr * v.at[k];
            }
            store_pack(velocity + i, v);
            store_pack(param + i, p);
        },
        [=](u64 i) {
            const float v = momentum * velocity[i] + grad[i];
            velocity[i] = v;
            param[i] -= lr * v;
        });
}
