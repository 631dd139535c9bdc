// y ← a·x + y.
//
// Moves 12 bytes per element. Bound by memory. The product is rounded before the sum, since every
// source here is compiled without contraction.
#include "vector.cuh"

KERNEL axpy(u64 n, float a, const float* x, float* y) {
    zip(n, x, y, y, [=](float x, float y) { return y + a * x; });
}
