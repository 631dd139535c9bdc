// Elementwise functions of one operand. The formulas and the errors are in kernels/src/unary.rs.
//
// Moves 8 bytes per element. Bound by memory, or by arithmetic for tanh and gelu on devices with
// the fastest memory.
#include "vector.cuh"

KERNEL exp_f32(u64 n, const float* x, float* y) {
    map(n, x, y, [](float x) { return expf(x); });
}

KERNEL log_f32(u64 n, const float* x, float* y) {
    map(n, x, y, [](float x) { return logf(x); });
}

KERNEL sqrt_f32(u64 n, const float* x, float* y) {
    map(n, x, y, [](float x) { return sqrtf(x); });
}

KERNEL tanh_f32(u64 n, const float* x, float* y) {
    map(n, x, y, [](float x) { return tanhf(x); });
}

KERNEL sigmoid_f32(u64 n, const float* x, float* y) {
    map(n, x, y, [](float x) { return 1.0f / (1.0f + expf(-x)); });
}

KERNEL gelu_f32(u64 n, const float* x, float* y) {
    map(n, x, y, [](float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); });
}
