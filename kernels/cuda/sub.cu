// z ← x − y, with y repeated along x.
//
// Moves 12 bytes per f32 element and 24 per f64 or i64 element. A repeated y comes from a cache
// after the first read. Bound by memory.
#include "vector.cuh"

KERNEL sub(u64 n, u64 period, const float* x, const float* y, float* z) {
    zip_repeated(n, period, x, y, z, [](float x, float y) { return x - y; });
}

KERNEL sub_i64(u64 n, u64 period, const i64* x, const i64* y, i64* z) {
    // The difference wraps around. In C++ only unsigned differences do.
    zip_repeated(n, period, x, y, z, [](i64 x, i64 y) { return i64(u64(x) - u64(y)); });
}

KERNEL sub_f64(u64 n, u64 period, const double* x, const double* y, double* z) {
    zip_repeated(n, period, x, y, z, [](double x, double y) { return x - y; });
}
