// y ← max(x, 0).
//
// Moves 8 bytes an element. Bound by memory. NaN stays and −0 becomes +0, which max of the hardware would not promise.
#include "vector.cuh"

KERNEL relu(u64 n, const float* x, float* y) {
    map(n, x, y, [](float x) { return x <= 0.0f ? 0.0f : x; });
}
