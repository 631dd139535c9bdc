// z ← x · y, with y repeated along x, and y ← x · a.
//
// Moves 12 bytes an element of f32 and 24 of i64, 8 and 16 with a scalar; a repeated y is read from a cache but for the first time.
// Bound by memory.
#include "vector.cuh"

// i64 products wrap around; those of C++ only do so unsigned.
__device__ __forceinline__ i64 wrapping_mul(i64 x, i64 y) {
    return i64(u64(x) * u64(y));
}

KERNEL mul(u64 n, u64 period, const float* x, const float* y, float* z) {
    zip_repeated(n, period, x, y, z, [](float x, float y) { return x * y; });
}

KERNEL mul_i64(u64 n, u64 period, const i64* x, const i64* y, i64* z) {
    zip_repeated(n, period, x, y, z, wrapping_mul);
}

KERNEL mul_scalar(u64 n, const float* x, float a, float* y) {
    map(n, x, y, [=](float x) { return x * a; });
}

KERNEL mul_scalar_i64(u64 n, const i64* x, i64 a, i64* y) {
    map(n, x, y, [=](i64 x) { return wrapping_mul(x, a); });
}
