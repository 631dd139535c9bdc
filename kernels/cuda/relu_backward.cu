// The gradient of y = max(x, 0), computed from its output: dx ← grad where y > 0 or y is NaN, else
// +0.
//
// Moves 12 bytes per element. Bound by memory.
#include "vector.cuh"

KERNEL relu_backward(u64 n, const float* grad, const float* y, float* dx) {
    zip(n, grad, y, dx, [](float grad, float y) { return y <= 0.0f ? 0.0f : grad; });
}
