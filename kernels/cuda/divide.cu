// z ← x / y, with y repeated along x; y ← x / a. Rounded to nearest, as IEEE 754 requires.
//
// Moves 12 bytes per f32 element and 24 per f64 element; with a scalar, 8 and 16. A repeated y
// comes from a cache after the first read. Bound by memory.
#include "vector.cuh"

KERNEL divide(u64 n, u64 period, const float* x, const float* y, float* z) {
    zip_repeated(n, period, x, y, z, [](float x, float y) { return x / y; });
}

KERNEL divide_scalar(u64 n, const float* x, float a, float* y) {
    map(n, x, y, [=](float x) { return x / a; });
}

KERNEL divide_f64(u64 n, u64 period, const double* x, const double* y, double* z) {
    zip_repeated(n, period, x, y, z, [](double x, double y) { return x / y; });
}

KERNEL divide_scalar_f64(u64 n, const double* x, double a, double* y) {
    map(n, x, y, [=](double x) { return x / a; });
}
