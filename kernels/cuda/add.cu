// y ← y + x; z ← x + y, with y repeated along x; y ← x + a.
//
// Moves 12 bytes per f32 element and 24 per f64 or i64 element; with a scalar, 8 and 16. A repeated
// y comes from a cache after the first read. Bound by memory.
#include "vector.cuh"

// Adds with wrap-around. In C++ only unsigned sums wrap around.
__device__ __forceinline__ i64 wrapping_add(i64 x, i64 y) {
    return i64(u64(x) + u64(y));
}

KERNEL add_(u64 n, float* y, const float* x) {
    zip(n, y, x, y, [](float y, float x) { return y + x; });
}

KERNEL add(u64 n, u64 period, const float* x, const float* y, float* z) {
    zip_repeated(n, period, x, y, z, [](float x, float y) { return x + y; });
}

KERNEL add_i64(u64 n, u64 period, const i64* x, const i64* y, i64* z) {
    zip_repeated(n, period, x, y, z, wrapping_add);
}

KERNEL add_scalar(u64 n, const float* x, float a, float* y) {
    map(n, x, y, [=](float x) { return x + a; });
}

KERNEL add_scalar_i64(u64 n, const i64* x, i64 a, i64* y) {
    map(n, x, y, [=](i64 x) { return wrapping_add(x, a); });
}

KERNEL add_f64(u64 n, u64 period, const double* x, const double* y, double* z) {
    zip_repeated(n, period, x, y, z, [](double x, double y) { return x + y; });
}

KERNEL add_scalar_f64(u64 n, const double* x, double a, double* y) {
    map(n, x, y, [=](double x) { return x + a; });
}
