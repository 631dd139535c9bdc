// z ← x − y, with y repeated along x.
//
// Moves 12 bytes an element of f32 and 24 of i64; a repeated y is read from a cache but for the first time. Bound by memory.
#include "vector.cuh"

KERNEL sub(u64 n, u64 period, const float* x, const float* y, float* z) {
    zip_repeated(n, period, x, y, z, [](float x, float y) { return x - y; });
}

KERNEL sub_i64(u64 n, u64 period, const i64* x, const i64* y, i64* z) {
    // Wraps around, which C++ does unsigned only.
    zip_repeated(n, period, x, y, z, [](i64 x, i64 y) { return i64(u64(x) - u64(y)); });
}
