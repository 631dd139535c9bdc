// y ← max(x, 0).
//
// Moves 8 bytes per element. Bound by memory. NaN stays NaN and −0 becomes +0, which the max of the
// hardware does not guarantee.
#include "vector.cuh"

KERNEL relu(u64 n, const float* x, float* y) {
    map(n, x, y, [](float x) { return x <= 0.0f ? 0.0f : x; });
}
